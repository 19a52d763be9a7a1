"""The profile of one replica, for laws that need one: from the capacity model, as if it had been measured."""

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import ReplicaUnderLoad
from tangram.capacity.load.traffic import Tokens, lengths_of
from tangram.capacity.steps.step_model import StepModel
from tangram.fleet import Objectives
from tangram.simulator.controllers.controller import CapacityFacts


def capacity_facts(
    steps: StepModel,
    limits: EngineLimits,
    prompts: Tokens,
    answers: Tokens,
    objectives: Objectives,
    *,
    price_per_hour: float,
    start_s: float,
) -> CapacityFacts:
    """Return the profile under traffic of these lengths.

    Raises `ValueError` if no rate meets the objectives.
    """
    replica = ReplicaUnderLoad(steps, limits, prompts, answers)
    rate = replica.max_rate(objectives.ttft, objectives.tpot)
    if rate <= 0:
        raise ValueError("a replica meets the objectives at no rate")
    input_tokens, output_tokens = lengths_of(prompts).mean, lengths_of(answers).mean
    full = round(limits.max_running * (input_tokens + output_tokens))
    return CapacityFacts(
        requests_per_second=rate,
        running_requests=max(1.0, replica.under(rate).concurrency),
        max_running=limits.max_running,
        max_batched_tokens=limits.max_batched_tokens,
        kv_tokens=limits.kv_tokens or full,
        step_s=lambda decoding, context, prompt: steps.step_s(decoding, context, prompt, prompt / 2).total,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        objectives=objectives,
        price_per_hour=price_per_hour,
        start_s=start_s,
    )
