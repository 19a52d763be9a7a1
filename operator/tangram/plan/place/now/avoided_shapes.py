"""Shapes that an LLMDeployment does not use for a while, because no replica became ready on them.

A shape is avoided during its back-off if another one can serve instead; replicas that are not ready stay on
it until others are (make before break), and end at once only where their devices or their cost are in the
way. If replicas fail on a second shape, too, the cause is the checkpoint or the engine image: then the first
one is used, and no third one is tried, until a replica becomes ready or the spec changes. A shape with a
ready replica is never avoided.
"""

from collections.abc import Collection, Mapping

from tangram.capacity.sizing import ServingShape
from tangram.eligibility.isolation import RoundStep, for_each
from tangram.eligibility.reasons import Reason
from tangram.fleet import BackOff, Shape
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.place.now.affordable_replicas import affordable_replicas
from tangram.plan.place.now.placement_demand import AvoidedShapes, PlacementDemand
from tangram.plan.reasons.placement import (
    FailedOnSeveralShapes,
    NoOtherShapeIsFree,
    NotReadyInTime,
    OtherShapeIsUsed,
)


def avoided_shapes(
    demands: tuple[PlacementDemand, ...],
    back_offs: Mapping[str, tuple[BackOff, ...]],
    devices: FreeDevices,
    now: float,
) -> Mapping[str, AvoidedShapes]:
    """Return the shapes that each demand avoids, by uid; `back_offs` by uid."""

    def avoided(demand: PlacementDemand) -> tuple[str, AvoidedShapes]:
        return demand.uid, _avoided(demand, back_offs.get(demand.uid, ()), devices, now)

    return dict(for_each(RoundStep.LIMIT, demands, lambda demand: demand.uid, avoided))


def _avoided(
    demand: PlacementDemand, back_offs: tuple[BackOff, ...], devices: FreeDevices, now: float
) -> AvoidedShapes:
    usable = {candidate.shape for candidate in demand.usable}
    failures = sorted(
        (b for b in back_offs if b.reason == Reason.REPLICAS_NOT_STARTING and b.shape in usable),
        key=lambda b: (b.since, b.shape),
    )
    failures = [b for b in failures if not _is_ready(demand, b.shape)]
    unexplained = [b for b in failures if not b.started_elsewhere]
    if len(unexplained) > 1:
        return _first_alone(demand, unexplained, devices)
    current = tuple(b for b in failures if now < b.until)
    if not current:
        return AvoidedShapes()
    shapes = frozenset(b.shape for b in current)
    others = [candidate for candidate in demand.usable if candidate.shape not in shapes]
    late = tuple(map(NotReadyInTime, current))
    if not any(_fits(demand, other, devices, shapes) for other in others):
        return AvoidedShapes(failure=NoOtherShapeIsFree(late))
    is_beside = any(_fits(demand, other, devices, ()) for other in others)
    failure = OtherShapeIsUsed(late, max(b.until for b in current))
    return AvoidedShapes({b.shape: NotReadyInTime(b) for b in current}, not is_beside, failure=failure)


def _first_alone(demand: PlacementDemand, failures: list[BackOff], devices: FreeDevices) -> AvoidedShapes:
    """Avoid every shape but the one that failed first, and those with ready replicas."""
    failed = [candidate for b in failures for candidate in demand.usable if candidate.shape == b.shape]
    shapes = frozenset(candidate.shape for candidate in failed)
    first = next((c for c in failed if _fits(demand, c, devices, shapes - {c.shape})), failed[0]).shape
    failure = FailedOnSeveralShapes(tuple(candidate.shape for candidate in failed), first)
    others = (c.shape for c in demand.usable if c.shape != first and not _is_ready(demand, c.shape))
    return AvoidedShapes(dict.fromkeys(others, failure), ends_replicas=True, is_final=True, failure=failure)


def _is_ready(demand: PlacementDemand, shape: Shape) -> bool:
    workload = demand.workload_on(shape)
    return workload is not None and (workload.ready > 0 or workload.available > 0)


def _fits(
    demand: PlacementDemand, candidate: ServingShape, devices: FreeDevices, ended: Collection[Shape]
) -> bool:
    """Whether a move to a candidate could begin if the replicas on the shapes `ended` were gone."""
    shape, uid = candidate.shape, demand.uid
    least = demand.intent.min_replicas if demand.is_serving else 1
    others = (w for w in demand.workloads if w.shape != shape and w.shape.devices == shape.devices)
    other_replicas = sum(w.replicas for w in others if w.shape not in ended)
    held = max(0, devices.count_held(uid, shape) - other_replicas)
    most = min(demand.max_replicas(shape), affordable_replicas(demand, candidate, ended))
    return min(held + devices.count_free(uid, shape), most) >= least
