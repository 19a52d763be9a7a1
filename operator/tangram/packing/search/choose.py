"""Choose what serves each demand: one stage after the other, each beside the bound of all mixes.

The master problem bounds a stage and names the columns that matter. A model of few columns per demand gives
an incumbent at once. Where that is not near the bound, the demands that the master serves by halves get all
of their mixes, beside few columns of the others. A small fleet has one model of all mixes from the start; the
master helps where that leaves a gap.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import ceil, gcd

from tangram.packing.model.build import build
from tangram.packing.model.classes import Fleet, GPUClasses
from tangram.packing.model.targets import Target
from tangram.packing.model.variables import Model, Terms
from tangram.packing.problem.mix import UNMET
from tangram.packing.problem.prepared import MONEY, PreparedDemand, ShapePrices, column_of, least_unmet_of
from tangram.packing.problem.result import Stage
from tangram.packing.search.hints import as_it_is, carried, first_guess
from tangram.packing.search.master import FINE, Bounded, Master
from tangram.packing.search.settled import chosen_column
from tangram.packing.search.stages import Budget, Run, solve_model

Goal = int | None  # a priority, whose unmet demand is minimised; None: the dollars
_LP_S = 60.0  # deterministic seconds: it never takes them, and without it nothing is known
_FEW = 16  # columns of a demand that the master serves by halves: with 8, 100 GPUs had twice the gap
_SURE = 1  # of the others: with 3 and 8 the search took longer and found less
_FEW_TARGETS = 6  # of each class of GPUs: of 1,000 scattered GPUs 1,350 of 6,161 are left
_NEAR = 0.05  # of a GPU's price: what targets nearby cost more than those in use
_FREE = 4  # demands with all mixes beside them: with 8 the same time found worse
_SHARES = 0.3, 0.3, 0.5  # of what is left to think with: few columns, some demands free, all mixes
_SMALL = 800  # variables: above, the model of all mixes improved nothing in its time
_LEAST_S = 4.0  # deterministic seconds, unless a limit was given
_LEAST_REQUESTS_S = 12.0  # the same for requests alone: their model is proved, not approached
_PER_VARIABLE_S = 0.0005
_WALL_PER_VARIABLE_S = 0.0004  # of one search: with 0.0001, on a busy machine, some found no solution at all
_MOST_LEAST_S = 0.3  # a guard is a guard
_CLOSE_DOLLARS, _CLOSE_UNMET = 0.001, 0.0005  # of the dollars and of all demand: a large fleet gets no nearer
_HALF = 0.999  # a column of less weight serves its demand by halves


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best solution of a stage so far."""

    run: Run
    value: int
    bound: int  # that its model proved, where that is of all mixes


