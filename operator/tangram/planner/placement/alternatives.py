"""Why an LLMDeployment does not use its other candidate shapes, and why none of them can serve it."""

from tangram.capacity.memory.budget import GIB
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.evaluation_reports import NOT_EVALUATED, OUT_OF_TOLERANCE
from tangram.fleet import Alternative, Intent
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.placement.placement_demand import PlacementDemand
from tangram.planner.placement.placement_targets import PlacementTarget
from tangram.planner.shapes.candidates import Candidate, Offers
from tangram.planner.shapes.judge import DOES_NOT_FIT, TPOT, TTFT

_MOST = 5
_FIT_ORDER = {
    "NotEnoughGPUs": 0,
    "Budget": 1,
    "QuotaExceeded": 1,
    "FailedCreate": 1,
    "Unschedulable": 1,
    "Dearer": 1,
    "Fleet": 1,
    "Spread": 1,
    NOT_EVALUATED: 1,
    OUT_OF_TOLERANCE: 1,
    TPOT: 2,
    TTFT: 2,
    DOES_NOT_FIT: 3,
}


def alternatives(
    demand: PlacementDemand, target: PlacementTarget, devices: FreeDevices
) -> tuple[Alternative, ...]:
    """Return the best of the other candidates, each with the one constraint that rules it out."""
    rejected = []
    for candidate in demand.candidates:
        if candidate == target.candidate and candidate.rejection is None:
            continue
        reason, message, count = candidate.rejection, candidate.message, demand.intent.min_replicas
        if reason is None:
            count = demand.replicas_needed(candidate)
            reason, message = _binding_constraint(demand, candidate, target, count, devices)
        cost = count * candidate.price_per_hour
        rejected.append(Alternative(candidate.shape, count, cost, reason, message))
    rejected.sort(
        key=lambda a: (_FIT_ORDER.get(a.rejected_because, len(_FIT_ORDER)), a.cost_per_hour, a.shape)
    )
    return tuple(rejected[:_MOST])


def _binding_constraint(
    demand: PlacementDemand, candidate: Candidate, target: PlacementTarget, count: int, devices: FreeDevices
) -> tuple[str, str]:
    shape, cost, budget = candidate.shape, count * candidate.price_per_hour, demand.intent.budget_per_hour
    available, limit = demand.devices_for(shape, devices), demand.limits.get(shape)
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
    candidate: Candidate,
    chosen: Candidate,
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
        return "Dearer", f"{prices}: running replicas are not moved for less money"
    chosen_spreads = demand.can_spread(chosen.shape, desired, devices)
    if chosen_spreads and not demand.can_spread(candidate.shape, count, devices):
        return "Spread", f"{prices}: free on too few nodes or zones for placement.spread"
    return "Fleet", f"{prices}: but others would go short, or cost more"


def why_none_serves(demand: PlacementDemand, offered: Offers) -> tuple[Reason, str]:
    """Return why no shape can serve the model: the nearest shape, and by how much it misses."""
    candidates, intent = demand.candidates, demand.intent
    if not candidates:
        missing = _no_candidate(intent, offered)
        return Reason.INSUFFICIENT_CAPACITY, missing + offered.left_out_message(intent)
    waiting = [c for c in candidates if c.rejection == NOT_EVALUATED]
    if waiting:
        formats = " and ".join(sorted({c.shape.precision for c in waiting}))
        return Reason.EVALUATING, f"only {formats} would serve, which engine.precision Any needs a report on"
    unreachable = _unreachable_objective(candidates)
    if unreachable is not None:
        return Reason.SLO_UNREACHABLE, unreachable
    small = [c for c in candidates if c.rejection == DOES_NOT_FIT]
    if small:
        best = min(small, key=lambda c: (c.missing, c.shape))
        short = f", {best.missing / GIB:.1f} GiB short" if best.missing else ""
        return Reason.INFEASIBLE, (
            f"the model fits nowhere; nearest is {best.shape.described}{short}: {best.message}; "
            "lower engine.maxModelLen or engine.maxRunningRequests, or add larger GPUs"
            + offered.left_out_message(intent)
        )
    listed = "; ".join(f"{c.shape.described}: {c.message}" for c in candidates[:3])
    message = f"no shape of the fleet may be used ({listed})"
    return Reason.INFEASIBLE, message + offered.left_out_message(intent)


def _no_candidate(intent: Intent, offered: Offers) -> str:
    unknown = sorted(name for name in intent.pools if name not in offered.pools)
    if unknown:
        named = " and ".join(unknown)
        return f"placement.pools names {named}, and there is no such GPUPool; waits for one"
    what = "no GPU that the catalog knows" if offered.has_nodes else "no GPU node"
    where = f"GPUPools {' and '.join(intent.pools)} have" if intent.pools else "the fleet has"
    return f"{where} {what}; waits for a node that offers one"


def _unreachable_objective(candidates: tuple[Candidate, ...]) -> str | None:
    """Return which objective no shape reaches that the model fits; None: none is out of reach."""
    for reason, field in ((TPOT, "tpot_ms"), (TTFT, "ttft_ms")):
        slow = [c for c in candidates if c.rejection == reason]
        if slow:
            best = min(slow, key=lambda c: (getattr(c, field), c.shape))
            return (
                f"the smallest {reason} that can be reached is {getattr(best, field):.2f} ms, on"
                f" {best.shape.described}: {best.message}; raise objectives.{reason.lower()}.milliseconds,"
                " or add GPUs with more bandwidth"
            )
    return None
