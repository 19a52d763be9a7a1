"""What is the same in every search for one demand's mixes, whatever the prices."""

from itertools import pairwise

from tangram.packing.column_generation.mix_space import MixPrices, MixSpace
from tangram.packing.problem.mix import missing_replicas

# One count of one shape, priced: service up to the whole; replicas; cost; spent of the budget; regret.
PricedCount = tuple[int, int, int, int, int]


class Corners:
    """The counts of each shape between which service and cost are linear: the same at all prices.

    tight: within the greatest number of replicas and the budget.
    """

    def __init__(self, space: MixSpace, *, tight: bool) -> None:
        self.space = space
        self.limit, self.budget = (space.max_replicas, space.budget) if tight else (None, None)
        self.first = sum(space.smallest)
        self.enough = max(space.min_replicas, self.first)  # more replicas miss as little
        self.last = self.enough if self.limit is None else self.limit
        self.missing = [missing_replicas(n, space.min_replicas) for n in range(self.first, self.last + 1)]
        self.counted = self.limit is not None or space.min_replicas > 1 or not space.whole
        # Of each shape and corner: service, replicas, what they take of the budget, replicas by piece.
        self.shapes = [[self._corner(i, n) for n in self._numbers(i)] for i in range(len(space.shapes))]

    def _numbers(self, index: int) -> list[int]:
        shape, space = self.space.shapes[index], self.space
        top = shape.room
        if self.limit is not None:
            top = min(top, shape.least + self.limit - self.first)
        if self.budget is not None and shape.price > 0:
            top = min(top, shape.least + (self.budget - space.spent(space.smallest)) // shape.price)
        served = space.whole // shape.service if shape.service else 0
        numbers = {shape.least, top, served, served + 1, *shape.bends}
        return [n for n in sorted(numbers) if shape.least <= n <= top]

    def _corner(self, index: int, n: int) -> tuple[int, int, int, tuple[int, ...]]:
        shape = self.space.shapes[index]
        ends = [min(n, bend) for bend in (0, *shape.bends)] + [n]
        pieces = tuple(b - a for a, b in pairwise(ends))
        return min(shape.service * n, self.space.whole), n, shape.price * n, pieces

    def priced(self, prices: MixPrices, shift: int) -> list[list[PricedCount]]:
        """Return the counts with what they cost, without regret."""
        return [
            [
                (q, n, sum(price * k for price, k in zip(shape_prices, pieces, strict=True)) << shift, p, 0)
                for q, n, p, pieces in corners
            ]
            for corners, shape_prices in zip(self.shapes, prices.shapes, strict=True)
        ]
