"""Cost of the rule that all replicas of an LLMDeployment have one shape, against a plan with free mixes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tangram.packing import Demand, Packing, Stage
from tangram.packing.problem.prepared import prices_of
from tangram.packing.problem.result import DOLLARS, unmet_stage
from tangram.plan.place.best.pack import PlanTimeLimit, pack
from tangram.plan.place.best.packing_problem import FleetProblem

_SOLVE_S = 2.0  # deterministic, for the free mixes: the comparison needs their bound, which comes first
_EQUAL = 1e-6  # USD, or shares of demands
_LEAST_POINTS = 0.05  # of demand: less is rounded to zero
_UNKNOWN = {"text": "has a cost that is not known: free mixes of shapes were not compared in time"}


def one_shape_document(
    fleet: FleetProblem, packing: Packing, limits: PlanTimeLimit | None
) -> dict[str, Any] | None:
    """Return the first stage that free mixes may improve: its value, that of free mixes, their bound.

    None where no LLMDeployment has two shapes to mix; only a text where the comparison did not end in time.
    `limits`: None where no time is left.
    """
    problem = fleet.problem
    if not any(d.uniform and len(d.offers) > 1 for d in problem.demands):
        return None
    if packing.status == "FALLBACK" or limits is None:
        return dict(_UNKNOWN)
    prices = prices_of(problem)

    def mixed(demand: Demand) -> Demand:
        budget = demand.budget_per_hour
        if budget is not None:
            running_cost = (
                prices.required_replica_hour(*part.shape) * part.count for part in demand.protected
            )
            budget = max(budget, *running_cost, 0.0)
        return replace(demand, uniform=False, protected=(), budget_per_hour=budget)

    demands = tuple(mixed(d) if d.uniform and d.offers else d for d in problem.demands)
    free = pack(replace(fleet, problem=replace(problem, demands=demands)), limits, _SOLVE_S)
    if free.status == "FALLBACK":
        return dict(_UNKNOWN)
    difference = _difference(packing, free)
    demands_of_stage = sum(difference["stage"] == unmet_stage(demand.priority) for demand in problem.demands)
    return difference | {"text": _text(difference, demands_of_stage)}


def points(missing: float, demands: int) -> str:
    """Return `missing`, a sum of unmet shares, as percentage points of all of the `demands`."""
    share = 100 * missing / max(1, demands)
    return f"{share:.1f} points" if share >= _LEAST_POINTS else "<0.1 points"


def _text(cost: Mapping[str, Any], demands: int) -> str:
    if cost["difference"] <= _EQUAL:
        return "costs nothing: no mix of shapes serves more, or as much for less"
    if cost["stage"] == DOLLARS:
        return (
            f"costs at most {cost['difference']:.2f} $ ({cost['differenceShare']:.2%}):"
            f" free mixes cost {cost['free']:.2f} $, bound {cost['freeBound']:.2f} $"
        )
    priority = cost["stage"].removeprefix("unmet[").removesuffix("]")
    return (
        f"leaves at most {points(cost['difference'], demands)} more of the demand of priority {priority}"
        f" unserved: {points(cost['value'], demands)}, free mixes {points(cost['free'], demands)},"
        f" bound {points(cost['freeBound'], demands)}"
    )


def _difference(packing: Packing, free: Packing) -> dict[str, Any]:
    """Return the first stage that differs, else the last: stages are comparable only after equal ones."""
    free_stages = {stage.name: stage for stage in free.stages}
    difference: dict[str, Any] = {"difference": 0.0}
    for stage in packing.stages:
        if (stage.is_dollars or stage.is_unmet) and difference["difference"] <= _EQUAL:
            difference = _stage(stage, free_stages[stage.name])
    return difference


def _stage(stage: Stage, free_stage: Stage) -> dict[str, Any]:
    # One shape is a mix, too: free mixes are never worse.
    free_value, free_bound = min(free_stage.value, stage.value), min(free_stage.bound, stage.value)
    difference = stage.value - free_bound
    return {
        "stage": stage.name,
        "value": round(stage.value, 6),
        "free": round(free_value, 6),
        "freeBound": round(free_bound, 6),
        "difference": round(difference, 6),
        "differenceShare": round(difference / stage.value, 6) if stage.value > 0 else 0.0,
    }
