"""Apply documents to the snapshot of a cluster, as `kubectl apply` would.

An LLMDeployment, GPUPool or PriorityClass replaces the one of its name, or is added.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tangram.api import (
    PriorityClasses,
    parse,
    parse_pool,
    parse_priority_class,
    priority_classes,
    with_priority,
)
from tangram.api.llm_deployment.pod_metadata import NOT_LISTED
from tangram.api.llm_deployment.status import ScalingDecisionStatus
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError
from tangram.catalog.reading.fields import shortened
from tangram.eligibility.shapes.serving_requirements import counted_lengths, identity
from tangram.fleet import (
    FactsKey,
    FleetSnapshot,
    Intent,
    InvalidIntent,
    InvalidPool,
    Lengths,
    ParsedIntent,
    PriorityClass,
)
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.llm_deployment import metadata_notes, read_llm_deployment
from tangram.plan.fleet_input.documents.merge_documents import merged_input
from tangram.plan.fleet_input.documents.snapshot_file import KIND as SNAPSHOT
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot

APPLIED = ("LLMDeployment", "GPUPool", "PriorityClass")
Models = Mapping[str, Architecture]


@dataclass(frozen=True, slots=True)
class InputDocument:
    """One document of a file."""

    kind: str
    body: Mapping[str, Any]
    where: str  # file, number and kind
    counted_lengths: Mapping[str, Lengths] = field(default_factory=dict)  # of its histograms, by field


@dataclass(frozen=True, slots=True)
class AppliedSnapshot:
    """The snapshot of a cluster after documents were applied."""

    snapshot: FleetSnapshot
    intents: tuple[ParsedIntent, ...]
    models: Models  # by uid of LLMDeployments without an inspected model
    notes: tuple[str, ...] = ()
    # The last decisions of the scaling law by uid, where a cluster was read.
    decisions: Mapping[str, tuple[ScalingDecisionStatus, ...]] = field(default_factory=dict)
    scaling_active: Mapping[str, str] = field(default_factory=dict)  # the condition, likewise


def with_documents_applied(
    snapshot: InputDocument, documents: Iterable[InputDocument], models: Models
) -> AppliedSnapshot:
    """Return the cluster after `documents` are applied. Raises `InputError`."""
    fleet, snapshot_intents = read_snapshot(snapshot.body, snapshot.where)
    uid_models = models_by_uid(snapshot_intents, models)
    named: set[tuple[str, ...]] = set()
    notes: list[str] = []
    applied = tuple(documents)
    changed = tuple(read_priority_class(d, named) for d in applied if d.kind == "PriorityClass")
    fleet = _with_classes(fleet, changed)
    classes = priority_classes(fleet.priority_classes, fleet.default_priority_class)
    classes = replace(classes, in_files=True)
    intents = {(i.namespace, i.name): _prioritized(i, classes, changed) for i in snapshot_intents}
    for document in applied:
        if document.kind == "GPUPool":
            fleet = _with_pool(fleet, document, named, notes)
        elif document.kind == "LLMDeployment":
            intent, model = _intent(document, fleet, intents, models, classes)
            _once(named, "LLMDeployment", identity(intent.namespace, intent.name))
            intents[intent.namespace, intent.name] = intent
            notes += (f"{identity(intent.namespace, intent.name)}: {note}" for note in metadata_notes(intent))
            uid_models |= {} if model is None else {intent.uid: model}
    return AppliedSnapshot(fleet, tuple(intents.values()), uid_models, tuple(notes))


def models_by_uid(intents: Iterable[ParsedIntent], models: Models) -> dict[str, Architecture]:
    """Return `models`, given by NAME or NAMESPACE/NAME, by the uid of their LLMDeployment."""
    return {
        intent.uid: models[name]
        for intent in intents
        for name in (intent.name, identity(intent.namespace, intent.name))
        if name in models
    }


def _once(named: set[tuple[str, ...]], kind: str, name: str) -> None:
    if (kind, name) in named:
        raise InputError(f"{kind} {name}", "is there more than once")
    named.add((kind, name))


def read_priority_class(document: InputDocument, named: set[tuple[str, ...]]) -> PriorityClass:
    """Return a PriorityClass and add it to `named`. Raises `InputError` if it is there already."""
    try:
        priority_class = parse_priority_class(document.body)
    except ValueError as error:
        raise InputError(document.where, str(error)) from error
    _once(named, "PriorityClass", priority_class.name)
    return priority_class


def _with_classes(fleet: FleetSnapshot, changed: tuple[PriorityClass, ...]) -> FleetSnapshot:
    by_name = {item.name: item for item in (*fleet.priority_classes, *changed)}
    return replace(fleet, priority_classes=tuple(sorted(by_name.values())))


def _prioritized(
    intent: ParsedIntent, classes: PriorityClasses, changed: tuple[PriorityClass, ...]
) -> ParsedIntent:
    """Return the intent with the priority of its class, if that is among `changed`."""
    name = getattr(intent, "priority_class_name", "") or classes.default
    if isinstance(intent, InvalidIntent) or name not in {item.name for item in changed}:
        return intent
    kept = intent.refusal if intent.refusal is not None and intent.refusal.reason == NOT_LISTED else None
    prioritized = with_priority(intent, classes.resolve(None if name == classes.default else name))
    return replace(prioritized, refusal=prioritized.refusal or kept)


def _with_pool(
    fleet: FleetSnapshot, document: InputDocument, named: set[tuple[str, ...]], notes: list[str]
) -> FleetSnapshot:
    pool = parse_pool(dict(document.body))
    if isinstance(pool, InvalidPool):
        raise InputError(f"{document.where} {pool.name}", pool.message)
    _once(named, "GPUPool", pool.name)
    labels = {key for node in fleet.nodes for key, _ in node.labels}
    unknown = sorted({key for key, _ in pool.selector} - labels)
    if unknown:
        notes.append(
            f"GPUPool {pool.name} selects by {', '.join(unknown)}, which no node of the snapshot has:"
            " a snapshot holds only labels by which some GPUPool selects when it is taken"
        )
    unread = sorted(
        node.name
        for node in fleet.nodes
        if pool.sku not in (None, node.sku) and not node.product and pool.selects(dict(node.labels))
    )
    if unread:
        notes.append(
            f"GPUPool {pool.name} declares {pool.sku} for node {shortened(unread, 1)}, which the snapshot was"
            " taken without: take a snapshot after applying the GPUPool"
        )
    others = [other for other in fleet.pools if other.name != pool.name]
    return replace(
        fleet,
        pools=tuple(sorted((*others, pool), key=lambda p: p.name)),
        invalid_pools=tuple(other for other in fleet.invalid_pools if other.name != pool.name),
    )


def _intent(
    document: InputDocument,
    fleet: FleetSnapshot,
    intents: Mapping[tuple[str, str], ParsedIntent],
    models: Models,
    classes: PriorityClasses,
) -> tuple[Intent, Architecture | None]:
    """Return the intent of an LLMDeployment, and its model unless that was inspected."""
    meta = document.body.get("metadata")
    meta = dict(meta) if isinstance(meta, Mapping) else {}
    name, namespace = str(meta.get("name", "")), str(meta.get("namespace") or "default")
    before = intents.get((namespace, name))
    inspected = _inspected(document, namespace, fleet)
    own_model = {identity(namespace, name): inspected} if inspected is not None else {}
    requirements = read_llm_deployment(  # checks every key, too
        document.body, document.where, own_model | dict(models), classes, document.counted_lengths
    )
    model = requirements.architecture
    youngest = max((intent.created_at for intent in intents.values()), default=0.0)
    meta |= {"namespace": namespace, "uid": f"new:{namespace}/{name}", "generation": 1}
    intent = parse({"metadata": meta | {"creationTimestamp": _EPOCH}, "spec": document.body["spec"]}, classes)
    if isinstance(intent, InvalidIntent):
        raise InputError(f"{document.where} {identity(namespace, name)}", intent.message)
    intent = replace(intent, traffic=counted_lengths(intent.traffic, document.counted_lengths))
    if before is None:
        intent = replace(intent, created_at=youngest + 1)
    else:
        intent = replace(
            intent, uid=before.uid, generation=before.generation + 1, created_at=before.created_at
        )
    return intent, None if model is inspected else model


_EPOCH = "1970-01-01T00:00:00Z"


def _inspected(document: InputDocument, namespace: str, fleet: FleetSnapshot) -> Architecture | None:
    spec = document.body.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    uri = model.get("uri") if isinstance(model, Mapping) else None
    facts = dict(fleet.facts).get(FactsKey(namespace, str(uri), fleet.engine_image))
    return None if facts is None else architecture_from_facts(facts)


def with_further_input(base: FleetInput, more: list[FleetInput]) -> FleetInput:
    """Return the input of a snapshot with the GPUs and requests of further documents. Raises `InputError`."""
    if not more:
        return base
    if any(part.node_facts or part.pods_listed for part in more):
        raise InputError(
            "--file", f"a {SNAPSHOT} already has Nodes and Pods: add further GPUs by an Inventory"
        )
    others = merged_input([FleetInput(pools=base.pools), *more])
    twice = sorted({gpu.id for gpu in base.gpus} & {gpu.id for gpu in others.gpus})
    if twice:
        raise InputError(f"GPU {twice[0]}", f"is in the {SNAPSHOT} already")
    return replace(
        base,
        gpus=tuple(sorted((*base.gpus, *others.gpus), key=lambda gpu: gpu.id)),
        requests=others.requests,
        headroom=others.headroom,
        terms=base.terms.overridden_by(others.terms),
        inferred=base.inferred | others.inferred,
    )
