"""FleetPlans of changes: from and to the objects of the API. Pure."""

from collections import Counter
from typing import Any

from tangram.api.fleet_plan import MAX_CHANGES, FleetPlanSpec, PlannedChange, PlannedMIGLayout
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
from tangram.repartition import PlanProgress, PlanRecord, PlanState

SUFFIX = "-"  # between the hash of a plan and the number of its recurrence


def plan_object(name: str, changes: LayoutChanges, fleet_plan: str, labels: dict[str, str]) -> Object:
    """Return the FleetPlan of changes that is created."""
    spec: dict[str, Any] = {
        "changes": [
            {
                "node": change.node,
                "gpu": id_on_node(change.gpu),
                "before": layout_fields(change.before),
                "after": layout_fields(change.after),
            }
            for change in changes.changes
        ],
        "changeDisplay": change_display(changes),
        "pool": changes.pool,
    }
    if changes.moves:
        spec["disturbed"] = [
            {
                "owner": owner,
                "sku": shape.sku,
                "profile": shape.profile,
                "tensorParallel": shape.tensor_parallel,
            }
            for owner, shape in changes.moves
        ]
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


def change_display(changes: LayoutChanges) -> str:
    """Return the changes as text, equal ones together, the most frequent first."""
    counts = Counter(f"{change.before} -> {change.after}" for change in changes.changes)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{count}x {what}" for what, count in ordered)
    return text if len(text) <= MAX_SHORT_TEXT else text[: MAX_SHORT_TEXT - 1] + "…"


def plan_record(obj: Object, recommended: frozenset[str] | None) -> PlanRecord:
    """Return a FleetPlan of changes as the step function reads it. Raises `ValidationError`.

    `recommended`: names of the changes that the last recommendation has; None: there is none yet.
    """
    spec = FleetPlanSpec.model_validate(obj["spec"])
    changes = LayoutChanges(
        tuple(sorted(map(_change, spec.changes))),
        tuple(sorted((d.owner, ShapeKey(d.sku, d.profile, d.tensor_parallel)) for d in spec.disturbed)),
        spec.pool or "",
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
    if progress.waits_for:
        status["waitsFor"] = progress.waits_for[:MAX_SHORT_TEXT]
    if progress.until is not None:
        status["deadline"] = rfc3339(progress.until)
    return status


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
