"""A move to another shape: how many replicas of the old shapes stay while those of the new one arrive.

The Service sends each ready pod as many requests as any other. So replicas of several shapes carry together
what so many replicas of the weakest would: old replicas end one by one as new ones arrive, as many in all as
the weakest shape needs, and the last ones when the new shape carries the load alone. If the free devices do
not suffice for all new replicas and the old ones hold devices that these wait for, a move proceeds in parts.
"""

import math
from collections.abc import Mapping

from tangram.fleet import Workload, replicas_for
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget

_EPSILON = 1e-9


def kept_replicas(
    demand: PlacementDemand, target: PlacementTarget, current: Workload | None
) -> Mapping[str, int]:
    """Return how many replicas each other Deployment than `current` keeps, by its UID; 0: it may be removed.

    A Deployment without an available replica, on a shape that may not be used any more, keeps none: it
    carries no load and only holds devices. Replicas that a person allowed to restart are not waited for.
    """
    arrived = current.available if current is not None and current.settled else 0
    missing_load = max(0.0, 1 - arrived / target.desired) if target.desired else 0.0
    missing_replicas = max(0, demand.intent.min_replicas - arrived)
    candidates = demand.choosable if demand.avoided.ends_replicas else demand.usable
    usable = {candidate.shape for candidate in candidates if demand.max_replicas(candidate.shape) > 0}
    kept_by_uid: dict[str, int] = {}
    others = [w for w in demand.workloads if w is not current]
    missing_beside = _replicas_of_the_weakest(demand, target, others, arrived) - arrived
    for old in sorted(others, key=lambda w: (-w.available, w.name, w.uid)):
        if old.available == 0 and old.shape not in usable:
            kept_by_uid[old.uid] = 0
            continue
        full_load = _replicas_for_all_load(demand, old)
        needed = math.ceil(missing_load * (full_load or 0) - _EPSILON)
        if missing_load > _EPSILON and not _waits_for_devices_of(old, demand, target, arrived):
            needed = max(needed, missing_beside)
        if full_load is None and missing_load:
            needed = old.replicas
        # Replicas in back-off have never started, and their devices are assigned to others.
        staying = min(old.replicas, demand.max_replicas(old.shape), max(needed, missing_replicas))
        if demand.move is not None and target.replicas <= arrived:
            staying = min(staying, demand.move.most_on_others)
        kept_by_uid[old.uid], carrying = staying, min(old.available, staying)
        missing_load = max(0.0, missing_load - (carrying / full_load if full_load else 0.0))
        missing_replicas, missing_beside = max(0, missing_replicas - carrying), missing_beside - carrying
    return kept_by_uid


def _replicas_of_the_weakest(
    demand: PlacementDemand, target: PlacementTarget, others: list[Workload], arrived: int
) -> int:
    """Return how many replicas carry the load while those of all shapes that serve get equal parts of it."""
    needed = [target.desired] if arrived else []
    needed += [_replicas_for_all_load(demand, old) or 0 for old in others if old.available]
    return max(needed, default=0)


def _waits_for_devices_of(
    old: Workload, demand: PlacementDemand, target: PlacementTarget, arrived: int
) -> bool:
    """Whether no further replica of the new shape comes before replicas of `old` end.

    Then each available new replica ends old ones that carry as much as it does, if all are used fully: the
    weakest are overloaded until the next new ones are ready, but the move goes on.
    """
    placed = target.replicas + target.surge
    if target.candidate is None or arrived < placed or target.replicas >= target.desired:
        return False
    shares_devices = old.shape.device_kind == target.candidate.shape.device_kind
    is_bound = target.over_budget is not None or target.limit is not None
    return shares_devices or is_bound or demand.move is not None


def _replicas_for_all_load(demand: PlacementDemand, old: Workload) -> int | None:
    """Return how many replicas of an old shape carry all of the load; None: unknown."""
    reference, desired = demand.reference_shape, demand.desired
    if reference is None or old.shape == reference:
        return desired
    measured = demand.replicas_for_load(old.shape)
    if measured is not None:
        return max(measured, demand.intent.min_replicas)
    if desired <= demand.intent.min_replicas:
        return desired
    old_rate, reference_rate = (demand.shapes.rate(s) for s in (old.shape, reference))
    if old_rate is None or reference_rate is None:
        return None
    return replicas_for(desired * reference_rate, old_rate)
