"""An LLMDeployment as the plan needs it: what it must carry, where it may run, and which model it is.

What the API has is read as the operator reads it. What it will have (traffic, pools' neighbours in
`placement`, the precision policy) is read here until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tangram.api.facts import Facts
from tangram.api.parse import parse
from tangram.capacity.from_facts import architecture_from_facts
from tangram.capacity.sizing import SizingRequest
from tangram.capacity.sizing.shapes import TENSOR_PARALLEL
from tangram.catalog import Architecture, InputError, known_model
from tangram.catalog.fields import Fields
from tangram.catalog.precision import precision
from tangram.fleet import Intent, InvalidIntent, MIGPolicy, Spread
from tangram.packing import ShapeKey
from tangram.planner.joint import known, read

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
    notes: tuple[str, ...]
    # In the cluster a Service spreads requests evenly, so all replicas are alike.
    uniform: bool = False
    # What it runs on and how many of those the scaling law wants: any other shape has to carry as much.
    present: tuple[ShapeKey, int] | None = None
    impossible: str = ""  # why nothing can serve it, whatever the fleet has


def identity(namespace: str, name: str) -> str:
    """Return how a plan calls an LLMDeployment."""
    return name if namespace in {"", "default"} else f"{namespace}/{name}"


def wanted(document: Mapping[str, Any], where: str, told: Mapping[str, Architecture]) -> Wanted:
    """Read one LLMDeployment. `told`: models by the name or id of their LLMDeployment, over what it says."""
    outer = Fields(document, where)
    meta = outer.under("metadata")
    if meta is None:
        raise outer.error("metadata", "is missing")
    name, namespace = read.word(meta, "name"), read.optional_word(meta, "namespace") or "default"
    where = f"{where} {identity(namespace, name)}"
    spec = Fields(document, where).under("spec")
    if spec is None:
        raise InputError(f"{where}: spec", "is missing")
    known.check(spec)
    intent, notes = _intent(document, name, namespace, where)
    architecture = (
        told.get(identity(namespace, name)) or told.get(name) or _architecture(document, intent, where)
    )
    traffic, placement = _under(spec, "traffic"), _under(spec, "placement")
    rps = read.number(traffic, "requestsPerSecond", most=1e6)
    request = _request(intent, architecture, traffic, rps, _under(spec, "engine"), where)
    notes += known.ignored(placement.values)
    scaling = _under(spec, "scaling")
    return Wanted(
        id=identity(namespace, name),
        namespace=namespace,
        name=name,
        architecture=architecture,
        request=request,
        rps=rps or None,
        least=intent.min_replicas,
        most=intent.max_replicas if scaling.has("max") or not rps else None,
        allowed_skus=intent.allowed_skus,
        denied_skus=intent.denied_skus,
        mig=intent.mig,
        tensor_parallel=_tensor_parallel(placement),
        precision=_precision(_under(spec, "engine")),
        priority=spec.size("priority", 0, minimum=-(10**9)),
        budget_per_hour=read.number(placement, "budgetPerHour"),
        spread=_spread(placement),
        paused=intent.paused,
        notes=tuple(notes),
    )


def _under(fields: Fields, key: str) -> Fields:
    return fields.under(key) or Fields({}, f"{fields.where}: {key}")


def _intent(document: Mapping[str, Any], name: str, namespace: str, where: str) -> tuple[Intent, list[str]]:
    """Read what the API has, with its rules and its words; identity that only a cluster gives is made up."""
    meta = {"uid": name, "creationTimestamp": "1970-01-01T00:00:00Z", **document["metadata"]}
    meta |= {"name": name, "namespace": namespace}
    spec, notes = document["spec"], []
    model = spec.get("model")
    uri = model.get("uri") if isinstance(model, Mapping) else None
    if isinstance(model, Mapping) and isinstance(uri, str) and uri.startswith(_FETCHED):
        spec = {**spec, "model": {**model, "uri": _STAND_IN}}
        notes.append(f"the operator does not fetch {uri.split('://')[0]}:// yet")
    try:
        found = parse({"metadata": meta, "spec": spec})
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{where}: metadata", str(error)) from error
    if isinstance(found, InvalidIntent):
        raise InputError(where, found.message)
    return found, notes


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


def _request(
    intent: Intent, architecture: Architecture, traffic: Fields, rps: float | None, engine: Fields, where: str
) -> SizingRequest:
    longest = architecture.max_position_embeddings
    if intent.max_model_len is not None:
        longest = min(longest, intent.max_model_len)
    usual = min(DEFAULT_TOKENS, max(2, longest // 2))
    input_tokens = traffic.size("inputTokens", max(1, int(usual * INPUT_SHARE)))
    output_tokens = traffic.size("outputTokens", max(1, usual - int(usual * INPUT_SHARE)))
    objectives = [each for each in (intent.ttft, intent.tpot) if each is not None]
    try:
        return SizingRequest(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            rps=rps or UNLOADED_RPS,
            ttft_ms=intent.ttft.milliseconds if intent.ttft else None,
            tpot_ms=intent.tpot.milliseconds if intent.tpot else None,
            # The stricter of the two for both: a plan on the safe side.
            percentile=max((each.percentile for each in objectives), default=90),
            kv_precision=read.optional_word(engine, "kvCachePrecision") or "bf16",
            max_model_len=longest,
            max_running=intent.max_running_requests,
        )
    except InputError as error:
        raise InputError(f"{where}: traffic", f"{error.field} {error.problem}") from error


def _tensor_parallel(placement: Fields) -> tuple[int, ...]:
    value = placement.values.get("tensorParallel")
    if value is None:
        return TENSOR_PARALLEL
    listed = value if isinstance(value, list) else [value]
    if not listed or any(each not in TENSOR_PARALLEL or isinstance(each, bool) for each in listed):
        known = ", ".join(map(str, TENSOR_PARALLEL))
        raise placement.error("tensorParallel", f"is {value!r}, must be one or some of {known}")
    return tuple(sorted(set(listed)))


def _precision(engine: Fields) -> str:
    value = read.optional_word(engine, "precision") or ANY
    return value if value in {ANY, AS_STORED} else precision(value, f"{engine.where}: precision").name


def _spread(placement: Fields) -> Spread:
    given = placement.under("spread")
    if given is None:
        return Spread()
    read.closed(given, ("node", "zone"))
    shares = [read.number(given, key, 1.0, most=1) for key in ("node", "zone")]
    for key, share in zip(("node", "zone"), shares, strict=True):
        if not share:
            raise given.error(key, "must be above 0: the largest share of the replicas in one place")
    return Spread(shares[0] or 1.0, shares[1] or 1.0)
