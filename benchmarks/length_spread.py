"""How far predicted times to first token are off where lengths vary more or less than usual.

`python -m benchmarks.length_spread` prints predicted over simulated TTFT for each kind of lengths, with the
spread heeded and with P90 = 2 x mean assumed.
"""

import itertools
import sys
from collections.abc import Callable
from statistics import median, quantiles

from benchmarks.linear_steps import LinearSteps
from benchmarks.open_loop import open_loop
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import Percentiles, simulate_open
from tangram.fleet import Lengths
from tangram.fleet.lengths import fixed

# About an 8B model on one H100, in seconds.
STEPS = LinearSteps(step=0.01, sequence=1.5e-5, context=2e-8, prompt=2.2e-5)
REQUESTS = 4000
RUNNING = (8, 64, 256)
TOKENS = ((4000, 60), (2000, 500), (1000, 200), (300, 400))
LOADS = (0.5, 0.8, 0.95)  # of the peak rate

Pair = Callable[[int, int], tuple[Lengths | float, Lengths | float]]
KINDS: dict[str, Pair] = {
    "fixed": lambda prompt, answer: (fixed(prompt), fixed(answer)),
    "answers fixed": lambda prompt, answer: (prompt, fixed(answer)),
    "P90 = 1.5 x mean": lambda prompt, answer: (Lengths(prompt, 1.5 * prompt), Lengths(answer, 1.5 * answer)),
    "P90 = 2 x mean": lambda prompt, answer: (prompt, answer),
    "P90 = 2.2 x mean": lambda prompt, answer: (Lengths(prompt, 2.2 * prompt), Lengths(answer, 2.2 * answer)),
}


def ratios(kind: Pair, of: Callable[[Percentiles], float]) -> tuple[list[float], list[float]]:
    """Return predicted over simulated TTFT of every load: with the spread, and with the usual one."""
    heeded, usual = [], []
    for running, (prompt, answer), load in itertools.product(RUNNING, TOKENS, LOADS):
        limits, lengths = EngineLimits(max_running=running), kind(prompt, answer)
        rate = load * open_loop(STEPS, limits, *lengths, 0.0).peak_rate
        simulated = of(simulate_open(STEPS, limits, *lengths, rate, requests=REQUESTS)[0].ttft_s)
        heeded.append(of(open_loop(STEPS, limits, *lengths, rate).ttft_s) / simulated)
        usual.append(of(open_loop(STEPS, limits, prompt, answer, rate).ttft_s) / simulated)
    return heeded, usual


def row(values: list[float]) -> str:
    """Return the median, and between what eight of ten lie."""
    tenths = quantiles(values, n=10)
    return f"{median(values):5.2f} {tenths[0]:5.2f} .. {tenths[-1]:4.2f}"


def main() -> None:
    """Print one line for each kind of lengths, of the mean and of the 90th percentile."""
    out = sys.stdout.write
    out(f"{len(RUNNING) * len(TOKENS) * len(LOADS)} loads; predicted / simulated: median, 10 % .. 90 %\n")
    out(f"{'LENGTHS':<18} {'TTFT':<5} {'SPREAD HEEDED':<20} ASSUMED P90 = 2 x MEAN\n")
    for name, kind in KINDS.items():
        for label, of in (("mean", lambda p: p.mean), ("p90", lambda p: p.p90)):
            heeded, usual = ratios(kind, of)
            out(f"{name:<18} {label:<5} {row(heeded):<20} {row(usual)}\n")


if __name__ == "__main__":
    main()
