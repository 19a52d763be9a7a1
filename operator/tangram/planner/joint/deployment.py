"""An LLMDeployment as the plan needs it: what it must carry, where it may run, and which model it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from tangram.api import PriorityClasses, classes_of_files, parse
from tangram.api.facts import Facts
from tangram.capacity.from_facts import architecture_from_facts
from tangram.capacity.sizing import SizingRequest
from tangram.capacity.sizing.shapes import TENSOR_PARALLEL
from tangram.catalog import Architecture, InputError, known_model
from tangram.catalog.fields import Fields
from tangram.fleet import Intent, InvalidIntent, Lengths, MIGPolicy, Spread, Traffic
from tangram.fleet.lengths import around
from tangram.packing import ShapeKey
from tangram.planner.joint import known, read
from tangram.planner.reports import Verdicts

DEFAULT_TOKENS = 1024 + 256  # of a request where nobody said, as `tangram size` has it
INPUT_SHARE = 0.8
UNLOADED_RPS = 1e-3  # where no traffic is told: one request at a time must meet the objectives
AS_STORED, ANY = "AsStored", "Any"
_FETCHED = (
    "hf://",
    "s3://",
    "oci://",
)  # schemes that the operator does not serve yet; plans only need the name
_STAND_IN = "image:///models/stand-in"
_CLASSES = classes_of_files(())


@dataclass(frozen=True, slots=True)
class Wanted:
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


def from_intent(intent: Intent, architecture: Architecture) -> Wanted:
    """Return what an LLMDeployment wants. Raises `InputError` for requests that the model cannot take."""
    return Wanted(
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


def counted_lengths(traffic: Traffic, counted: Mapping[str, Lengths]) -> Traffic:
    """Return the traffic with lengths as counted, by the name of their field: inputTokens, outputTokens."""
    return replace(
        traffic,
        input_tokens=counted.get("inputTokens", traffic.input_tokens),
        output_tokens=counted.get("outputTokens", traffic.output_tokens),
    )


def wanted(
    document: Mapping[str, Any],
    where: str,
    told: Mapping[str, Architecture],
    classes: PriorityClasses = _CLASSES,
    counted: Mapping[str, Lengths] = MappingProxyType({}),
) -> Wanted:
    """Read one LLMDeployment. `told`: models by the name or id of their LLMDeployment, over what it says.
    `classes`: the PriorityClasses that it may name. `counted`: lengths of its requests, over their means.
    """
    outer = Fields(document, where)
    meta = outer.under("metadata")
    if meta is None:
        raise outer.error("metadata", "is missing")
    name, namespace = read.word(meta, "name"), read.optional_word(meta, "namespace") or "default"
    where = f"{where} {identity(namespace, name)}"
    spec = Fields(document, where).under("spec")
    if spec is None:
        raise InputError(f"{where}: spec", "is missing")
    known.refuse_old_forms("LLMDeployment", document, where)
    known.check(spec)
    intent, notes = _intent(document, name, namespace, where, classes)
    intent = replace(intent, traffic=counted_lengths(intent.traffic, counted))
    architecture = (
        told.get(identity(namespace, name)) or told.get(name) or _architecture(document, intent, where)
    )
    try:
        found = from_intent(intent, architecture)
    except InputError as error:
        raise InputError(f"{where}: {error.field}", error.problem) from error
    scaling = spec.under("scaling")
    has_most = found.rps is None or (scaling is not None and scaling.has("maxReplicas"))
    if intent.replicas is not None:
        notes = (*notes, f"spec.replicas is {intent.replicas}: scaling and traffic decide no number")
    return replace(found, most=found.most if has_most else None, notes=notes)


def _intent(
    document: Mapping[str, Any], name: str, namespace: str, where: str, classes: PriorityClasses
) -> tuple[Intent, tuple[str, ...]]:
    """Read it with the API's rules and words; identity that only a cluster gives is made up."""
    meta = {"uid": name, "creationTimestamp": "1970-01-01T00:00:00Z", **document["metadata"]}
    meta |= {"name": name, "namespace": namespace}
    spec, notes = document["spec"], []
    model = spec.get("model")
    uri = model.get("uri") if isinstance(model, Mapping) else None
    if isinstance(model, Mapping) and isinstance(uri, str) and uri.startswith(_FETCHED):
        spec = {**spec, "model": {**model, "uri": _STAND_IN}}
        notes.append(f"the operator does not fetch {uri.split('://')[0]}:// yet")
    try:
        found = parse({"metadata": meta, "spec": spec}, classes)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{where}: metadata", str(error)) from error
    if isinstance(found, InvalidIntent):
        raise InputError(where, found.message)
    if found.refusal is not None:
        raise InputError(where, found.refusal.message)
    return found, tuple(notes)


def _architecture(document: Mapping[str, Any], intent: Intent, where: str) -> Architecture:
    """Return what was inspected, else the well-known model that the URI's last part names."""
    status = document.get("status")
    model = status.get("model") if isinstance(status, Mapping) else None
    facts = model.get("facts") if isinstance(model, Mapping) else None
    if facts is not None:
        try:
            return architecture_from_facts(Facts.model_validate(facts).to_noun())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, ("status.model.facts", *first["loc"])))
            raise InputError(f"{where}: {path}", first["msg"]) from error
    uri = str(document["spec"]["model"]["uri"])
    name = uri.rstrip("/").rsplit("/", 1)[-1]
    found = known_model(name)
    if found is None:
        raise InputError(
            f"{where}: spec.model.uri",
            f"{name!r} is no well-known model, and nobody has inspected it: say what it is with"
            f" --model-facts {intent.name}=DIRECTORY_OR_KNOWN_NAME",
        )
    return found
