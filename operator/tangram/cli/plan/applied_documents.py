"""A cluster's snapshot with more documents beside it: what would be, were they applied, too.

An LLMDeployment or a GPUPool takes the place of the one of its name, as `kubectl apply` has it.
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
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.catalog import Architecture, InputError
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
from tangram.recommendation.documents.fleet_input import FleetInput, PlanTerms
from tangram.recommendation.documents.llm_deployment import read_llm_deployment
from tangram.recommendation.documents.merge_documents import merged_input
from tangram.recommendation.documents.snapshot_file import KIND as SNAPSHOT
from tangram.recommendation.documents.snapshot_file import read_snapshot

__all__ = ["SNAPSHOT", "Document", "Observed", "applied", "beside", "read_class", "told_of"]

_APPLIED = ("LLMDeployment", "GPUPool", "PriorityClass")
Models = Mapping[str, Architecture]


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    kind: str
    body: Mapping[str, Any]
    where: str  # file, number and kind
    counted: Mapping[str, Lengths] = field(default_factory=dict)  # lengths that its histograms hold, by field

    @property
    def applies(self) -> bool:
        """Whether it replaces or adds an object of the cluster."""
        return self.kind in _APPLIED


@dataclass(frozen=True, slots=True)
class Observed:
    """A cluster at one instant."""

    snapshot: FleetSnapshot
    intents: tuple[ParsedIntent, ...]
    told: Models  # models that nobody has inspected, by uid
    notes: tuple[str, ...] = ()


def applied(snapshot: Document, documents: Iterable[Document], models: Models) -> Observed:
    """Return the cluster as it would be with `documents` applied. Raises `InputError`."""
    fleet, everyone = read_snapshot(snapshot.body, snapshot.where)
    told = told_of(everyone, models)
    named: set[tuple[str, ...]] = set()
    notes: list[str] = []
    given = tuple(documents)
    changed = tuple(read_class(each, named) for each in given if each.kind == "PriorityClass")
    fleet = _with_classes(fleet, changed)
    known = priority_classes(fleet.priority_classes, fleet.default_priority_class)
    classes = replace(known, in_files=True)
    intents = {(i.namespace, i.name): _prioritized(i, classes, changed) for i in everyone}
    for each in given:
        if each.kind == "GPUPool":
            fleet = _with_pool(fleet, each, named, notes)
        elif each.kind == "LLMDeployment":
            intent, model = _intent(each, fleet, intents, models, classes)
            _once(named, "LLMDeployment", identity(intent.namespace, intent.name))
            intents[intent.namespace, intent.name] = intent
            told |= {} if model is None else {intent.uid: model}
    return Observed(fleet, tuple(intents.values()), told, tuple(notes))


def told_of(intents: Iterable[ParsedIntent], models: Models) -> dict[str, Architecture]:
    """Return the models that somebody says by name, by the uid of their LLMDeployment."""
    return {
        each.uid: models[name]
        for each in intents
        for name in (each.name, identity(each.namespace, each.name))
        if name in models
    }


def _once(named: set[tuple[str, ...]], kind: str, name: str) -> None:
    if (kind, name) in named:
        raise InputError(f"{kind} {name}", "is there more than once")
    named.add((kind, name))


def read_class(document: Document, named: set[tuple[str, ...]]) -> PriorityClass:
    """Return a PriorityClass that is not among those `named` yet. Raises `InputError`."""
    try:
        found = parse_priority_class(document.body)
    except ValueError as error:
        raise InputError(document.where, str(error)) from error
    _once(named, "PriorityClass", found.name)
    return found


def _with_classes(fleet: FleetSnapshot, changed: tuple[PriorityClass, ...]) -> FleetSnapshot:
    by_name = {each.name: each for each in (*fleet.priority_classes, *changed)}
    return replace(fleet, priority_classes=tuple(sorted(by_name.values())))


def _prioritized(
    intent: ParsedIntent, classes: PriorityClasses, changed: tuple[PriorityClass, ...]
) -> ParsedIntent:
    """Return what is wanted with the PriorityClasses that are `changed`."""
    name = getattr(intent, "priority_class_name", "") or classes.default
    if isinstance(intent, InvalidIntent) or name not in {each.name for each in changed}:
        return intent
    return with_priority(intent, classes.resolve(None if name == classes.default else name))


def _with_pool(
    fleet: FleetSnapshot, document: Document, named: set[tuple[str, ...]], notes: list[str]
) -> FleetSnapshot:
    found = parse_pool(dict(document.body))
    if isinstance(found, InvalidPool):
        raise InputError(f"{document.where} {found.name}", found.message)
    _once(named, "GPUPool", found.name)
    told = {key for node in fleet.nodes for key, _ in node.labels}
    unknown = sorted({key for key, _ in found.selector} - told)
    if unknown:
        notes.append(
            f"GPUPool {found.name} selects by {', '.join(unknown)}, which no node of the snapshot has:"
            " it holds only labels by which some GPUPool selected when it was taken"
        )
    unread = sorted(
        node.name
        for node in fleet.nodes
        if found.sku not in (None, node.sku) and not node.product and found.selects(dict(node.labels))
    )
    if unread:
        notes.append(
            f"GPUPool {found.name} declares {found.sku} for node {unread[0]}"
            + (f" and {len(unread) - 1} more" if unread[1:] else "")
            + ", which the snapshot holds as read without that: take a snapshot with the GPUPool applied"
        )
    others = [pool for pool in fleet.pools if pool.name != found.name]
    return replace(
        fleet,
        pools=tuple(sorted((*others, found), key=lambda pool: pool.name)),
        invalid_pools=tuple(pool for pool in fleet.invalid_pools if pool.name != found.name),
    )


def _intent(
    document: Document,
    fleet: FleetSnapshot,
    there: Mapping[tuple[str, str], ParsedIntent],
    models: Models,
    classes: PriorityClasses,
) -> tuple[Intent, Architecture | None]:
    """Return what would be wanted and, where no inspection says it, of which model."""
    meta = document.body.get("metadata")
    meta = dict(meta) if isinstance(meta, Mapping) else {}
    name, namespace = str(meta.get("name", "")), str(meta.get("namespace") or "default")
    before = there.get((namespace, name))
    inspected = _inspected(document, namespace, fleet)
    known = {identity(namespace, name): inspected} if inspected is not None else {}
    told = known | dict(models)
    # Checks every key, too.
    asked = read_llm_deployment(document.body, document.where, told, classes, document.counted)
    model = asked.architecture
    youngest = max((each.created_at for each in there.values()), default=0.0)
    meta |= {"namespace": namespace, "uid": f"new:{namespace}/{name}", "generation": 1}
    found = parse({"metadata": meta | {"creationTimestamp": _EPOCH}, "spec": document.body["spec"]}, classes)
    if isinstance(found, InvalidIntent):
        raise InputError(f"{document.where} {identity(namespace, name)}", found.message)
    found = replace(found, traffic=counted_lengths(found.traffic, document.counted))
    if before is None:
        found = replace(found, created_at=youngest + 1)
    else:
        found = replace(found, uid=before.uid, generation=before.generation + 1, created_at=before.created_at)
    return found, None if model is inspected else model


_EPOCH = "1970-01-01T00:00:00Z"


def _inspected(document: Document, namespace: str, fleet: FleetSnapshot) -> Architecture | None:
    spec = document.body.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    uri = model.get("uri") if isinstance(model, Mapping) else None
    found = dict(fleet.facts).get(FactsKey(namespace, str(uri), fleet.engine_image))
    return None if found is None else architecture_from_facts(found)


def beside(base: FleetInput, more: list[FleetInput]) -> FleetInput:
    """Return the observed fleet with the GPUs and requests of other documents. Raises `InputError`."""
    if not more:
        return base
    if any(part.nodes or part.pods_told for part in more):
        raise InputError(
            "--file", f"a {SNAPSHOT} has its Nodes and Pods already; more GPUs go into an Inventory"
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
        terms=_over(base.terms, others.terms),
        inferred=base.inferred | others.inferred,
    )


def _over(base: PlanTerms, more: PlanTerms) -> PlanTerms:
    return PlanTerms(
        prices=tuple(sorted((dict(base.prices) | dict(more.prices)).items())),
        move_cost=base.move_cost if more.move_cost is None else more.move_cost,
        move_budget=base.move_budget if more.move_budget is None else more.move_budget,
        horizon_h=base.horizon_h if more.horizon_h is None else more.horizon_h,
        reachable=base.reachable,
    )
