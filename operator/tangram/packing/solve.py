"""Pack a fleet: one mix of replicas per demand, least cost, in lexicographic stages. Deterministic.

`model.objective` has the stages. Mixes are chosen in the first three: unmet demand, dollars, share. In the
others they are settled, which makes GPUs of owners that keep everything interchangeable. The model shrinks,
and its answer is exact for these mixes.
"""

from collections import Counter
from dataclasses import replace

from tangram.packing.assignment.report import Report
from tangram.packing.column_generation.master import Master
from tangram.packing.model.build import build
from tangram.packing.model.gpu_classes import PreparedFleet, finest_classes, gpu_classes
from tangram.packing.model.prepare import by_fate, by_owner, by_shape, prepared_fleet
from tangram.packing.model.variables import Model
from tangram.packing.problem.result import Packing, Stage
from tangram.packing.problem.statement import Problem
from tangram.packing.problem.validate import validate
from tangram.packing.search.mix_search import MixSearch
from tangram.packing.search.search_tuning import TUNING
from tangram.packing.search.settled import chosen_columns, gives_up_replicas, settled_demands
from tangram.packing.search.shortlist import Shortlist
from tangram.packing.search.stage_bounds import with_bounds
from tangram.packing.search.stages import Run, SolveLimits, SolverTime

__all__ = ["SolveLimits", "solve"]

# Above this many classes, the model tells owners apart only once their mixes are settled.
_MOST_CLASSES = 300
_MOST_SETTLED = 3000
_DOUBTFUL = 0.05  # so far from its bound a stage may be from what would have been found with more time
_NO_LIMITS = SolveLimits()


def solve(problem: Problem, limits: SolveLimits = _NO_LIMITS) -> Packing:
    """Pack `problem`. Raises `InputError` where it contradicts itself; else there always is a packing."""
    packing, solver_time = _solve(problem, limits)
    if packing.status == "FALLBACK" or _moves_too_much(problem, packing):
        packing = _without_moves(problem, limits, solver_time)
    if _moves_too_much(problem, packing):
        packing = _nothing_changes(problem)
    unbounded = packing.dollars.value > 0 and not packing.dollars.bound
    return _with_bounds(problem, packing, solver_time) if unbounded and not solver_time.late() else packing


def _solve(problem: Problem, limits: SolveLimits) -> tuple[Packing, SolverTime]:
    validate(problem)
    fleet = prepared_fleet(problem)
    solver_time = SolverTime(limits)
    packing = _attempt(fleet, solver_time, _MOST_CLASSES)
    if _moves_too_much(problem, packing):  # owners were not told apart, and owners had to swap
        again = _attempt(fleet, solver_time, _MOST_SETTLED)
        packing = packing if again.status == "FALLBACK" else again
    return packing, solver_time


def _attempt(fleet: PreparedFleet, solver_time: SolverTime, most: int) -> Packing:
    """Return the best packing found. The model tells owners apart when it chooses mixes if that makes no
    more than `most` classes; else only afterwards, and it may take more moves than it counted.
    """
    first, exact = _choose(fleet, solver_time, most)
    report = Report(fleet, first)
    if first.solution is None:
        return report.nothing_changes()
    if exact:
        if not first.whole:
            _fix(first)
        _tidy(first, fleet)
        packing = report.packing(first)
    else:
        second = _settle(fleet, first, solver_time)
        packing = report.packing(first if second is None else second)
    if all(_near(stage) for stage in packing.stages[: _paid(packing)]):
        return packing
    return min(packing, report.nothing_changes(), key=_worth)  # the time was over: what runs may be better


def _nothing_changes(problem: Problem) -> Packing:
    fleet = prepared_fleet(problem)
    return Report(fleet, Run(_relaxed(fleet), SolverTime(_NO_LIMITS))).nothing_changes()


def _without_moves(problem: Problem, limits: SolveLimits, solver_time: SolverTime) -> Packing:
    """Return the best plan that moves nothing, beside the bounds of the problem that was asked."""
    still = replace(problem, move_budget=0)
    wall = None if limits.wall_s is None else solver_time.left(1.0)[1]
    packing, _ = _solve(still, replace(limits, wall_s=wall, clock=None))
    return packing if packing.status == "FALLBACK" else _with_bounds(problem, packing, solver_time)


def _with_bounds(problem: Problem, packing: Packing, solver_time: SolverTime) -> Packing:
    """Return a packing that was found by other means beside the bounds of the problem that was asked."""
    stages = with_bounds(_relaxed(prepared_fleet(problem)), packing.stages, solver_time)
    bound = next(stage.bound for stage in stages if stage.is_dollars)
    gap = (packing.objective - bound) / packing.objective if packing.objective > 0 else 0.0
    packing = replace(packing, bound=bound, gap=gap, stages=stages)
    return packing if packing.status == "FALLBACK" else replace(packing, status="FEASIBLE")


