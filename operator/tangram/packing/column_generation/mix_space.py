"""Mixes: how many replicas of which shapes serve one demand, how much of it, and at what price.

Service is counted in whole units, so that what a mix leaves unmet is exact wherever it is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tangram.packing.problem.mix import WHOLE_SERVICE, unmet_units

MixVector = tuple[int, ...]  # replicas per shape, in the order of `MixSpace.shapes`


class MixShape(NamedTuple):
    """One shape that a demand may use."""

    service: int  # of one replica, see `served_units`
    room: int  # replicas that the fleet could hold at most
    price: int = 0  # of one replica against the budget
    held: int = 0  # replicas that run on it now
    least: int = 0  # replicas that have to stay
    bends: tuple[int, ...] = ()  # counts at which the price of one more may change, ascending: `held` too


@dataclass(frozen=True, slots=True)
class MixSpace:
    """Every mix that one demand may choose: those within its limits, and `extra` ones outside of them.

    Raises `ValueError` where no mix is feasible.
    """

    shapes: tuple[MixShape, ...]
    whole: int = WHOLE_SERVICE  # units of service to reach; 0: only the number of replicas counts
    min_replicas: int = 1
    max_replicas: int | None = None
    budget: int | None = None
    uniform: bool = False  # at most one shape has replicas
    extra: tuple[MixVector, ...] = ()  # of any cost

    def __post_init__(self) -> None:
        if not self.extra and not self.allows(self.smallest):
            raise ValueError("no mix is feasible: the replicas that have to stay exceed the limits")

    @property
    def smallest(self) -> MixVector:
        """The replicas that have to stay, alone."""
        return tuple(shape.least for shape in self.shapes)

    @property
    def held(self) -> int:
        """How many replicas run now."""
        return sum(shape.held for shape in self.shapes)

    def allows(self, mix: MixVector) -> bool:
        """Return whether `mix` keeps within room, numbers of replicas, budget and uniformity."""
        return (
            all(s.least <= n <= s.room for s, n in zip(self.shapes, mix, strict=True))
            and (self.max_replicas is None or sum(mix) <= self.max_replicas)
            and (self.budget is None or self.spent(mix) <= self.budget)
            and not (self.uniform and sum(n > 0 for n in mix) > 1)
        )

    def spent(self, mix: MixVector) -> int:
        """Return what `mix` takes of the budget."""
        return sum(s.price * n for s, n in zip(self.shapes, mix, strict=True))

    def missing(self, service: int, replicas: int) -> int:
        """Return the missing share of the demand, or of its replicas if more, in parts of `UNMET`."""
        return unmet_units(service, replicas, self.whole, self.min_replicas)


@dataclass(frozen=True, slots=True)
class MixPrices:
    """What mixes of one space cost, in any unit. Prices may be negative."""

    shapes: tuple[Sequence[int], ...]  # of one more replica: up to the first bend, from there on, and so on
    unmet: int = 0  # per part of `UNMET`, at least 0
    exchanged: int = 0  # per replica that changes its shape, at least 0
    constant: int = 0

    def cost(self, space: MixSpace, mix: MixVector) -> int:
        """Return what `mix` costs."""
        total = service = replicas = unmoved = 0
        for index, n in enumerate(mix):
            if n:
                shape = space.shapes[index]
                total += price_of_count(shape.bends, self.shapes[index], n)
                service, replicas = service + shape.service * n, replicas + n
                unmoved += min(shape.held, n)
        exchanged = min(replicas, space.held) - unmoved if self.exchanged else 0
        missing = space.missing(service, replicas) if self.unmet else 0
        return total + self.unmet * missing + self.exchanged * exchanged + self.constant

    def by_regime(self, space: MixSpace) -> tuple["MixPrices", ...]:
        """Return prices without exchanges, of the lesser of which a mix costs as much as by these.

        As many change their shape as are new, or as stop: the lesser of both. So each new replica pays, or
        each that stops, whichever is cheaper; neither depends on how many replicas there are in all.
        """
        if not self.exchanged:
            return (self,)
        pairs = [*zip(space.shapes, self.shapes, strict=True)]
        new = tuple(_dearer(shape, prices, 0, self.exchanged) for shape, prices in pairs)
        gone = tuple(_dearer(shape, prices, -self.exchanged, 0) for shape, prices in pairs)
        all_go = self.constant + self.exchanged * space.held
        return MixPrices(new, self.unmet, 0, self.constant), MixPrices(gone, self.unmet, 0, all_go)


def _dearer(shape: MixShape, prices: Sequence[int], within: int, beyond: int) -> Sequence[int]:
    """Return prices of which those of replicas up to `held` are so much higher, and those beyond it."""
    if not shape.held:
        return [price + beyond for price in prices] if beyond else prices
    below = shape.bends.index(shape.held) + 1
    return [price + (within if piece < below else beyond) for piece, price in enumerate(prices)]


def price_of_count(bends: Sequence[int], prices: Sequence[int], n: int) -> int:
    """Return what `n` replicas cost."""
    total, at = 0, 0
    for bend, price in zip(bends, prices, strict=False):
        if n <= bend:
            return total + price * (n - at)
        total, at = total + price * (bend - at), bend
    return total + prices[-1] * (n - at)
