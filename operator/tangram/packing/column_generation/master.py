"""The master problem: a linear program over columns, and the bound that its dual values prove.

A column is one mix of one demand. The restricted master has some of them; its dual values price every other
mix, and those that would lower its cost are added until there is none. An LP solver works with rounding
errors, so its optimum proves nothing. Its dual values do, whatever they are: priced by them, every constraint
may be dropped, and the best of what is left, over all mixes, bounds the objective from below. They are
rounded to 1024ths here, and that best is added up in whole numbers.

What no column uses has many dual values, and most of them make it look cheaper than it is. So the program has
to supply a little more of everything than its columns take: what that costs is the dual value that matters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tangram.packing.column_generation.demand_pricer import DemandPricer
from tangram.packing.column_generation.label_search import PricingEffort
from tangram.packing.column_generation.linear_program import Column, Optimum, Program, Row, rows_of
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Model
from tangram.packing.problem.mix import UNMET, MixCounts
from tangram.packing.problem.prepared import PreparedDemand

FINE = 1024  # parts of a unit that dual values are rounded to
_ROUNDS = 100  # of the benchmark, seed 0, 100 GPUs end in 18 at most and 1,000 in 13
_MOST_LABELS = 20_000_000  # of one goal, ten seconds; after that the bound is that of multipliers alone
_ENOUGH_GAP = 0.0015  # of the value: with a smaller gap to the bound, no more columns are priced
_SLACK = 0.0001  # of the objective, over all demands: so much may pricing leave unproved
_ZERO = 1e-6  # weights below it are rounding errors
_FRACTIONAL_BELOW = 0.999  # the largest weight of a demand that is served by fractions of columns
_LP_S = 60.0  # deterministic seconds: it never takes them, and without it nothing is known
_THOROUGH_BELOW = 0.1  # of the demands: where pricing finds columns for fewer, it searches thoroughly
_EXTRA_SUPPLY = 1e-5  # units beyond what columns take: with 1,000 GPUs over pools, 5 rounds instead of 38
_SHORTAGE_COST_FACTOR = 10  # times the dearest unit: the cost of a unit that cannot be supplied


@dataclass(frozen=True, slots=True)
class Bounded:
    """What the master proves about one goal."""

    bound: int  # nothing below it exists, whatever the mixes
    value: float  # of the restricted master
    weights: Mapping[str, Mapping[MixCounts, float]]  # of the columns in its solution, by demand
    costs: Mapping[str, Mapping[MixCounts, int]]  # reduced costs of all columns, in 1024ths, by demand
    priced: Sequence[int] = ()  # reduced costs of the variables outside of mixes, in 1024ths, by index
    used: frozenset[int] = frozenset()  # of those variables, the ones above zero in its solution
    feasible: bool = True

    @property
    def fractional_demands(self) -> list[str]:
        """The demands served by fractions of several columns, the most divided first."""
        most = {demand: max(weights.values(), default=0.0) for demand, weights in self.weights.items()}
        return sorted(
            (demand for demand in most if most[demand] < _FRACTIONAL_BELOW),
            key=lambda demand: (round(most[demand], 6), demand),
        )


@dataclass(slots=True)
class _Block:
    """The mixes of one demand."""

    row: int  # of the program: the weights of its columns add up to one
    pricer: DemandPricer
    columns: dict[MixCounts, int] = field(default_factory=dict)  # counts -> number of the column
    values: dict[MixCounts, dict[int, int]] = field(default_factory=dict)  # what they make of the variables


class Master:
    """The linear program of one model, whose constraints are read once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._inner = {index: demand for demand, mix in model.mixes.items() for index in mix.inner}
        domains = [list(variable.domain) for variable in model.cp.proto.variables]
        self._low, self._high = [d[0] for d in domains], [d[-1] for d in domains]
        self._outer = [index for index in range(len(domains)) if index not in self._inner]
        self._rows = [row for row in rows_of(model.cp) if not self._within_one(row)]
        self._limits = {priority: row for row, priority in enumerate(model.objective.unmet, len(self._rows))}
        self._rows += [_limit_row(terms) for terms in model.objective.unmet.values()]
        self._entries = _entries(self._rows)
        self._blocks = self._priced_blocks()
        self._extra = self._supplied(model)
        self._program = self._restricted()
        self._goal: dict[int, int] = {}
        self._effort, self._slack = PricingEffort(_MOST_LABELS), FINE
        self._add_first_columns()

    def _add_first_columns(self) -> None:
        for demand in self._model.demands:
            if demand.limits is not None:
                self.add(demand.id, _first(demand))

    def _priced_blocks(self) -> dict[str, _Block]:
        """Return the mixes of each demand, with the row of its weights after those of the model."""
        mixed = [demand for demand in self._model.demands if demand.limits is not None]
        return {
            demand.id: _Block(row, DemandPricer(demand, self._model.mixes[demand.id]))
            for row, demand in enumerate(mixed, len(self._rows))
        }

    def _restricted(self) -> Program:
        """Return the program of the variables outside of mixes, and of a little more supply."""
        more = [self._extra.get(number, 0.0) for number in range(len(self._rows))]
        bounds = [(_plus(row.low, by), _plus(row.high, by)) for row, by in zip(self._rows, more, strict=True)]
        program = Program([*bounds, *((1, 1) for _ in self._blocks)])
        program.add((self._low[i], self._high[i], self._entries.get(i, ())) for i in self._outer)
        program.add((0, _EXTRA_SUPPLY, [(row, 1 if by > 0 else -1)]) for row, by in self._extra.items())
        return program

    def _supplied(self, model: Model) -> dict[int, float]:
        """Return by how much the bounds of rows change for a little more of what they supply.

        Those rows have replicas, of mixes or in places, and what supplies them: GPUs or, to mixes, places.
        """
        counts = {variable.index for mix in model.mixes.values() for variable in mix.counts.values()}
        spots = {variable.index for variable in model.spots.values()}
        supply = {variable.index for terms in model.supply.values() for variable in terms.variables}
        supplied = {}
        for number, row in enumerate(self._rows):
            has = set(row.variables)
            used = (
                counts if has & counts and has & (spots | supply) else spots if has & supply else set()
            ) & has
            if used:
                above = next(f for i, f in zip(row.variables, row.factors, strict=True) if i in used) > 0
                supplied[number] = -_EXTRA_SUPPLY if above else _EXTRA_SUPPLY
        return supplied

    def _within_one(self, row: Row) -> bool:
        owners = {self._inner.get(index) for index in row.variables}
        return len(owners) == 1 and None not in owners

    def limit(self, priority: int, most: int) -> None:
        """Leave no more than `most` of a priority unmet from now on."""
        number = self._limits[priority]
        row, constant = self._rows[number], self._model.objective.unmet[priority].constant
        self._rows[number] = replace(row, high=most - constant)
        self._program.bound(number, most - constant)

    def add(self, demand: str, mixes: Iterable[MixCounts]) -> int:
        """Add columns that are not there yet; return how many."""
        block = self._blocks[demand]
        new = [counts for counts in dict.fromkeys(mixes) if counts not in block.columns]
        cells: list[Column] = []
        for counts in new:
            values = block.values[counts] = block.pricer.values(counts)
            block.columns[counts] = len(self._program.costs) + len(cells)
            entries: dict[int, int] = {block.row: 1}
            for index, value in values.items():
                for row, factor in self._entries.get(index, ()):
                    entries[row] = entries.get(row, 0) + factor * value
            cells.append((0, None, sorted(entries.items())))
        self._program.add(cells, [self._cost(block.values[counts]) for counts in new])
        return len(new)

    def _cost(self, values: Mapping[int, int]) -> int:
        return sum(self._goal.get(index, 0) * value for index, value in values.items())

    def minimise(
        self, goal: Terms, floor: int = 0, late: Callable[[], bool] | None = None, enough: float = 0.0
    ) -> Bounded:
        """Return a bound of `goal`, and what the restricted master holds when no column lowers its cost.

        `floor`: `goal` is known not to go below it. So near to its own value as `enough` a bound will do.
        """
        self._goal, self._effort = _factors(goal), PricingEffort(_MOST_LABELS)
        self._program.charge(self._costs())
        optimum = self._program.solve(_LP_S)
        if optimum is None:
            return Bounded(0, 0.0, {}, {}, feasible=False)
        bound, optimum = self._generate(optimum, floor - goal.constant, late, enough)
        _, priced = self._priced(optimum.duals)
        return Bounded(
            bound + goal.constant,
            self._value(optimum) + goal.constant,
            self._weights(optimum.values),
            {demand: _above_least(costs) for demand, costs in self._column_costs(priced).items()},
            priced,
            frozenset(i for n, i in enumerate(self._outer) if optimum.values[n] > _ZERO),
        )

    def _generate(
        self, optimum: Optimum, bound: int, late: Callable[[], bool] | None, enough: float
    ) -> tuple[int, Optimum]:
        """Add columns that lower the cost until none does; return the bound and the optimum then."""
        value = self._value(optimum)
        self._slack = max(FINE, int(_SLACK * FINE * abs(value)) // max(1, len(self._blocks)))
        for _ in range(_ROUNDS):
            near = max(_ENOUGH_GAP * abs(value), enough, _ZERO)
            if value - bound <= near:
                break
            proved, mixes_by_demand = self._price(optimum.duals, near)
            bound = max(bound, proved)
            if late and late():  # not before: without prices nothing is known
                break
            if not sum(self.add(demand, mixes) for demand, mixes in mixes_by_demand.items()):
                break
            again = self._program.solve(_LP_S)
            if again is None:
                break
            optimum, value = again, self._value(again)
        return bound, optimum

    def _costs(self) -> list[int]:
        """Return what each column of the program costs."""
        costs = [self._goal.get(index, 0) for index in self._outer]
        units = ((UNMET if index in self._inner else 1) * abs(n) for index, n in self._goal.items())
        costs += [_SHORTAGE_COST_FACTOR * max(units, default=0)] * len(self._extra)
        costs += [0] * (len(self._program.costs) - len(costs))
        for block in self._blocks.values():
            for counts, number in block.columns.items():
                costs[number] = self._cost(block.values[counts])
        return costs

    def _value(self, solved: Optimum) -> float:
        """Return the value of the restricted master, without the little more that is supplied."""
        return solved.value - sum(solved.duals[row] * by for row, by in self._extra.items())

    def _weights(self, values: Sequence[float]) -> dict[str, dict[MixCounts, float]]:
        return {
            demand: {c: values[n] for c, n in block.columns.items() if n < len(values) and values[n] > _ZERO}
            for demand, block in self._blocks.items()
        }

    def _priced(self, duals: Sequence[float]) -> tuple[int, list[int]]:
        """Return what a unit of each variable costs at dual values, and what remains whatever they are."""
        total, priced = 0, [0] * len(self._low)
        for index, factor in self._goal.items():
            priced[index] = factor * FINE
        for row, dual in zip(self._rows, duals, strict=False):
            price = round(dual * FINE)
            side = row.low if price > 0 else row.high
            if price and side is not None:
                total += price * side
                for i, factor in zip(row.variables, row.factors, strict=True):
                    priced[i] -= price * factor
        return total, priced

    def _price(self, duals: Sequence[float], near: float) -> tuple[int, dict[str, list[MixCounts]]]:
        """Return the bound that dual values prove, and mixes that would lower the cost."""
        total, priced = self._priced(duals)
        for i in self._outer:
            if priced[i]:
                total += priced[i] * (self._low[i] if priced[i] > 0 else self._high[i])
        least_costs = {demand: min(costs.values()) for demand, costs in self._column_costs(priced).items()}
        bounds, new = self._minima(priced, least_costs, self._blocks, thorough=False)
        if len(new) <= _THOROUGH_BELOW * len(self._blocks):  # search thoroughly where most is left unproved
            left = near * FINE / 2
            worst = sorted(least_costs, key=lambda demand: (bounds[demand] - least_costs[demand], demand))
            gaps = list(accumulate(least_costs[demand] - bounds[demand] for demand in reversed(worst)))
            some = worst[: sum(gap > left for gap in gaps)]
            proved, more = self._minima(priced, least_costs, some, thorough=True)
            bounds |= proved
            new |= more
        return -(-(total + sum(bounds.values())) // FINE), new

    def _minima(
        self, priced: Sequence[int], least_costs: Mapping[str, int], demands: Iterable[str], *, thorough: bool
    ) -> tuple[dict[str, int], dict[str, list[MixCounts]]]:
        """Return what a mix of each demand costs at least, and mixes that cost less than `least_costs`."""
        bounds, new = dict[str, int](), dict[str, list[MixCounts]]()
        for demand in demands:
            pricer, most = self._blocks[demand].pricer, least_costs[demand] - self._slack
            bounds[demand], mixes = pricer.below(priced, most, self._slack, self._effort, thorough=thorough)
            if mixes:
                new[demand] = mixes
        return bounds, new

    def _column_costs(self, priced: Sequence[int]) -> dict[str, dict[MixCounts, int]]:
        """Return what the columns of each demand cost at these prices."""
        return {
            demand: {
                counts: sum(priced[i] * value for i, value in values.items())
                for counts, values in block.values.items()
            }
            for demand, block in self._blocks.items()
        }


def _above_least(costs: Mapping[MixCounts, int]) -> dict[MixCounts, int]:
    least = min(costs.values())
    return {counts: cost - least for counts, cost in costs.items()}


def _plus(side: int | None, by: float) -> float | None:
    return None if side is None else side + by


def _first(demand: PreparedDemand) -> list[MixCounts]:
    """Nothing, what runs, and each shape alone."""
    limits, running = demand.limits, demand.running
    assert limits is not None  # noqa: S101 - asked for only of demands that have one
    alone = [{item.shape: item.alone} for item in limits.items]
    mixes = ({}, dict(limits.pinned), dict(running), *alone)
    return [tuple(sorted(c.items())) for c in mixes if limits.allows(c, running)]


def _limit_row(unmet: Terms) -> Row:
    """Return the row that limits the unmet demand of a priority; at first to all of it."""
    factors = _factors(unmet)
    return Row(list(factors), list(factors.values()), None, unmet.most - unmet.constant)


def _entries(rows: Sequence[Row]) -> dict[int, list[tuple[int, int]]]:
    """Return (row, factor) of each variable."""
    entries: dict[int, list[tuple[int, int]]] = {}
    for number, row in enumerate(rows):
        for index, factor in zip(row.variables, row.factors, strict=True):
            entries.setdefault(index, []).append((number, factor))
    return entries


def _factors(terms: Terms) -> dict[int, int]:
    factors: dict[int, int] = {}
    for variable, factor in zip(terms.variables, terms.factors, strict=True):
        factors[variable.index] = factors.get(variable.index, 0) + factor
    return factors
