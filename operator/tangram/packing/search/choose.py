"""Choose what serves each demand: one stage after the other, each beside the bound of all mixes.

The master problem bounds a stage and names the columns that matter. A model of few columns per demand gives
an incumbent at once. A large fleet is then searched near the incumbent: the demands whose columns are the
furthest from the master's may change, beside all GPUs, while the others keep what they have. A small fleet
has one model of all mixes from the start; the master helps where that leaves a gap.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import ceil, gcd

from tangram.packing.column_generation.master import Bounded, Master
from tangram.packing.model.build import build
from tangram.packing.model.gpu_classes import GPUClasses, PreparedFleet
from tangram.packing.model.variables import Model, Terms
from tangram.packing.problem.mix import UNMET
from tangram.packing.problem.prepared import MONEY, MixColumn, PreparedDemand, least_unmet_of
from tangram.packing.problem.result import Stage
from tangram.packing.search.hints import first_guess
from tangram.packing.search.settled import chosen_columns
from tangram.packing.search.shortlist import COLUMNS, columns_around, furthest, near_classes, near_columns
from tangram.packing.search.stages import Run, SolverTime, solve_model

Goal = int | None  # a priority, whose unmet demand is minimised; None: the dollars
_FREE = 4  # demands of a small fleet with all mixes beside few columns: with 8 the same time found worse
_SHARES = 0.3, 0.3, 0.5  # of what is left to think with: few columns, some demands free, all mixes
_FIRST = 0.1  # of it, for the first incumbent of a large fleet: with 0.03 the unmet demand was higher
_NEARBY = 0.07  # of it, for one search near the incumbent
_AROUND = 30  # demands that may change in it; with 15 the dollars of 1,000 GPUs were 0.1 % higher
_MOST_AROUND = 120  # as many when fewer brought nothing
_MOST_NEARBY = 12  # searches; six suffice nearly always
_PROVED = 0.1  # of what is close in unmet demand: so much may the master leave unproved
_ENOUGH = 0.004, 0.002  # of the dollars and of all demand: farther off, few columns of all demands are tried
_FAR = 0.02, 0.01  # the same: few targets do not suffice, as on a fleet of few GPUs of each class
_MOST_MIXED = 5000  # variables of a model of all mixes that is solved as a whole then
_BETTER = 0.0001  # of the value: an improvement after which as few demands may change again
_AHEAD = 3.0  # times what is close in unmet demand: with 1, plans for 1,000 short GPUs moved a third more
_SMALL = 500  # variables: with 800, 100 GPUs took three times as long and ended as near to the bound
_LEAST_S = 4.0  # deterministic seconds, unless a limit was given
_LEAST_REQUESTS_S = 12.0  # the same for requests alone: their model is proved, not approached
_PER_VARIABLE_S = 0.0005
_WALL_PER_VARIABLE_S = 0.0004  # of one search: with 0.0001, on a busy machine, some found no solution at all
_MOST_LEAST_S = 0.3  # a guard is a guard
_CLOSE = 0.002, 0.0005  # of the dollars and of all demand: a large fleet gets no nearer


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best solution of a stage so far."""

    run: Run
    value: int
    bound: int  # that its model proved, where that is of all mixes


