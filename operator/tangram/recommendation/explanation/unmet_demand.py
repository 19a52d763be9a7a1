"""Why a demand goes short, and the smallest changes that would serve it, each tried on the whole fleet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tangram.catalog import InputError
from tangram.eligibility.shapes.serving_shapes import AssessedShapes, assessed_shapes
from tangram.packing import Demand, Packing, Problem
from tangram.packing.problem.mix import least_unmet
from tangram.recommendation.explanation.no_serving_shape import nearest_shape_shortfall, sufficient_settings
from tangram.recommendation.explanation.unmet_reason import no_gpu_in_pools
from tangram.recommendation.problem.demands import existing_slices, offered
from tangram.recommendation.problem.pack import LEAST_S, PlanTimeLimit
from tangram.recommendation.problem.problem import FleetProblem

_LOOSER = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0)  # of an objective, as factors
_MOST = 8  # explained in one plan, the most important first
_GPUS = 4000  # that many GPUs' worth of explanations: each takes as long as the fleet is large
_BUILT = 50_000  # shapes in models made for explanations, after which no other is begun: some seconds
_THINKING_S = 2.0  # deterministic, for each question: what rules it out, and what would help
_MOST_TRIED = 3  # settings with which a shape would serve
_SOLVE = 3  # models in one solve
_SOLVE_S, _GPU_S = 0.5, 0.0025  # deterministic, for trying one change, and for each GPU of the fleet
_MOST_SOLVE_S = 3.0
# Changes that are tried, of one demand and of all: some shortages of 4 GPUs took a minute to explain.
_MOST_SOLVES, _ALL_SOLVES = 8, 24


def unmet_explanations(
    asked: FleetProblem, packing: Packing, limits: PlanTimeLimit
) -> dict[str, dict[str, Any]]:
    """Return `because` and `relaxations` of LLMDeployments that go short, by id.

    Of many, those of the highest priority; how many depends on the fleet alone, and on `limits`.
    """
    watch, found, built = limits.started(), {}, 0
    most = min(_MOST, max(1, _GPUS // max(1, len(asked.problem.gpus))))
    if packing.status == "FALLBACK":  # which demands stay short is not known: there was no plan in time
        return {}
    ranked = sorted(packing.unmet, key=lambda item: (-item.priority, -item.share, item.demand))
    explained = [item for item in ranked if item.demand in asked.sized][:most]
    solves = _ALL_SOLVES
    for number, item in enumerate(explained):
        left = watch.part(1.0)
        if built > _BUILT or (left.wall_s is not None and left.wall_s <= LEAST_S):
            break
        mine = min(_MOST_SOLVES, solves // (len(explained) - number))
        found[item.demand], spent = _short(asked, packing, item.demand, left, mine)
        built, solves = built + spent.built, solves - spent.solves
    return found


def unmet_explanation(asked: FleetProblem, packing: Packing, demand_id: str) -> dict[str, Any]:
    """Return `because` and `relaxations` of one demand, thought about for as long as it takes.

    Nothing where it is served whole.
    """
    return _short(asked, packing, demand_id, None, _MOST_SOLVES)[0]


@dataclass(frozen=True, slots=True)
class _Spent:
    """What an explanation took: shapes in the models made for it, and whole solves."""

    built: int = 0
    solves: int = 0


def _short(
    asked: FleetProblem, packing: Packing, demand_id: str, limits: PlanTimeLimit | None, solves: int
) -> tuple[dict[str, Any], _Spent]:
    """Return the same, with so many solves at most where there are limits, and what it took."""
    if not any(u.demand == demand_id and u.share > 0 for u in packing.unmet):
        return {}, _Spent()
    from tangram.packing.explanation.explain import Thinking, core  # noqa: PLC0415 - loads the solver
    from tangram.packing.explanation.question import size  # noqa: PLC0415
    from tangram.packing.explanation.relax import relaxations  # noqa: PLC0415

    each = asked.sized.get(demand_id)
    if each is not None and (missing := no_gpu_in_pools(each, asked)):
        return {"because": [f"placement: {missing}"], "relaxations": []}, _Spent()
    if each is not None and not each.offers:
        document = {
            "because": nearest_shape_shortfall(each),
            "relaxations": list(_settings(asked, each, limits)),
        }
        return document, _Spent(_MOST_TRIED * _SOLVE * size(asked.problem))
    problem = _wide(asked, demand_id)
    thinking = [Thinking(), Thinking()]
    if limits is not None:
        late = limits.started().late
        thinking = [Thinking(_THINKING_S, _THINKING_S / 4, solves=solves, late=late) for _ in range(2)]
    whole = thinking[1].solves
    found = core(problem, packing, demand_id, thinking[0])
    eased = relaxations(
        problem,
        packing,
        demand_id,
        _knobs(asked, demand_id),
        thinking[1],
        _each_solve(limits, len(asked.problem.gpus)),
    )
    document = {
        "because": [] if found is None else [str(binding) for binding in found.bindings],
        "relaxations": [
            {
                "dimension": each.dimension,
                "subject": each.subject,
                "value": each.value,
                "text": str(each),
                "fleetCostPerHour": round(each.cost_per_hour, 6),
            }
            for each in eased
        ],
    }
    return document, _Spent(sum(each.built for each in thinking), whole - thinking[1].solves)


def _settings(
    asked: FleetProblem, each: AssessedShapes, limits: PlanTimeLimit | None
) -> Iterator[dict[str, Any]]:
    """The settings with which the whole fleet serves one that no shape serves now: of each kind the first."""
    from tangram.packing.solve import solve  # noqa: PLC0415 - loads the solver

    tried, demand_id = 0, each.requirements.id
    for text, changes in sufficient_settings(each):
        changed = _demand_with(asked, demand_id, changes)
        if tried == _MOST_TRIED or least_unmet(changed) > 0:
            continue
        tried += 1
        demands = tuple(changed if d.id == demand_id else d for d in asked.problem.demands)
        found = solve(
            replace(asked.problem, demands=demands),
            *filter(None, [_each_solve(limits, len(asked.problem.gpus))]),
        )
        if not any(u.demand == demand_id for u in found.unmet):
            yield {
                "dimension": "objective" if {*changes} <= {"ttft_ms", "tpot_ms"} else "engine",
                "subject": " and ".join(changes),
                "value": next(iter(changes.values())),
                "text": text,
                "fleetCostPerHour": round(found.cost_per_hour, 6),
            }


def _each_solve(limits: PlanTimeLimit | None, gpus: int) -> Any:
    from tangram.packing.search.stages import SolveLimits as SolverLimits  # noqa: PLC0415 - loads the solver

    if limits is None:
        return None
    clock, watch = limits.clock, limits.started()
    elapsed = None if clock is None else lambda: clock() - watch.began
    return SolverLimits(
        deterministic_s=min(_MOST_SOLVE_S, _SOLVE_S + _GPU_S * gpus), wall_s=limits.wall_s, clock=elapsed
    )


def _wide(asked: FleetProblem, demand_id: str) -> Problem:
    """Return the problem with what would serve a demand whole, though only what it runs can be had."""
    each = asked.sized.get(demand_id)
    if each is None or not each.offers:
        return asked.problem
    demands = (offered(each, asked.running) if d.id == demand_id else d for d in asked.problem.demands)
    return replace(asked.problem, demands=tuple(demands))


def _knobs(asked: FleetProblem, demand_id: str) -> list[Any]:
    from tangram.packing.explanation.relax import Knob  # noqa: PLC0415 - loads the solver

    each = asked.sized.get(demand_id)
    if each is None:
        return []
    limits = (
        ("TTFT", "ttft_ms", each.requirements.request.ttft_ms),
        ("TPOT", "tpot_ms", each.requirements.request.tpot_ms),
    )
    return [
        Knob(name, "ms", tuple(round(limit * factor, 1) for factor in _LOOSER), _at(asked, demand_id, field))
        for name, field, limit in limits
        if limit is not None
    ]


def _at(asked: FleetProblem, demand_id: str, field: str) -> Any:
    return lambda value: _demand_with(asked, demand_id, {field: value})


def _demand_with(asked: FleetProblem, demand_id: str, changes: Mapping[str, Any]) -> Demand:
    """Return a demand as it would be if its requests were others."""
    wanted, prices = asked.sized[demand_id].requirements, asked.sized[demand_id].assessed.prices
    skus = {gpu.sku for gpu in asked.problem.gpus} | {pool.sku for pool in asked.problem.growable}
    hourly = {sku: price for sku in skus if (price := prices.gpu_hour(sku)) is not None}
    looser = replace(wanted, request=replace(wanted.request, **changes))
    try:
        return offered(assessed_shapes(looser, skus, hourly, existing_slices(asked.problem)), asked.running)
    except InputError as error:
        raise InputError(f"LLMDeployment {demand_id}", f"{error.field} {error.problem}") from error
