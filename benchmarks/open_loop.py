"""Predictions for one replica under open load, in one call each: what benchmarks and tests compare with."""

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import Latency, ReplicaUnderLoad
from tangram.capacity.load.traffic import Tokens
from tangram.capacity.steps.decode_runs import Steps
from tangram.fleet import Objective


def open_loop(
    model: Steps, limits: EngineLimits, prompts: Tokens, answers: Tokens, rate: float, cv: float = 1.0
) -> Latency:
    """Return percentiles of TTFT and TPOT at `rate` requests per second whose gaps vary by `cv`."""
    return ReplicaUnderLoad(model, limits, prompts, answers, cv).under(rate)


def max_rate(
    model: Steps,
    limits: EngineLimits,
    prompts: Tokens,
    answers: Tokens,
    ttft: Objective | None = None,
    tpot: Objective | None = None,
) -> float:
    """Return the highest rate that meets objectives, 0 if even one request alone misses them."""
    return ReplicaUnderLoad(model, limits, prompts, answers).max_rate(ttft, tpot)
