"""The cheapest mixes of shapes, by a label-setting algorithm (a label is a partial solution, its usual name).

Shape after shape, a label holds the service, the number of replicas and the cost of the counts chosen so far.
Lagrangian multipliers for service, number of replicas and budget bound what any completion of a label costs;
the difference to the bound of the empty label is its regret. A label is dropped if its regret exceeds the gap
to the best mix known, or if another label serves as much at no higher cost, whatever follows. Everything is
computed in integers, so bounds are proofs whatever the multipliers are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from tangram.packing.column_generation.corners import Corners, PricedCount
from tangram.packing.column_generation.mix_space import MixPrices, MixVector

if TYPE_CHECKING:  # numpy loads slowly
    from tangram.packing.column_generation.label_arrays import Labels
from tangram.packing.problem.mix import SCALE, UNMET

# Costs and multipliers are kept in 2**-30 of the prices' unit, or in what fits 58 bits.
_SHIFT, _BITS = 30, 58
_FITS = 1 << 61  # sums of costs below it are whole numbers of 64 bits
_STEPS = 12  # of one line search: piecewise linear functions of a few dozen pieces end in fewer
_ROUNDS = 3  # of line searches along each multiplier

_Multipliers = tuple[int, int, int]  # per unit of service, per replica, per unit of the budget


@dataclass(slots=True)
class PricingEffort:
    """How many labels may still be made: a count, so that equal problems end equal."""

    labels: int

    @property
    def over(self) -> bool:
        """Whether there are none left."""
        return self.labels <= 0


class LabelSearch:
    """The labels of mixes within the limits of `corners`. `bound`: none of them costs less.

    `prices`: without exchanges, see `MixPrices.by_regime`.
    """

    def __init__(self, corners: Corners, prices: MixPrices) -> None:
        self._space, self._prices, self._limits = corners.space, prices, corners
        pairs = zip(self._space.shapes, prices.shapes, strict=True)
        largest = sum(shape.room * max(map(abs, changes)) for shape, changes in pairs)
        largest += prices.unmet * UNMET
        self._highest = largest + prices.constant  # no mix costs more
        self._shift = max(0, min(_SHIFT, _BITS - largest.bit_length()))
        self._corners = corners.priced(prices, self._shift)
        self._scale = max((abs(option[2]) for corners in self._corners for option in corners), default=0)
        self._multipliers = self._ascend()
        self._root = self._dual(self._multipliers)[0]
        self.bound = -(-self._root >> self._shift)
        self._beyond = self._regrets_of_numbers()

    def _dual(self, multipliers: _Multipliers) -> tuple[int, _Multipliers]:
        """Return the bound that multipliers prove, and a supergradient."""
        by_service, by_number, by_spent = multipliers
        limits = self._limits
        bound = by_service * self._space.whole + (self._prices.constant << self._shift)
        service = number = spent = 0
        for corners in self._corners:
            costs = _reduced(corners, multipliers)
            least = min(costs)
            best = corners[costs.index(least)]
            bound += least
            service, number, spent = service + best[0], number + best[1], spent + best[3]
        slope, replicas = self._space.whole - service, number
        if limits.counted:
            left = (self._prices.unmet << self._shift) - by_service * SCALE
            costs = [left * u + by_number * n for n, u in enumerate(limits.missing, limits.first)]
            at = costs.index(min(costs))
            bound, replicas = bound + costs[at], at + limits.first
            slope -= SCALE * limits.missing[at]
        if limits.budget is not None:
            bound, spent = bound - by_spent * limits.budget, spent - limits.budget
        return bound, (slope, replicas - number, spent)

    def _regrets_of_numbers(self) -> list[int]:
        """Return what having so many replicas, or more, adds to the bound."""
        by_service, by_number, _ = self._multipliers
        left = (self._prices.unmet << self._shift) - by_service * SCALE
        costs = [left * u + by_number * n for n, u in enumerate(self._limits.missing, self._limits.first)]
        best = list(accumulate(reversed(costs), min))[::-1]
        return [0] * self._limits.first + [cost - best[0] for cost in best]

    def _ascend(self) -> _Multipliers:
        """Return multipliers that prove a good bound, by line searches along one of them in turn."""
        highest = (self._prices.unmet << self._shift) // SCALE
        scale = self._scale + ((self._prices.unmet * UNMET + 1) << self._shift)
        ranges = [(0, 0, highest)]
        if self._limits.counted:
            ranges.append((1, 0 if self._limits.limit is None else -scale, scale))
        if self._limits.budget is not None:
            ranges.append((2, 0, scale))
        if len(ranges) == 1:
            likely = min(highest, self._cheapest_service())
            best = self._climb((0, 0, 0), 0, 0, likely)
            return self._climb(best, 0, likely, highest) if best[0] == likely else best
        best = (0, 0, 0)
        for _ in range(_ROUNDS):
            before = best
            for axis, low, high in ranges:
                best = self._climb(best, axis, low, high)
            if best == before:
                break
        return best

    def _cheapest_service(self) -> int:
        """Return the least cost per unit of service of one shape alone: mostly not below the multiplier."""
        costs = [
            (option[2] - corners[0][2]) // (option[0] - corners[0][0]) + 1
            for corners in self._corners
            for option in corners
            if option[0] >= self._space.whole > corners[0][0]
        ]
        return max(0, min(costs, default=self._prices.unmet << self._shift))

    def _climb(self, start: _Multipliers, axis: int, low: int, high: int) -> _Multipliers:
        """Maximise the concave bound along one multiplier: intersect tangents from both sides."""

        def at(value: int) -> tuple[int, int, int]:
            return (*start[:axis], value, *start[axis + 1 :])  # type: ignore[return-value]

        def tangent(value: int) -> tuple[int, int]:
            bound, slopes = self._dual(at(value))
            return bound, slopes[axis]

        left, right = tangent(low), tangent(high)
        best = max((left[0], low), (right[0], high))
        if low < start[axis] < high:
            best = max(best, (self._dual(start)[0], start[axis]))
        for _ in range(_STEPS):
            if left[1] <= 0 or right[1] >= 0:
                break
            middle = (right[0] - left[0] + left[1] * low - right[1] * high) // (left[1] - right[1])
            if not low < middle < high:
                break
            multipliers = tangent(middle)
            best = max(best, (multipliers[0], middle))
            if multipliers[1] > 0:
                low, left = middle, multipliers
            else:
                high, right = middle, multipliers
        return at(best[1])

    def _within_limits(self, number: int, spent: int) -> bool:
        limits = self._limits
        few_enough = limits.limit is None or number <= limits.limit
        return limits.first <= number and few_enough and (limits.budget is None or spent <= limits.budget)

    def within(
        self, most: int, keep: int, limit: int, effort: PricingEffort
    ) -> tuple[list[tuple[int, MixVector]], int]:
        """Return (cost, mix) of up to `limit` mixes up to `most`, and the least that dropped labels cost.

        At most `keep` labels per shape stay. The cheapest mix is returned unless its label was dropped. Where
        `effort` ends, nothing is found, and all is dropped.
        """
        from tangram.packing.column_generation import label_arrays as arrays  # noqa: PLC0415 - numpy is slow

        gap, dropped = (min(most, self._highest) << self._shift) - self._root, most + 1
        if gap < 0:
            return [], dropped
        if gap + self._multipliers[0] * self._space.whole + 2 * self._scale >= _FITS:
            return [], min(dropped, self.bound)
        stages = self._stages(gap)
        order = sorted(range(len(stages)), key=lambda index: (len(stages[index]), index))
        labels = arrays.Labels(self._limits, self._multipliers[0], self._beyond, gap)
        ended, regret = self._extend(labels, gap, [stages[index] for index in order], keep, effort)
        if regret is not None:
            dropped = min(dropped, -(-(self._root + regret) >> self._shift))
        if ended:
            return [], min(dropped, self.bound)
        mixes = []
        for total, number in self._cheapest(labels, most)[:limit]:
            counts = dict(zip(order, labels.counts(number), strict=True))
            mixes.append((total, tuple(counts[index] for index in range(len(order)))))
        return mixes, dropped

    def _extend(
        self,
        labels: "Labels",
        gap: int,
        stages: list[list[PricedCount]],
        keep: int,
        effort: PricingEffort,
    ) -> tuple[bool, int | None]:
        """Extend labels by one shape after the other.

        Return whether the effort ended it, and the least regret of the labels that were dropped.
        """
        least: int | None = None
        for stage, need in zip(stages, self._needs(gap, stages), strict=True):
            if len(stage) == 1 and not stage[0][1]:
                labels.skip()
                continue
            labels.extend(stage, need)
            effort.labels -= labels.count
            if effort.over:
                return True, least
            regret = labels.reduce(keep)
            if regret is not None:
                least = regret if least is None else min(least, regret)
        return False, least

    def _cheapest(self, labels: "Labels", most: int) -> list[tuple[int, int]]:
        """Return (cost, number) of labels within the limits that cost up to `most`, the cheapest first."""
        ranked = [
            (self._total(service, n, cost), number)
            for number, (service, n, cost, spent) in enumerate(labels.totals())
            if self._within_limits(n, spent) or not self._limits.counted
        ]
        return sorted(pair for pair in ranked if pair[0] <= most)

    def _stages(self, gap: int) -> list[list[PricedCount]]:
        """Return the counts of each shape whose regret is at most `gap`, with it."""
        stages = []
        for corners in self._corners:
            costs = _reduced(corners, self._multipliers)
            least = min(costs)
            ends = [(*count[:4], cost - least) for count, cost in zip(corners, costs, strict=True)]
            stage = [ends[0]] if ends[0][4] <= gap else []
            for left, right in pairwise(ends):
                stage += _between(left, right, gap)
                if right[4] <= gap:
                    stage.append(right)
            stages.append(stage)
        return stages

    def _needs(self, gap: int, stages: list[list[PricedCount]]) -> list[int]:
        """Return the service that has to be there after each stage: else what stays unmet costs too much."""
        by_service, by_number, _ = self._multipliers
        left = (self._prices.unmet << self._shift) - by_service * SCALE
        if left <= 0:
            return [0] * len(stages)
        spare = gap
        if self._limits.counted:
            numbers = list(enumerate(self._limits.missing, self._limits.first))
            spare += min(left * u + by_number * n for n, u in numbers)
            spare -= min(by_number * n for n, _ in numbers)
        need = self._space.whole - SCALE * spare // left - 1
        needs = []
        for counts in reversed(stages):
            needs.append(need)
            need -= counts[-1][0]
        return needs[::-1]

    def _total(self, service: int, number: int, cost: int) -> int:
        """Return what a mix costs by its totals."""
        missing = self._space.missing(service, number)
        return self._prices.unmet * missing + self._prices.constant + (cost >> self._shift)


def _reduced(corners: list[PricedCount], multipliers: _Multipliers) -> list[int]:
    """Return what the counts of one shape cost beside what multipliers make of them."""
    by_service, by_number, by_spent = multipliers
    if by_number or by_spent:
        return [c - by_service * q - by_number * n + by_spent * p for q, n, c, p, _ in corners]
    return [count[2] - by_service * count[0] for count in corners]


def _between(left: PricedCount, right: PricedCount, gap: int) -> Iterator[PricedCount]:
    """Yield the counts strictly between two corners whose regret is at most `gap`."""
    pieces = right[1] - left[1]
    if pieces < 2 or (left[4] > gap and right[4] > gap):
        return
    step = [(b - a) // pieces for a, b in zip(left, right, strict=True)]
    low, high = 1, pieces - 1
    if step[4] > 0:
        high = min(high, (gap - left[4]) // step[4])
    elif left[4] > gap:
        low = -((gap - left[4]) // -step[4])
    for k in range(low, high + 1):
        q, n, c, p, r = left
        yield q + k * step[0], n + k * step[1], c + k * step[2], p + k * step[3], r + k * step[4]
