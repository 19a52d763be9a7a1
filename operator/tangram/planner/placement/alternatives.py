"""Why an LLMDeployment does not use its other candidate shapes: one reason for each."""

from dataclasses import replace

from tangram.capacity.sizing import Constraint, Rejection, ServingShape, SizingRequest
from tangram.eligibility.reasons import Reason
from tangram.fleet import Alternative
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.placement.placement_demand import PlacementDemand
from tangram.planner.placement.placement_targets import PlacementTarget

_MOST = 5
_FIT_ORDER = {
    "NotEnoughGPUs": 0,
    "Budget": 1,
    "QuotaExceeded": 1,
    "FailedCreate": 1,
    "Unschedulable": 1,
    "ReplicasNotStarting": 1,
    "Dearer": 1,
    "Fleet": 1,
    "Spread": 1,
    Constraint.EVALUATION.reason: 1,
    Constraint.TOLERANCE.reason: 1,
    Constraint.TPOT.reason: 2,
    Constraint.TTFT.reason: 2,
    Constraint.MEMORY.reason: 3,
}


def alternatives(
    demand: PlacementDemand, target: PlacementTarget, devices: FreeDevices
) -> tuple[Alternative, ...]:
    """Return the best of the other shapes, each with the one constraint that rules it out."""
    others = []
    for candidate in demand.usable:
        if candidate != target.candidate:
            count = demand.replicas_needed(candidate)
            reason, message = _binding_constraint(demand, candidate, target, count, devices)
            cost = count * candidate.price_per_hour
            others.append(Alternative(candidate.shape, count, cost, reason, message))
    count, rejected = demand.intent.min_replicas, {r.shape: r for r in demand.shapes.rejected}
    for shape, rejection in rejected.items():
        cost = count * demand.shapes.price(shape)
        others.append(Alternative(shape, count, cost, rejection.constraint.reason, ""))
    others.sort(key=lambda a: (_FIT_ORDER.get(a.rejected_because, len(_FIT_ORDER)), a.cost_per_hour, a.shape))
    best = others[:_MOST]
    messages = {a.shape: rejection_message(demand, rejected[a.shape]) for a in best if a.shape in rejected}
    return tuple(replace(a, message=messages.get(a.shape, a.message)) for a in best)


def _binding_constraint(
    demand: PlacementDemand,
    candidate: ServingShape,
    target: PlacementTarget,
    count: int,
    devices: FreeDevices,
) -> tuple[str, str]:
    shape, cost, budget = candidate.shape, count * candidate.price_per_hour, demand.intent.budget_per_hour
    available, limit = demand.devices_for(shape, devices), demand.limits.get(shape)
    if shape in demand.avoided.reasons:
        return str(Reason.REPLICAS_NOT_STARTING), demand.avoided.reasons[shape]
    if available < count:
        return "NotEnoughGPUs", f"devices for {available} of {count} replicas"
    if limit is not None and limit.replicas < count:
        return str(limit.reason), limit.message
    if budget is not None and cost > budget + 1e-9:
        return "Budget", f"costs {cost:.2f} $/h, placement.budgetPerHour is {budget:.2f}"
    if target.candidate is None:  # impossible: this candidate could have been chosen
        return "Fleet", "not chosen"
    return _why_not_preferred(demand, candidate, target.candidate, target.desired, count, devices)


def _why_not_preferred(
    demand: PlacementDemand,
    candidate: ServingShape,
    chosen: ServingShape,
    desired: int,
    count: int,
    devices: FreeDevices,
) -> tuple[str, str]:
    """Return why `desired` replicas of the chosen candidate are preferred to `count` replicas of another."""
    cost, chosen_cost = count * candidate.price_per_hour, desired * chosen.price_per_hour
    prices = f"{cost:.2f} $/h for {count}, against {chosen_cost:.2f} $/h for {desired}"
    if cost >= chosen_cost:
        return "Dearer", prices
    if demand.workload_on(chosen.shape) is not None:
        return "Dearer", f"{prices}: running replicas are not moved only to save money"
    chosen_spreads = demand.can_spread(chosen.shape, desired, devices)
    if chosen_spreads and not demand.can_spread(candidate.shape, count, devices):
        return "Spread", f"{prices}: free on too few nodes or zones for placement.spread"
    return "Fleet", f"{prices}, but then other LLMDeployments would get fewer replicas or cost more"


def missing_bytes(demand: PlacementDemand, rejection: Rejection) -> float:
    """Return the memory that a shape lacks for the model; 0 where only requests do not fit."""
    fits = demand.shapes.idle_ms(rejection.shape) is not None
    return 0.0 if fits else demand.shapes.assessments.budget(rejection.shape).missing


def rejection_message(demand: PlacementDemand, rejection: Rejection) -> str:
    """Return why a shape is rejected, with the numbers of the prediction."""
    shape, idle = rejection.shape, demand.shapes.idle_ms(rejection.shape)
    if rejection.constraint is Constraint.MEMORY_UNKNOWN:
        return f"nobody has published how much memory {shape} has"
    if rejection.constraint is Constraint.PRICE:
        return f"no price is known for {shape.sku}; set one in the chart's value prices"
    if idle is not None:
        return _prediction(rejection, *idle, demand.shapes.requirements.request)
    if rejection.constraint is not Constraint.MEMORY:
        return rejection.message
    if missing_bytes(demand, rejection):
        return str(demand.shapes.assessments.budget(shape))
    return f"{rejection.message}: no room for a request of the mean length"


def _prediction(rejection: Rejection, ttft_ms: float, tpot_ms: float, request: SizingRequest) -> str:
    if rejection.constraint is Constraint.TPOT:
        return f"predicted {tpot_ms:.2f} ms per token when idle, objective {request.tpot_ms:g} ms"
    if rejection.constraint is Constraint.TTFT:
        prompt = f"the first token of a prompt of {request.prompts.mean:g}"
        return f"predicted {ttft_ms:.2f} ms to {prompt} when idle, objective {request.ttft_ms:g} ms"
    return rejection.message
