"""FleetPlans of changes: from and to the objects of the API. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tangram.api.fleet_plan import MAX_CHANGES, MAX_ITEMS, FleetPlanSpec, PlannedChange, PlannedMIGLayout
from tangram.api.llm_deployment.status import MAX_SHORT_TEXT, MAX_TEXT
from tangram.fleet import (
    LayoutChange,
    LayoutChanges,
    MIGLayout,
    MIGSlice,
    ShapeKey,
    fleet_wide_id,
    id_on_node,
)
from tangram.fleet.times import epoch_or, rfc3339
from tangram.kube.kinds import FLEET_PLANS, Object
from tangram.plan.repartition import PlanProgress, PlanRecord, PlanState

SUFFIX = "-"  # between the hash of a plan and the number of its recurrence


def plan_object(
    name: str,
    changes: LayoutChanges,
    fleet_plan: str,
    labels: dict[str, str],
    indices: Mapping[str, int] | None = None,
) -> Object:
    """Return the FleetPlan of changes that is created. `indices`: of GPUs on their nodes, by id."""
    indices = indices or {}
    spec: dict[str, Any] = {
        "changes": [
            {
                "node": change.node,
                "gpu": id_on_node(change.gpu),
                "before": layout_fields(change.before),
                "after": layout_fields(change.after),
            }
            | ({"index": indices[change.gpu]} if change.gpu in indices else {})
            for change in changes.changes
        ],
        "changeDisplay": change_display(changes, indices),
        "pool": changes.pool,
    }
    if changes.moves:
        spec["disturbed"] = [
            {
                "owner": owner,
                "sku": shape.sku,
                "profile": shape.profile,
                "tensorParallel": shape.gpus,
            }
            | ({"restarts": True} if owner in changes.restarts else {})
            for owner, shape in changes.moves
        ]
    if changes.serves:
        spec["serves"] = [owner[:MAX_SHORT_TEXT] for owner in changes.serves[:MAX_ITEMS]]
    if changes.cost is not None:
        spec |= dict(zip(("costBeforePerHour", "costPerHour"), map(_usd, changes.cost), strict=True))
    if fleet_plan:
        spec["fleetPlan"] = fleet_plan
    return {
        "apiVersion": FLEET_PLANS.api_version,
        "kind": FLEET_PLANS.kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def fits(changes: LayoutChanges) -> bool:
    """Whether a FleetPlan can hold the changes."""
    return len(changes.changes) <= MAX_CHANGES


def gpu_indices(gpu_nodes: Mapping[str, Object]) -> dict[str, int]:
    """Return the index of each GPU on its node, by fleet-wide id. `gpu_nodes`: by name."""
    return {
        fleet_wide_id(name, str(gpu["id"])): gpu["index"]
        for name, obj in gpu_nodes.items()
        for gpu in (obj.get("status") or {}).get("gpus") or ()
        if isinstance(gpu.get("index"), int) and gpu.get("id")
    }


def change_display(changes: LayoutChanges, indices: Mapping[str, int]) -> str:
    """Return the changes as text: GPUs by index, equal changes together, who moves or restarts, who gains."""
    places = defaultdict[str, list[str]](list)
    for change in changes.changes:
        places[_cut_display(change)].append(gpu_place(change, indices))
    parts = [f"{_some(names)}: {what}" for what, names in sorted(places.items()) if what]
    moving = tuple(owner for owner in changes.disturbed if owner not in changes.restarts)
    parts += [f"{_some(moving)} move{'s' * (len(moving) == 1)}"] if moving else []
    parts += (
        [f"{_some(changes.restarts)} restart{'s' * (len(changes.restarts) == 1)}"] if changes.restarts else []
    )
    parts += [f"for {_some(changes.serves)}"] if changes.serves else []
    text = ", ".join(parts)
    return text if len(text) <= MAX_SHORT_TEXT else text[: MAX_SHORT_TEXT - 1] + "…"


def gpu_place(change: LayoutChange, indices: Mapping[str, int]) -> str:
    """Return a GPU as NODE/INDEX, or by its id where no backend has said its index."""
    if change.gpu in indices:
        return f"{change.node}/{indices[change.gpu]}"
    return f"{change.node}/{id_on_node(change.gpu)}"


def condensed(layout: MIGLayout) -> str:
    """Return a layout without its positions: `gpu`, `empty`, `2x1g.10gb 3g.40gb`."""
    counts = Counter(part.profile for part in layout.slices)
    slices = " ".join(f"{count}x{name}" if count > 1 else name for name, count in sorted(counts.items()))
    return slices if layout.mig_enabled and slices else str(layout)


def short_name(owner: str) -> str:
    """Return an LLMDeployment without the namespace where that is the default one."""
    return owner.removeprefix("default/")


def _cut_display(change: LayoutChange) -> str:
    """Return how a GPU is cut; empty where it keeps its layout."""
    if change.keeps_layout:
        return ""
    before, after = condensed(change.before), condensed(change.after)
    # Only positions change: then they are what matters.
    return f"{before} -> {after}" if before != after else f"{change.before} -> {change.after}"


def _some(names: Sequence[str], most: int = 3) -> str:
    rest = [f"+{len(names) - most}"] if len(names) > most else []
    return " ".join((*map(short_name, names[:most]), *rest))


def plan_record(obj: Object, recommended: frozenset[str] | None) -> PlanRecord:
    """Return a FleetPlan of changes as the step function reads it. Raises `ValidationError`.

    `recommended`: names of the changes that the last recommendation has; None: there is none yet.
    """
    spec = FleetPlanSpec.model_validate(obj["spec"])
    changes = LayoutChanges(
        tuple(sorted(map(_change, spec.changes))),
        tuple(sorted((d.owner, ShapeKey(d.sku, d.profile, d.tensor_parallel)) for d in spec.disturbed)),
        spec.pool or "",
        restarts=tuple(sorted({d.owner for d in spec.disturbed if d.restarts})),
        cost=_cost(spec),
        serves=spec.serves,
    )
    status = obj.get("status") or {}
    state = status.get("state")
    created = epoch_or(obj["metadata"].get("creationTimestamp"), 0.0)
    return PlanRecord(
        name=obj["metadata"]["name"],
        changes=changes,
        is_recommended=None if recommended is None else changes.name in recommended,
        approved=spec.approved,
        state=PlanState(state) if state in list(PlanState) else PlanState.RECOMMENDED,
        since=epoch_or(status.get("since"), created),
    )


def plan_status(progress: PlanProgress, record: PlanRecord, now: float) -> Object:
    """Return the status of a FleetPlan of changes."""
    since = record.since if record.state is progress.state else now
    status: Object = {
        "state": str(progress.state),
        "since": rfc3339(since),
        "reason": progress.reason,
        "message": progress.message[:MAX_TEXT],
        "progress": f"{progress.done}/{len(record.changes.changes)}",
    }
    if record.changes.cost is not None:
        before, after = map(_usd, record.changes.cost)  # as in the spec: it is written once, and read again
        status |= {"currentCostPerHour": before, "savesPerHour": _usd(float(before) - float(after))}
    if progress.waits_for:
        status["waitsFor"] = progress.waits_for[:MAX_SHORT_TEXT]
    if progress.until is not None:
        status["deadline"] = rfc3339(progress.until)
    return status


def _cost(spec: FleetPlanSpec) -> tuple[float, float] | None:
    costs = spec.cost_before_per_hour, spec.cost_per_hour
    return None if costs[0] is None or costs[1] is None else (float(costs[0]), float(costs[1]))


def _usd(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # never -0.00


def hash_of(name: str) -> str:
    """Return the hash in the name of a FleetPlan."""
    return name.partition(SUFFIX)[0]


def layout_fields(layout: MIGLayout) -> Object:
    """Return the fields of a layout, as FleetPlans and GPUNodes have them."""
    slices = [{"profile": part.profile, "start": part.start} for part in layout.slices]
    return {"migEnabled": layout.mig_enabled} | ({"instances": slices} if slices else {})


def _change(change: PlannedChange) -> LayoutChange:
    gpu = fleet_wide_id(change.node, change.gpu)
    return LayoutChange(change.node, gpu, _read(change.before), _read(change.after))


def _read(layout: PlannedMIGLayout) -> MIGLayout:
    slices = (MIGSlice(instance.start, instance.profile) for instance in layout.instances)
    return MIGLayout(layout.mig_enabled, tuple(sorted(slices)))