@dataclass(slots=True)
class Chooser:
    """One problem, and how far its stages are."""

    fleet: Fleet
    prices: ShapePrices
    everyone: tuple[PreparedDemand, ...]
    classes: GPUClasses
    budget: Budget
    full: Model  # of all mixes
    reached: dict[Goal, int] = field(default_factory=dict)  # by earlier stages; holds from then on
    ties: dict[int, int] = field(default_factory=dict)  # replicas that go although their demand wants them
    stages: list[Stage] = field(default_factory=list)
    best: Run | None = None
    least: float = 0.0  # USD: the bound of the dollars, where no solution was found
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
        self.budget.open(size, _LEAST_S, _PER_VARIABLE_S)
        self.budget.least_s = min(_MOST_LEAST_S, max(self.budget.least_s, _WALL_PER_VARIABLE_S * size))
        self.budget.large = not self.small
        if not self.full.mixes:  # requests alone: one model, and no columns that stand for others
            self.budget.open(size, _LEAST_REQUESTS_S, _PER_VARIABLE_S)
            self.budget.large = False
        if self.small or not self.full.mixes or not self._serve_all():
            _ = all(self._minimise(goal) for goal in (*sorted(self.full.unmet, reverse=True), None))
        run = self.best or Run(self.full, self.budget)
        run.stages = self.stages
        run.complete = all(stage.proved for stage in self.stages)
        return run

    def everything(self) -> Run:
        """Return a run of the model of all mixes within what the stages reached, to go on from."""
        model = self._within(build(self.fleet, self.prices, self.everyone, self.classes))
        assert self.best is not None and self.best.solution is not None  # noqa: S101, PT018 - asked for after stages
        model.cp.add(model.dollars.expression <= self.reached[None])
        hint = carried(self.best.model, self.best.solution, model)
        model.cp.minimize(model.dollars.expression)
        found = solve_model(model.cp, self.budget, _SHARES[2], hint, gap=1.0)
        return Run(model, self.budget, found.solution, self.stages, self.best.complete)

    def _serve_all(self) -> bool:
        """Nearly always all demands can be served: one stage instead of one per priority."""
        total, least = Terms(), dict[int, int]()
        for priority, terms in self.full.unmet.items():
            total.extend(terms)
            least[priority] = least_unmet_of(self.everyone, priority)
        bounded = self.master.minimise(total, _LP_S, sum(least.values()), self.budget.late)
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
        terms, least = _terms(self.full, goal), least_unmet_of(self.everyone, goal)
        bound, found, alone = least, None, not self.full.mixes
        if self.small or alone:
            found = self._solve(goal, bound, self.everyone, self.classes, _SHARES[2 if alone else 0])
            bound = bound if found is None else max(bound, found.bound)
        if not alone and (found is None or found.value > bound):
            bounded = self.master.minimise(terms, _LP_S, least, self.budget.late)
            if not bounded.feasible:
                return False
            bound = max(bound, _rounded(terms, bounded.bound))
            found = self._improve(goal, bound, bounded, found)
        if found is None:
            self.least = bound / MONEY if goal is None else 0.0
            return False
        self.best = found.run
        if self._master is not None:
            self._keep_columns(found.run)
        if goal is not None and goal in found.run.model.drained:
            self.ties[goal] = found.run.model.drained[goal].value(found.run.solution or [])
        self._settle(goal, found.value, bound)
        return True

    def _improve(self, goal: Goal, bound: int, bounded: Bounded, found: Incumbent | None) -> Incumbent | None:
        """Return the best among few columns, then with all mixes of a few demands, on few targets of GPUs."""
        classes = self.classes if self.small else self.classes.restricted(self._targets(bounded, found))
        found = self._solve(goal, bound, self._few(bounded), classes, _SHARES[0], found) or found
        if not self._near(goal, found, bound):
            free = bounded.halves(_HALF)[:_FREE]
            found = self._solve(goal, bound, self._few(bounded, free), classes, _SHARES[1], found) or found
        if self.small and (found is None or found.value > bound):
            found = self._solve(goal, bound, self.everyone, classes, _SHARES[2], found) or found
        return found

    def _keep_columns(self, run: Run) -> None:
        """Let the master have what was chosen: within what this stage reached it may know nothing else."""
        for demand in self.everyone:
            if demand.mix is not None:
                self.master.add(demand.id, [chosen_column(demand, run, self.prices).parts])

    def _near(self, goal: Goal, found: Incumbent | None, bound: int) -> bool:
        if found is None:
            return False
        close = 0.0 if self.small else _CLOSE_DOLLARS * found.value
        return found.value - bound <= (close if goal is None else self._close_unmet)

    @property
    def _close_unmet(self) -> float:
        return 0.0 if self.small else _CLOSE_UNMET * UNMET * len(self.everyone)

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
        found: Incumbent | None = None,
    ) -> Incumbent | None:
        """Minimise among what these demands may have. None: nothing better was found."""
        model = self._within(build(self.fleet, self.prices, demands, classes))
        terms = _terms(model, goal)
        model.cp.add(terms.expression >= bound)
        ties = model.drained.get(goal, Terms()) if goal is not None else Terms()
        weight, both = ties.most + 1, Terms()
        both.extend(terms, weight)
        both.extend(ties)
        model.cp.minimize(both.expression)
        best = self.best if found is None else found.run
        hint = first_guess(model) if best is None else carried(best.model, best.solution or [], model)
        enough = 0.0 if goal is None else self._close_unmet * weight
        answer = solve_model(model.cp, self.budget, share, hint, enough=enough)
        if answer.solution is None:
            return None
        value = terms.value(answer.solution)
        if found is not None and value > found.value:
            return None
        proved = value if answer.proved else ceil((answer.bound - ties.most) / weight - 1e-9)
        return Incumbent(Run(model, self.budget, answer.solution, whole=not self.full.mixes), value, proved)

    def _targets(self, bounded: Bounded, found: Incumbent | None) -> list[set[int]]:
        """Return, by class, the targets that the master uses, the nearest to them, and those used so far."""
        kept, best = list[set[int]](), self.best if found is None else found.run
        before = _used_targets(best) if best is not None else [set[Target]()] * len(self.classes.existing)
        for group, variables, used in zip(self.classes.existing, self.full.counts, before, strict=True):
            costs = [(v.index not in bounded.used, bounded.priced[v.index]) for v in variables]
            order = sorted(range(len(costs)), key=lambda n: (costs[n], n))
            near = _NEAR * FINE * group.kind.price * self.fleet.problem.horizon_h
            mine = {n for n in order[:_FEW_TARGETS] if costs[n][1] <= near}
            mine |= {n for n, (unused, _) in enumerate(costs) if not unused}
            mine |= {n for n, target in enumerate(group.targets) if target in used}
            kept.append(mine | {as_it_is(group)})
        return kept

    def _few(self, bounded: Bounded, free: Collection[str] = ()) -> tuple[PreparedDemand, ...]:
        """Leave all demands but the free ones few columns: those of the master, and the nearest to them."""
        return tuple(
            demand if demand.mix is None or demand.id in free else self._columns(demand, bounded)
            for demand in self.everyone
        )

    def _columns(self, demand: PreparedDemand, bounded: Bounded) -> PreparedDemand:
        costs, weights = bounded.costs[demand.id], bounded.weights.get(demand.id, {})
        order = sorted(costs, key=lambda counts: (counts not in weights, costs[counts], counts))
        running = tuple(sorted(demand.running.items()))
        few = _SURE if max(weights.values(), default=0.0) >= _HALF else _FEW
        kept = dict.fromkeys((*order[:few], *(counts for counts in costs if counts in {(), running})))
        columns = [column_of(demand, self.prices, dict(counts)) for counts in kept]
        if self.best is not None:
            columns.append(chosen_column(demand, self.best, self.prices))
        return replace(demand, columns=tuple(dict.fromkeys(columns)), mix=None)


