"""The pricing problem of column generation: the mix of shapes that costs one demand least at given duals.

A mix is a count of replicas per shape. Its cost adds a piecewise linear function of each count, a price per
unit of unmet demand, a price per number of replicas and a price per replica that changes its shape. The
minimum is searched by labels: shape after shape, each label holds the service, the number of replicas and the
cost of the counts chosen so far. Lagrangian multipliers for service, number of replicas and budget bound what
any completion of a label costs; the difference to the bound of the empty label is its regret. A label whose
regret exceeds the gap to the best known mix is dropped, and one that serves no more than another at no lower
cost. Everything is computed in integers, so bounds are proofs whatever the multipliers are.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

from tangram.packing.mixes import SERVICE_PER_UNMET, Mix, MixPrices, MixSpace
from tangram.packing.wants import UNMET

_SHIFT = 30  # multipliers are multiples of 2**-30
_STEPS = 12  # of one line search: piecewise linear functions of a few dozen pieces end in fewer
_ROUNDS = 3  # of line searches along each multiplier
# Labels kept per shape in a first and a second pass; what is dropped lowers the bound, not its validity.
_LABELS = (400, 10_000)


def minimum(space: MixSpace, prices: MixPrices, slack: int = 0) -> tuple[int, Mix]:
    """Return a lower bound of what any mix costs, and the cheapest mix found.

    The bound is its cost less at most `slack`; lower only for demands of very many near-equal mixes.
    """
    bound, mix, _ = _solve(space, prices, slack)
    return bound, mix


def several(space: MixSpace, prices: MixPrices, limit: int, slack: int = 0) -> tuple[int, list[Mix]]:
    """Return a lower bound as `minimum` does, and distinct mixes: the cheapest, then diverse good ones."""
    bound, mix, others = _solve(space, prices, slack)
    ranked = sorted((prices.cost(space, other), other) for other in others)
    return bound, list(dict.fromkeys([mix, *(other for _, other in ranked)]))[:limit]


def enumerate_within(space: MixSpace, prices: MixPrices, most: int, limit: int) -> list[Mix] | None:
    """Return every mix that costs at most `most`, sorted. None: more than `limit`.

    Unless `space.surplus`, mixes with replicas that neither run nor are needed are left out.
    """
    found = {mix for mix in space.extra if prices.cost(space, mix) <= most}
    if space.uniform:
        singles = (mix for mix in _uniform(space, prices) if space.allows(mix))
        found |= {mix for mix in singles if prices.cost(space, mix) <= most}
    elif space.allows(space.smallest):
        mixes, dropped = _Search(space, prices, tight=True).within(most, 20 * limit + 1_000, every=True)
        if dropped <= most:
            return None
        found |= {mix for _, mix in mixes}
    if not space.surplus:
        found -= {mix for mix in found if mix not in space.extra and space.has_surplus(mix)}
    return sorted(found) if len(found) <= limit else None


def _solve(space: MixSpace, prices: MixPrices, slack: int) -> tuple[int, Mix, list[Mix]]:
    """Return a lower bound, the cheapest mix found and other mixes found."""
    others = list(space.extra)
    bounds = [prices.cost(space, mix) for mix in others]
    if space.uniform:
        singles = [mix for mix in _uniform(space, prices) if space.allows(mix)]
        bounds += [prices.cost(space, mix) for mix in singles]
        others += singles
    elif space.allows(space.smallest):
        for tight in (False, True):  # limits that do not bind only cost time
            bound, best, more = _search(space, prices, slack, tight=tight)
            others += [mix for mix in more if space.allows(mix)]
            if tight or space.allows(best):
                bounds.append(bound)
                break
    best = min(others, key=lambda mix: (prices.cost(space, mix), mix))
    return min(bounds), best, others


def _search(space: MixSpace, prices: MixPrices, slack: int, *, tight: bool) -> tuple[int, Mix, list[Mix]]:
    search = _Search(space, prices, tight=tight)
    ranked = search.start()
    cost, best = min(ranked)
    bound = search.bound
    for most in _LABELS:
        if bound >= cost - slack:
            break
        sought = cost - slack - 1
        found, dropped = search.within(sought, most)
        ranked += found
        cost, best = min([(cost, best), *found])
        bound = max(bound, min(sought + 1, cost, dropped))
    return bound, best, [mix for _, mix in ranked]


def _uniform(space: MixSpace, prices: MixPrices) -> Iterator[Mix]:
    """Yield every mix of one shape whose replicas may all lower what it costs, and the empty one."""
    none = (0,) * len(space.shapes)
    yield none
    for index in range(len(space.shapes)):
        for n in range(1, _most(space, prices, index) + 1):
            yield (*none[:index], n, *none[index + 1 :])


def _most(space: MixSpace, prices: MixPrices, index: int) -> int:
    """Return up to how many replicas of a shape may lower what a mix costs."""
    shape, segments = space.shapes[index], prices.shapes[index]
    rising = all(a <= b for a, b in pairwise(prices.replicas))
    if space.surplus or segments[-1][1] < 0 or not rising:
        return shape.room
    served = -(-space.whole // shape.service) if shape.service else 0
    bent = sum(length or 0 for length, _ in segments)
    return min(shape.room, max(served, space.min_replicas, bent, shape.held, shape.least))


_Option = tuple[int, int, int, int, int]  # service, replicas, cost, spent, regret: of one count of one shape
# Of the counts chosen so far, and those counts, the last one first: (replicas, (replicas, ... None)).
_Label = tuple[int, int, int, int, int, Any]


class _Search:
    """The labels of one pricing problem.

    What changing shapes costs is split: min(replicas, held) pay, and each that keeps its shape is paid back.
    """

    def __init__(self, space: MixSpace, prices: MixPrices, *, tight: bool) -> None:
        self._space, self._prices = space, prices
        self._budget = space.budget if tight else None
        most = space.max_replicas if tight else None
        self._first = sum(shape.least for shape in space.shapes)
        held = space.held if prices.exchanged else 0
        enough = max(space.min_replicas, len(prices.replicas) - 1, held, self._first)
        self._counted = most is not None or held > 0 or len(prices.replicas) > 1
        self._counted = self._counted or space.min_replicas > 1 or not space.whole
        # Prices of numbers of replicas; those beyond the last cost the same, where nothing limits them.
        self._limited = most is not None
        self._last = enough if most is None else max(most, self._first)
        self._numbers = [
            prices.of_number(n) + prices.exchanged * min(n, held) for n in range(self._first, self._last + 1)
        ]
        self._missing = [space.missing_replicas(n) for n in range(self._first, self._last + 1)]
        self._shapes = [self._options(index, most) for index in range(len(space.shapes))]
        self._corners = [self._corners_of(index, options) for index, options in enumerate(self._shapes)]
        self._multipliers = self._ascend()
        self._root = self._dual(self._multipliers)[0]
        self.bound = -(-self._root >> _SHIFT)
        self._beyond = self._regrets_of_numbers()

    def _options(self, index: int, most: int | None) -> list[_Option]:
        """Return every count of a shape: (service, replicas, cost, spent, 0)."""
        shape, whole = self._space.shapes[index], self._space.whole
        top = _most(self._space, self._prices, index)
        if most is not None:
            top = min(top, shape.least + most - self._first)
        if self._budget is not None and shape.price > 0:
            spare = self._budget - sum(each.price * each.least for each in self._space.shapes)
            top = min(top, shape.least + spare // shape.price)
        back = self._prices.exchanged
        slopes: list[int] = []
        for length, slope in self._prices.shapes[index]:
            slopes += [slope] * max(
                0, top - len(slopes) if length is None else min(length, top - len(slopes))
            )
        costs = accumulate(slopes, initial=0)
        return [
            (min(shape.service * n, whole), n, cost - back * min(n, shape.held), shape.price * n, 0)
            for n, cost in enumerate(costs)
            if n >= shape.least
        ]

    def _corners_of(self, index: int, options: list[_Option]) -> list[_Option]:
        """Return the counts among which the least cost is at any multipliers: ends of linear pieces."""
        shape = self._space.shapes[index]
        served = self._space.whole // shape.service if shape.service else 0
        bent = accumulate(length or 0 for length, _ in self._prices.shapes[index])
        numbers = {shape.least, options[-1][1], served, served + 1, shape.held, *bent}
        return [options[n - shape.least] for n in sorted(numbers) if shape.least <= n <= options[-1][1]]

    def _dual(self, multipliers: tuple[int, int, int]) -> tuple[int, tuple[int, int, int]]:
        """Return the bound that multipliers prove, and a supergradient."""
        by_service, by_number, by_spent = multipliers
        bound, service, number, spent = by_service * self._space.whole, 0, 0, 0
        for corners in self._corners:
            least, q, n, p = min(
                [
                    ((cost << _SHIFT) - by_service * q - by_number * n + by_spent * p, q, n, p)
                    for q, n, cost, p, _ in corners
                ]
            )
            bound, service, number, spent = bound + least, service + q, number + n, spent + p
        slope, there = self._space.whole - service, number
        if self._counted:
            left = (self._prices.unmet << _SHIFT) - by_service * SERVICE_PER_UNMET
            least, there, missing = min(
                [
                    (left * u + (g << _SHIFT) + by_number * n, n, u)
                    for n, (u, g) in enumerate(zip(self._missing, self._numbers, strict=True), self._first)
                ]
            )
            bound, slope = bound + least, slope - SERVICE_PER_UNMET * missing
        else:
            bound += self._numbers[0] << _SHIFT
        if self._budget is not None:
            bound, spent = bound - by_spent * self._budget, spent - self._budget
        return bound, (slope, there - number, spent)

    def _regrets_of_numbers(self) -> list[int]:
        """Return what having so many replicas, or more, adds to the bound."""
        by_service, by_number, _ = self._multipliers
        left = (self._prices.unmet << _SHIFT) - by_service * SERVICE_PER_UNMET
        numbers = zip(self._missing, self._numbers, range(self._first, self._last + 1), strict=True)
        prices = [left * u + (g << _SHIFT) + by_number * n for u, g, n in numbers]
        best = list(accumulate(reversed(prices), min))[::-1]
        return [0] * self._first + [price - best[0] for price in best]

    def _ascend(self) -> tuple[int, int, int]:
        """Return multipliers that prove a good bound, by line searches along one of them in turn."""
        highest = (self._prices.unmet << _SHIFT) // SERVICE_PER_UNMET
        scale = max((abs(option[2]) for corners in self._corners for option in corners), default=0)
        scale = (scale + self._prices.unmet * UNMET + max(map(abs, self._numbers)) + 1) << _SHIFT
        ranges = [(0, 0, highest)]
        if self._counted:
            ranges.append((1, -scale if self._limited else 0, scale))
        if self._budget is not None:
            ranges.append((2, 0, scale))
        best = (0, 0, 0)
        for _ in range(1 if len(ranges) == 1 else _ROUNDS):
            before = best
            for axis, low, high in ranges:
                best = self._climb(best, axis, low, high)
            if best == before:
                break
        return best

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
        """Return (cost, mix) of some good mixes: of one shape, and what the multipliers suggest."""
        least = self._space.smallest
        by_service, by_number, by_spent = self._multipliers
        chosen = []
        for corners in self._corners:
            ranked = [
                ((c << _SHIFT) - by_service * q - by_number * n + by_spent * p, n)
                for q, n, c, p, _ in corners
            ]
            chosen.append(min(ranked)[1])
        bases = {least, tuple(chosen)}
        for index, n in enumerate(chosen):
            bases |= {
                (*chosen[:index], fewer, *chosen[index + 1 :]) for fewer in range(max(least[index], n - 2), n)
            }
        running = tuple(
            min(max(s.held, s.least), o[-1][1]) for s, o in zip(self._space.shapes, self._shapes, strict=True)
        )
        bases.add(running)
        found = set(bases)
        for base in bases:
            found.update(self._completed(base))
        ranked_mixes = ((self._prices.cost(self._space, mix), mix) for mix in found)
        if not self._limited and self._budget is None:
            return sorted(ranked_mixes)
        return sorted(pair for pair in ranked_mixes if self._space.allows(pair[1]))

    def _completed(self, base: Mix) -> Iterator[Mix]:
        """Yield `base` with as many replicas of one shape as serve the demand."""
        shapes = self._space.shapes
        left = self._space.whole - sum(s.service * n for s, n in zip(shapes, base, strict=True))
        short = self._space.min_replicas - sum(base)
        for index, shape in enumerate(shapes):
            more = max(-(-left // shape.service) if shape.service else 0, short)
            more = min(more, self._shapes[index][-1][1] - base[index])
            if more > 0:
                yield (*base[:index], base[index] + more, *base[index + 1 :])
                yield (*base[:index], base[index] + more - 1, *base[index + 1 :])

    def within(self, most: int, keep: int, *, every: bool = False) -> tuple[list[tuple[int, Mix]], int]:
        """Return (cost, mix) of mixes that cost at most `most`, and the least that dropped labels cost.

        At most `keep` labels per shape stay. The cheapest mix is returned unless its label was dropped; with
        `every` all mixes are, unless theirs were.
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
            else:
                labels = [(*label[:5], (0, label[5])) for label in labels]
            if not every:
                labels = self._undominated(labels)
            if len(labels) > keep:
                labels.sort(key=lambda label: label[4])
                dropped = min(dropped, -(-(self._root + labels[keep][4]) >> _SHIFT))
                labels = labels[:keep]
        found = [(self._total(label), self._mix(label, order)) for label in labels]
        return [pair for pair in found if pair[0] <= most], dropped

    def _stages(self, gap: int) -> list[list[_Option]]:
        """Return the counts of each shape whose regret is at most `gap`, with it."""
        by_service, by_number, by_spent = self._multipliers
        stages = []
        for options, corners in zip(self._shapes, self._corners, strict=True):
            least = min(
                (cost << _SHIFT) - by_service * q - by_number * n + by_spent * p
                for q, n, cost, p, _ in corners
            )
            regrets = [
                (q, n, c, p, (c << _SHIFT) - by_service * q - by_number * n + by_spent * p - least)
                for q, n, c, p, _ in options
            ]
            stages.append([option for option in regrets if option[4] <= gap])
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
            spare += min((g << _SHIFT) + left * u + by_number * n for g, u, n in numbers)
            spare -= min((g << _SHIFT) + by_number * n for g, _, n in numbers)
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
                        if self._limited:
                            break
                        there = last
                    if r + beyond[there] > gap:
                        continue
                if budget is not None and spent + p > budget:
                    break
                extended.append((q, there, cost + c, spent + p, r, (n, counts)))
        return extended

    def _undominated(self, labels: list[_Label]) -> list[_Label]:
        """Drop labels for which another one serves as much with as many replicas at no higher cost."""
        labels.sort(key=lambda label: (-label[0], label[2], label[3]))
        kept: list[_Label] = []
        cheapest: dict[int, list[tuple[int, int]]] = {}
        for label in labels:
            best = cheapest.setdefault(label[1], [])
            cost, spent = label[2], label[3] if self._budget is not None else 0
            if not any(c <= cost and p <= spent for c, p in best):
                best[:] = [(c, p) for c, p in best if c < cost or p < spent]
                best.append((cost, spent))
                kept.append(label)
        return kept

    def _total(self, label: _Label) -> int:
        number = label[1] if self._counted else self._first
        missing = max(0, -((label[0] - self._space.whole) // SERVICE_PER_UNMET))
        if self._counted:
            missing = max(missing, self._missing[number - self._first])
        return label[2] + self._prices.unmet * missing + self._numbers[number - self._first]

    def _mix(self, label: _Label, order: list[int]) -> Mix:
        mix, counts = [0] * len(order), label[5]
        for index in reversed(order):
            mix[index], counts = counts
        return tuple(mix)
