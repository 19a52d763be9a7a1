"""Advice for each LLMDeployment that a plan moves, places on new devices or leaves short."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tangram.fleet import LAYOUT, Advice, RecommendedChange
from tangram.packing import Packing
from tangram.plan.place.best.packing_problem import FleetProblem


def needs_changes(fleet: FleetProblem, packing: Packing) -> bool:
    """Whether the plan re-cuts GPUs, moves or stops replicas or adds nodes: more than the operator does."""
    recut = any(layout.recut for layout in packing.layouts)
    return bool(packing.moves or packing.grown) or recut or _stops_replicas(fleet, packing)


def _stops_replicas(fleet: FleetProblem, packing: Packing) -> bool:
    """Whether a demand that stays unmet has fewer replicas in the plan than now."""
    unmet = {item.demand for item in packing.unmet}
    now = Counter(i.owner for gpu in fleet.problem.gpus for i in gpu.instances if i.owner in unmet)
    planned = Counter(i.owner for gpu in packing.layouts for i in gpu.instances if i.owner in unmet)
    return any(planned[owner] < count for owner, count in now.items())


def advice_by_deployment(
    fleet: FleetProblem, packing: Packing, document: dict[str, Any], name: str, current_cost: float
) -> Iterable[tuple[str, Advice]]:
    """Yield (id, advice). `name`: of the FleetPlan. `current_cost`: USD per hour of the GPUs in use now."""
    saves = round(current_cost - packing.cost_per_hour, 4) + 0.0  # never -0.0
    unmet = {item.demand: item.share for item in packing.unmet}
    moved = {move.owner for move in packing.moves}
    on_new_devices, recut_gpus = _owners_on_new_devices(fleet, packing), _recut_gpus(packing)
    for deployment, shown in zip(fleet.inputs.deployments, document["deployments"], strict=True):
        owner = deployment.id
        if owner not in unmet.keys() | moved | on_new_devices:
            continue
        changes = [RecommendedChange(c["dimension"], c["text"]) for c in shown.get("relaxations", ())]
        if owner in on_new_devices:
            text = _carrying_out(packing, name, unmet.get(owner, 0.0))
            changes.insert(0, RecommendedChange(LAYOUT, text))
        because = tuple(shown.get("because", ()))
        yield owner, Advice(name, saves, because, tuple(changes), recut_gpus.get(owner, frozenset()))


def _owners_on_new_devices(fleet: FleetProblem, packing: Packing) -> set[str]:
    """Return the owners of replicas on GPUs that are re-cut, and on nodes that are to be added."""
    existing = {gpu.id for gpu in fleet.problem.gpus}
    return {
        instance.owner
        for layout in packing.layouts
        if layout.recut or layout.id not in existing
        for instance in layout.instances
        if instance.owner is not None
    }


def _recut_gpus(packing: Packing) -> Mapping[str, frozenset[str]]:
    """Return the GPUs that are cut anew and get replicas of an owner, by owner."""
    gpus: dict[str, set[str]] = defaultdict(set)
    for layout in packing.layouts:
        for instance in layout.instances if layout.recut else ():
            gpus[instance.owner or ""].add(layout.id)
    return {owner: frozenset(ids) for owner, ids in gpus.items()}


def _carrying_out(packing: Packing, name: str, unmet: float) -> str:
    """Return what carrying the FleetPlan out takes, and which share of the LLMDeployment it serves."""
    counts = (
        ("GPUs cut anew", sum(layout.recut for layout in packing.layouts)),
        ("replicas moved", len(packing.moves)),
        ("new nodes", sum(count for _, count in packing.grown)),
    )
    changes = ", ".join(f"{change}: {count}" for change, count in counts if count)
    served = "serves it whole" if unmet <= 0 else f"serves {1 - unmet:.0%} of it"
    return f"FleetPlan {name} {served}: {changes}"
