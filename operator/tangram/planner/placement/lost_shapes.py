"""Why the shapes that one LLMDeployment does not run on lost, and why none can carry it."""

from tangram.capacity.memory.budget import GIB
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.evaluation_reports import NOT_EVALUATED, OUT_OF_TOLERANCE
from tangram.fleet import Alternative, Intent
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.placement.targets import Case, PlacementTarget, apart, free_for
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


def alternatives(case: Case, target: PlacementTarget, devices: FreeDevices) -> tuple[Alternative, ...]:
    """Return the best of the shapes that lost, each with the one constraint that killed it."""
    losers = []
    for candidate in case.judged:
        if candidate == target.candidate and candidate.rejection is None:
            continue
        reason, message, count = candidate.rejection, candidate.message, case.intent.min_replicas
        if reason is None:
            count = case.replicas(candidate)
            free = free_for(case, candidate.shape, devices)
            reason, message = _lost_on(case, candidate, target, free, count, devices)
        losers.append(Alternative(candidate.shape, count, count * candidate.price_per_hour, reason, message))
    losers.sort(key=lambda a: (_FIT_ORDER.get(a.rejected_because, len(_FIT_ORDER)), a.cost_per_hour, a.shape))
    return tuple(losers[:_MOST])


def _lost_on(
    case: Case, candidate: Candidate, target: PlacementTarget, free: int, count: int, devices: FreeDevices
) -> tuple[str, str]:
    cost = count * candidate.price_per_hour
    if free < count:
        return "NotEnoughGPUs", f"room for {free} of {count}"
    over = _over_limits(case, candidate, count, cost)
    if over is not None:
        return over
    chosen = target.candidate
    if chosen is None:  # cannot be: this one could have been chosen
        return "Fleet", "not chosen"
    against = target.desired * chosen.price_per_hour
    prices = f"{cost:.2f} $/h for {count}, against {against:.2f} $/h for {target.desired}"
    if cost >= against:
        return "Dearer", prices
    if case.on(chosen.shape) is not None:
        return "Dearer", f"{prices}: running replicas are not moved for less money"
    spreads = apart(case, chosen.shape, target.desired, devices)
    return _cheaper(prices, crowded=spreads and not apart(case, candidate.shape, count, devices))


def _over_limits(case: Case, candidate: Candidate, count: int, cost: float) -> tuple[str, str] | None:
    limit, budget = case.limits.get(candidate.shape), case.intent.budget_per_hour
    if limit is not None and limit.replicas < count:
        return str(limit.reason), limit.message
    if budget is not None and cost > budget + 1e-9:
        return "Budget", f"costs {cost:.2f} $/h, placement.budgetPerHour is {budget:.2f}"
    return None


def _cheaper(prices: str, *, crowded: bool) -> tuple[str, str]:
    if crowded:
        return "Spread", f"{prices}: free on too few nodes or zones for placement.spread"
    return "Fleet", f"{prices}: but others would go short, or cost more"


def impossible(case: Case, offered: Offers) -> tuple[Reason, str]:
    """Say why no shape can carry the model, naming the nearest one and by how much it misses."""
    judged = case.judged
    if not judged:
        missing = _nothing(case.intent, offered)
        return Reason.INSUFFICIENT_CAPACITY, missing + offered.left_out_message(case.intent)
    waiting = [c for c in judged if c.rejection == NOT_EVALUATED]
    if waiting:
        formats = " and ".join(sorted({c.shape.precision for c in waiting}))
        return Reason.EVALUATING, f"only {formats} would serve, which engine.precision Any needs a report on"
    late = _too_slow(judged)
    if late is not None:
        return Reason.SLO_UNREACHABLE, late
    small = [c for c in judged if c.rejection == DOES_NOT_FIT]
    if small:
        best = min(small, key=lambda c: (c.missing, c.shape))
        short = f", {best.missing / GIB:.1f} GiB short" if best.missing else ""
        return Reason.INFEASIBLE, (
            f"the model fits nowhere; nearest is {best.shape.described}{short}: {best.message}; "
            "lower engine.maxModelLen or engine.maxRunningRequests, or add larger GPUs"
            + offered.left_out_message(case.intent)
        )
    listed = "; ".join(f"{c.shape.described}: {c.message}" for c in judged[:3])
    return (
        Reason.INFEASIBLE,
        f"no shape of the fleet may be used ({listed}){offered.left_out_message(case.intent)}",
    )


def _nothing(intent: Intent, offered: Offers) -> str:
    unknown = sorted(name for name in intent.pools if name not in offered.pools)
    if unknown:
        named = " and ".join(unknown)
        return f"placement.pools names {named}, and there is no such GPUPool; waits for one"
    what = "no GPU that the catalog knows" if offered.has_nodes else "no GPU node"
    where = f"GPUPools {' and '.join(intent.pools)} have" if intent.pools else "the fleet has"
    return f"{where} {what}; waits for a node that offers one"


def _too_slow(judged: tuple[Candidate, ...]) -> str | None:
    """Say which objective is out of reach of every shape that the model fits, None if none is."""
    for reason, field in ((TPOT, "tpot_ms"), (TTFT, "ttft_ms")):
        slow = [c for c in judged if c.rejection == reason]
        if slow:
            best = min(slow, key=lambda c: (getattr(c, field), c.shape))
            return (
                f"the smallest {reason} that can be reached is {getattr(best, field):.2f} ms, on"
                f" {best.shape.described}: {best.message}; raise objectives.{reason.lower()}.milliseconds,"
                " or add GPUs with more bandwidth"
            )
    return None
