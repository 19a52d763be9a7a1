"""The mix of every demand: one stage after the other, each beside the bound of all mixes.

The master problem bounds a stage and names the columns that matter. A small fleet has one model of all mixes
from the start, and price-and-branch where that leaves a gap. A large fleet has a neighbourhood search.
"""

from tangram.packing.column_generation.master import Bounded
from tangram.packing.model.build import build
from tangram.packing.model.gpu_classes import PreparedFleet
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import least_unmet_of
from tangram.packing.search.neighbourhood_search import NeighbourhoodSearch
from tangram.packing.search.price_and_branch import price_and_branch
from tangram.packing.search.search_tuning import TUNING, SearchTuning
from tangram.packing.search.stage_solver import Incumbent, StageGoal, StageSolver
from tangram.packing.search.stages import Run, SolverTime, solve_model


class MixSearch:
    """The search for the mixes of one problem. `model`: of all mixes."""

    def __init__(
        self, fleet: PreparedFleet, solver_time: SolverTime, model: Model, tuning: SearchTuning = TUNING
    ) -> None:
        self._solver = StageSolver(fleet, solver_time, model, tuning)
        self._fleet, self._model, self._tuning = fleet, model, tuning

    @property
    def is_small(self) -> bool:
        """Whether the model of all mixes is solved."""
        return self._solver.is_small

    def run(self) -> Run:
        """Return the run that chose; without a solution where there was no time for one."""
        solver = self._solver
        self._set_time()
        if solver.is_small or not self._model.mixes or not self._serve_all():
            priorities = (*sorted(self._model.objective.unmet, reverse=True), None)
            _ = all(self._minimise(priority) for priority in priorities)
        run = solver.best or Run(self._model, solver.time)
        run.stages = solver.stages
        run.complete = all(stage.proved for stage in solver.stages)
        return run

    def run_of_all_mixes(self) -> Run:
        """Return a run of the model of all mixes within what the stages reached, to go on from."""
        solver, best = self._solver, self._solver.best
        assert best is not None and best.solution is not None  # noqa: S101, PT018 - asked for after stages
        model = solver.within_reached(build(self._fleet, self._fleet.demands, self._model.classes))
        dollars = model.objective.dollars
        model.cp.add(dollars.expression <= solver.reached[None])
        hint = best.carried(model)
        model.cp.minimize(dollars.expression)
        outcome = solve_model(model.cp, solver.time, self._tuning.all_mixes_share, hint, gap=1.0)
        return Run(model, solver.time, outcome.solution, solver.stages, best.complete)

    def _set_time(self) -> None:
        solver_time, tuning, size = self._solver.time, self._tuning, self._solver.model_size
        # With requests alone there is one model, and no columns that stand for others.
        seconds = tuning.base_s if self._model.mixes else tuning.requests_base_s
        solver_time.open(size, seconds, tuning.variable_s)
        by_size = max(solver_time.least_s, tuning.variable_wall_s * size)
        solver_time.least_s = min(tuning.most_guaranteed_wall_s, by_size)
        solver_time.large = bool(self._model.mixes) and not self._solver.is_small

    def _serve_all(self) -> bool:
        """Minimise the dollars alone where the master serves all demands, as it does nearly always.

        False: it does not, or there was no solution, and the stages of all priorities are to be solved.
        """
        solver, unmet, least_by_priority = self._solver, Terms(), dict[int, int]()
        for priority, terms in self._model.objective.unmet.items():
            unmet.extend(terms)
            least_by_priority[priority] = least_unmet_of(self._fleet.demands, priority)
        least = sum(least_by_priority.values())
        bounded = solver.master.minimise(unmet, least, solver.time.late, solver.unproved_unmet)
        if not bounded.feasible or bounded.bound > least:
            return False
        for priority in sorted(least_by_priority, reverse=True):
            priority_least = least_by_priority[priority]
            solver.settle(StageGoal(priority, priority_least), priority_least)
        if self._minimise(None):
            return True
        solver.reset()
        return False

    def _minimise(self, priority: int | None) -> bool:
        """Minimise the unmet demand of a priority, or the dollars; False: there was no solution."""
        solver, incumbent = self._solver, None
        least = least_unmet_of(self._fleet.demands, priority)
        goal = StageGoal(priority, least)
        if solver.is_small or not self._model.mixes:
            incumbent = self._solve_all_mixes(goal)
            goal = goal if incumbent is None else goal.bounded(incumbent.bound)
        if self._model.mixes and (incumbent is None or incumbent.value > goal.bound):
            goal, incumbent = self._generate_columns(goal, least, incumbent)
        incumbent = incumbent or solver.previous_incumbent(goal)
        if incumbent is None:
            return False
        solver.accept(goal, incumbent)
        return True

    def _solve_all_mixes(self, goal: StageGoal) -> Incumbent | None:
        share = self._tuning.few_columns_share if self._model.mixes else self._tuning.all_mixes_share
        return self._solver.solve(goal, self._fleet.demands, self._model.classes, share)

    def _generate_columns(
        self, goal: StageGoal, least: int, incumbent: Incumbent | None
    ) -> tuple[StageGoal, Incumbent | None]:
        """Return the goal with the bound of the master, and the best near the master's columns."""
        solver = self._solver
        enough = 0.0 if goal.is_dollars else solver.unproved_unmet
        bounded = solver.master.minimise(goal.terms(self._model), least, solver.time.late, enough)
        if not bounded.feasible:
            return goal, incumbent
        goal = goal.bounded_by_master(self._model, bounded.bound)
        if solver.is_small:
            return goal, price_and_branch(solver, goal, bounded, incumbent)
        return goal, NeighbourhoodSearch(solver, goal, self._look_ahead(goal, bounded)).run()

    def _look_ahead(self, goal: StageGoal, bounded: Bounded) -> Bounded:
        """Return the master of the dollars at about the unmet demand that this stage will reach.

        Its columns and targets leave as little unmet, and their dollars are those that the last stage wants.
        """
        if goal.priority is None:
            return bounded
        solver = self._solver
        unmet = goal.bound + int(self._tuning.look_ahead * solver.close_unmet)
        solver.master.limit(goal.priority, unmet)
        ahead = solver.master.minimise(self._model.objective.dollars, 0, solver.time.late)
        return ahead if ahead.feasible else bounded
