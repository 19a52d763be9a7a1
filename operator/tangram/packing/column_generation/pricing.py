"""The pricing problem of column generation: the mixes of shapes that cost one demand least at given duals.

Prices and costs are integers in any one unit; every bound is a proof, whatever multipliers it rests on.
"""

from collections.abc import Iterator

from tangram.packing.column_generation.corners import Corners
from tangram.packing.column_generation.label_search import LabelSearch, PricingEffort
from tangram.packing.column_generation.mix_space import MixPrices, MixSpace, MixVector

# Passes: the quarters of the gap in which mixes are sought, and how many labels are kept per shape. Labels
# that are dropped lower the bound, not its validity. A first pass that keeps 16 labels, or 256, takes longer
# on 1,000 GPUs where replicas run.
_Passes = tuple[tuple[int, int], ...]
_FEW: _Passes = ((4, 64),)
_ALL: _Passes = (*_FEW, (1, 20_000), (2, 20_000), (4, 20_000))

Ranked = list[tuple[int, MixVector]]  # what mixes cost, the cheapest first


class MixPricing:
    """The mixes of one space, whose prices change from round to round."""

    def __init__(self, space: MixSpace) -> None:
        self._space = space
        possible = not space.uniform and space.allows(space.smallest)
        # Limits that do not bind only cost time: first without them.
        self._corners = [Corners(space, tight=tight) for tight in (False, True) if possible]

    def below(
        self,
        prices: MixPrices,
        most: int,
        limit: int,
        effort: PricingEffort,
        *,
        slack: int = 0,
        thorough: bool = True,
    ) -> tuple[int, Ranked]:
        """Return a lower bound of what any mix costs, `most` at most, and up to `limit` that cost less.

        The bound is what the cheapest costs less at most `slack`; lower where `effort` ends, for demands of
        very many near-equal mixes, and unless `thorough`.
        """
        space = self._space
        others = (*space.extra, *self._uniform()) if space.uniform else space.extra
        ranked_mixes = {(prices.cost(space, mix), mix) for mix in others}
        bound = min([most, *(cost for cost, _ in ranked_mixes)])
        for corners in self._corners:
            least, ranked = self._search(
                corners, prices, most, limit, effort, slack, _ALL if thorough else _FEW
            )
            allowed = [pair for pair in ranked if space.allows(pair[1])]
            ranked_mixes.update(allowed)
            if corners is self._corners[-1] or ranked[:1] == allowed[:1]:
                bound = min(bound, least)
                break
        return bound, sorted(pair for pair in ranked_mixes if pair[0] < most)[:limit]

    def _search(
        self,
        corners: Corners,
        prices: MixPrices,
        most: int,
        limit: int,
        effort: PricingEffort,
        slack: int,
        passes: _Passes,
    ) -> tuple[int, Ranked]:
        """Return a lower bound, `most` at most, and mixes within the limits of `corners` that cost less."""
        least, ranked_mixes = most, set[tuple[int, MixVector]]()
        searches = (LabelSearch(corners, regime) for regime in prices.by_regime(self._space))
        for search in sorted(searches, key=lambda search: search.bound):  # the most promising one first
            bound, aim = search.bound, min([most, *(cost - slack for cost, _ in ranked_mixes)])
            for quarters, keep in passes:
                if bound >= aim or effort.over:
                    break
                sought = min(aim - 1, bound + (aim - bound) * quarters // 4)
                ranked, dropped = search.within(sought, keep, limit, effort)
                # The cost is less in another regime.
                ranked_mixes |= {(prices.cost(self._space, mix), mix) for _, mix in ranked}
                if ranked:
                    dropped, aim = min(dropped, ranked[0][0]), min(aim, ranked[0][0] - slack)
                bound = max(bound, min(sought + 1, dropped))
            least = min(least, bound)
        return least, sorted(ranked_mixes)

    def _uniform(self) -> Iterator[MixVector]:
        """Yield every mix of one shape."""
        none = (0,) * len(self._space.shapes)
        for index, shape in enumerate(self._space.shapes):
            every = ((*none[:index], n, *none[index + 1 :]) for n in range(shape.room + 1))
            yield from (mix for mix in every if self._space.allows(mix))
