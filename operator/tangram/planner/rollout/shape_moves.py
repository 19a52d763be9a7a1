"""A move to another shape: how many replicas of the old shapes stay while those of the new one arrive.

Each available replica of the new shape takes over its share of the load, and replicas of the old shapes that
carry as much end. So the available capacity never falls below what is desired, in whatever order pods become
ready or fail. If the free devices do not suffice for all new replicas, a move proceeds in parts.
"""

import math
from collections.abc import Mapping

from tangram.fleet import Workload, replicas_for
from tangram.planner.placement.placement_demand import PlacementDemand
from tangram.planner.placement.placement_targets import PlacementTarget

_EPSILON = 1e-9


def kept_replicas(
    demand: PlacementDemand, target: PlacementTarget, current: Workload | None
) -> Mapping[str, int]:
    """Return how many replicas each other Deployment than `current` keeps, by its UID; 0: it may be removed.

    If n new replicas are desired, each carries 1/n of the load; if m replicas of an old shape would carry the
    load, each of them carries 1/m. A Deployment without an available replica, on a shape that may not be used
    any more, keeps none: it carries no load and only holds devices.
    """
    arrived = current.available if current is not None and current.settled else 0
    missing_load = max(0.0, 1 - arrived / target.desired) if target.desired else 0.0
    missing_replicas = max(0, demand.intent.min_replicas - arrived)
    usable = {candidate.shape for candidate in demand.usable if demand.max_replicas(candidate.shape) > 0}
    kept_by_uid: dict[str, int] = {}
    others = (w for w in demand.workloads if w is not current)
    for old in sorted(others, key=lambda w: (-w.available, w.name, w.uid)):
        if old.available == 0 and old.shape not in usable:
            kept_by_uid[old.uid] = 0
            continue
        full_load = _replicas_for_all_load(demand, old)
        needed = math.ceil(missing_load * (full_load or 0) - _EPSILON)
        if full_load is None and missing_load:
            needed = old.replicas
        # Replicas in back-off have never started, and their devices are assigned to others.
        staying = min(old.replicas, demand.max_replicas(old.shape), max(needed, missing_replicas))
        kept_by_uid[old.uid], carrying = staying, min(old.available, staying)
        missing_load = max(0.0, missing_load - (carrying / full_load if full_load else 0.0))
        missing_replicas = max(0, missing_replicas - carrying)
    return kept_by_uid


def _replicas_for_all_load(demand: PlacementDemand, old: Workload) -> int | None:
    """Return how many replicas of an old shape carry all of the load; None: unknown."""
    reference, desired = demand.reference_shape, demand.desired
    if reference is None or old.shape == reference or desired <= demand.intent.min_replicas:
        return desired
    old_rate, reference_rate = (demand.shapes.rate(s) for s in (old.shape, reference))
    if old_rate is None or reference_rate is None:
        return None
    return replicas_for(desired * reference_rate, old_rate)
