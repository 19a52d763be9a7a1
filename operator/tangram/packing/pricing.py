"""The pricing problem of column generation: the mix of shapes that costs one demand least at given duals.

Prices and costs are integers in any one unit; every bound is a proof, whatever multipliers it rests on.
"""

from collections.abc import Iterator

from tangram.packing.label_search import LabelSearch, useful_replicas
from tangram.packing.mixes import Mix, MixPrices, MixSpace

# Labels kept per shape, pass after pass; what is dropped lowers the bound, not its validity.
_LABELS = (60, 600, 20_000)


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
        mixes, dropped = LabelSearch(space, prices, tight=True).within(most, 20 * limit + 1_000, every=True)
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
    search = LabelSearch(space, prices, tight=tight)
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
        for n in range(1, useful_replicas(space, prices, index) + 1):
            yield (*none[:index], n, *none[index + 1 :])
