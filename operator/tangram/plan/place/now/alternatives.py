"""Why an LLMDeployment does not use its other candidate shapes, on the devices that there are."""

from tangram.capacity.sizing import Rejection, ServingShape
from tangram.eligibility.explanation import shape_reasons as reasons
from tangram.eligibility.explanation.alternatives import UnusedShape, unused_shapes
from tangram.eligibility.explanation.words import gang_sentence, reason_sentence, rejection_sentence
from tangram.eligibility.reasons import Reason
from tangram.fleet import Alternative
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.words.placement import sentence

_ROUNDING = 1e-9  # tolerance for sums of prices


def alternatives(
    demand: PlacementDemand, target: PlacementTarget, devices: FreeDevices
) -> tuple[Alternative, ...]:
    """Return the most relevant of the other shapes, each with the one reason against it."""
    chosen_gpus = () if target.candidate is None else (target.candidate.shape.gpus,)

    def against(candidate: ServingShape) -> tuple[int, reasons.ShapeReason]:
        count = demand.replicas_needed(candidate)
        available = demand.devices_for(candidate.shape, devices)
        if candidate.shape.gpus not in chosen_gpus:
            available = max(available, devices.count_in_place_of_own(demand.uid, candidate.shape))
        reason = _own_limit(demand, candidate, count, available)
        return count, reason or _why_not_preferred(demand, candidate, target, count, devices)

    others = unused_shapes(demand.shapes, lambda candidate: candidate == target.candidate, against)
    return tuple(_alternative(demand, other, chosen_gpus) for other in others)


def _alternative(demand: PlacementDemand, other: UnusedShape, chosen_gpus: tuple[int, ...]) -> Alternative:
    if isinstance(other.reason, Rejection):
        word, message = other.reason.constraint.reason, rejection_sentence(demand.shapes, other.reason)
    else:
        word, message = other.reason.word, reason_sentence(other.reason)
        message += gang_sentence(demand.shapes, other.shape, chosen_gpus)
    return Alternative(other.shape, other.replicas, other.cost_per_hour, word, message)


def _own_limit(
    demand: PlacementDemand, candidate: ServingShape, count: int, available: int
) -> reasons.ShapeReason | None:
    """Return the reason against a shape whatever other shapes cost; None: there is none."""
    shape, cost, budget = candidate.shape, count * candidate.price_per_hour, demand.intent.budget_per_hour
    limit = demand.limits.get(shape)
    if shape in demand.avoided.reasons:
        return reasons.HeldBack(Reason.REPLICAS_NOT_STARTING, sentence(demand.avoided.reasons[shape]))
    if available < count:
        return reasons.NotEnoughGPUs(count, available, if_empty=False)
    if limit is not None and limit.replicas < count:
        return reasons.HeldBack(limit.cause.reason, sentence(limit.cause))
    if budget is not None and cost > budget + _ROUNDING:
        return reasons.OverBudget(cost, budget)
    return None


def _why_not_preferred(
    demand: PlacementDemand,
    candidate: ServingShape,
    target: PlacementTarget,
    count: int,
    devices: FreeDevices,
) -> reasons.ShapeReason:
    """Return why the chosen candidate is preferred to `count` replicas of another one that could run."""
    chosen, desired = target.candidate, target.desired
    if chosen is None:  # cannot be: this candidate could have been chosen
        return reasons.WorseFleet(proved=False)
    saves = desired * chosen.price_per_hour - count * candidate.price_per_hour
    if saves <= 0 or demand.workload_on(chosen.shape) is not None:
        return reasons.Dearer(-saves)
    chosen_spreads = demand.can_spread(chosen.shape, desired, devices)
    if chosen_spreads and not demand.can_spread(candidate.shape, count, devices):
        return reasons.TooFewPlaces()
    return reasons.WorseFleet(proved=True)
