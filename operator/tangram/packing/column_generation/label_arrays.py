"""Labels of a label-setting algorithm (partial solutions), as arrays: those that may become the cheapest."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tangram.packing.column_generation.corners import Corners, PricedCount

_Numbers = NDArray[np.int64]
_HIGHEST = np.iinfo(np.int64).max
_COMPARED = 64  # numbers of replicas that labels are compared across; more are compared each alone


class Labels:
    """Service, replicas, cost, what is chosen of the budget, and regret of each label.

    `by_service`: regret of a unit of service beyond the whole. `beyond`: regret of so many replicas. `gap`:
    labels of more regret are dropped.
    """

    def __init__(self, limits: Corners, by_service: int, beyond: Sequence[int], gap: int) -> None:
        self._limits, self._by_service, self._gap = limits, by_service, gap
        self._beyond = np.array([min(regret, gap + 1) for regret in beyond], np.int64)
        self._columns = np.zeros((5, 1), np.int64)  # service, replicas, cost, spent, regret
        self._last: tuple[_Numbers, _Numbers] = self._columns[0], self._columns[0]
        # By shape: label before and replicas of the shape, of each label; None: no replica of it.
        self._steps: list[tuple[_Numbers, _Numbers] | None] = []

    @property
    def count(self) -> int:
        """How many labels there are."""
        return self._columns.shape[1]

    def skip(self) -> None:
        """Give every label no replica of one more shape."""
        self._steps.append(None)

    def extend(self, counts: Sequence[PricedCount], need: int) -> None:
        """Give every label every count of one more shape, as far as regret and limits allow.

        `counts`: service, replicas, cost, spent, regret of each count. `need`: least service of labels.
        """
        limits = self._limits
        every = self._columns[:, :, None] + np.array(counts, np.int64).T[:, None, :]
        service, number, _, spent, regret = every = every.reshape(5, -1)
        over = np.maximum(service - limits.space.whole, 0)
        regret += over * self._by_service
        service -= over
        fits = (regret <= self._gap) & (service >= need)
        if limits.counted:
            if limits.limit is not None:
                fits &= number <= limits.last
            np.minimum(number, limits.last, out=number)
            fits &= regret + self._beyond[number] <= self._gap
        if limits.budget is not None:
            fits &= spent <= limits.budget
        fitting = np.flatnonzero(fits)
        before, chosen = np.divmod(fitting, len(counts))
        self._columns = every[:, fitting]
        self._last = before, np.array([n for _, n, *_ in counts], np.int64)[chosen]

    def reduce(self, most: int) -> int | None:
        """Drop dominated labels, and but `most` of the others; return the least regret of those."""
        service, _, cost, spent, regret = self._columns
        order = np.lexsort((spent, cost, -service))
        order = order[self._undominated(order)]
        least = None
        if len(order) > most:
            order = order[np.argsort(regret[order], kind="stable")]
            least, order = int(regret[order[most]]), order[:most]
        self._columns = self._columns[:, order]
        before, replicas = self._last
        self._steps.append((before[order], replicas[order]))
        return least

    def _undominated(self, order: _Numbers) -> NDArray[np.bool_]:
        """Return which labels, in order of falling service, serve more than all that cost as little.

        Of labels with other numbers of replicas, those with more are as good without a limit; those with
        fewer, if they are enough. With a budget, few are compared: what costs and what takes least.
        """
        limits, (_, number, cost, spent, _) = self._limits, self._columns[:, order]
        if not limits.counted and limits.budget is None:
            return _falling(cost, cost)
        undominated, values = np.zeros(len(order), bool), np.unique(number)
        for n in values.tolist():
            same_number = number == n
            others = same_number
            if len(values) <= _COMPARED and limits.budget is None:
                fewer = (number >= limits.enough) & (number <= n)
                others = number >= n if limits.limit is None else same_number | fewer
            if limits.budget is None:
                undominated |= same_number & _falling(cost, np.where(others, cost, _HIGHEST))
            else:
                at = np.flatnonzero(same_number)
                undominated[at] = ~(_beaten(cost[at], spent[at]) | _beaten(spent[at], cost[at]))
        return undominated

    def totals(self) -> Iterable[tuple[int, int, int, int]]:
        """Return service, replicas, cost and what is chosen of the budget, of each label."""
        return zip(*self._columns[:4].tolist(), strict=True)

    def counts(self, label: int) -> list[int]:
        """Return the replicas of each shape of one label, in the order of the shapes."""
        replicas = []
        for step in reversed(self._steps):
            replicas.append(0 if step is None else int(step[1][label]))
            label = label if step is None else int(step[0][label])
        return replicas[::-1]


def _falling(values: _Numbers, others: _Numbers) -> NDArray[np.bool_]:
    """Return which values are below all of `others` before them."""
    falling = np.ones(len(values), bool)
    falling[1:] = values[1:] < np.minimum.accumulate(others)[:-1]
    return falling


def _beaten(first: _Numbers, other: _Numbers) -> NDArray[np.bool_]:
    """Return where the least of `first` before is no larger, nor is its `other`."""
    least = np.ones(len(first), bool)
    least[1:] = first[1:] < np.minimum.accumulate(first)[:-1]
    witness = np.maximum.accumulate(np.where(least, np.arange(len(first)), 0))[:-1]
    beaten = np.zeros(len(first), bool)
    beaten[1:] = (first[witness] <= first[1:]) & (other[witness] <= other[1:])
    return beaten
