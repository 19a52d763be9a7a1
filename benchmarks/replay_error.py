"""How far the simulation of a replica is off a real engine: recorded arrivals, replayed on a GPU and simulated.

    python -m benchmarks.replay_error [FILE...]     FILE: what `gpu.py --stage replay` wrote; its title names the GPU

Nothing is fitted to these measurements: the step model is the one that `tangram size` uses on any engine.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.replay_stage import SECONDS, recorded_requests
from benchmarks.engine.setting import ROOT
from tangram.capacity.load.simulate import simulate
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.sizing.assess import Assessor, FittingShape
from tangram.capacity.sizing.request import SizingRequest
from tangram.catalog import known_model, match_product
from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, Shape

_MEASURED = ROOT / "benchmarks" / "engine" / "measured"
MEASURED = tuple(_MEASURED / gpu / "replay.json" for gpu in ("h200", "h100"))
# The server had the shape of Llama-3-8B and positions for 8,208 tokens; this is that shape with enough of them.
MODEL = "Llama-3.1-8B"
MAX_MODEL_LEN, MAX_RUNNING = 8208, 256  # of the server that was measured
MARGIN = 16  # tokens by which the replay stage keeps below the longest request
PERCENTILES = (50, 90, 99)
# TTFT and TPOT in milliseconds: loose and tight for the speeds that were replayed.
OBJECTIVES = ((100.0, 10.0), (120.0, 12.0), (150.0, 10.0), (200.0, 15.0), (250.0, 20.0), (500.0, 25.0))
_NAME = "conversations x "

Latencies = Sequence[tuple[float, float | None]]
"""TTFT and TPOT of each request in milliseconds; None: an answer of one token."""


@dataclass(frozen=True, slots=True)
class ReplayedSpeed:
    """The requests of one speed, as the engine served them and as they were simulated."""

    factor: float
    real: Latencies
    simulated: Latencies

    def ttft_ms(self, percentile: int) -> tuple[float, float]:
        """Return a percentile of TTFT: real, simulated."""
        real, simulated = ([first for first, _ in times] for times in (self.real, self.simulated))
        return _percentile(real, percentile), _percentile(simulated, percentile)

    def tpot_ms(self, percentile: int) -> tuple[float, float]:
        """Return a percentile of TPOT: real, simulated."""
        real, simulated = (
            [gap for _, gap in times if gap is not None] for times in (self.real, self.simulated)
        )
        return _percentile(real, percentile), _percentile(simulated, percentile)

    def attainment(self, ttft_ms: float, tpot_ms: float) -> tuple[float, float]:
        """Return the share of requests that met both objectives: real, simulated."""
        real, simulated = (
            sum(first <= ttft_ms and (gap is None or gap <= tpot_ms) for first, gap in times) / len(times)
            for times in (self.real, self.simulated)
        )
        return real, simulated


@dataclass(frozen=True, slots=True)
class ReplayedGpu:
    """Every speed that was measured on one GPU."""

    sku: str
    speeds: Sequence[ReplayedSpeed]


def replayed_gpu(file: Path) -> ReplayedGpu:
    """Return what was measured, beside its simulation on that GPU. Raises LookupError for an unknown GPU."""
    found = json.loads(file.read_text())
    sku = sku_of(found["title"])
    speeds = [
        ReplayedSpeed(
            factor, [tuple(pair) for pair in row["details"]["ms per request"]], simulated(sku, factor)
        )
        for row in found["rows"]
        if row["name"].startswith(_NAME)
        for factor in [float(row["name"].removeprefix(_NAME))]
    ]
    return ReplayedGpu(sku, speeds)


def sku_of(title: str) -> str:
    """Return the SKU of the device that the title of a result file names first, as CUDA calls it."""
    device = title.split(",", 1)[0]
    sku = match_product(device.replace(" ", "-"))
    if sku is None:
        raise LookupError(f"the catalog has no GPU {device!r}")
    return sku


def simulated(sku: str, factor: float) -> Latencies:
    """Simulate the arrivals of the replay stage at one speed on one GPU."""
    architecture = known_model(MODEL)
    if architecture is None:
        raise LookupError(MODEL)
    recorded = recorded_requests(factor, SECONDS, MAX_MODEL_LEN - MARGIN)
    requests = [SimulatedRequest(r.arrival_s, r.input_tokens, r.output_tokens) for r in recorded]
    request = SizingRequest(1155, 211, 1.0, max_running=MAX_RUNNING, max_model_len=MAX_MODEL_LEN)
    fitted = Assessor(architecture, Prices()).fit(Shape(sku, WHOLE_GPU), request)
    if not isinstance(fitted, FittingShape):
        raise TypeError(fitted.message)
    result = simulate(fitted.model, fitted.limits, requests)
    outside_s = fitted.model.coefficients.request_s
    return [
        (1e3 * (ttft + outside_s), 1e3 * tpot if sent.output_tokens > 1 else None)
        for ttft, tpot, sent in zip(result.ttft_s, result.tpot_s, requests, strict=True)
    ]


def _percentile(values: Sequence[float], percentile: int) -> float:
    return sorted(values)[int(percentile / 100 * (len(values) - 1))]


def latency_table(speeds: Sequence[ReplayedSpeed]) -> str:
    """Return percentiles, real / simulated in milliseconds, as Markdown."""
    titles = [f"{name} P{percentile}" for name in ("TTFT", "TPOT") for percentile in PERCENTILES]
    lines = [f"| speed | requests | {' | '.join(titles)} |", "| ---: " * (2 + len(titles)) + "|"]
    for speed in speeds:
        cells = [f"{real:.0f} / {simulated:.0f}" for real, simulated in map(speed.ttft_ms, PERCENTILES)]
        cells += [f"{real:.1f} / {simulated:.1f}" for real, simulated in map(speed.tpot_ms, PERCENTILES)]
        lines.append(f"| {speed.factor:g} | {len(speed.real)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def attainment_table(speeds: Sequence[ReplayedSpeed]) -> str:
    """Return attainment, real / simulated in per cent, as Markdown."""
    titles = [f"{ttft:g} ms, {tpot:g} ms" for ttft, tpot in OBJECTIVES]
    lines = [f"| speed | {' | '.join(titles)} |", "| ---: " * (1 + len(titles)) + "|"]
    for speed in speeds:
        shares = (speed.attainment(*objectives) for objectives in OBJECTIVES)
        cells = [f"{100 * real:.1f} / {100 * simulated:.1f}" for real, simulated in shares]
        lines.append(f"| {speed.factor:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="*", type=Path, default=MEASURED)
    print("\n\n".join(report(replayed_gpu(file)) for file in parser.parse_args().file))
    return 0


def report(gpu: ReplayedGpu) -> str:
    """Return both tables of one GPU, as Markdown."""
    return "\n\n".join(
        [
            f"{gpu.sku}, milliseconds, measured / simulated:",
            latency_table(gpu.speeds),
            f"{gpu.sku}, requests within TTFT and TPOT, per cent, measured / simulated:",
            attainment_table(gpu.speeds),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
