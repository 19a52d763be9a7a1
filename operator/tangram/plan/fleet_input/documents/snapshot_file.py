"""Read and write the kind `Snapshot`: what the operator observes, as a document."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tangram.api.common.base import GROUP, VERSION
from tangram.api.llm_deployment.facts import validated_facts
from tangram.catalog import InputError, gpu
from tangram.catalog.reading.fields import Fields
from tangram.fleet import CheckpointFacts, FleetSnapshot, Intent, InvalidIntent, ParsedIntent
from tangram.packing.problem.codec import camel, from_json, to_json
from tangram.plan.fleet_input.documents import document_fields as read

KIND = "Snapshot"
API_VERSION = f"{GROUP}/{VERSION}"
LARGEST = 2**53  # above, other JSON readers round
_MOST_REPLICAS = 100_000
_FACTS = frozenset(("architecture", "digest", "tiedEmbeddings"))  # by which facts of a checkpoint are known
_LATER_FACTS = {"attentionBias": False, "qkNorm": False}
_SIGNED = ("priority", "value")  # of LLMDeployments, and of PriorityClasses

_EITHER: Any = ParsedIntent  # the decoder selects the class by its keys


@dataclass(frozen=True, slots=True)
class _Holds:
    """Counts of the document's objects: they reveal a document that is truncated at the end of a line."""

    nodes: int
    claims: int
    workloads: int
    intents: int


@dataclass(frozen=True, slots=True)
class _Spec:
    """The `spec`, with the counts first."""

    holds: _Holds | None = None
    fleet: FleetSnapshot = field(default_factory=FleetSnapshot)
    intents: tuple[ParsedIntent, ...] = ()


def snapshot_document(snapshot: FleetSnapshot, intents: Iterable[ParsedIntent]) -> dict[str, Any]:
    """Return the document: every field on which a plan depends, without defaults."""
    parsed = tuple(intents)
    spec = _Spec(_count(snapshot, parsed), snapshot, parsed)
    return {"apiVersion": API_VERSION, "kind": KIND, "spec": to_json(spec, camel)}


def read_snapshot(document: Mapping[str, Any], where: str) -> tuple[FleetSnapshot, tuple[ParsedIntent, ...]]:
    """Return the snapshot and the LLMDeployments. Raises `InputError` with the path of the wrong field."""
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
    spec = from_json(_Spec, _with_later_facts(rest), where, camel)
    if listed is not None and not isinstance(listed, list | tuple):
        raise InputError(f"{where}.intents", "must be a list")
    intents = tuple(_intent(item, f"{where}.intents[{i}]") for i, item in enumerate(listed or ()))
    _refuse_truncated(replace(spec, intents=intents), f"{where}.holds")
    _check_fleet(spec.fleet, f"{where}.fleet")
    _once(f"{where}.intents", [intent.uid for intent in intents])
    return spec.fleet, intents


def _count(fleet: FleetSnapshot, intents: tuple[ParsedIntent, ...]) -> _Holds:
    return _Holds(len(fleet.nodes), len(fleet.claims), len(fleet.workloads), len(intents))


def _refuse_truncated(spec: _Spec, where: str) -> None:
    counts = _count(spec.fleet, spec.intents)
    if spec.holds is None or spec.holds == counts:
        return
    comparison = ((name, getattr(spec.holds, name), getattr(counts, name)) for name in _Holds.__slots__)
    name, stated, counted = next(entry for entry in comparison if entry[1] != entry[2])
    raise InputError(
        f"{where}.{name}",
        f"is {stated}, but there are {counted}: the document is truncated; after an edit, remove `holds`",
    )


def _with_later_facts(value: Any) -> Any:
    """Add to facts of checkpoints what former versions did not report: a per mille of the weights at most."""
    if isinstance(value, Mapping):
        later = _LATER_FACTS if value.keys() >= _FACTS else {}
        return {**later, **{key: _with_later_facts(inner) for key, inner in value.items()}}
    if isinstance(value, list | tuple):
        return [_with_later_facts(inner) for inner in value]
    return value


def _numbers(value: object, where: str) -> None:
    """Refuse numbers that no count, size or price can be. Only priorities may be negative."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _SIGNED:
                _numbers(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _numbers(inner, f"{where}[{i}]")
    elif isinstance(value, int | float) and not 0 <= value <= LARGEST:
        raise InputError(where, f"is {value!r}, not a number from 0 to {LARGEST}")


def _check_fleet(fleet: FleetSnapshot, where: str) -> None:
    _once(f"{where}.nodes", [node.name for node in fleet.nodes])
    _once(f"{where}.pools", [pool.name for pool in fleet.pools])
    for i, node in enumerate(fleet.nodes):
        _sku(node.sku, f"{where}.nodes[{i}].sku")
    for i, pool in enumerate(fleet.pools):
        _sku(pool.sku, f"{where}.pools[{i}].sku")
    for i, (_, facts) in enumerate(fleet.facts):
        validated_facts(asdict(facts), f"{where}.facts[{i}]")
    for i, inspection in enumerate(fleet.inspections):
        if isinstance(inspection.result, CheckpointFacts):
            validated_facts(asdict(inspection.result), f"{where}.inspections[{i}].result")


def _once(where: str, names: Iterable[str]) -> None:
    if (name := read.duplicate(names)) is not None:
        raise InputError(where, f"{name!r} is there more than once")


def _sku(sku: str | None, where: str) -> None:
    if sku is not None and gpu(sku) is None:
        raise InputError(where, f"no GPU of the catalog is called {sku!r}")


def _intent(document: object, where: str) -> ParsedIntent:
    """Return one LLMDeployment, or why it cannot be read: its replicas then stay, as in the cluster.

    Raises `InputError` where not even its name can be read.
    """
    try:
        _numbers(document, where)
        intent: ParsedIntent = from_json(_EITHER, document, where, camel)
        if isinstance(intent, Intent):
            _check_bounds(intent, where)
    except InputError as error:
        match document:
            case {"uid": str(uid), "namespace": str(namespace), "name": str(name)} if uid and name:
                return InvalidIntent(uid, namespace, name, 1, 0.0, str(error))
        raise
    return intent


def _check_bounds(intent: Intent, where: str) -> None:
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