def with_bounds(
    model: Model, everyone: Collection[PreparedDemand], stages: Collection[Stage], budget: Budget
) -> tuple[Stage, ...]:
    """Return stages, found by other means, each with the bound of all mixes within what those before reached.

    `model`: of the problem that was asked. Once time is over, a bound is what no fleet at all can beat.
    """
    master, found = Master(model), list[Stage]()
    goals = {f"unmet[{priority}]": priority for priority in model.unmet} | {"dollars": None}
    for stage in stages:
        if stage.name not in goals:
            found.append(replace(stage, bound=0.0, proved=stage.value == 0))
            continue
        goal = goals[stage.name]
        terms, scale = _terms(model, goal), MONEY if goal is None else UNMET
        value, least = round(stage.value * scale), least_unmet_of(everyone, goal)
        if not budget.late():
            proved = master.minimise(terms, _LP_S, least, budget.late)
            least = max(least, _rounded(terms, proved.bound)) if proved.feasible else least
        least = min(value, least)
        bound = stage.value if least == value else least / scale
        found.append(replace(stage, bound=bound, proved=least == value))
        if goal is not None:
            master.limit(goal, value + len(everyone))  # the share of each demand was rounded
    return tuple(found)


def _used_targets(run: Run) -> list[set[Target]]:
    solution, model = run.solution or [], run.model
    return [
        {target for target, v in zip(group.targets, counts, strict=True) if solution[v.index]}
        for group, counts in zip(model.classes.existing, model.counts, strict=True)
    ]


def _rounded(terms: Terms, bound: int) -> int:
    """Return the bound, rounded up to what sums of these factors can be."""
    unit = gcd(*terms.factors)
    return (
        -(-(bound - terms.constant) // unit) * unit + terms.constant if unit else max(bound, terms.constant)
    )


def _terms(model: Model, goal: Goal) -> Terms:
    return model.dollars if goal is None else model.unmet[goal]
