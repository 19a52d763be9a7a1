"""How many replicas of a shape placement.budgetPerHour allows beside those that run."""

import math
from collections.abc import Collection

from tangram.capacity.sizing import ServingShape
from tangram.fleet import Shape
from tangram.plan.place.now.placement_demand import NO_LIMIT, PlacementDemand


def affordable_replicas(
    demand: PlacementDemand, candidate: ServingShape, ended: Collection[Shape] = ()
) -> int:
    """Replicas that the budget allows beside those of other shapes, which run until these serve.

    The budget ends no replica of the minimum that runs. Those on the shapes `ended` cost nothing.
    """
    budget, price = demand.intent.budget_per_hour, candidate.price_per_hour
    if budget is None or price <= 0:
        return NO_LIMIT
    workload = demand.workload_on(candidate.shape)
    kept_replicas = min(demand.intent.min_replicas, workload.replicas) if workload else 0
    affordable = min((budget - other_shapes_cost(demand, candidate, ended)) / price, NO_LIMIT)
    return max(kept_replicas, math.floor(affordable + 1e-9))


def other_shapes_cost(
    demand: PlacementDemand, candidate: ServingShape, ended: Collection[Shape] = ()
) -> float:
    """USD per hour of its replicas on other shapes, without the shapes `ended`."""
    others = (w for w in demand.workloads if w.shape != candidate.shape and w.shape not in ended)
    return sum(w.replicas * demand.shapes.price(w.shape) for w in others)
