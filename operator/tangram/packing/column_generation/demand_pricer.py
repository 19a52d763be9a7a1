"""Price the mixes of one demand at the master's dual values: bound, and mixes to add."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tangram.fleet import ShapeKey
from tangram.packing.column_generation.label_search import PricingEffort
from tangram.packing.column_generation.mix_space import MixPrices, MixShape, MixSpace
from tangram.packing.column_generation.pricing import MixPricing
from tangram.packing.model.variables import MixTerms
from tangram.packing.problem.mix import WHOLE_SERVICE, MixCounts, MixLimits
from tangram.packing.problem.prepared import Exchange, PreparedDemand

_BEST = 4  # mixes of one round at most: with 8 and 16 there are as many rounds


class DemandPricer:
    """The pricing problems of one demand: what is limited stays, prices change from round to round."""

    def __init__(self, demand: PreparedDemand, terms: MixTerms) -> None:
        assert demand.limits is not None  # noqa: S101 - asked for only of demands that have one
        self._demand, self._mine, self._limits = demand, terms, demand.limits
        self._running, self._exchange = demand.running, Exchange(demand)
        self._shapes = [item.shape for item in demand.limits.items]
        pinned = dict(demand.limits.pinned)
        self._bends = {
            shape: tuple(sorted({most for other, most in terms.lasting if other == shape}))
            for shape in self._shapes
        }
        self._pricing = MixPricing(self._space(demand.limits, pinned, None))
        # Or fewer of what runs than is pinned, where that serves the demand whole.
        self._fewer = MixPricing(self._space(demand.limits, {}, self._running)) if pinned else None

    def _space(
        self, mix: MixLimits, least: Mapping[ShapeKey, int], running: Mapping[ShapeKey, int] | None
    ) -> MixSpace:
        held, silent = self._running, sum(item.most for item in mix.items if not item.serves)
        return MixSpace(
            shapes=tuple(
                MixShape(
                    service=item.serves,
                    room=item.most if running is None else min(item.most, running.get(item.shape, 0)),
                    price=item.price,
                    held=held.get(item.shape, 0),
                    least=least.get(item.shape, 0),
                    bends=self._bends[item.shape],
                )
                for item in mix.items
            ),
            whole=WHOLE_SERVICE if mix.rated else 0,
            min_replicas=mix.least,
            max_replicas=mix.most + silent if sum(item.most for item in mix.items) > mix.most else None,
            budget=mix.budget,
            uniform=mix.uniform,
            extra=() if running is not None else self._always(mix),
        )

    def _always(self, mix: MixLimits) -> tuple[tuple[int, ...], ...]:
        nothing = () if mix.pinned else ((),)
        return tuple(
            tuple(dict(counts).get(shape, 0) for shape in self._shapes) for counts in (*mix.always, *nothing)
        )

    def below(
        self, priced: Sequence[int], most: int, slack: int, effort: PricingEffort, *, thorough: bool
    ) -> tuple[int, list[MixCounts]]:
        """Return a lower bound of what any mix costs, `most` at most, and a few that cost less, sorted.

        `priced`: what a unit of each of the model's variables costs, by its index. See `MixPricing.below`.
        """
        prices, bounds, mixes = self._prices(priced), [], set[MixCounts]()
        for pricing in (self._pricing, self._fewer):
            if pricing is None:
                continue
            if pricing is self._fewer:
                prices = replace(prices, unmet=max(1, most + self._gain(prices)))
            bound, ranked = pricing.below(prices, most, _BEST, effort, slack=slack, thorough=thorough)
            bounds.append(bound)
            for _, mix in ranked:
                counts = tuple((s, n) for s, n in zip(self._shapes, mix, strict=True) if n)
                if self._limits.allows(dict(counts), self._running):
                    mixes.add(counts)
        ranked_counts = sorted((self._cost(counts, priced), counts) for counts in mixes)
        return min(bounds), [counts for cost, counts in ranked_counts[:_BEST] if cost < most]

    def _gain(self, prices: MixPrices) -> int:
        """Return what mixes may cost less than nothing."""
        pairs = zip(self._limits.items, prices.shapes, strict=True)
        return sum(-min(0, *changes) * item.most for item, changes in pairs)

    def _cost(self, counts: MixCounts, priced: Sequence[int]) -> int:
        return sum(priced[i] * n for i, n in self.values(counts).items())

    def values(self, counts: MixCounts) -> dict[int, int]:
        """Return what a mix makes of the variables that other constraints know, by index; zeros left out."""
        terms, chosen = self._mine, dict(counts)
        by_index = {variable.index: chosen.get(shape, 0) for shape, variable in terms.counts.items()}
        if terms.unmet is not None:
            by_index[terms.unmet.index] = self._limits.unmet(chosen)
        for (shape, most), variable in terms.lasting.items():
            by_index[variable.index] = min(most, chosen.get(shape, 0))
        if terms.exchanged is not None:
            by_index[terms.exchanged.index] = self._exchange.of(counts)[0]
        return {index: value for index, value in by_index.items() if value}

    def _prices(self, priced: Sequence[int]) -> MixPrices:
        terms = self._mine
        moved = 0 if terms.exchanged is None else priced[terms.exchanged.index]
        unmet = 0 if terms.unmet is None else priced[terms.unmet.index]
        return MixPrices(
            shapes=tuple(self._slopes(shape, priced) for shape in self._shapes),
            unmet=max(0, unmet),
            exchanged=max(0, moved),
        )

    def _slopes(self, shape: ShapeKey, priced: Sequence[int]) -> tuple[int, ...]:
        """Return what one more replica costs: what lasts has its own variables, up to as many as run."""
        dual, bends = priced[self._mine.counts[shape].index], self._bends[shape]
        lasts = [priced[self._mine.lasting[shape, most].index] for most in bends]
        return tuple(dual + sum(lasts[piece:]) for piece in range(len(bends) + 1))
