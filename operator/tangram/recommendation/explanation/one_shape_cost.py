"""What it costs that all replicas of an LLMDeployment have one shape: a plan beside the one of free mixes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram.packing import Demand, Packing, Stage
from tangram.packing.problem.prepared import prices_of
from tangram.recommendation.problem.pack import PlanTimeLimit, pack
from tangram.recommendation.problem.problem import FleetProblem

_SOLVE_S = 2.0  # deterministic, for the free mixes: their bound is what counts, and comes first
_EQUAL = 1e-6  # USD, or LLMDeployments
_LEAST_POINTS = 0.05  # of demand: less is rounded to nothing


_UNKNOWN = {"text": "has a cost that is not known: free mixes of shapes were not compared in time"}


def one_shape_document(
    asked: FleetProblem, packing: Packing, limits: PlanTimeLimit | None
) -> dict[str, Any] | None:
    """Return the first stage that free mixes may better: its value, theirs, their bound, the difference.

    None where no LLMDeployment is restricted; only a text where the cost is not known. `limits`: None where
    no time is left to compare.
    """
    problem = asked.problem
    if not any(d.uniform and len(d.offers) > 1 for d in problem.demands):
        return None
    if packing.status == "FALLBACK" or limits is None:
        return dict(_UNKNOWN)
    prices = prices_of(problem)

    def mixed(demand: Demand) -> Demand:
        budget = demand.budget_per_hour
        if budget is not None:
            kept = (prices.shape_hour(part.shape) * part.count for part in demand.protected)
            budget = max(budget, *kept, 0.0)
        return replace(demand, uniform=False, protected=(), budget_per_hour=budget)

    demands = tuple(mixed(d) if d.uniform and d.offers else d for d in problem.demands)
    free = pack(replace(asked, problem=replace(problem, demands=demands)), limits, _SOLVE_S)
    if free.status == "FALLBACK":
        return dict(_UNKNOWN)
    found = _difference(packing, free)
    sharing = sum(found["stage"] == f"unmet[{demand.priority}]" for demand in problem.demands)
    return found | {"text": _text(found, sharing)}


def points(missing: float, demands: int) -> str:
    """Return a sum of unserved shares in points of the demand of so many demands."""
    share = 100 * missing / max(1, demands)
    return f"{share:.1f} points" if share >= _LEAST_POINTS else "<0.1 points"


def _text(found: Mapping[str, Any], demands: int) -> str:
    if found["difference"] <= _EQUAL:
        return "costs nothing: no mix of shapes serves more, or as much for less"
    if found["stage"] == "dollars":
        return (
            f"costs at most {found['difference']:.2f} $ ({found['differenceShare']:.2%}):"
            f" free mixes cost {found['free']:.2f} $, bound {found['freeBound']:.2f} $"
        )
    priority = found["stage"].removeprefix("unmet[").removesuffix("]")
    return (
        f"leaves at most {points(found['difference'], demands)} more of the demand of priority {priority}"
        f" unserved: {points(found['value'], demands)}, free mixes {points(found['free'], demands)},"
        f" bound {points(found['freeBound'], demands)}"
    )


def _difference(packing: Packing, free: Packing) -> dict[str, Any]:
    theirs = {stage.name: stage for stage in free.stages}
    ours = [stage for stage in packing.stages if stage.name == "dollars" or stage.name.startswith("unmet[")]
    found: dict[str, Any] = {}
    for stage in ours:
        found = _stage(stage, theirs)
        # What follows is worth comparing only where free mixes serve no more.
        if found["difference"] > _EQUAL:
            break
    return found


def _stage(stage: Stage, theirs: Mapping[str, Stage]) -> dict[str, Any]:
    other = theirs[stage.name]
    value, bound = min(other.value, stage.value), min(other.bound, stage.value)  # one shape is a mix, too
    difference = stage.value - bound
    return {
        "stage": stage.name,
        "value": round(stage.value, 6),
        "free": round(value, 6),
        "freeBound": round(bound, 6),
        "difference": round(difference, 6),
        "differenceShare": round(difference / stage.value, 6) if stage.value > 0 else 0.0,
    }
