"""The smallest change of one kind that gets a demand served whole, each verified by solving again.

One dimension at a time: more slices or GPUs of one shape, dollars, an objective (the caller enumerates its
shapes again), spread, priority, the move budget. Within a dimension values are tried in order; where a larger
value can only help, by halving. No other demand may lose by it, except to a
higher priority: then the demands that lose are named.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing.explanation.question import ExplanationBudget, FeasibilityQuestion, missed, named, size
from tangram.packing.problem.mix import least_unmet, on_any_fleet, parts_alone
from tangram.packing.problem.prepared import alternatives, prices_of
from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import Demand, Part, Problem, with_free_places
from tangram.packing.problem.validate import validate
from tangram.packing.search.stages import SolveLimits
from tangram.packing.solve import solve

Dimension = Literal["gpus", "budget", "objective", "spread", "priority", "moves"]
_MOST_SHAPES = 6  # shapes of which more is tried, the cheapest per replica first
_MOST_SOLVES = 3  # of one dimension, from the smallest change that is possible on
# GPUs: a demand that needs more of them needs another fleet, and each trial would be as large.
_MOST_ADDED = 1000
_MOST_BUDGETS = 4096  # tried by halving, so that twelve questions find one
_MOST_MIXED = 64  # replicas of a mix, up to which every share of them is tried
_EPSILON = 1e-6
_SOLVE = 3  # models in one solve


@dataclass(frozen=True, slots=True)
class ObjectiveChange:
    """An objective that may be loosened: the caller enumerates shapes again for each value."""

    name: str  # TTFT
    unit: str  # ms
    values: tuple[float, ...]  # looser and looser
    demand_at: Callable[[float], Demand]


@dataclass(frozen=True, slots=True)
class SufficientChange:
    """One change that was tried and suffices; nothing smaller of its kind that was tried does."""

    dimension: Dimension
    subject: str  # of what: `2g.20gb on H100-80GB-SXM`, `TTFT ms` ...
    value: float  # how many more, or the new value
    text: str
    cost_per_hour: float  # USD: what the whole fleet then costs, without what is added
    added_per_hour: float = 0.0  # USD: what is added
    loses: tuple[str, ...] = ()  # demands that are served less than now

    def __str__(self) -> str:
        verb = "loses" if len(self.loses) == 1 else "lose"
        return self.text + (f" (then {', '.join(self.loses)} {verb})" if self.loses else "")


@dataclass(frozen=True, slots=True)
class _Change:
    """A problem that differs in one value. It is made when it is looked at: few of many values are."""

    value: float
    made: Problem | Callable[[], Problem]

    @property
    def problem(self) -> Problem:
        """The problem, made anew each time."""
        return self.made if isinstance(self.made, Problem) else self.made()


@dataclass(slots=True)
class _Trial:
    """A demand that is not served whole, and what is left to try with."""

    problem: Problem
    packing: Packing
    demand: Demand
    effort: ExplanationBudget
    limits: SolveLimits

    def possible(self, change: _Change) -> bool:
        """Whether the demand could be served whole beside all demands as important: no objective, fast."""
        problem = change.problem
        demand = named(problem, self.demand.id)
        return FeasibilityQuestion(problem, self.packing, demand, self.effort).ask().feasible is True

    def works(self, change: _Change, *, may_hurt: bool = False) -> Packing | None:
        """Solve again. None: it does not help, or another demand would be served less."""
        if self.effort.over or not self.effort.solves:
            return None
        self.effort.solves -= 1
        # A solve makes several models.
        problem = change.problem
        self.effort.built += _SOLVE * size(problem)
        packing = solve(problem, self.limits)
        if missed(packing, named(problem, self.demand.id)) > 0:
            return None
        return packing if may_hurt or not self.losers(packing) else None

    def losers(self, packing: Packing) -> tuple[str, ...]:
        """Return the demands that are served less than now, sorted."""
        before = {choice.demand: choice.unmet for choice in self.packing.choices}
        worse = (c.demand for c in packing.choices if c.unmet > before.get(c.demand, 1.0) + _EPSILON)
        return tuple(sorted(name for name in worse if name != self.demand.id))

    def first(self, changes: Sequence[_Change]) -> tuple[_Change, Packing] | None:
        """Return the first of `changes` that works, where each allows all that the one before it does.

        What is possible is found by halving, then solved. Where solving serves an equal instead, the next
        few are tried.
        """
        if not changes or not self.possible(changes[-1]):
            return None
        low, high = 0, len(changes) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.possible(changes[middle]) else (middle + 1, high)
        for change in changes[low : low + _MOST_SOLVES]:
            packing = self.works(change)
            if packing is not None:
                return change, packing
        return None

    def smallest(
        self, dimension: Dimension, subject: str, changes: Sequence[_Change], text: Callable[[float], str]
    ) -> Iterator[SufficientChange]:
        """Yield the `first` of `changes`, if there is one; `text` says its value."""
        sufficient = self.first(changes)
        if sufficient is not None:
            change, packed = sufficient
            yield SufficientChange(dimension, subject, change.value, text(change.value), packed.cost_per_hour)

    def with_demand(self, demand: Demand, value: float) -> _Change:
        """Return the problem with this demand written otherwise."""
        demands = (demand if d.id == demand.id else d for d in self.problem.demands)
        return _Change(value, replace(self.problem, demands=tuple(demands)))


def relaxations(
    problem: Problem,
    packing: Packing,
    demand_id: str,
    objectives: Sequence[ObjectiveChange] = (),
    effort: ExplanationBudget | None = None,
    limits: SolveLimits | None = None,
) -> tuple[SufficientChange, ...]:
    """Return the smallest change per dimension that gets a demand served whole; none where it is.

    `effort` is for finding it, `limits` for each time that a finding is solved: the time is the caller's,
    not the plan's. Deterministic. Raises `InputError` for a demand that the problem does not have.
    """
    validate(problem)
    demand = named(problem, demand_id)
    if missed(packing, demand) <= 0:
        return ()
    trial = _Trial(problem, packing, demand, effort or ExplanationBudget(), limits or SolveLimits())
    return (
        *_more(trial),
        *_looser(trial, objectives),
        *_dearer(trial),
        *_closer(trial),
        *_earlier(trial),
        *_moving(trial),
    )


def _more(trial: _Trial) -> Iterator[SufficientChange]:
    """Free places that are simply there: of one shape, the cheapest that would do, else of several."""
    best: SufficientChange | None = None
    shapes = _shapes(trial)
    for shape, price, needed in shapes[:_MOST_SHAPES]:
        most = min(needed, _MOST_ADDED // shape.gpus)
        counts = [n for n in range(1, most + 1) if best is None or n * price < best.added_per_hour]
        changes = [_Change(n, partial(with_free_places, trial.problem, {shape: n})) for n in counts]
        sufficient = trial.first(changes)
        if sufficient is not None:
            change, packed = sufficient
            best = _added({shape: round(change.value)}, packed, change.value * price)
    if best is None:
        best = _several(trial, {shape: price for shape, price, _ in shapes})
    if best is not None:
        yield best


def _several(trial: _Trial, prices: Mapping[ShapeKey, float]) -> SufficientChange | None:
    """Add what a mix of several shapes needs, then as little of each as still does."""
    counts = _mix(trial, prices)
    if len(counts) < 2 or not trial.possible(_Change(0, with_free_places(trial.problem, counts))):
        return None
    for shape in sorted(counts, key=lambda shape: (-prices[shape], shape)):
        counts[shape] = _fewest(trial, counts, shape)
    counts = {shape: n for shape, n in counts.items() if n}
    packed = trial.works(_Change(0, with_free_places(trial.problem, counts)))
    if packed is None:
        return None
    return _added(counts, packed, sum(prices[shape] * n for shape, n in counts.items()))


def _fewest(trial: _Trial, counts: Mapping[ShapeKey, int], shape: ShapeKey) -> int:
    """Return how few of one shape do beside the others, of which there are enough. By halving."""
    low, high = 0, counts[shape]
    while low < high:
        middle = (low + high) // 2
        possible = trial.possible(_Change(0, with_free_places(trial.problem, {**counts, shape: middle})))
        low, high = (low, middle) if possible else (middle + 1, high)
    return high


def _added(counts: Mapping[ShapeKey, int], packed: Packing, price: float) -> SufficientChange:
    texts = [_count(shape, n) for shape, n in sorted(counts.items())]
    subject = " and ".join(_what(shape) for shape in sorted(counts))
    value = sum(n * shape.gpus for shape, n in counts.items())
    return SufficientChange("gpus", subject, value, f"add {' and '.join(texts)}", packed.cost_per_hour, price)


def _what(shape: ShapeKey) -> str:
    return shape.sku if shape.profile == WHOLE_GPU else f"{shape.profile} on {shape.sku}"


def _count(shape: ShapeKey, replicas: int) -> str:
    count = replicas * shape.gpus
    nodes = f", {shape.gpus} per node" if shape.gpus > 1 else ""
    return f"{'one' if count == 1 else count} {_what(shape)}{nodes}"


def _whole(demand: Demand) -> dict[Part, float]:
    """Return replicas of one offer each that serve a demand as far as any fleet does, with their price."""
    least, any_fleet = least_unmet(demand), on_any_fleet(demand)
    prices = {offer.shape: offer.price_per_hour for offer in demand.offers}
    parts = (part for part in parts_alone(demand) if any_fleet.unmet({part.shape: part.count}) <= least)
    return {part: prices[part.shape] * part.count for part in parts}


def _mix(trial: _Trial, prices: Mapping[ShapeKey, float]) -> dict[ShapeKey, int]:
    """Return the cheapest mix of several shapes that serves a demand whole within its budget; none: {}."""
    demand = trial.demand
    counts = {part.shape: part.count for part in _whole(demand)}
    many = sum(n * shape.gpus for shape, n in counts.items()) > _MOST_ADDED
    if demand.slices or demand.uniform or many or trial.effort.over:
        return {}
    empty = replace(trial.problem, gpus=(), growable=(), headroom=(), demands=(replace(demand, pools=()),))
    fleet = with_free_places(empty, counts, prices)
    trial.effort.built += _SOLVE * size(fleet)
    (choice,) = solve(fleet, trial.limits).choices
    return {part.shape: part.count for part in choice.parts}


def _shapes(trial: _Trial) -> list[tuple[ShapeKey, float, int]]:
    """Shapes that serve the demand, with price per replica and how many of them at most."""
    prices, most = prices_of(trial.problem), dict[ShapeKey, int]()
    for part in parts_alone(trial.demand):
        for shape in alternatives(trial.problem, part.shape):
            most[shape] = max(most.get(shape, 0), part.count)
    return sorted(
        ((s, prices.required_replica_hour(*s), n) for s, n in most.items()), key=lambda x: (x[1], x[0])
    )


def _looser(trial: _Trial, objectives: Sequence[ObjectiveChange]) -> Iterator[SufficientChange]:
    for objective in objectives:
        text = f"{objective.name} {{:g}} {objective.unit}".format
        changes = [trial.with_demand(objective.demand_at(value), value) for value in objective.values]
        yield from trial.smallest("objective", f"{objective.name} {objective.unit}", changes, text)


def _dearer(trial: _Trial) -> Iterator[SufficientChange]:
    demand = trial.demand
    changes = [trial.with_demand(replace(demand, budget_per_hour=usd), usd) for usd in _budgets(trial)]
    yield from trial.smallest("budget", "$/h", changes, "budget {:.2f} $/h".format)


def _budgets(trial: _Trial) -> list[float]:
    """Return the larger budgets that are worth a try, ascending: whole cents up to the price of one shape."""
    budget = trial.demand.budget_per_hour
    if budget is None or not (prices := [price for price in _whole(trial.demand).values() if price > budget]):
        return []
    low, high = math.floor(budget * 100 + _EPSILON) + 1, math.ceil(max(prices) * 100 - _EPSILON)
    return [cents / 100 for cents in range(low, high + 1, max(1, (high - low) // _MOST_BUDGETS))]


def _closer(trial: _Trial) -> Iterator[SufficientChange]:
    """More replicas on one node or in one zone than now: shares that allow one replica more each."""
    demand = trial.demand
    sizes = {part.count for part in _whole(demand) if part.count <= _MOST_ADDED}
    if not demand.uniform and sizes:  # a mix has any number between
        sizes |= set(range(min(sizes), min(max(sizes), _MOST_MIXED) + 1))
    for name, where in (("node", "on one node"), ("zone", "in one zone")):
        share = getattr(demand.spread, name)
        if share >= 1:
            continue
        # Rounded down: of seven replicas 0.71428571428571 allows five, 0.7142857142857143 six.
        shares = {n * 10**14 // size / 10**14 for size in sizes for n in range(1, size + 1)}
        allowed = sorted({s for s in shares if s > share + _EPSILON} | {1.0})
        spreads = [(s, replace(demand.spread, **{name: s})) for s in allowed]
        changes = [trial.with_demand(replace(demand, spread=spread), s) for s, spread in spreads]
        yield from trial.smallest("spread", f"share per {name}", changes, partial(_share_text, where))


def _share_text(where: str, share: float) -> str:
    return f"up to {math.ceil(share * 100 - _EPSILON)}% of the replicas {where}"


def _earlier(trial: _Trial) -> Iterator[SufficientChange]:
    """One above that of another demand. Which of two equals is served is arbitrary: that does not count."""
    own = trial.demand.priority
    others = {d.id: d.priority for d in trial.problem.demands if d.id != trial.demand.id}
    ranks = sorted({priority + 1 for priority in others.values() if priority >= own})
    changes = [trial.with_demand(replace(trial.demand, priority=rank), rank) for rank in ranks]
    if not changes or not trial.possible(changes[-1]):
        return
    for change in dict.fromkeys((*changes[:_MOST_SOLVES], changes[-1])):
        packed = trial.works(change, may_hurt=True)
        loses = () if packed is None else trial.losers(packed)
        if packed is not None and all(others[name] < change.value for name in loses):
            text = f"priority {change.value:g}"
            yield SufficientChange(
                "priority", "priority", change.value, text, packed.cost_per_hour, loses=loses
            )
            return


def _moving(trial: _Trial) -> Iterator[SufficientChange]:
    budget = trial.problem.move_budget
    if budget is None:
        return
    running = sum(i.owner is not None for gpu in trial.problem.gpus for i in gpu.instances)
    changes = [_Change(n, replace(trial.problem, move_budget=n)) for n in range(budget + 1, running + 1)]
    yield from trial.smallest("moves", "replicas moved", changes, "move budget {:g}".format)
