"""Explain an unmet demand by solving again: binding constraints, and the smallest changes that serve it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tangram.catalog import InputError
from tangram.eligibility.explanation.no_serving_shape import nearest_rejection
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.packing import Demand, Packing, Problem
from tangram.packing.problem.mix import least_unmet
from tangram.plan.explanation.sufficient_settings import sufficient_settings
from tangram.plan.explanation.unmet_reason import no_gpu_in_pools
from tangram.plan.offers.fleet_shapes import fleet_shapes
from tangram.plan.place.best.demands import existing_slices, offered
from tangram.plan.place.best.pack import LEAST_S, PlanTimeLimit
from tangram.plan.place.best.packing_problem import FleetProblem

if TYPE_CHECKING:
    from tangram.packing.explanation.question import ExplanationBudget
    from tangram.packing.explanation.sufficient_changes import ObjectiveChange, SufficientChange
    from tangram.packing.search.stages import SolveLimits

_LOOSER = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # of an objective, as factors
_MOST_EXPLAINED = 8  # demands of one plan, the most important first
_GPUS = 4000  # of all explanations together: the time of each grows with the fleet
_BUILT = 50_000  # shapes in models of explanations, after which no other begins: some seconds
_QUESTION_S = 2.0  # deterministic, for each question: what rules the demand out, and what would serve it
_MOST_SETTINGS = 3  # settings tried for a demand that no shape serves
_MODELS_PER_SOLVE = 3
_SOLVE_S, _SOLVE_S_PER_GPU, _MOST_SOLVE_S = 0.5, 0.0025, 3.0  # deterministic, for each change that is tried
# Changes that are tried, of one demand and of all: some shortages of 4 GPUs took a minute to explain.
_MOST_SOLVES, _ALL_SOLVES = 8, 24


def unmet_explanations(
    fleet: FleetProblem, packing: Packing, limits: PlanTimeLimit
) -> dict[str, dict[str, Any]]:
    """Return `because` and `relaxations` of unmet LLMDeployments, by id; of many, the highest priorities.

    How many depends on the size of the fleet and on `limits`.
    """
    if packing.status == "FALLBACK":  # no plan in time: which demands stay unmet is not known
        return {}
    stopwatch, explanations, built, solves = limits.started(), {}, 0, _ALL_SOLVES
    most = min(_MOST_EXPLAINED, max(1, _GPUS // max(1, len(fleet.problem.gpus))))
    ranked = sorted(packing.unmet, key=lambda item: (-item.priority, -item.share, item.demand))
    explained = [item for item in ranked if item.demand in fleet.assessed][:most]
    for number, item in enumerate(explained):
        remaining = stopwatch.until(1.0)
        if built > _BUILT or (remaining.wall_s is not None and remaining.wall_s <= LEAST_S):
            break
        solves_of_item = min(_MOST_SOLVES, solves // (len(explained) - number))
        explanation = _explanation(fleet, packing, item.demand, remaining, solves_of_item)
        explanations[item.demand] = explanation[0]
        built, solves = built + explanation[1], solves - explanation[2]
    return explanations


def unmet_explanation(fleet: FleetProblem, packing: Packing, demand_id: str) -> dict[str, Any]:
    """Return `because` and `relaxations` of one demand, without a time limit; empty where none is unmet."""
    return _explanation(fleet, packing, demand_id, None, _MOST_SOLVES)[0]


def _explanation(
    fleet: FleetProblem, packing: Packing, demand_id: str, limits: PlanTimeLimit | None, solves: int
) -> tuple[dict[str, Any], int, int]:
    """Return the explanation, the shapes in the models that it took, and its solves.

    `solves`: the most changes to try, where there are limits.
    """
    if not any(u.demand == demand_id and u.share > 0 for u in packing.unmet):
        return {}, 0, 0
    from tangram.packing.explanation.question import size  # noqa: PLC0415 - loads the solver

    assessed = fleet.assessed.get(demand_id)
    if assessed is not None and (missing := no_gpu_in_pools(assessed, fleet)):
        return {"because": [f"placement: {missing}"], "relaxations": []}, 0, 0
    if assessed is not None and not assessed.serving:
        changes = list(_serving_settings(fleet, assessed, limits))
        built = _MOST_SETTINGS * _MODELS_PER_SOLVE * size(fleet.problem)
        return {"because": [_shortfall(assessed)], "relaxations": changes}, built, 0
    return _solved_explanation(fleet, packing, demand_id, limits, solves)


def _solved_explanation(
    fleet: FleetProblem, packing: Packing, demand_id: str, limits: PlanTimeLimit | None, solves: int
) -> tuple[dict[str, Any], int, int]:
    """Return the same for a demand that shapes serve."""
    from tangram.packing.explanation.explain import infeasible_core  # noqa: PLC0415 - loads the solver
    from tangram.packing.explanation.sufficient_changes import relaxations  # noqa: PLC0415

    problem = _with_all_offers(fleet, demand_id)
    for_core, for_changes = _budgets(limits, solves)
    solves_before = for_changes.solves
    constraints = infeasible_core(problem, packing, demand_id, for_core)
    objectives, solve_limits = _objective_changes(fleet, demand_id), _solve_limits(fleet, limits)
    sufficient = relaxations(problem, packing, demand_id, objectives, for_changes, solve_limits)
    document = {
        "because": [] if constraints is None else [str(binding) for binding in constraints.bindings],
        "relaxations": [_relaxation(change) for change in sufficient],
    }
    return document, for_core.built + for_changes.built, solves_before - for_changes.solves


def _budgets(limits: PlanTimeLimit | None, solves: int) -> "tuple[ExplanationBudget, ExplanationBudget]":
    """Return what the core and the sufficient changes may cost."""
    from tangram.packing.explanation.question import ExplanationBudget  # noqa: PLC0415 - loads the solver

    if limits is None:
        return ExplanationBudget(), ExplanationBudget()
    expired = limits.started().expired
    for_core = ExplanationBudget(_QUESTION_S, _QUESTION_S / 4, solves=solves, late=expired)
    return for_core, replace(for_core)


def _relaxation(change: "SufficientChange") -> dict[str, Any]:
    return {
        "dimension": change.dimension,
        "subject": change.subject,
        "value": change.value,
        "text": str(change),
        "fleetCostPerHour": round(change.cost_per_hour, 6),
    }


def _shortfall(assessed: AssessedShapes) -> str:
    """Return the constraint that keeps an LLMDeployment from being served, in the form of `because`."""
    if assessed.requirements.impossible:
        return f"engine: {assessed.requirements.impossible}"
    nearest = nearest_rejection(assessed)
    if nearest is None:
        return "placement: no GPU of this fleet is allowed"
    return f"{nearest.constraint}: {nearest.shape}: {nearest.message}"


def _serving_settings(
    fleet: FleetProblem, assessed: AssessedShapes, limits: PlanTimeLimit | None
) -> Iterator[dict[str, Any]]:
    """Yield the settings with which the fleet serves a demand whole that no shape serves now."""
    from tangram.packing.solve import solve  # noqa: PLC0415 - loads the solver

    attempts, demand_id = 0, assessed.requirements.id
    for text, changes in sufficient_settings(assessed):
        changed = _demand_with(fleet, demand_id, changes)
        if attempts == _MOST_SETTINGS or least_unmet(changed) > 0:
            continue
        attempts += 1
        demands = tuple(changed if d.id == demand_id else d for d in fleet.problem.demands)
        packing = solve(replace(fleet.problem, demands=demands), _solve_limits(fleet, limits))
        if not any(u.demand == demand_id for u in packing.unmet):
            yield {
                "dimension": "objective" if {*changes} <= {"ttft_ms", "tpot_ms"} else "engine",
                "subject": " and ".join(changes),
                "value": next(iter(changes.values())),
                "text": text,
                "fleetCostPerHour": round(packing.cost_per_hour, 6),
            }


def _solve_limits(fleet: FleetProblem, limits: PlanTimeLimit | None) -> "SolveLimits":
    """Return the limits for trying one change."""
    most_s = min(_MOST_SOLVE_S, _SOLVE_S + _SOLVE_S_PER_GPU * len(fleet.problem.gpus))
    return PlanTimeLimit().for_solver(None) if limits is None else limits.for_solver(most_s)


def _with_all_offers(fleet: FleetProblem, demand_id: str) -> Problem:
    """Return the problem with every shape that serves the demand, though the fleet has no room for them."""
    assessed = fleet.assessed.get(demand_id)
    if assessed is None or not assessed.serving:
        return fleet.problem
    demands = (offered(assessed, fleet.running) if d.id == demand_id else d for d in fleet.problem.demands)
    return replace(fleet.problem, demands=tuple(demands))


def _objective_changes(fleet: FleetProblem, demand_id: str) -> list["ObjectiveChange"]:
    """Return the latency objectives of a demand with the looser values to try."""
    from tangram.packing.explanation.sufficient_changes import ObjectiveChange  # noqa: PLC0415

    def demand_at(field: str) -> Callable[[float], Demand]:
        return lambda value: _demand_with(fleet, demand_id, {field: value})

    assessed = fleet.assessed.get(demand_id)
    if assessed is None:
        return []
    request = assessed.requirements.request
    return [
        ObjectiveChange(name, "ms", tuple(round(limit * factor, 1) for factor in _LOOSER), demand_at(field))
        for name, field, limit in (("TTFT", "ttft_ms", request.ttft_ms), ("TPOT", "tpot_ms", request.tpot_ms))
        if limit is not None
    ]


def _demand_with(fleet: FleetProblem, demand_id: str, changes: Mapping[str, Any]) -> Demand:
    """Return a demand with changed fields of its request."""
    requirements, prices = fleet.assessed[demand_id].requirements, fleet.assessed[demand_id].prices
    skus = fleet.problem.skus
    hourly = {sku: price for sku in skus if (price := prices.gpu_hour(sku)) is not None}
    changed = replace(requirements, request=replace(requirements.request, **changes))
    try:
        return offered(fleet_shapes(changed, skus, hourly, existing_slices(fleet.problem)), fleet.running)
    except InputError as error:
        raise InputError(f"LLMDeployment {demand_id}", f"{error.field} {error.problem}") from error
