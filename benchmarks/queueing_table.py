"""Make `operator/tangram/capacity/queueing.yaml`: waits by utilisation, variability and batch class.

    python -m benchmarks.queueing_table            # all of it, about ten minutes on one core
    python -m benchmarks.queueing_table --check    # three rows again: fails if they differ
    python -m benchmarks.queueing_table --errors   # the error alone, case by case, and into the file's header

Each entry is one simulation of replicas made for it: step times are linear in batch and prompt tokens, lengths
lognormal with P90 = 2 x mean, arrivals Weibull. Nothing is random: seeds are fixed. Its error is that against
fresh simulations, with other seeds, of models on GPUs that the table knows nothing of.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from benchmarks.linear_steps import LinearSteps
from benchmarks.queueing_error import errors, summary
from tangram.capacity.load.batching import UniformLoad
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import percentiles
from tangram.capacity.load.queueing import COLUMNS, Row, row_key, table
from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import LENGTH_CV2, open_traffic
from tangram.capacity.steps.clock import clock

FILE = Path(__file__).parent.parent / "operator" / "tangram" / "capacity" / "queueing.yaml"
SEED = 20_04

LOADS = (0.3, 0.5, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97)
VARIABILITY = (0.5, 1.0, 2.0, 4.0)
SLOTS = (1.0, 4.0, 16.0, 64.0, 256.0)
SLOPE = (0.2, 0.8)
PREFILL = (0.05, 0.35, 0.65, 0.9)

PROMPT = 1000  # tokens, mean; what it costs follows from the prefill share
REQUESTS = 8_000
REQUESTS_NEAR_PEAK = 20_000  # from utilisation 0.9 on, where one busy spell is long
WARM_UP = 0.1  # share of requests, from an empty replica, that is not counted


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="remake some rows and compare")
    parser.add_argument("--errors", action="store_true", help="measure the error again, keep the rows")
    options = parser.parse_args(argv)
    if options.check:
        return check()
    if not options.errors:
        print(f"{len(list(keys()))} rows, a few seconds each")
        FILE.write_text(
            document({key: row(*key) for key in keys()}, "Error not measured yet."), encoding="utf-8"
        )
        table.cache_clear()
    cases = []
    for case in errors():
        print(case)
        cases.append(case)
    rows = {key: table().rows[row_key(*key)] for key in keys()}
    FILE.write_text(document(rows, summary(cases)), encoding="utf-8")
    return 0


def keys() -> Iterator[tuple[float, float, float, float]]:
    """Yield (variability, slots, slope, prefill) of every row."""
    return product(VARIABILITY, SLOTS, SLOPE, PREFILL)


def check(count: int = 3) -> int:
    """Remake `count` rows spread over the table; return 1 and say which if one differs."""
    every = list(keys())
    for key in every[:: len(every) // count][:count]:
        wait, slowdown = row(*key)
        stored = table().rows[row_key(*key)]
        if stored != (wait, slowdown):
            print(f"{row_key(*key)}: queueing.yaml is not what the simulation says", file=sys.stderr)
            return 1
    return 0


def row(variability: float, slots: float, slope: float, prefill: float) -> tuple[str, str]:
    """Simulate one row; return wait and slowdown, as in the file."""
    model, shape = _shape(slots, slope, prefill)
    found = [_point(model, shape, slots, load, variability) for load in LOADS]
    waits = _columns([wait for wait, _ in found], _rising)
    slowdowns = _columns([slowdown for _, slowdown in found], list)
    return _text(waits), _text(slowdowns)


def _shape(slots: float, slope: float, prefill: float) -> tuple[LinearSteps, UniformLoad]:
    """A replica of that class. A full decode step takes a second.

    With gaps = 4 x slots a prompt joins every fourth step of the full replica; how many join a step does not
    matter otherwise, as `batching` accounts for it.
    """
    answer = max(128, round(4 * slots))
    peak = slots * (1 - prefill) / (answer - 1)
    model = LinearSteps(step=1 - slope, sequence=slope / slots, prompt=prefill / peak / PROMPT)
    limits = EngineLimits(int(slots), 8 * PROMPT + int(slots))
    context = PROMPT + answer * (1 + LENGTH_CV2) / 2
    return model, UniformLoad(clock(model, context), limits, PROMPT, answer, PROMPT / 2)


def _point(
    model: LinearSteps, shape: UniformLoad, slots: float, load: float, variability: float
) -> tuple[Row, Row]:
    """Simulate one load; return what it adds to wait and TPOT in the table's units."""
    most = shape.decoding_of(slots, 0.0)
    peak, full = shape.rate(most), shape.step_s(most)
    count = REQUESTS_NEAR_PEAK if load >= 0.9 else REQUESTS
    requests = open_traffic(count, load * peak, PROMPT, shape.output_tokens, variability, SEED)
    result = simulate(model, shape.limits, requests)

    decoding = shape.decoding_at(load * peak, most)
    before = shape.before_s(decoding, (1 - math.exp(-decoding)) / 2)
    first = int(count * WARM_UP)
    waits = [
        (ttft - before - shape.own_s(decoding, request.input_tokens)) * peak
        for ttft, request in zip(result.ttft_s[first:], requests[first:], strict=True)
    ]
    mean = shape.step_s(decoding)
    slowdowns = [
        (tpot - mean) / full
        for tpot, request in zip(result.tpot_s[first:], requests[first:], strict=True)
        if request.output_tokens > 1
    ]
    return _row(waits), _row(slowdowns)


def _row(values: list[float]) -> Row:
    found = percentiles(values)
    return (found.mean, found.p50, found.p90, found.p95, found.p99)


def _columns(rows: list[Row], smooth: Callable[[list[float]], list[float]]) -> list[Row]:
    """Apply `smooth` to every column."""
    columns = [smooth(list(column)) for column in zip(*rows, strict=True)]
    return list(zip(*columns, strict=True))


def _rising(values: list[float]) -> list[float]:
    """The nearest sequence that starts at 0 or above and never falls (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((max(0.0, value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (last, more), (before, some) = pools.pop(), pools.pop()
            pools.append(((before * some + last * more) / (some + more), some + more))
    return [value for value, count in pools for _ in range(count)]


def _text(rows: list[Row]) -> str:
    return ", ".join(" ".join(f"{value:.3g}" for value in row) for row in rows)


def document(rows: dict[tuple[float, float, float, float], tuple[str, str]], error: str) -> str:
    """Return the file."""
    lines = [
        "# Made by `python -m benchmarks.queueing_table`; tangram/capacity/load/queueing.py says what it means.",
        f"# {len(rows) * len(LOADS)} simulations of {REQUESTS} requests ({REQUESTS_NEAR_PEAK} from utilisation 0.9 on), seed {SEED}.",
        *(f"# {line}" for line in error.splitlines()),
        "axes:",
        f"  utilisation: {list(LOADS)}",
        f"  variability: {list(VARIABILITY)}",
        f"  slots: {list(SLOTS)}",
        f"  slope: {list(SLOPE)}",
        f"  prefill: {list(PREFILL)}",
        f"# Per utilisation: {' '.join(COLUMNS)}.",
        "rows:",
    ]
    for key, (wait, slowdown) in rows.items():
        lines += [f"  {row_key(*key)}:", f"    wait: {wait}", f"    slowdown: {slowdown}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
