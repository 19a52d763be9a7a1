"""Kind `Snapshot`: what the operator sees, as a document that plans the same anywhere."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from tangram.api.common.base import GROUP, VERSION
from tangram.api.llm_deployment.facts import Facts
from tangram.catalog import InputError, gpu
from tangram.catalog.reading.fields import Fields
from tangram.fleet import CheckpointFacts, FleetSnapshot, Intent, InvalidIntent, ParsedIntent
from tangram.packing.problem.codec import camel, from_json, to_json
from tangram.recommendation.documents import document_fields as read

KIND = "Snapshot"
API_VERSION = f"{GROUP}/{VERSION}"
LARGEST = 2**53  # beyond, other readers of JSON round
_MOST_REPLICAS = 100_000
_SIGNED = ("priority", "value")  # of LLMDeployments, and of PriorityClasses

_EITHER: Any = ParsedIntent  # the decoder takes the one that knows the keys
Everyone = tuple[ParsedIntent, ...]


@dataclass(frozen=True, slots=True)
class _Holds:
    """How many of what there are: a document that was cut off at the end of a line would plan less."""

    nodes: int
    claims: int
    workloads: int
    intents: int


@dataclass(frozen=True, slots=True)
class _Spec:
    """What the document holds; how much, first."""

    holds: _Holds | None = None
    fleet: FleetSnapshot = field(default_factory=FleetSnapshot)
    intents: Everyone = ()


def snapshot_document(snapshot: FleetSnapshot, intents: Iterable[ParsedIntent]) -> dict[str, Any]:
    """Return the document. It holds what plans depend on, field for field; defaults are left out."""
    everyone = tuple(intents)
    spec = _Spec(_count(snapshot, everyone), snapshot, everyone)
    return {"apiVersion": API_VERSION, "kind": KIND, "spec": to_json(spec, camel)}


def read_snapshot(document: Mapping[str, Any], where: str) -> tuple[FleetSnapshot, Everyone]:
    """Return what was observed and wanted. Raises `InputError` with the path of what is wrong."""
    outer = Fields(document, where)
    read.closed(outer, ("apiVersion", "kind", "metadata", "spec"))
    if document.get("apiVersion") != API_VERSION:
        raise outer.error("apiVersion", f"is {document.get('apiVersion')!r}, this reads {API_VERSION}")
    if not outer.has("spec"):
        raise outer.error("spec", "is missing")
    where = f"{where}: spec"
    rest = document["spec"]
    listed = None
    if isinstance(rest, Mapping):
        listed = rest.get("intents")
        rest = {key: value for key, value in rest.items() if key != "intents"}
    _numbers(rest, where)
    spec = from_json(_Spec, rest, where, camel)
    if listed is not None and not isinstance(listed, list | tuple):
        raise InputError(f"{where}.intents", "must be a list")
    intents = tuple(_intent(each, f"{where}.intents[{i}]") for i, each in enumerate(listed or ()))
    _whole(replace(spec, intents=intents), f"{where}.holds")
    _fleet(spec.fleet, f"{where}.fleet")
    _once(f"{where}.intents", [intent.uid for intent in intents])
    return spec.fleet, intents


def _count(fleet: FleetSnapshot, intents: Everyone) -> _Holds:
    return _Holds(len(fleet.nodes), len(fleet.claims), len(fleet.workloads), len(intents))


def _whole(spec: _Spec, where: str) -> None:
    counts = _count(spec.fleet, spec.intents)
    if spec.holds is None or spec.holds == counts:
        return
    comparison = ((name, getattr(spec.holds, name), getattr(counts, name)) for name in _Holds.__slots__)
    name, stated, counted = next(entry for entry in comparison if entry[1] != entry[2])
    raise InputError(
        f"{where}.{name}",
        f"is {stated}, and there are {counted}: the document is cut off; after an edit leave `holds` out",
    )


def _numbers(value: object, where: str) -> None:
    """Refuse what no count, size or price can be. Only priorities may be below zero."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _SIGNED:
                _numbers(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _numbers(inner, f"{where}[{i}]")
    elif isinstance(value, int | float) and not 0 <= value <= LARGEST:
        raise InputError(where, f"is {value!r}, not a number from 0 to {LARGEST}")


def _fleet(fleet: FleetSnapshot, where: str) -> None:
    _once(f"{where}.nodes", [node.name for node in fleet.nodes])
    _once(f"{where}.pools", [pool.name for pool in fleet.pools])
    for i, node in enumerate(fleet.nodes):
        _sku(node.sku, f"{where}.nodes[{i}].sku")
    for i, pool in enumerate(fleet.pools):
        _sku(pool.sku, f"{where}.pools[{i}].sku")
    for i, (_, facts) in enumerate(fleet.facts):
        _facts(facts, f"{where}.facts[{i}]")
    for i, inspection in enumerate(fleet.inspections):
        if isinstance(inspection.result, CheckpointFacts):
            _facts(inspection.result, f"{where}.inspections[{i}].result")


def _once(where: str, names: list[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(where, f"{twice[0]!r} is there more than once")


def _sku(sku: str | None, where: str) -> None:
    if sku is not None and gpu(sku) is None:
        raise InputError(where, f"no GPU of the catalog is called {sku!r}")


def _facts(facts: CheckpointFacts, where: str) -> None:
    try:
        Facts.model_validate(asdict(facts))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(camel(str(part)) for part in first["loc"])
        raise InputError(f"{where}.{path}", first["msg"]) from error


def _intent(document: object, where: str) -> ParsedIntent:
    """Return one LLMDeployment. One that cannot be read is refused alone, as in the cluster: it keeps what it
    has, and the plan says why. Raises `InputError` where not even its name can be read.
    """
    try:
        _numbers(document, where)
        intent: ParsedIntent = from_json(_EITHER, document, where, camel)
        if isinstance(intent, Intent):
            _bounds(intent, where)
    except InputError as error:
        values = document if isinstance(document, Mapping) else {}
        uid, namespace, name = (values.get(key) for key in ("uid", "namespace", "name"))
        if not (
            isinstance(uid, str) and isinstance(namespace, str) and isinstance(name, str) and uid and name
        ):
            raise
        return InvalidIntent(uid, namespace, name, 1, 0.0, str(error))
    return intent


def _bounds(intent: Intent, where: str) -> None:
    low, high, count = intent.min_replicas, intent.max_replicas, intent.replicas
    if count is not None and not (low == high == count <= _MOST_REPLICAS):
        raise InputError(f"{where}.replicas", f"is {count}, and minReplicas and maxReplicas {low} and {high}")
    if count is None and not 1 <= low <= high <= _MOST_REPLICAS:
        raise InputError(f"{where}.minReplicas", f"{low} to {high} is no range from 1 to {_MOST_REPLICAS}")
    for name, share in (("node", intent.spread.node), ("zone", intent.spread.zone)):
        if not 0 < share <= 1:
            raise InputError(f"{where}.spread.{name}", f"is {share}, must be above 0 and at most 1")
    traffic = (("inputTokens", intent.traffic.input_tokens), ("outputTokens", intent.traffic.output_tokens))
    for name, lengths in traffic:
        if lengths is not None and not (lengths.counts or 1 <= lengths.mean <= lengths.p90):
            raise InputError(
                f"{where}.traffic.{name}",
                f"mean {lengths.mean:g} and p90 {lengths.p90:g}: p90 must be at least mean",
            )
