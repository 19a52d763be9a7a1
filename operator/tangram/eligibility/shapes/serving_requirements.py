"""What an LLMDeployment requires of shapes that serve it: the model, its requests, where it may run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.capacity.sizing import SizingRequest
from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL, Split
from tangram.catalog import Architecture, InputError
from tangram.eligibility.shapes.evaluation_reports import Verdict
from tangram.fleet import (
    BUNDLED,
    EngineRuntime,
    Intent,
    Lengths,
    PodNeeds,
    ProvisionedLoad,
    ShapeKey,
    Traffic,
)
from tangram.fleet.lengths import around

DEFAULT_TOKENS = 1024 + 256  # of a request without stated lengths, as in `tangram size`
INPUT_SHARE = 0.8
UNLOADED_RPS = 1e-3  # without stated traffic: one request at a time must meet the objectives
AS_STORED, ANY = "AsStored", "Any"


@dataclass(frozen=True, slots=True)
class ServingRequirements:
    """One LLMDeployment and its model, ready to be sized. Fields beside `intent` are derived from it."""

    intent: Intent
    architecture: Architecture
    request: SizingRequest
    rps: float | None  # None: no traffic is stated, so the fewest replicas are enough
    least: int  # replicas
    most: int | None  # replicas; None: as many as the traffic needs
    formats: tuple[str, ...]  # of the weights; empty: those that each GPU is good at
    splits: tuple[Split, ...]  # of the model over GPUs
    pools: tuple[str, ...]  # names of GPUPools it may run in; empty: anywhere
    notes: tuple[str, ...] = ()
    # In the cluster a Service spreads requests evenly, so all replicas are alike.
    uniform: bool = False
    # The shape that runs, and how many of it the scaling law wants: any other shape has to carry as much.
    present: tuple[ShapeKey, int] | None = None
    load: ProvisionedLoad | None = None  # that these carry, by the scaling law; None: not known
    formats_running: tuple[tuple[ShapeKey, str], ...] = ()  # of weights, by the shape that replicas stand on
    impossible: str = ""  # why nothing can serve it, whatever the fleet has
    pod_needs: PodNeeds | None = None  # limits on CPU and memory of a replica; None: there are none
    # Of reports about the checkpoint; a quantised format needs one within tolerance. None: none is needed.
    verdicts: tuple[Verdict, ...] | None = None
    runtime: EngineRuntime | None = None  # None: the bundled engine
    runtime_reason: str = ""  # why this runtime, where there was a choice

    @property
    def runtime_name(self) -> str:
        """The name of the runtime of its shapes."""
        return BUNDLED if self.runtime is None else self.runtime.name

    @property
    def id(self) -> str:
        """The name of the LLMDeployment in plans, by which instances name their owner."""
        return identity(self.intent.namespace, self.intent.name)


def identity(namespace: str, name: str) -> str:
    """Return the name of an LLMDeployment in plans: NAMESPACE/NAME, NAME in the default namespace."""
    return name if namespace in {"", "default"} else f"{namespace}/{name}"


def requirements_of(intent: Intent, architecture: Architecture) -> ServingRequirements:
    """Return the requirements on any engine. Raises `InputError` for requests that the model cannot take."""
    own, named = architecture.precision, intent.precision
    return ServingRequirements(
        intent,
        architecture,
        sizing_request(intent, architecture),
        # A set number of replicas holds whatever the traffic.
        rps=intent.traffic.requests_per_second if intent.replicas is None else None,
        least=intent.min_replicas,
        most=intent.max_replicas,
        formats=() if named == ANY else (own if named == AS_STORED else named,),
        splits=tuple((degree, 1) for degree in intent.tensor_parallel or TENSOR_PARALLEL),
        pools=intent.pools,
    )


def sizing_request(intent: Intent, architecture: Architecture) -> SizingRequest:
    """Return the requests that replicas are sized for. Raises `InputError` the model cannot take."""
    longest = architecture.max_position_embeddings
    if intent.max_model_len is not None:
        longest = min(longest, intent.max_model_len)
    usual = min(DEFAULT_TOKENS, max(2, longest // 2))
    traffic = intent.traffic
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
            percentile=intent.objectives.strictest_percentile,
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
