"""The cheapest mix of shapes, searched by labels.

Shape after shape, a label holds the service, the number of replicas and the cost of the counts chosen so far.
Lagrangian multipliers for service, number of replicas and budget bound what any completion of a label costs;
the difference to the bound of the empty label is its regret. A label is dropped if its regret exceeds the gap
to the best mix known, or if another label serves as much at no higher cost, whatever follows. Everything is
computed in integers, so bounds are proofs whatever the multipliers are.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from tangram.packing.problem.mix import UNMET
from tangram.packing.search.mix_space import SERVICE_PER_UNMET, Mix, MixPrices, MixSpace, price_of_count

_SHIFT = 30  # costs and multipliers are kept in 2**-30 of the prices' unit
_STEPS = 12  # of one line search: piecewise linear functions of a few dozen pieces end in fewer
_ROUNDS = 3  # of line searches along each multiplier

# Of one count of one shape: service, at most the whole; replicas; cost; what it takes of the budget; regret.
_Option = tuple[int, int, int, int, int]
# Of the counts so far: the same, and those counts, the last one first: (replicas, (replicas, ... None)).
_Label = tuple[int, int, int, int, int, Any]
_Multipliers = tuple[int, int, int]  # per unit of service, per replica, per unit of the budget


def useful_replicas(space: MixSpace, prices: MixPrices, index: int) -> int:
    """Return up to how many replicas of a shape may lower what a mix costs."""
    shape, segments = space.shapes[index], prices.shapes[index]
    rising = all(a <= b for a, b in pairwise(prices.replicas))
    if space.surplus or segments[-1][1] < 0 or not rising:
        return shape.room
    served = -(-space.whole // shape.service) if shape.service else 0
    bent = sum(length or 0 for length, _ in segments)
    return min(shape.room, max(served, space.min_replicas, bent, shape.held, shape.least))


@dataclass(slots=True)
class PricingEffort:
    """How many labels may still be made: a count, so that equal problems end equal."""

    labels: int

    @property
    def over(self) -> bool:
        """Whether there are none left."""
        return self.labels <= 0


class LabelSearch:
    """The labels of mixes of at most `limit` replicas. `bound`: none of them costs less.

    `prices`: without exchanges, see `MixPrices.by_regime`. tight: keep to the budget.
    """

    def __init__(self, space: MixSpace, prices: MixPrices, limit: int | None, *, tight: bool) -> None:
        self._space, self._prices = space, prices
        self._budget = space.budget if tight else None
        self._limit = limit
        self._first = sum(space.smallest)
        enough = max(space.min_replicas, len(prices.replicas) - 1, self._first)
        # More replicas than the last cost the same or, with a limit, are none.
        self._last = enough if limit is None else limit
        counts = range(self._first, self._last + 1)
        self._numbers = [prices.of_number(n) << _SHIFT for n in counts]
        self._missing = [space.missing_replicas(n) for n in counts]
        priced = len(set(self._numbers)) > 1 or space.min_replicas > 1 or not space.whole
        self._counted = limit is not None or priced
        self._corners = [self._corners_of(index) for index in range(len(space.shapes))]
        self._multipliers = self._ascend()
        self._root = self._dual(self._multipliers)[0]
        self.bound = -(-self._root >> _SHIFT)
        self._beyond = self._regrets_of_numbers()

    def _corners_of(self, index: int) -> list[_Option]:
        """Return the counts of a shape between which service and cost are linear."""
        shape = self._space.shapes[index]
        top = useful_replicas(self._space, self._prices, index)
        if self._limit is not None:
            top = min(top, shape.least + self._limit - self._first)
        if self._budget is not None and shape.price > 0:
            top = min(
                top, shape.least + (self._budget - self._space.spent(self._space.smallest)) // shape.price
            )
        served = self._space.whole // shape.service if shape.service else 0
        bent = accumulate([length for length, _ in self._prices.shapes[index] if length is not None])
        numbers = {shape.least, top, served, served + 1, shape.held, *bent}
        return [self._option(index, n) for n in sorted(numbers) if shape.least <= n <= top]

    def _option(self, index: int, n: int) -> _Option:
        shape = self._space.shapes[index]
        cost = price_of_count(self._prices.shapes[index], n)
        return min(shape.service * n, self._space.whole), n, cost << _SHIFT, shape.price * n, 0

    def _dual(self, multipliers: _Multipliers) -> tuple[int, _Multipliers]:
        """Return the bound that multipliers prove, and a supergradient."""
        by_service, by_number, by_spent = multipliers
        bound, service, number, spent = by_service * self._space.whole, 0, 0, 0
        for corners in self._corners:
            least: int | None = None
            for option in corners:
                q, n, c, p, _ = option
                cost = c - by_service * q - by_number * n + by_spent * p
                if least is None or cost < least:
                    least, best = cost, option
            bound += least or 0
            service, number, spent = service + best[0], number + best[1], spent + best[3]
        slope, there = self._space.whole - service, number
        if self._counted:
            left = (self._prices.unmet << _SHIFT) - by_service * SERVICE_PER_UNMET
            costs = [left * u + g for u, g in zip(self._missing, self._numbers, strict=True)]
            costs = [cost + by_number * n for n, cost in enumerate(costs, self._first)]
            at = costs.index(min(costs))
            bound, there = bound + costs[at], at + self._first
            slope -= SERVICE_PER_UNMET * self._missing[at]
        else:
            bound += self._numbers[0]
        if self._budget is not None:
            bound, spent = bound - by_spent * self._budget, spent - self._budget
        return bound, (slope, there - number, spent)

    def _regrets_of_numbers(self) -> list[int]:
        """Return what having so many replicas, or more, adds to the bound."""
        by_service, by_number, _ = self._multipliers
        left = (self._prices.unmet << _SHIFT) - by_service * SERVICE_PER_UNMET
        numbers = zip(self._missing, self._numbers, range(self._first, self._last + 1), strict=True)
        prices = [left * u + g + by_number * n for u, g, n in numbers]
        best = list(accumulate(reversed(prices), min))[::-1]
        return [0] * self._first + [price - best[0] for price in best]

    def _ascend(self) -> _Multipliers:
        """Return multipliers that prove a good bound, by line searches along one of them in turn."""
        highest = (self._prices.unmet << _SHIFT) // SERVICE_PER_UNMET
        scale = max((abs(option[2]) for corners in self._corners for option in corners), default=0)
        scale += ((self._prices.unmet * UNMET + 1) << _SHIFT) + max(map(abs, self._numbers))
        ranges = [(0, 0, highest)]
        if self._counted:
            ranges.append((1, 0 if self._limit is None else -scale, scale))
        if self._budget is not None:
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
        return max(0, min(costs, default=self._prices.unmet << _SHIFT))

    def _climb(self, start: tuple[int, int, int], axis: int, low: int, high: int) -> tuple[int, int, int]:
        """Maximise the concave bound along one multiplier: intersect tangents from both sides."""

        def at(value: int) -> tuple[int, int, int]:
            return (*start[:axis], value, *start[axis + 1 :])  # type: ignore[return-value]

        def tangent(value: int) -> tuple[int, int]:
            bound, slopes = self._dual(at(value))
            return bound, slopes[axis]

        best = (self._dual(start)[0], start[axis])
        left, right = tangent(low), tangent(high)
        best = max(best, (left[0], low), (right[0], high))
        for _ in range(_STEPS):
            if left[1] <= 0 or right[1] >= 0:
                break
            middle = (right[0] - left[0] + left[1] * low - right[1] * high) // (left[1] - right[1])
            if not low < middle < high:
                break
            found = tangent(middle)
            best = max(best, (found[0], middle))
            if found[1] > 0:
                low, left = middle, found
            else:
                high, right = middle, found
        return at(best[1])

    def start(self) -> list[tuple[int, Mix]]:
        """Return (cost, mix) of what the multipliers suggest, completed with each shape in turn."""
        found: dict[tuple[int, int], tuple[int, Mix]] = {}
        for base in self._bases():
            mix = tuple(option[1] for option in base)
            totals = [sum(values) for values in zip(*base, strict=True)]
            for index, n in ((-1, 0), *self._completions(mix, totals[0])):
                service, number, cost, spent, _ = totals
                if index >= 0:
                    q, _, c, p, _ = self._option(index, mix[index] + n)
                    service, number = service + q - base[index][0], number + n
                    cost, spent = cost + c - base[index][2], spent + p - base[index][3]
                if self._within_limits(number, spent):
                    total = self._total(min(service, self._space.whole), number, cost)
                    key = (index, 0 if index >= 0 else len(found))
                    if key not in found or total < found[key][0]:
                        changed = (*mix[:index], mix[index] + n, *mix[index + 1 :]) if index >= 0 else mix
                        found[key] = (total, changed)
        return sorted(found.values())

    def _within_limits(self, number: int, spent: int) -> bool:
        few_enough = self._limit is None or number <= self._limit
        return self._first <= number and few_enough and (self._budget is None or spent <= self._budget)

    def _bases(self) -> list[list[_Option]]:
        """Return the least mix, what runs, what the multipliers suggest, and that with one or two fewer."""
        by_service, by_number, by_spent = self._multipliers

        def cost(option: _Option) -> int:  # a little more service wins a tie
            return option[2] - (by_service + 1) * option[0] - by_number * option[1] + by_spent * option[3]

        chosen = [min(corners, key=cost) for corners in self._corners]
        bases = [[corners[0] for corners in self._corners], chosen]
        if self._space.held:
            shapes = zip(self._space.shapes, self._corners, strict=True)
            numbers = [min(max(s.held, s.least), corners[-1][1]) for s, corners in shapes]
            bases.append([self._option(index, n) for index, n in enumerate(numbers)])
        for index, option in enumerate(chosen):
            fewer = range(max(self._corners[index][0][1], option[1] - 2), option[1])
            bases += [[*chosen[:index], self._option(index, n), *chosen[index + 1 :]] for n in fewer]
        return bases

    def _completions(self, base: Mix, service: int) -> Iterator[tuple[int, int]]:
        """Yield (shape, replicas) that serve the demand together with `base`, or just not."""
        left, short = self._space.whole - service, self._space.min_replicas - sum(base)
        for index, shape in enumerate(self._space.shapes):
            more = max(-(-left // shape.service) if shape.service else 0, short)
            more = min(more, self._corners[index][-1][1] - base[index])
            if more > 0:
                yield index, more
            if more > 1:
                yield index, more - 1

    def within(
        self, most: int, keep: int, *, every: bool = False, effort: PricingEffort | None = None
    ) -> tuple[list[tuple[int, Mix]], int]:
        """Return (cost, mix) of mixes that cost at most `most`, and the least that dropped labels cost.

        At most `keep` labels per shape stay. The cheapest mix is returned unless its label was dropped; with
        `every` all mixes are, unless theirs were. Where `effort` ends, nothing is found, and all is dropped.
        """
        gap, dropped = (most << _SHIFT) - self._root, most + 1
        if gap < 0:
            return [], dropped
        stages = self._stages(gap)
        order = sorted(range(len(stages)), key=lambda index: (len(stages[index]), index))
        later = self._later(gap, [stages[index] for index in order])
        labels: list[_Label] = [(0, 0, 0, 0, 0, None)]
        for index, need in zip(order, later, strict=True):
            if len(stages[index]) > 1 or stages[index][0][1]:
                labels = self._extend(labels, stages[index], need, gap)
                if effort is not None:
                    effort.labels -= len(labels)
                    if effort.over:
                        return [], min(dropped, self.bound)
            else:
                labels = [(*label[:5], (0, label[5])) for label in labels]
            if not every:
                labels = self._undominated(labels)
            if len(labels) > keep:
                labels.sort(key=lambda label: label[4])
                dropped = min(dropped, -(-(self._root + labels[keep][4]) >> _SHIFT))
                labels = labels[:keep]
        found = [
            (self._total(*label[:3]), self._mix(label, order))
            for label in labels
            if self._within_limits(label[1], label[3]) or not self._counted
        ]
        return [pair for pair in found if pair[0] <= most], dropped

    def _stages(self, gap: int) -> list[list[_Option]]:
        """Return the counts of each shape whose regret is at most `gap`, with it."""
        by_service, by_number, by_spent = self._multipliers
        stages = []
        for corners in self._corners:
            costs = [c - by_service * q - by_number * n + by_spent * p for q, n, c, p, _ in corners]
            least = min(costs)
            ends = [(*option[:4], cost - least) for option, cost in zip(corners, costs, strict=True)]
            stage = [ends[0]] if ends[0][4] <= gap else []
            for left, right in pairwise(ends):
                stage += _between(left, right, gap)
                if right[4] <= gap:
                    stage.append(right)
            stages.append(stage)
        return stages

    def _later(self, gap: int, stages: list[list[_Option]]) -> list[int]:
        """Return the service that has to be there after each stage: else what stays unmet costs too much."""
        by_service, by_number, _ = self._multipliers
        left = (self._prices.unmet << _SHIFT) - by_service * SERVICE_PER_UNMET
        if left <= 0:
            return [0] * len(stages)
        numbers = list(zip(self._numbers, self._missing, range(self._first, self._last + 1), strict=True))
        spare = gap
        if self._counted:
            spare += min(g + left * u + by_number * n for g, u, n in numbers)
            spare -= min(g + by_number * n for g, _, n in numbers)
        need = self._space.whole - SERVICE_PER_UNMET * spare // left - 1
        needs = []
        for options in reversed(stages):
            needs.append(need)
            need -= options[-1][0]
        return needs[::-1]

    def _extend(self, labels: list[_Label], options: list[_Option], need: int, gap: int) -> list[_Label]:
        """Return every label with every count of one more shape, as far as regret and limits allow."""
        whole, by_service, counted = self._space.whole, self._multipliers[0], self._counted
        budget, last, beyond = self._budget, self._last, self._beyond
        limited = self._limit is not None
        services = [option[0] for option in options]
        extended: list[_Label] = []
        for service, number, cost, spent, regret, counts in labels:
            for at in range(bisect_left(services, need - service), len(options)):
                q, n, c, p, r = options[at]
                q, r = q + service, r + regret
                if q > whole:
                    q, r = whole, r + by_service * (q - whole)
                if r > gap:
                    continue
                there = number
                if counted:
                    there += n
                    if there > last:
                        if limited:
                            break
                        there = last
                    if r + beyond[there] > gap:
                        continue
                if budget is not None and spent + p > budget:
                    break
                extended.append((q, there, cost + c, spent + p, r, (n, counts)))
        return extended

    def _undominated(self, labels: list[_Label]) -> list[_Label]:
        """Drop labels that serve no more than another at no lower cost, whatever follows."""
        labels.sort(key=lambda label: (-label[0], label[2], label[3]))
        dominance = Dominance(
            self._numbers, self._first, self._space.min_replicas, limited=self._limit is not None
        )
        if self._budget is None:
            return [label for label in labels if dominance.admits(label[1], label[2])]
        kept: list[_Label] = []
        cheapest: dict[int, list[tuple[int, int]]] = {}
        for label in labels:
            best, cost, spent = cheapest.setdefault(label[1], []), label[2], label[3]
            if not any(c <= cost and p <= spent for c, p in best):
                best[:] = [(c, p) for c, p in best if c < cost or p < spent]
                best.append((cost, spent))
                kept.append(label)
        return kept

    def _total(self, service: int, number: int, cost: int) -> int:
        """Return what a mix costs by its totals."""
        number = max(self._first, min(number, self._last))
        missing = max(0, -((service - self._space.whole) // SERVICE_PER_UNMET))
        missing = max(missing, self._missing[number - self._first] if self._counted else 0)
        return self._prices.unmet * missing + ((cost + self._numbers[number - self._first]) >> _SHIFT)

    def _mix(self, label: _Label, order: list[int]) -> Mix:
        mix, counts = [0] * len(order), label[5]
        for index in reversed(order):
            mix[index], counts = counts
        return tuple(mix)


class Dominance:
    """Which labels are worth keeping, offered by descending service.

    A label with other replicas than another pays for their number at most the steepest step each.
    """

    def __init__(self, numbers: list[int], first: int, min_replicas: int, *, limited: bool) -> None:
        steps = [b - a for a, b in pairwise(numbers)]
        self._up, self._down = max(0, *steps, 0), max(0, *(-step for step in steps), 0)
        self._enough, self._limited = max(min_replicas, first), limited
        # By number of replicas: least cost of labels with at most, and at least, as many, less their steps.
        self._fewer: list[int | None] = [None] * (first + len(numbers))
        self._more = list(self._fewer)

    def admits(self, number: int, cost: int) -> bool:
        """Return whether no label so far dominates one of so many replicas, and note it."""
        fewer, more = cost - self._down * number, cost + self._up * number
        least_fewer, least_more = self._fewer[number], self._more[number]
        if (least_fewer is not None and least_fewer <= fewer) or (
            least_more is not None and least_more <= more
        ):
            return False
        enough = number >= self._enough
        for at in range(number, len(self._fewer) if enough else number + 1):
            known = self._fewer[at]
            if known is not None and known <= fewer:
                break
            self._fewer[at] = fewer
        for at in range(number, number - 1 if self._limited else -1, -1):
            known = self._more[at]
            if known is not None and known <= more:
                break
            self._more[at] = more
        return True


def _between(left: _Option, right: _Option, gap: int) -> Iterator[_Option]:
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
