"""An LLMDeployment as the plan needs it: what it must carry, where it may run, and which model it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.capacity.sizing import SizingRequest
from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL
from tangram.catalog import Architecture, InputError
from tangram.eligibility.shapes.evaluation_reports import Verdicts
from tangram.fleet import DEFAULT_PERCENTILE, Intent, Lengths, MIGPolicy, ShapeKey, Spread, Traffic
from tangram.fleet.lengths import around

DEFAULT_TOKENS = 1024 + 256  # of a request where nobody said, as `tangram size` has it
INPUT_SHARE = 0.8
UNLOADED_RPS = 1e-3  # where no traffic is told: one request at a time must meet the objectives
AS_STORED, ANY = "AsStored", "Any"


@dataclass(frozen=True, slots=True)
class ServingRequirements:
    """One LLMDeployment, ready to be sized."""

    id: str  # NAMESPACE/NAME, in the default namespace NAME: how instances name their owner
    namespace: str
    name: str
    architecture: Architecture
    request: SizingRequest
    rps: float | None  # None: no traffic told, the fewest replicas it allows
    least: int  # replicas
    most: int | None  # replicas; None: as many as the traffic needs
    allowed_skus: tuple[str, ...]
    denied_skus: tuple[str, ...]
    mig: MIGPolicy
    tensor_parallel: tuple[int, ...]
    precision: str  # Any | AsStored | a format
    priority: int
    budget_per_hour: float | None
    spread: Spread
    paused: bool
    is_off: bool  # set to no replica: what it has is free
    notes: tuple[str, ...]
    minimum_share: float = 0.0  # of a GPU, above which CPU and memory are within the operator's limits
    pools: tuple[str, ...] = ()  # names of GPUPools it may run in; empty: anywhere
    # In the cluster a Service spreads requests evenly, so all replicas are alike.
    uniform: bool = False
    # What it runs on and how many of those the scaling law wants: any other shape has to carry as much.
    present: tuple[ShapeKey, int] | None = None
    formats_running: tuple[tuple[ShapeKey, str], ...] = ()  # of weights, by the shape that replicas stand on
    impossible: str = ""  # why nothing can serve it, whatever the fleet has
    # Where precision is Any: the formats of the engine, its reports about quantised ones. None: any format.
    formats: tuple[str, ...] = ()
    verdicts: Verdicts | None = None


def identity(namespace: str, name: str) -> str:
    """Return how a plan calls an LLMDeployment."""
    return name if namespace in {"", "default"} else f"{namespace}/{name}"


def from_intent(intent: Intent, architecture: Architecture) -> ServingRequirements:
    """Return what an LLMDeployment wants. Raises `InputError` for requests that the model cannot take."""
    return ServingRequirements(
        id=identity(intent.namespace, intent.name),
        namespace=intent.namespace,
        name=intent.name,
        architecture=architecture,
        request=sizing_request(intent, architecture),
        # So many replicas as are set, whatever the traffic.
        rps=intent.traffic.requests_per_second if intent.replicas is None else None,
        least=intent.min_replicas,
        most=intent.max_replicas,
        allowed_skus=intent.allowed_skus,
        denied_skus=intent.denied_skus,
        mig=intent.mig,
        tensor_parallel=intent.tensor_parallel or TENSOR_PARALLEL,
        precision=intent.precision,
        priority=intent.priority,
        budget_per_hour=intent.budget_per_hour,
        spread=intent.spread,
        paused=intent.paused,
        is_off=intent.is_off,
        notes=(),
        pools=intent.pools,
    )


def sizing_request(intent: Intent, architecture: Architecture) -> SizingRequest:
    """Return the requests that replicas are sized for. Raises `InputError` for what the model cannot take."""
    longest = architecture.max_position_embeddings
    if intent.max_model_len is not None:
        longest = min(longest, intent.max_model_len)
    usual = min(DEFAULT_TOKENS, max(2, longest // 2))
    traffic = intent.traffic
    objectives = [each for each in (intent.ttft, intent.tpot) if each is not None]
    prompts = traffic.input_tokens or around(max(1, int(usual * INPUT_SHARE)))
    answers = traffic.output_tokens or around(max(1, usual - int(usual * INPUT_SHARE)))
    if prompts.mean + answers.mean > longest:
        raise InputError(
            "spec.traffic:",
            f"the mean request has {prompts.mean:.10g} + {answers.mean:.10g} tokens, more than the longest"
            f" that engine.maxModelLen and the checkpoint allow, {longest}",
        )
    try:
        return SizingRequest(
            input_tokens=prompts,
            output_tokens=answers,
            rps=traffic.requests_per_second or UNLOADED_RPS,
            ttft_ms=float(intent.ttft.milliseconds) if intent.ttft else None,
            tpot_ms=float(intent.tpot.milliseconds) if intent.tpot else None,
            # The stricter of the two for both: a plan on the safe side.
            percentile=max((each.percentile for each in objectives), default=DEFAULT_PERCENTILE),
            kv_precision=intent.kv_precision,
            max_model_len=longest,
            max_running=intent.max_running_requests,
        )
    except InputError as error:
        raise InputError("traffic", f"{error.field} {error.problem}") from error


def counted_lengths(traffic: Traffic, counted: Mapping[str, Lengths]) -> Traffic:
    """Return the traffic with lengths as counted, by the name of their field: inputTokens, outputTokens."""
    return replace(
        traffic,
        input_tokens=counted.get("inputTokens", traffic.input_tokens),
        output_tokens=counted.get("outputTokens", traffic.output_tokens),
    )
