"""Bounds of all mixes beside the stages of a packing that no search of them made."""

from collections.abc import Collection
from dataclasses import replace

from tangram.packing.column_generation.master import Master
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import least_unmet_of
from tangram.packing.problem.result import Stage
from tangram.packing.search.stage_solver import StageGoal
from tangram.packing.search.stages import SolverTime


def with_bounds(model: Model, stages: Collection[Stage], solver_time: SolverTime) -> tuple[Stage, ...]:
    """Return each stage with the bound of all mixes within what the stages before it reached.

    `model`: of the problem that was asked. Once time is over, a bound is what no fleet at all can beat.
    """
    master, bounded_stages = Master(model), list[Stage]()
    priorities = {model.objective.mix_stage(p).name: p for p in (*model.objective.unmet, None)}
    for stage in stages:
        if stage.name not in priorities:
            bounded_stages.append(replace(stage, bound=0.0, proved=stage.value == 0))
            continue
        goal = StageGoal(priorities[stage.name], 0)
        scale = model.objective.mix_stage(goal.priority).scale
        value = round(stage.value * scale)
        bound = min(value, _proved_bound(model, master, goal, solver_time))
        proved = bound == value
        bounded = stage.value if proved else bound / scale
        bounded_stages.append(replace(stage, bound=bounded, proved=proved))
        if goal.priority is not None:
            master.limit(goal.priority, value + len(model.demands))  # the share of each demand was rounded
    return tuple(bounded_stages)


def _proved_bound(model: Model, master: Master, goal: StageGoal, solver_time: SolverTime) -> int:
    least = least_unmet_of(model.demands, goal.priority)
    if solver_time.late():
        return least
    bounded = master.minimise(goal.terms(model), least, solver_time.late)
    goal = goal.bounded(least)
    return goal.bounded_by_master(model, bounded.bound).bound if bounded.feasible else least
