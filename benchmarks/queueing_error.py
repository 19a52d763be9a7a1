"""How far the queueing table is off: predictions beside fresh simulations of models on GPUs."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.open_loop import open_loop
from tangram.capacity.hardware import hardware
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import Latency, Percentiles, simulate_open
from tangram.capacity.load.traffic import uniforms
from tangram.capacity.memory.budget import memory_budget
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog import known_model

SEED = 77
CASES = 150
REQUESTS = 15_000
# Fixed here, so that the error does not change with a new calibration.
COEFFICIENTS = Coefficients(
    weights=1.1, experts=1.5, kv=1.2, compute_16=1.5, compute_8=1.6, compute_4=1.6, attention=2.0, moved=10.0,
    reduce_s=5e-6, step_s=1e-3, layer_s=4e-5, sequence_s=2e-5,
)  # fmt: skip
REPLICAS = (
    ("Llama-3.1-8B", "L4", "fp8", 1),
    ("Llama-3.1-8B", "H100-80GB-SXM", "bf16", 1),
    ("Llama-3.1-70B", "H100-80GB-SXM", "fp8", 2),
    ("Llama-3.1-70B", "A100-80GB-SXM", "bf16", 4),
    ("Qwen3-32B", "H100-80GB-SXM", "bf16", 2),
    ("gpt-oss-120b", "H200-141GB-SXM", "mxfp4", 1),
)
INPUTS = (128, 512, 1155, 3000, 9000)
OUTPUTS = (30, 128, 256, 800)
RUNNING = (16, 64, 128, 256)
STEP_TOKENS = (2048, 8192)
VARIABILITY = (1.0, 1.0, 0.7, 2.0, 3.0)
COLUMNS = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Case:
    """One prediction beside one simulation."""

    name: str
    utilisation: float
    predicted: Latency
    simulated: Latency
    preemptions: int

    def __str__(self) -> str:
        """Return both in milliseconds."""
        ttft = _beside(self.predicted.ttft_s, self.simulated.ttft_s)
        tpot = _beside(self.predicted.tpot_s, self.simulated.tpot_s)
        return (
            f"{self.name} at {self.utilisation:.2f}: TTFT {ttft}; TPOT {tpot}; {self.preemptions} preempted"
        )


def errors(cases: int = CASES) -> Iterator[Case]:
    """Yield cases drawn from a seed: model, GPU, lengths, limits and load."""
    uniform = uniforms(SEED)

    def choose(among: tuple[Any, ...]) -> Any:
        return among[int(next(uniform) * len(among))]

    for number in range(cases):
        model, limits, name = _replica(choose(REPLICAS), choose(RUNNING), choose(STEP_TOKENS))
        shape = (choose(INPUTS), choose(OUTPUTS))
        cv, used = choose(VARIABILITY), 0.2 + 0.77 * next(uniform)
        peak = open_loop(model, limits, *shape, rate=0.0).peak_rate
        if not peak:
            continue
        simulated, result = simulate_open(model, limits, *shape, used * peak, cv, REQUESTS, SEED + number)
        predicted = open_loop(model, limits, *shape, used * peak, cv)
        title = f"{name}, {shape[0]}/{shape[1]} tokens, cv {cv:g}"
        yield Case(title, used, predicted, simulated, result.preemptions)


def _replica(
    replica: tuple[str, str, str, int], running: int, step_tokens: int
) -> tuple[StepModel, EngineLimits, str]:
    name, sku, weights, tensor_parallel = replica
    architecture = known_model(name)
    assert architecture is not None
    gpu = hardware(sku)
    foot = footprint(architecture, weights, "bf16", tensor_parallel, gpu)
    room = memory_budget(foot, gpu, EngineSettings(32_768, running, max_batched_tokens=step_tokens)).kv_tokens
    limits = EngineLimits(running, step_tokens, room)
    title = f"{name} {weights} on {tensor_parallel} x {sku}, {running} running, steps of {step_tokens}"
    return StepModel(foot, gpu, COEFFICIENTS), limits, title


def summary(cases: Iterable[Case]) -> str:
    """Return median and P90 of the relative errors, TTFT below and above utilisation 0.85, and TPOT."""
    found = list(cases)
    low = [case for case in found if case.utilisation < 0.85]
    high = [case for case in found if case.utilisation >= 0.85]
    lines = [
        f"Error against {len(found)} fresh simulations of {REQUESTS} requests, models on GPUs (median / P90):"
    ]
    for title, among, which in (
        ("TTFT below utilisation 0.85", low, "ttft_s"),
        ("TTFT from 0.85 to 0.97", high, "ttft_s"),
        ("TPOT", found, "tpot_s"),
    ):
        parts = []
        for column in COLUMNS:
            relative = [
                abs(
                    getattr(getattr(c.predicted, which), column)
                    / getattr(getattr(c.simulated, which), column)
                    - 1
                )
                for c in among
            ]
            parts.append(f"{column} {median(relative):.0%} / {quantiles(relative, n=10)[8]:.0%}")
        lines.append(f"  {title} ({len(among)}): {', '.join(parts)}")
    return "\n".join(lines)


def _beside(predicted: Percentiles, simulated: Percentiles) -> str:
    return " ".join(
        f"{column} {getattr(predicted, column) * 1e3:.4g}/{getattr(simulated, column) * 1e3:.4g}"
        for column in COLUMNS
        if math.isfinite(getattr(simulated, column))
    )
