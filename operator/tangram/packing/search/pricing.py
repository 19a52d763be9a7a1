"""The pricing problem of column generation: the mix of shapes that costs one demand least at given duals.

Prices and costs are integers in any one unit; every bound is a proof, whatever multipliers it rests on.
"""

from collections.abc import Iterator

from tangram.packing.search.label_search import LabelSearch, PricingEffort, useful_replicas
from tangram.packing.search.mix_space import Mix, MixPrices, MixSpace

# Passes: the quarters of the gap in which mixes are sought, and how many labels are kept per shape. Labels
# that are dropped lower the bound, not its validity. One pass over the whole gap takes twice the time
# where nothing runs.
_Passes = tuple[tuple[int, int], ...]
_PASSES: _Passes = ((4, 20), (1, 20_000), (2, 20_000), (4, 20_000))
_Effort = PricingEffort | None


def minimum(space: MixSpace, prices: MixPrices, slack: int = 0) -> tuple[int, Mix]:
    """Return a lower bound of what any mix costs, and the cheapest mix found.

    The bound is its cost less at most `slack`; lower only for demands of very many near-equal mixes.
    """
    bound, ranked = _solve(space, prices, slack, _PASSES)
    return bound, ranked[0][1]


def several(
    space: MixSpace,
    prices: MixPrices,
    limit: int,
    slack: int = 0,
    *,
    quick: bool = False,
    effort: _Effort = None,
) -> tuple[int, list[Mix]]:
    """Return a lower bound as `minimum` does, and distinct mixes, cheapest first, diverse.

    quick: without a search, in a third to two thirds of the time; the bound is that of the multipliers alone.
    """
    bound, ranked = _solve(space, prices, slack, () if quick else _PASSES, effort)
    return bound, [mix for _, mix in ranked[:limit]]


def enumerate_within(space: MixSpace, prices: MixPrices, most: int, limit: int) -> list[Mix] | None:
    """Return every mix that costs at most `most`, sorted. None: more than `limit`.

    Unless `space.surplus`, mixes with replicas that neither run nor are needed are left out.
    """
    found = {mix for mix in space.extra if prices.cost(space, mix) <= most}
    if space.uniform:
        singles = (mix for mix in _uniform(space, prices) if space.allows(mix))
        found |= {mix for mix in singles if prices.cost(space, mix) <= most}
    elif space.allows(space.smallest):
        for each in prices.by_regime(space):
            search = LabelSearch(space, each, space.max_replicas, tight=True)
            mixes, dropped = search.within(most, 20 * limit + 1_000, every=True)
            if dropped <= most:
                return None
            found |= {mix for _, mix in mixes}
    if not space.surplus:
        found -= {mix for mix in found if mix not in space.extra and space.has_surplus(mix)}
    return sorted(found) if len(found) <= limit else None


def _solve(
    space: MixSpace, prices: MixPrices, slack: int, passes: _Passes, effort: _Effort = None
) -> tuple[int, list[tuple[int, Mix]]]:
    """Return a lower bound, and (cost, mix) of the mixes found, the cheapest first."""
    found = {(prices.cost(space, mix), mix) for mix in space.extra}
    bounds = [cost for cost, _ in found]
    if space.uniform:
        singles = {(prices.cost(space, mix), mix) for mix in _uniform(space, prices) if space.allows(mix)}
        bounds += [cost for cost, _ in singles]
        found |= singles
    elif space.allows(space.smallest):
        for tight in (False, True):  # limits that do not bind only cost time
            bound, ranked = _search(space, prices, slack, passes, effort, tight=tight)
            found |= {pair for pair in ranked if space.allows(pair[1])}
            if tight or space.allows(min(ranked)[1]):
                bounds.append(bound)
                break
    return min(bounds), sorted(found)


def _search(
    space: MixSpace, prices: MixPrices, slack: int, passes: _Passes, effort: _Effort, *, tight: bool
) -> tuple[int, list[tuple[int, Mix]]]:
    most = space.max_replicas if tight else None
    searches = [LabelSearch(space, each, most, tight=tight) for each in prices.by_regime(space)]
    ranked = [pair for search in searches for pair in search.start()]
    searches.sort(key=lambda search: search.bound)  # the most promising one first
    bounds = [_bound(search, ranked, slack, passes, effort) for search in searches]
    ranked = sorted({(prices.cost(space, mix), mix) for _, mix in ranked})  # in one regime some seem dearer
    return min(ranked[0][0], *bounds), ranked


def _bound(
    search: LabelSearch, ranked: list[tuple[int, Mix]], slack: int, passes: _Passes, effort: _Effort
) -> int:
    """Return a lower bound of the mixes of a search, and of the cheapest one known; add those found."""
    bound = search.bound
    for quarters, labels in passes:
        cost = min(ranked)[0]
        if bound >= cost - slack or (effort is not None and effort.over):
            break
        sought = min(cost - slack - 1, bound + (cost - bound) * quarters // 4)
        found, dropped = search.within(sought, labels, effort=effort)
        ranked += found
        bound = max(bound, min([sought + 1, dropped, *(cost for cost, _ in found)]))
    return bound


def _uniform(space: MixSpace, prices: MixPrices) -> Iterator[Mix]:
    """Yield every mix of one shape whose replicas may all lower what it costs, and the empty one."""
    none = (0,) * len(space.shapes)
    yield none
    for index in range(len(space.shapes)):
        for n in range(1, useful_replicas(space, prices, index) + 1):
            yield (*none[:index], n, *none[index + 1 :])