@dataclass(slots=True)
class Chooser:
    """One problem, and how far its stages are."""

    fleet: PreparedFleet
    time: SolverTime
    full: Model  # of all mixes
    reached: dict[Goal, int] = field(default_factory=dict)  # by earlier stages; holds from then on
    ties: dict[int, int] = field(default_factory=dict)  # replicas that go although their demand wants them
    stages: list[Stage] = field(default_factory=list)
    best: Run | None = None
    _master: Master | None = None

    @property
    def master(self) -> Master:
        """The master problem within what the stages reached. A small model is mostly solved without."""
        if self._master is None:
            self._master = Master(self.full)
            for goal, value in self.reached.items():
                if goal is not None:
                    self._master.limit(goal, value)
            if self.best is not None:
                self._keep_columns(self.best)
        return self._master

    @property
    def small(self) -> bool:
        """Whether the model of all mixes is solved."""
        return len(self.full.cp.proto.variables) <= _SMALL

    def choose(self) -> Run:
        """Return the run that chose; without a solution where there was no time for one."""
        size = len(self.full.cp.proto.variables)
        self.time.open(size, _LEAST_S, _PER_VARIABLE_S)
        self.time.least_s = min(_MOST_LEAST_S, max(self.time.least_s, _WALL_PER_VARIABLE_S * size))
        self.time.large = not self.small
        if not self.full.mixes:  # requests alone: one model, and no columns that stand for others
            self.time.open(size, _LEAST_REQUESTS_S, _PER_VARIABLE_S)
            self.time.large = False
        if self.small or not self.full.mixes or not self._serve_all():
            _ = all(self._minimise(goal) for goal in (*sorted(self.full.unmet, reverse=True), None))
        run = self.best or Run(self.full, self.time)
        run.stages = self.stages
        run.complete = all(stage.proved for stage in self.stages)
        return run

    def everything(self) -> Run:
        """Return a run of the model of all mixes within what the stages reached, to go on from."""
        model = self._within(build(self.fleet, self.fleet.demands, self.full.classes))
        assert self.best is not None and self.best.solution is not None  # noqa: S101, PT018 - asked for after stages
        model.cp.add(model.dollars.expression <= self.reached[None])
        hint = self.best.carried(model)
        model.cp.minimize(model.dollars.expression)
        outcome = solve_model(model.cp, self.time, _SHARES[2], hint, gap=1.0)
        return Run(model, self.time, outcome.solution, self.stages, self.best.complete)

    def _serve_all(self) -> bool:
        """Nearly always all demands can be served: one stage instead of one per priority."""
        total, least = Terms(), dict[int, int]()
        for priority, terms in self.full.unmet.items():
            total.extend(terms)
            least[priority] = least_unmet_of(self.fleet.demands, priority)
        enough = _PROVED * self._close_unmet
        bounded = self.master.minimise(total, sum(least.values()), self.time.late, enough)
        if not bounded.feasible or bounded.bound > sum(least.values()):
            return False
        for priority in sorted(least, reverse=True):
            self._settle(priority, least[priority], least[priority])
        if self._minimise(None):
            return True
        for priority, terms in self.full.unmet.items():
            self.master.limit(priority, terms.most)
        self.reached, self.stages, self.best = {}, [], None
        return False

    def _minimise(self, goal: Goal) -> bool:
        """Minimise one thing; False: nothing was found."""
        terms, least = _terms(self.full, goal), least_unmet_of(self.fleet.demands, goal)
        bound, incumbent, alone = least, None, not self.full.mixes
        if self.small or alone:
            incumbent = self._solve(
                goal, bound, self.fleet.demands, self.full.classes, _SHARES[2 if alone else 0]
            )
            bound = bound if incumbent is None else max(bound, incumbent.bound)
        if not alone and (incumbent is None or incumbent.value > bound):
            enough = 0.0 if goal is None else _PROVED * self._close_unmet
            bounded = self.master.minimise(terms, least, self.time.late, enough)
            if bounded.feasible:
                bound = max(bound, _rounded(terms, bounded.bound))
                if self.small:
                    incumbent = self._improve(goal, bound, bounded, incumbent)
                else:
                    incumbent = self._search(goal, bound, self._ahead(goal, bound, bounded))
        incumbent = incumbent or self._incumbent(goal, bound)
        if incumbent is None:
            return False
        self.best = incumbent.run
        if self._master is not None:
            self._keep_columns(incumbent.run)
        if goal is not None and goal in incumbent.run.model.drained:
            self.ties[goal] = incumbent.run.model.drained[goal].value(incumbent.run.solution or [])
        self._settle(goal, incumbent.value, bound)
        return True

    def _ahead(self, goal: Goal, bound: int, bounded: Bounded) -> Bounded:
        """Return the master of the dollars at about the unmet demand that this stage will reach.

        Its columns and targets leave as little unmet, and their dollars are those that the last stage wants.
        """
        if goal is None:
            return bounded
        self.master.limit(goal, bound + int(_AHEAD * self._close_unmet))
        ahead = self.master.minimise(self.full.dollars, 0, self.time.late)
        return ahead if ahead.feasible else bounded

    def _improve(
        self, goal: Goal, bound: int, bounded: Bounded, incumbent: Incumbent | None
    ) -> Incumbent | None:
        """Return the best among few columns, then with all mixes of a few demands, then with all mixes."""
        for free in ((), bounded.fractional_demands[:_FREE]):
            if incumbent is None or incumbent.value > bound:
                few = self._few(bounded, self.best, free)
                better = self._solve(goal, bound, few, self.full.classes, _SHARES[bool(free)], incumbent)
                incumbent = better or incumbent
        if incumbent is None or incumbent.value > bound:
            better = self._solve(goal, bound, self.fleet.demands, self.full.classes, _SHARES[2], incumbent)
            incumbent = better or incumbent
        return incumbent

    def _search(self, goal: Goal, bound: int, bounded: Bounded) -> Incumbent | None:
        """Return the best near one incumbent after the other, on few targets of GPUs; then of few columns."""
        incumbent = self._incumbent(goal, bound)
        guess = {} if incumbent is None else incumbent.run.carried(self.full)
        classes = near_classes(self.full, bounded, self.fleet.problem.horizon_h, guess)
        if incumbent is None:
            incumbent = self._solve(goal, bound, self._few(bounded, None), classes, _FIRST)
        if incumbent is None:  # spread leaves no room for these columns
            few = near_columns(self.fleet, bounded, {}, sure=COLUMNS)
            incumbent = self._solve(goal, bound, few, classes, _SHARES[0])
        around, searched, most = _AROUND, set[str](), min(_MOST_AROUND, 2 * len(bounded.costs))
        for _ in range(_MOST_NEARBY):
            if incumbent is None or around > most or self._near(goal, incumbent, bound) or self.time.late():
                break
            chosen = self._chosen(incumbent.run)
            order = sorted(furthest(bounded, chosen), key=searched.__contains__)[:around]
            few = columns_around(self.fleet, bounded, chosen, order)
            better = self._solve(goal, bound, few, classes, _NEARBY, incumbent) or incumbent
            searched.update(order[: around // 2])
            if incumbent.value - better.value > _BETTER * incumbent.value:
                searched.clear()
            else:
                around *= 2
            incumbent = better
        for free in ((), bounded.fractional_demands[:_FREE]):
            if incumbent is None or not self._near(goal, incumbent, bound, _ENOUGH):
                few = self._few(bounded, None if incumbent is None else incumbent.run, free)
                incumbent = self._solve(goal, bound, few, classes, _SHARES[0], incumbent) or incumbent
        if incumbent is None or not self._near(goal, incumbent, bound, _FAR):
            whole = len(self.full.cp.proto.variables) <= _MOST_MIXED
            run = None if incumbent is None else incumbent.run
            some = self.fleet.demands if whole else self._few(bounded, run)
            incumbent = self._solve(goal, bound, some, self.full.classes, _SHARES[2], incumbent) or incumbent
        return incumbent

    def _few(
        self, bounded: Bounded, run: Run | None, free: Collection[str] = ()
    ) -> tuple[PreparedDemand, ...]:
        """Leave all demands but the `free` ones few columns, those of `run` among them."""
        return near_columns(self.fleet, bounded, self._chosen(run), free)

    def _incumbent(self, goal: Goal, bound: int) -> Incumbent | None:
        """Return what the stage before found."""
        if self.best is None or self.best.solution is None:
            return None
        return Incumbent(self.best, _terms(self.best.model, goal).value(self.best.solution), bound)

    def _chosen(self, run: Run | None) -> dict[str, MixColumn]:
        return {} if run is None else chosen_columns(self.fleet, run)

    def _keep_columns(self, run: Run) -> None:
        """Let the master have what was chosen: within what this stage reached it may know nothing else."""
        chosen = self._chosen(run)
        for demand in self.full.mixes:
            self.master.add(demand, [chosen[demand].parts])

    def _near(
        self, goal: Goal, incumbent: Incumbent, bound: int, close: tuple[float, float] = _CLOSE
    ) -> bool:
        dollars, unmet = close
        whole = dollars * incumbent.value if goal is None else unmet * UNMET * len(self.fleet.demands)
        return incumbent.value - bound <= whole

    @property
    def _close_unmet(self) -> float:
        return 0.0 if self.small else _CLOSE[1] * UNMET * len(self.fleet.demands)

    def _settle(self, goal: Goal, value: int, bound: int) -> None:
        name, scale = ("dollars", MONEY) if goal is None else (f"unmet[{goal}]", UNMET)
        bound = min(value, bound)
        self.stages.append(Stage(name, value / scale, bound / scale, proved=bound == value))
        self.reached[goal] = value
        if goal is not None:
            if self._master is not None:
                self._master.limit(goal, value)
        elif self.best is not None:
            self.best.model.cp.add(self.best.model.dollars.expression <= value)

    def _within(self, model: Model) -> Model:
        """Add what earlier stages reached."""
        for goal, value in self.reached.items():
            if goal is not None:
                model.cp.add(model.unmet[goal].expression <= value)
        for priority, value in self.ties.items():
            if priority in model.drained:
                model.cp.add(model.drained[priority].expression <= value)
        return model

    def _solve(
        self,
        goal: Goal,
        bound: int,
        demands: tuple[PreparedDemand, ...],
        classes: GPUClasses,
        share: float,
        incumbent: Incumbent | None = None,
    ) -> Incumbent | None:
        """Minimise among what these demands may have. None: nothing better was found."""
        model = self._within(build(self.fleet, demands, classes))
        terms = _terms(model, goal)
        model.cp.add(terms.expression >= bound)
        ties = model.drained.get(goal, Terms()) if goal is not None else Terms()
        weight, combined = ties.most + 1, Terms()
        combined.extend(terms, weight)
        combined.extend(ties)
        model.cp.minimize(combined.expression)
        best = self.best if incumbent is None else incumbent.run
        hint = first_guess(model) if best is None else best.carried(model)
        enough = 0.0 if goal is None else self._close_unmet * weight
        answer = solve_model(model.cp, self.time, share, hint, enough=enough)
        if answer.solution is None:
            return None
        value = terms.value(answer.solution)
        if incumbent is not None and value > incumbent.value:
            return None
        proved = value if answer.proved else ceil((answer.bound - ties.most) / weight - 1e-9)
        return Incumbent(Run(model, self.time, answer.solution, whole=not self.full.mixes), value, proved)


def with_bounds(model: Model, stages: Collection[Stage], solver_time: SolverTime) -> tuple[Stage, ...]:
    """Return stages, found by other means, each with the bound of all mixes within what those before reached.

    `model`: of the problem that was asked. Once time is over, a bound is what no fleet at all can beat.
    """
    master, bounded_stages = Master(model), list[Stage]()
    goals = {f"unmet[{priority}]": priority for priority in model.unmet} | {"dollars": None}
    for stage in stages:
        if stage.name not in goals:
            bounded_stages.append(replace(stage, bound=0.0, proved=stage.value == 0))
            continue
        goal = goals[stage.name]
        terms, scale = _terms(model, goal), MONEY if goal is None else UNMET
        value, least = round(stage.value * scale), least_unmet_of(model.demands, goal)
        if not solver_time.late():
            proved = master.minimise(terms, least, solver_time.late)
            least = max(least, _rounded(terms, proved.bound)) if proved.feasible else least
        least = min(value, least)
        bound = stage.value if least == value else least / scale
        bounded_stages.append(replace(stage, bound=bound, proved=least == value))
        if goal is not None:
            master.limit(goal, value + len(model.demands))  # the share of each demand was rounded
    return tuple(bounded_stages)


def _rounded(terms: Terms, bound: int) -> int:
    """Return the bound, rounded up to what sums of these factors can be."""
    unit = gcd(*terms.factors)
    return (
        -(-(bound - terms.constant) // unit) * unit + terms.constant if unit else max(bound, terms.constant)
    )


def _terms(model: Model, goal: Goal) -> Terms:
    return model.dollars if goal is None else model.unmet[goal]
