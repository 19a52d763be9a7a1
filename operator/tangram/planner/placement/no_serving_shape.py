"""Reason and message of the condition Placed where no shape of the fleet serves an LLMDeployment."""

from tangram.capacity.memory.budget import GIB
from tangram.capacity.sizing import Constraint
from tangram.eligibility.reasons import Reason
from tangram.fleet import Intent
from tangram.planner.observe.node_offers import NodeOffers
from tangram.planner.placement.alternatives import missing_bytes, rejection_message
from tangram.planner.placement.placement_demand import PlacementDemand


def why_none_serves(demand: PlacementDemand, node_offers: NodeOffers) -> tuple[Reason, str]:
    """Return why no shape can serve the model: the nearest shape, and by how much it misses."""
    rejected, intent = demand.shapes.rejected, demand.intent
    left_out = node_offers.left_out_message(intent)
    if not rejected:
        return Reason.INSUFFICIENT_CAPACITY, _no_candidate(intent, node_offers) + left_out
    formats = {r.shape.precision for r in rejected if r.constraint is Constraint.EVALUATION}
    if formats:
        text = f"only {' and '.join(sorted(formats))} would fit and meet the objectives, but engine.precision"
        pronoun = "it" if len(formats) == 1 else "them"
        return Reason.EVALUATING, f"{text} Any allows {pronoun} only after an evaluation"
    unreachable = _unreachable_objective(demand)
    if unreachable is not None:
        return Reason.SLO_UNREACHABLE, unreachable
    small = [(missing_bytes(demand, r), r.shape, r) for r in rejected if r.constraint is Constraint.MEMORY]
    if small:
        shortfall, shape, nearest = min(small, key=lambda each: each[:2])
        short = f", {shortfall / GIB:.1f} GiB short" if shortfall else ""
        return Reason.INFEASIBLE, (
            f"no GPU or slice has enough memory; the closest is {shape.described}{short}:"
            f" {rejection_message(demand, nearest)}; "
            f"lower engine.maxModelLen or engine.maxRunningRequests, or add larger GPUs{left_out}"
        )
    listed = "; ".join(f"{r.shape.described}: {rejection_message(demand, r)}" for r in rejected[:3])
    return Reason.INFEASIBLE, f"every shape in the fleet is ruled out ({listed}){left_out}"


def _no_candidate(intent: Intent, node_offers: NodeOffers) -> str:
    unknown = sorted(name for name in intent.pools if name not in node_offers.pools)
    if unknown:
        named = " and ".join(unknown)
        return f"placement.pools names {named}, and there is no such GPUPool; waits for one"
    what = "no GPU that the catalog knows" if node_offers.has_nodes else "no GPU node"
    where = f"GPUPools {' and '.join(intent.pools)} have" if intent.pools else "the fleet has"
    return f"{where} {what}; waits for a node that offers one"


def _unreachable_objective(demand: PlacementDemand) -> str | None:
    """Return which objective no shape reaches that the model fits; None: none is out of reach."""
    for constraint, number in ((Constraint.TPOT, 1), (Constraint.TTFT, 0)):
        reached = [
            (idle[number], rejection.shape, rejection)
            for rejection in demand.shapes.rejected
            if rejection.constraint is constraint and (idle := demand.shapes.idle_ms(rejection.shape))
        ]
        if reached:
            milliseconds, shape, nearest = min(reached, key=lambda each: each[:2])
            return (
                f"the smallest {constraint} that can be reached is {milliseconds:.2f} ms, on"
                f" {shape.described}: {rejection_message(demand, nearest)}; raise"
                f" objectives.{constraint.lower()}.milliseconds, or add GPUs with more bandwidth"
            )
    return None
