"""The dual values of the master problem as prices of one demand's mixes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tangram.packing.model.variables import MixTerms
from tangram.packing.problem.mix import Counts, Mix
from tangram.packing.problem.prepared import Exchange, PreparedDemand
from tangram.packing.problem.statement import ShapeKey
from tangram.packing.search.label_search import PricingEffort
from tangram.packing.search.mix_space import WHOLE, MixPrices, MixShape, MixSpace
from tangram.packing.search.pricing import several

_BEST = 4  # mixes of one round at most
_NEVER = 1 << 60  # a price above all sums of others


class Pricer:
    """The pricing problems of one demand: what is limited stays, prices change from round to round."""

    def __init__(self, demand: PreparedDemand, mine: MixTerms) -> None:
        assert demand.mix is not None  # noqa: S101 - asked for only of demands that have one
        self._demand, self._mine, self._mix = demand, mine, demand.mix
        self._running, self._exchange = demand.running, Exchange(demand)
        self._shapes = [item.shape for item in demand.mix.items]
        pinned = dict(demand.mix.pinned)
        self._spaces = [(self._space(demand.mix, pinned, None), 0)]
        if pinned:  # or fewer of what runs, where that serves the demand whole
            self._spaces.append((self._space(demand.mix, {}, self._running), _NEVER))

    def _space(
        self, mix: Mix, least: Mapping[ShapeKey, int], running: Mapping[ShapeKey, int] | None
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
                )
                for item in mix.items
            ),
            whole=WHOLE if mix.rated else 0,
            min_replicas=mix.least,
            max_replicas=mix.most + silent if sum(item.most for item in mix.items) > mix.most else None,
            budget=mix.budget,
            uniform=mix.uniform,
            surplus=self._demand.has_places,
            extra=() if running is not None else self._always(mix),
        )

    def _always(self, mix: Mix) -> tuple[tuple[int, ...], ...]:
        nothing = () if mix.pinned else ((),)
        return tuple(
            tuple(dict(counts).get(shape, 0) for shape in self._shapes) for counts in (*mix.always, *nothing)
        )

    def minimum(
        self, priced: Sequence[int], slack: int, effort: PricingEffort, *, quick: bool
    ) -> tuple[int, list[tuple[int, Counts]]]:
        """Return the least that any mix costs, or up to `slack` less, and the mixes that cost least, with it.

        `priced`: what a unit of each of the model's variables costs, by its index.
        """
        bounds, found = [], set[Counts]()
        for space, extra in self._spaces:
            bound, mixes = several(
                space, self._prices(priced, extra), _BEST, slack, quick=quick, effort=effort
            )
            bounds.append(bound)
            for mix in mixes:
                counts = tuple((s, n) for s, n in zip(self._shapes, mix, strict=True) if n)
                if self._mix.allows(dict(counts), self._running):
                    found.add(counts)
        values = {counts: self.values(counts).items() for counts in found}
        ranked = sorted((sum(priced[i] * n for i, n in values[counts]), counts) for counts in found)
        return min(bounds), ranked[:_BEST]

    def values(self, counts: Counts) -> dict[int, int]:
        """Return what a mix makes of the variables that other constraints know, by index; zeros left out."""
        mine, chosen = self._mine, dict(counts)
        found = {variable.index: chosen.get(shape, 0) for shape, variable in mine.counts.items()}
        if mine.unmet is not None:
            found[mine.unmet.index] = self._mix.unmet(chosen)
        for (shape, most), variable in mine.lasting.items():
            found[variable.index] = min(most, chosen.get(shape, 0))
        if mine.exchanged is not None:
            found[mine.exchanged.index] = self._exchange.of(counts)[0]
        return {index: value for index, value in found.items() if value}

    def _prices(self, priced: Sequence[int], extra: int) -> MixPrices:
        mine = self._mine
        moved = 0 if mine.exchanged is None else priced[mine.exchanged.index]
        unmet = 0 if mine.unmet is None else priced[mine.unmet.index]
        return MixPrices(
            shapes=tuple(self._segments(shape, priced) for shape in self._shapes),
            unmet=max(0, unmet) + extra,
            exchanged=max(0, moved),
        )

    def _segments(self, shape: ShapeKey, priced: Sequence[int]) -> tuple[tuple[int | None, int], ...]:
        each = priced[self._mine.counts[shape].index]
        steps = sorted(
            (most, priced[variable.index])
            for (other, most), variable in self._mine.lasting.items()
            if other == shape
        )
        ends = [0, *sorted({most for most, _ in steps})]
        pieces = [
            (high - low, each + sum(p for most, p in steps if most >= high)) for low, high in pairwise(ends)
        ]
        return (*pieces, (None, each))