def _relaxed(fleet: PreparedFleet) -> Model:
    """Return the model of all mixes in which owners are not told apart: none of its bounds is too high."""
    return build(fleet, fleet.demands, gpu_classes(fleet, by_shape(fleet)))


def _near(stage: Stage) -> bool:
    return stage.proved or stage.value - stage.bound <= _DOUBTFUL * max(1.0, stage.value)


def _paid(packing: Packing) -> int:
    """Return how many stages there are up to the dollars: what a packing is worth."""
    return next(i for i, stage in enumerate(packing.stages, 1) if stage.is_dollars)


def _worth(packing: Packing) -> tuple[float, ...]:
    return tuple(round(stage.value, 6) for stage in packing.stages[: _paid(packing)])


def _moves_too_much(problem: Problem, packing: Packing) -> bool:
    """Whether more replicas move than budgets allow, or one that must not: owners may have been mixed up."""
    if not packing.moves:
        return False
    pools = {gpu.id: gpu.pool for gpu in problem.gpus} if problem.move_budgets else {}
    away = Counter(pools.get(move.source.gpu, "") for move in packing.moves)
    budgets = dict(problem.move_budgets)
    pinned = {(gpu.id, i.start) for gpu in problem.gpus for i in gpu.instances if not i.movable}
    return (
        (problem.move_budget is not None and len(packing.moves) > problem.move_budget)
        or any(n > budgets.get(pool, n) for pool, n in away.items())
        or any(
            (move.source.gpu, move.source.start) in pinned and move.source.profile == move.target.profile
            for move in packing.moves
        )
    )


def _choose(fleet: PreparedFleet, solver_time: SolverTime, most: int) -> tuple[Run, bool]:
    """Choose the mixes. True: with every owner told apart, so that the dollars are exact."""
    grouped, exact = finest_classes(fleet, by_owner(fleet), by_shape(fleet), most)
    model = build(fleet, fleet.demands, grouped)
    search = MixSearch(fleet, solver_time, model)
    run = search.run()
    if run.solution is None:
        return run, exact
    if model.mixes and search.is_small and run.complete:
        exact_run = search.run_of_all_mixes()
        run = run if exact_run.solution is None else exact_run
    _share(run, len(model.cp.proto.variables))
    return run, exact


def _share(run: Run, variables: int) -> None:
    share = run.model.objective.share_stage(run.model.taken.values())
    # Not worth it where dollars may be left, nor on a large fleet, where nothing idles.
    if run.time.is_large(variables) or not (run.whole or run.complete):
        run.note(share)
    else:
        run.minimise(share, 0.3)


def _fix(run: Run) -> None:
    """Settle the mixes that were chosen, on the same model: what it proves from here on holds for these."""
    run.whole = True
    solution, model = run.solution or [], run.model
    for variables in model.chosen.values():
        for variable in variables:
            if solution[variable.index]:
                model.cp.add(variable == 1)
    for mix in model.mixes.values():
        for count in mix.counts.values():
            model.cp.add(count == solution[count.index])
    for piece in model.pieces.values():
        model.cp.add(piece == solution[piece.index])


def _settle(fleet: PreparedFleet, first: Run, solver_time: SolverTime) -> Run | None:
    """Lay out the chosen mixes on a model that tells owners apart as far as that matters now."""
    chosen = chosen_columns(fleet, first)
    settled = settled_demands(fleet.demands, chosen)
    losers = frozenset(demand.id for demand in fleet.demands if gives_up_replicas(demand, chosen[demand.id]))
    by_cost, alike = by_fate(fleet, losers, costs=True), by_fate(fleet, losers, costs=False)
    grouped, _ = finest_classes(fleet, by_cost, alike, _MOST_SETTLED)
    model = build(fleet, settled, grouped)
    if solver_time.is_large(len(model.cp.proto.variables)):
        bounded = Master(model).minimise(model.objective.dollars, 0, solver_time.late)
        if bounded.feasible:
            shortlist = Shortlist(fleet, bounded, TUNING)
            few = shortlist.targets(model, first.carried(model), TUNING.settled_class_targets)
            model = build(fleet, settled, few)
    run = Run(model, solver_time)
    run.start_from(first)
    if not run.minimise(run.model.objective.mix_stage(None), 0.5):
        return None
    _tidy(run, fleet)
    return run


def _tidy(run: Run, fleet: PreparedFleet) -> None:
    """Least moves, then least re-cuts, then least stranded, then most headroom."""
    objective = run.model.objective
    large = run.time.is_large(len(run.model.cp.proto.variables))
    run.minimise(objective.disruption_stage, 0.03 if large else 0.15)  # 1,000 GPUs: the same in a third
    if run.late:  # the model is too large for the time that is left
        run.note(objective.stranded_stage)
    else:
        run.minimise(objective.stranded_stage, 0.15)
    if fleet.problem.headroom:
        run.minimise(objective.headroom_stage, 0.3)
