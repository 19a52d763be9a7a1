"""The profile of one replica, for laws that need one: from the capacity model, as if it had been measured."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tangram.fleet import Objectives
from tangram.simulator.controllers import LawKnowledge


@dataclass(frozen=True, slots=True)
class CapacityFacts:
    """What a law that needs a profile may know of one replica and its usual traffic."""

    requests_per_second: float  # the most that meets the objectives
    running_requests: float  # at that rate, mean
    max_running: int
    max_batched_tokens: int
    kv_tokens: int
    # Seconds of a step of (decoding requests, tokens of context of each, prompt tokens).
    step_s: Callable[[float, float, float], float]
    input_tokens: float  # mean
    output_tokens: float  # mean
    objectives: Objectives


@lru_cache(maxsize=16)
def capacity_facts(known: LawKnowledge) -> CapacityFacts:
    """Return the profile of a replica under its usual traffic.

    Raises `InputError` if no rate meets the objectives.
    """
    rate, limits, steps = known.requests_per_second, known.engine.limits, known.engine.steps
    input_tokens, output_tokens = known.prompts.mean, known.answers.mean
    full = round(limits.max_running * (input_tokens + output_tokens))
    return CapacityFacts(
        requests_per_second=rate,
        running_requests=max(1.0, known.replica.under(rate).concurrency),
        max_running=limits.max_running,
        max_batched_tokens=limits.max_batched_tokens,
        kv_tokens=limits.kv_tokens or full,
        step_s=lambda decoding, context, prompt: steps.step_s(decoding, context, prompt, prompt / 2).total,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        objectives=known.intent.objectives,
    )
