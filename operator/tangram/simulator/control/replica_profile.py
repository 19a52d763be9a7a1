"""What scaling laws that need a profile may know of one replica: what sizing predicts, not the simulation."""

from tangram.fleet import Intent, Shape
from tangram.simulator.cluster.engine_setups import EngineSetups
from tangram.simulator.cluster.start_times import StartTimes
from tangram.simulator.controllers.controller import CapacityFacts


def replica_profile(
    engines: EngineSetups, intent: Intent, shape: Shape, price_per_hour: float, start_times: StartTimes
) -> CapacityFacts:
    """Return the facts of a replica under the traffic that the spec states.

    Raises `InputError` where the model does not fit. The rate is 0 where an idle replica misses an objective.
    """
    fitted = engines.fitted(intent.uid, shape)
    model, limits, request = fitted.model, fitted.limits, fitted.request
    rate = fitted.replica.max_rate(request.ttft, request.tpot)
    return CapacityFacts(
        requests_per_second=rate,
        running_requests=fitted.replica.under(rate).concurrency,
        max_running=limits.max_running,
        max_batched_tokens=limits.max_batched_tokens,
        kv_tokens=limits.kv_tokens or 0,
        step_s=lambda decode, context, tokens: model.step_s(decode, context, tokens, tokens / 2).total,
        input_tokens=request.prompts.mean,
        output_tokens=request.answers.mean,
        objectives=intent.objectives,
        price_per_hour=price_per_hour,
        start_s=start_times.mean_s,
    )
