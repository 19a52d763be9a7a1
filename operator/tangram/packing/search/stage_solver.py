"""One stage on a model of some columns and targets, within what the stages before it reached."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tangram.packing.column_generation.master import Master
from tangram.packing.model.build import build
from tangram.packing.model.gpu_classes import GPUClasses, PreparedFleet
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Model
from tangram.packing.problem.mix import UNMET
from tangram.packing.problem.prepared import MixColumn, PreparedDemand
from tangram.packing.problem.result import Stage
from tangram.packing.search.hints import first_guess
from tangram.packing.search.search_tuning import SearchTuning, ToleratedGap
from tangram.packing.search.settled import chosen_columns
from tangram.packing.search.stages import Run, SolverTime, solve_model


@dataclass(frozen=True, slots=True)
class StageGoal:
    """A stage that chooses mixes, and the bound of its objective. In units of the model."""

    priority: int | None  # None: the dollars
    bound: int  # no mixes of any demand have less

    @property
    def is_dollars(self) -> bool:
        """Whether the stage minimises the dollars."""
        return self.priority is None

    def terms(self, model: Model) -> Terms:
        """Return what the stage minimises in a model."""
        return model.objective.mix_stage(self.priority).terms

    def bounded(self, bound: int) -> "StageGoal":
        """Return the goal with a bound that is no lower than before."""
        return replace(self, bound=max(self.bound, bound))

    def bounded_by_master(self, model: Model, bound: int) -> "StageGoal":
        """Return the goal with the master's bound, rounded up to a value that the objective can have."""
        return self.bounded(model.objective.mix_stage(self.priority).rounded_up(bound))


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best solution of a stage so far."""

    run: Run
    value: int
    bound: int  # that its model proved, where that is of all mixes


@dataclass(slots=True)
class StageSolver:
    """One problem, and what its stages reached: all later models keep to it."""

    fleet: PreparedFleet
    time: SolverTime
    all_mixes: Model
    tuning: SearchTuning
    reached: dict[int | None, int] = field(default_factory=dict)  # by priority; None: the dollars
    stopped: dict[int, int] = field(default_factory=dict)  # by priority: replicas that stop though wanted
    stages: list[Stage] = field(default_factory=list)
    best: Run | None = None
    _master: Master | None = None

    @property
    def master(self) -> Master:
        """The master problem within what the stages reached. A small model is mostly solved without."""
        if self._master is None:
            self._master = Master(self.all_mixes)
            for priority, value in self.reached.items():
                if priority is not None:
                    self._master.limit(priority, value)
            if self.best is not None:
                self._add_to_master(self.best)
        return self._master

    @property
    def model_size(self) -> int:
        """Variables of the model of all mixes."""
        return len(self.all_mixes.cp.proto.variables)

    @property
    def is_small(self) -> bool:
        """Whether the model of all mixes is solved."""
        return self.model_size <= self.tuning.small_model_variables

    @property
    def close_unmet(self) -> float:
        """Units of unmet demand that a large fleet may be from its bound."""
        return 0.0 if self.is_small else self.tuning.close.unmet * UNMET * len(self.fleet.demands)

    @property
    def unproved_unmet(self) -> float:
        """Units of unmet demand that the master may leave unproved."""
        return self.tuning.unproved * self.close_unmet

    def is_within(self, gap: ToleratedGap, goal: StageGoal, incumbent: Incumbent) -> bool:
        """Whether an incumbent is so near to the bound of its stage."""
        dollars, unmet = gap.dollars * incumbent.value, gap.unmet * UNMET * len(self.fleet.demands)
        return incumbent.value - goal.bound <= (dollars if goal.is_dollars else unmet)

    def previous_incumbent(self, goal: StageGoal) -> Incumbent | None:
        """Return the solution of the stage before as one of this stage."""
        if self.best is None or self.best.solution is None:
            return None
        return Incumbent(self.best, goal.terms(self.best.model).value(self.best.solution), goal.bound)

    def columns_of(self, run: Run | None) -> dict[str, MixColumn]:
        """Return the columns that a run chose, by demand."""
        return {} if run is None else chosen_columns(self.fleet, run)

    def solve(
        self,
        goal: StageGoal,
        demands: Iterable[PreparedDemand],
        classes: GPUClasses,
        share: float,
        incumbent: Incumbent | None = None,
    ) -> Incumbent | None:
        """Minimise among the columns of `demands` and the targets of `classes`, in `share` of the time left.

        None: there was no solution, or none as good as `incumbent`.
        """
        model = self._stage_model(tuple(demands), classes)
        objective = model.objective.mix_stage(goal.priority)
        model.cp.add(objective.terms.expression >= goal.bound)
        model.cp.minimize(objective.combined.expression)
        enough = 0.0 if goal.is_dollars else self.close_unmet * objective.weight
        hint = self._hint(model, incumbent)
        outcome = solve_model(model.cp, self.time, share, hint, enough=enough)
        if outcome.solution is None:
            return None
        value = objective.terms.value(outcome.solution)
        if incumbent is not None and value > incumbent.value:
            return None
        bound = value if outcome.proved else objective.least(outcome.bound)
        run = Run(model, self.time, outcome.solution, whole=not self.all_mixes.mixes)
        return Incumbent(run, value, bound)

    def within_reached(self, model: Model) -> Model:
        """Limit a model to the unmet demand, and the stopped replicas, that earlier stages reached."""
        for priority in self.reached:
            self._limit(model, priority)
        return model

    def _stage_model(self, demands: tuple[PreparedDemand, ...], classes: GPUClasses) -> Model:
        """Return a model of few columns and targets; without mixes, one model serves all stages."""
        if not self.all_mixes.mixes:
            return self.all_mixes
        return self.within_reached(build(self.fleet, demands, classes))

    def _limit(self, model: Model, priority: int | None) -> None:
        if priority is None:
            return
        stage = model.objective.mix_stage(priority)
        model.cp.add(stage.terms.expression <= self.reached[priority])
        if priority in self.stopped and priority in model.objective.stopped:
            model.cp.add(stage.ties.expression <= self.stopped[priority])

    def accept(self, goal: StageGoal, incumbent: Incumbent) -> None:
        """End a stage with its incumbent."""
        run, solution = incumbent.run, incumbent.run.solution or []
        self.best = run
        if self._master is not None:
            self._add_to_master(run)
        stopped = run.model.objective.stopped
        if goal.priority is not None and goal.priority in stopped:
            self.stopped[goal.priority] = stopped[goal.priority].value(solution)
        self.settle(goal, incumbent.value)
        if run.model is self.all_mixes:
            self._limit(run.model, goal.priority)

    def settle(self, goal: StageGoal, value: int) -> None:
        """End a stage: no later stage may have more than `value`."""
        bound = min(value, goal.bound)
        stage = self.all_mixes.objective.mix_stage(goal.priority)
        self.stages.append(Stage(stage.name, value / stage.scale, bound / stage.scale, bound == value))
        self.reached[goal.priority] = value
        if goal.priority is not None:
            if self._master is not None:
                self._master.limit(goal.priority, value)
        elif self.best is not None:
            self.best.model.cp.add(self.best.model.objective.dollars.expression <= value)

    def reset(self) -> None:
        """Forget the stages, and let the master have all unmet demand again."""
        for priority, terms in self.all_mixes.objective.unmet.items():
            self.master.limit(priority, terms.most)
        self.reached, self.stages, self.best = {}, [], None

    def _hint(self, model: Model, incumbent: Incumbent | None) -> dict[int, int]:
        run = self.best if incumbent is None else incumbent.run
        return first_guess(model) if run is None else run.carried(model)

    def _add_to_master(self, run: Run) -> None:
        """Add the chosen columns to the master: within what their stage reached there may be no others."""
        columns = self.columns_of(run)
        for demand in self.all_mixes.mixes:
            self.master.add(demand, [columns[demand].parts])
