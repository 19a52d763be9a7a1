"""Choose among very many bundles: few of them are worth a thought, and the linear relaxation says which.

What a bundle costs on top of the relaxation's bound is known for each. First the search looks at those with
the least, a few per demand; that is nearly always good enough, which the bound proves. If not, it looks at
all that could be part of anything better than what was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tangram.packing.build import build
from tangram.packing.columns import Columns, Fleet, columns
from tangram.packing.linear import Relaxation, Relaxed
from tangram.packing.mix import UNMET
from tangram.packing.mixed import rounded
from tangram.packing.model import Model, Terms
from tangram.packing.prepare import by_shape, emptied
from tangram.packing.result import Stage
from tangram.packing.search import Budget, Run, solve_model
from tangram.packing.start import carried, first_guess, shortlist, staying
from tangram.packing.wants import MONEY, Money, Want

MANY = 1500  # bundles in all
_FEW = (8, 64)  # bundles per demand that are looked at first; more where those do not fit together
_SHARES = 0.35, 0.5  # of what is left to think with, for a search among few bundles and among all
_FIRST_SHARES = 0.12, 0.22  # where rounding follows: on a small fleet, on a large one
_MOST_ROUNDED = 2000  # bundles: among more it takes too long
_ROUNDING_S = 1.0  # deterministic seconds that it stands for
_RELAXING_S = 60.0  # deterministic seconds: it never takes them, and without it nothing is known
_LEAST_S = 3.5  # deterministic seconds for the searches, unless a limit was given
_PER_VARIABLE_S = 0.00005
_WALL_PER_VARIABLE_S = 0.00008  # without so much nobody would be served
# Of a large fleet more bundles are not looked at for less than this: of the dollars, and of all demand.
_GOOD_DOLLARS, _GOOD_UNMET = 0.01, 0.002
_MOST_LEFT = 10_000  # bundles of a large fleet: among more nothing better is found in time
# What a demand that is not served counts beside the dollars of all, per demand, where both are searched for.
_GUIDED = 8
_MOST_EMPTIED = 5000  # bundles that are chosen as on an empty fleet, where not everybody can be served
_LAID_OUT_GAP = 0.05  # of the dollars: it is a start

Goal = int | None  # a priority, whose unmet demand is minimised; None: the dollars


@dataclass(frozen=True, slots=True)
class _Best:
    """A solution of one stage."""

    run: Run
    value: int
    bound: float  # that its own model proved, which lacks bundles


@dataclass(slots=True)
class Narrowing:
    """One problem, and how far its stages are."""

    fleet: Fleet
    prices: Money
    everyone: tuple[Want, ...]
    columns: Columns
    budget: Budget
    full: Model  # with every bundle: is only relaxed
    reached: dict[Goal, int] = field(default_factory=dict)  # by earlier stages; holds from then on
    stages: list[Stage] = field(default_factory=list)
    best: Run | None = None  # the last that found something
    relaxation: Relaxation = field(init=False)

    def __post_init__(self) -> None:
        self.relaxation = Relaxation(self.full.cp)

    def choose(self) -> Run:
        """Return the run that chose bundles; without a solution where there was no time for one."""
        size = len(self.full.cp.proto.variables)
        self.budget.open(size, _LEAST_S, _PER_VARIABLE_S)
        self.budget.large = self.budget.is_large(size)
        self.budget.least_s = _WALL_PER_VARIABLE_S * size
        priorities = sorted(self.full.unmet, reverse=True)
        for priority in priorities:  # nearly always everybody can have their best: one stage instead of many
            least = sum(want.least_unmet for want in self.everyone if want.priority == priority)
            self._settle(priority, least, least)
        if not self._minimise(None):
            self._begin_again()
            goals = (None,) if self._as_on_an_empty_fleet(priorities) else (*priorities, None)
            _ = all(self._minimise(goal) for goal in goals)
        run = self.best or Run(self.full, self.budget)
        run.stages = self.stages
        self.budget.total_s += self.budget.spent_s  # to lay it out takes as long again
        run.complete = all(stage.proved for stage in self.stages)
        return run

    def _begin_again(self) -> None:
        self.reached, self.stages, self.best = {}, [], None

    def _as_on_an_empty_fleet(self, priorities: Sequence[int]) -> bool:
        """Choose as if nothing ran, then lay that out; say whether that can be had.

        How little is left unmet does not depend on what runs, as long as it may move, and GPUs of an empty
        fleet are alike: there it is found sooner, and the bound is nearer. What runs comes into it with the
        dollars. Of many bundles what runs is the better start.
        """
        bundles = sum(len(want.options) for want in self.everyone)
        if bundles > _MOST_EMPTIED or not any(want.held for want in self.everyone):
            return False
        fleet, wants = emptied(self.fleet.problem, self.everyone)
        grouped = columns(fleet, by_shape(fleet))
        assert grouped is not None  # noqa: S101 - without a limit there are columns
        full = build(fleet, self.prices, wants, grouped)
        empty = Narrowing(fleet, self.prices, wants, grouped, self.budget, full)
        if not all(empty._minimise(priority) for priority in priorities) or empty.best is None:
            return False
        self.reached, self.stages = empty.reached, empty.stages
        chosen = tuple(_only(want, empty.best) for want in self.everyone)
        found = self._search(None, chosen, gap=_LAID_OUT_GAP)
        if found is None:
            self._begin_again()
            return False
        self.best = found.run
        return True

    def _minimise(self, goal: Goal) -> bool:
        """Minimise one thing: among few bundles, then, unless that will do, among all that may matter."""
        _, wall_s = self.budget.left(_SHARES[0])
        within = [(_terms(self.full, earlier), value) for earlier, value in self.reached.items()]
        relaxed = self.relaxation.solve(_terms(self.full, goal), _RELAXING_S, wall_s, within)
        if relaxed.impossible:
            return False
        gap = self._gap
        if goal is not None:  # of what is unmet, a share of all demand
            gap = max(gap, self._good(goal, 0) / 2 / max(1, relaxed.bound))
        share = _FIRST_SHARES[self.budget.is_large(0)]
        if goal is None or self._in_motion:
            share = _SHARES[0]
        best = self._search(goal, self._nearest(relaxed, _FEW[0]), share, gap)
        best = self._better(goal, relaxed, best)
        if best is None:
            menus = ((few, goal is not None) for few in _FEW)
            found = (self._search(goal, self._nearest(relaxed, *menu), gap=gap) for menu in menus)
            best = next((each for each in found if each is not None), None)
        if best is None and all(want.is_divisible or staying(want) is not None for want in self.everyone):
            best = self._search(goal, tuple(self._fixed(want) for want in self.everyone))
        bound = float(relaxed.bound)
        if best is None:
            best = self._search(goal, self.everyone, _SHARES[1])
            if best is None:
                return False
            bound = max(bound, best.bound)
        self.best = best.run
        if best.value - bound > max(self._gap * best.value, self._good(goal, best.value)):
            enough = int(best.value * (1 - self._gap))  # what is left out is worth more than this
            possible = self._possible(relaxed, enough)
            left = sum(len(want.options) for want in possible)
            hopeless = self.budget.is_large(0) and left > _MOST_LEFT
            better = None if hopeless else self._search(goal, possible, _SHARES[goal is None])
            if better is not None:
                bound = max(bound, min(better.bound, enough))
                best = min(better, best, key=lambda found: found.value)
        self.best = best.run
        self._settle(goal, best.value, bound)
        return True

    def _better(self, goal: Goal, relaxed: Relaxed, best: _Best | None) -> _Best | None:
        """Round the relaxation where the search among few bundles is not near it."""
        near = int(self._good(goal, best.value if best else relaxed.bound) / 4)
        if best is not None and best.value - relaxed.bound <= max(self._gap * best.value, 2 * near):
            return best
        if goal is None:
            return best
        menus = (self._nearest(relaxed, few) for few in reversed(_FEW))
        menu = next((wants for wants in menus if sum(len(w.options) for w in wants) <= _MOST_ROUNDED), None)
        if menu is None:
            return best
        model = self._built(menu)
        self.budget.spent_s += _ROUNDING_S
        terms = _terms(model, goal)
        sought, weight = self._guide(model, terms) if any(want.held for want in self.everyone) else (terms, 1)
        solution = rounded(model.cp, sought, near * weight, self.budget.left(_SHARES[0])[1])
        if solution is None or (best is not None and best.value <= terms.value(solution)):
            return best
        return _Best(Run(model, self.budget, solution, whole=False), terms.value(solution), 0)

    def _settle(self, goal: Goal, value: int, bound: float) -> None:
        name, scale = ("dollars", MONEY) if goal is None else (f"unmet[{goal}]", UNMET)
        bound = min(value, bound)
        self.stages.append(Stage(name, value / scale, bound / scale, proved=bound > value - 1))
        self.reached[goal] = value
        if self.best is not None:
            model = self.best.model
            model.cp.add(_terms(model, goal).expression <= value)

    def _search(
        self, goal: Goal, wants: tuple[Want, ...], share: float = _SHARES[0], gap: float = 0.0
    ) -> _Best | None:
        """Minimise among the bundles that these wants have."""
        model = self._built(wants)
        terms = _terms(model, goal)
        guided = goal is not None and self._in_motion
        model.cp.minimize(self._guide(model, terms)[0].expression if guided else terms.expression)
        found = solve_model(model.cp, self.budget, share, self._hint(model), 0.0 if guided else gap)
        if found.solution is None:
            return None
        run = Run(model, self.budget, found.solution, whole=False)
        value = terms.value(found.solution)
        return _Best(run, value, 0 if guided else value if found.proved else found.bound)

    def _built(self, wants: tuple[Want, ...]) -> Model:
        model = build(self.fleet, self.prices, wants, self.columns)
        for earlier, value in self.reached.items():
            model.cp.add(_terms(model, earlier).expression <= value)
        return model

    @property
    def _in_motion(self) -> bool:
        """Whether a large fleet runs of which most have to change: what runs is no start then."""
        held = [want for want in self.everyone if want.held]
        return self.budget.is_large(0) and 2 * sum(staying(want) is not None for want in held) < len(held)

    def _guide(self, model: Model, unmet: Terms) -> tuple[Terms, int]:
        """Seek less unmet demand and fewer dollars at once. Also return what unmet demand is multiplied by.

        Of the many solutions that leave equally little unmet, those that move everybody are no start for the
        dollars; and without dollars the search has little to go by.
        """
        hourly = sum(self.fleet.prices.values()) // max(1, len(self.everyone))
        weight, found = max(1, _GUIDED * hourly // UNMET), Terms()
        found.extend(unmet, weight)
        found.extend(model.dollars)
        return found, weight

    @property
    def _gap(self) -> float:
        return self.budget.gap(0)

    def _good(self, goal: Goal, value: int) -> float:
        """Return how far from the bound is near enough, in the goal's units."""
        if not self.budget.is_large(0):
            return 0.0
        return _GOOD_DOLLARS * value if goal is None else _GOOD_UNMET * UNMET * len(self.everyone)

    def _hint(self, model: Model) -> dict[int, int]:
        if self.best is None or self.best.solution is None:
            return first_guess(model)
        return carried(self.best.model, self.best.solution, model)

    def _nearest(self, relaxed: Relaxed, few: int, nothing: bool = False) -> tuple[Want, ...]:
        """Leave each want the bundles that cost least on top of the bound; without one, the cheapest.

        With `nothing`, the empty one as well: then there is a solution, but the search is led astray by it.
        """

        def extra(want: Want) -> set[int]:
            return {i for i, option in enumerate(want.options) if nothing and not option.parts}

        def kept(want: Want) -> set[int]:
            chosen = self.full.chosen.get(want.id, [])
            if not relaxed.costs:
                return set(shortlist(want))
            order = sorted(
                range(len(chosen)),
                key=lambda i: (relaxed.costs[chosen[i].index], want.options[i].price, i),
            )
            return set(order[:few])

        return tuple(self._left(want, kept(want) | extra(want)) for want in self.everyone)

    def _possible(self, relaxed: Relaxed, enough: int) -> tuple[Want, ...]:
        """Leave each want the bundles of every solution that is worth no more than `enough`."""

        def kept(want: Want) -> set[int]:
            chosen = self.full.chosen.get(want.id, [])
            if not relaxed.costs:
                return set(range(len(chosen)))
            return {i for i, variable in enumerate(chosen) if relaxed.least(variable) <= enough}

        return tuple(self._left(want, kept(want)) for want in self.everyone)

    def _fixed(self, want: Want) -> Want:
        """Leave only what runs: where budgets are tight that is a start, and hard to find among others."""
        return replace(want, options=tuple(want.options[i] for i in shortlist(want)))

    def _left(self, want: Want, kept: set[int]) -> Want:
        """Keep these options, what runs, what was chosen last, and one that leaves least unmet."""
        if want.is_divisible:
            return want
        least = want.least_unmet
        whole = [i for i, option in enumerate(want.options) if option.unmet == least]
        kept = kept | {min(whole, key=lambda i: (want.options[i].price, i))}
        stays = staying(want)
        if stays is not None:
            kept.add(stays)
        if self.best is not None:
            kept.add(_chosen(want, self.best))
        return replace(want, options=tuple(want.options[i] for i in sorted(kept)))


def _chosen(want: Want, run: Run) -> int:
    """Return which of the options of a want was chosen; the run may have had others of them."""
    number = run.chosen(want.id)
    return next(i for i, option in enumerate(want.options) if option.index == number)


def _only(want: Want, run: Run) -> Want:
    """Leave the bundle that was chosen."""
    return want if want.is_divisible else replace(want, options=(want.options[_chosen(want, run)],))


def _terms(model: Model, goal: Goal) -> Terms:
    return model.dollars if goal is None else model.unmet[goal]
