"""An observed LLMDeployment as the joint plan needs it: what it must carry on the engine that there is."""

from tangram.capacity.sizing import SizingRequest
from tangram.catalog import Architecture, InputError
from tangram.fleet import Intent
from tangram.packing import ShapeKey
from tangram.planner.joint.deployment import (
    ANY,
    AS_STORED,
    DEFAULT_TOKENS,
    INPUT_SHARE,
    UNLOADED_RPS,
    Wanted,
    identity,
)

_DEGREE = 1  # of tensor parallelism: what the bundled engine can do
_KV = "bf16"


def lacking(intent: Intent, architecture: Architecture) -> str:
    """Return what the bundled engine cannot do of what is asked, the empty string where it can do all."""
    if intent.tensor_parallel and _DEGREE not in intent.tensor_parallel:
        degrees = " or ".join(map(str, intent.tensor_parallel))
        return f"placement.tensorParallel asks for {degrees}; the engine serves on one GPU or slice"
    if intent.precision not in {ANY, AS_STORED, architecture.precision}:
        return (
            f"engine.precision asks for {intent.precision}; the engine serves weights as they are stored,"
            f" {architecture.precision}"
        )
    if intent.kv_precision != _KV:
        return f"engine.kvCachePrecision asks for {intent.kv_precision}; the engine's KV cache has 16 bits"
    return ""


def from_intent(
    intent: Intent, architecture: Architecture, present: tuple[ShapeKey, int] | None = None
) -> Wanted:
    """Return what an observed LLMDeployment wants. `present`: the shape it runs on, and how many it wants of
    it. Raises `InputError` for requests that the model cannot take.
    """
    rps = intent.traffic.requests_per_second or None
    return Wanted(
        id=identity(intent.namespace, intent.name),
        namespace=intent.namespace,
        name=intent.name,
        architecture=architecture,
        request=sizing_request(intent, architecture),
        rps=rps,
        least=intent.min_replicas,
        most=intent.max_replicas,
        allowed_skus=intent.allowed_skus,
        denied_skus=intent.denied_skus,
        mig=intent.mig,
        tensor_parallel=(_DEGREE,),
        precision=AS_STORED,
        priority=intent.priority,
        budget_per_hour=intent.budget_per_hour,
        spread=intent.spread,
        paused=intent.paused,
        notes=(),
        uniform=True,
        present=present,
        impossible=lacking(intent, architecture),
    )


def sizing_request(intent: Intent, architecture: Architecture) -> SizingRequest:
    """Return the requests that one replica is sized for. Raises `InputError`."""
    longest = architecture.max_position_embeddings
    if intent.max_model_len is not None:
        longest = min(longest, intent.max_model_len)
    usual = min(DEFAULT_TOKENS, max(2, longest // 2))
    objectives = [each for each in (intent.ttft, intent.tpot) if each is not None]
    try:
        return SizingRequest(
            input_tokens=intent.traffic.input_tokens or max(1, int(usual * INPUT_SHARE)),
            output_tokens=intent.traffic.output_tokens or max(1, usual - int(usual * INPUT_SHARE)),
            rps=intent.traffic.requests_per_second or UNLOADED_RPS,
            ttft_ms=intent.ttft.milliseconds if intent.ttft else None,
            tpot_ms=intent.tpot.milliseconds if intent.tpot else None,
            # The stricter of the two for both: a plan on the safe side.
            percentile=max((each.percentile for each in objectives), default=90),
            kv_precision=intent.kv_precision,
            max_model_len=longest,
            max_running=intent.max_running_requests,
        )
    except InputError as error:
        raise InputError("traffic", f"{error.field} {error.problem}") from error
