"""Mixes: how many replicas of which shapes serve one demand, how much of it, and at what price.

Service is counted in whole units, so that what a mix leaves unmet is exact wherever it is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tangram.packing.problem.mix import SCALE, UNMET

SERVICE_PER_UNMET = SCALE
WHOLE = UNMET * SERVICE_PER_UNMET  # units of service of a demand that is met
_TOLERANCE = Fraction(1, 10**9)  # rates are sums of floats: one that misses the whole by this much is whole

Mix = tuple[int, ...]  # replicas per shape, in the order of `MixSpace.shapes`
Segments = Sequence[tuple[int | None, int]]  # (replicas, price of each); the last one has no end


def service_units(offered: float, rate: float) -> int:
    """Return the service of one replica that sustains `offered` of a demand of `rate` requests per second.

    Units: `WHOLE` is the demand; at most that. Rounded up by at most 1e-9 of itself and one unit, so that
    replicas that sustain the rate together, up to rounding errors of floats, have `WHOLE` units together.
    """
    if rate <= 0 or offered >= rate:
        return WHOLE
    exact = Fraction(offered) / Fraction(rate) * WHOLE * (1 + _TOLERANCE)
    return min(WHOLE, -(-exact.numerator // exact.denominator)) if offered > 0 else 0


class MixShape(NamedTuple):
    """One shape that a demand may use."""

    service: int  # of one replica, see `service_units`
    room: int  # replicas that the fleet could hold at most
    price: int = 0  # of one replica against the budget
    held: int = 0  # replicas that run on it now
    least: int = 0  # replicas that have to stay


@dataclass(frozen=True, slots=True)
class MixSpace:
    """Every mix that one demand may choose: those within its limits, and `extra` ones outside of them.

    Raises `ValueError` where no mix is feasible.
    """

    shapes: tuple[MixShape, ...]
    whole: int = WHOLE  # units of service to reach; 0: only the number of replicas counts
    min_replicas: int = 1
    max_replicas: int | None = None
    budget: int | None = None
    uniform: bool = False  # at most one shape has replicas
    surplus: bool = False  # replicas beyond need may be useful to constraints outside, as to spread
    extra: tuple[Mix, ...] = ()  # of any cost

    def __post_init__(self) -> None:
        if not self.extra and not self.allows(self.smallest):
            raise ValueError("no mix is feasible: the replicas that have to stay exceed the limits")

    @property
    def smallest(self) -> Mix:
        """The replicas that have to stay, alone."""
        return tuple(shape.least for shape in self.shapes)

    @property
    def held(self) -> int:
        """How many replicas run now."""
        return sum(shape.held for shape in self.shapes)

    def allows(self, mix: Mix) -> bool:
        """Return whether `mix` keeps within room, numbers of replicas, budget and uniformity."""
        return (
            all(s.least <= n <= s.room for s, n in zip(self.shapes, mix, strict=True))
            and (self.max_replicas is None or sum(mix) <= self.max_replicas)
            and (self.budget is None or self.spent(mix) <= self.budget)
            and not (self.uniform and sum(n > 0 for n in mix) > 1)
        )

    def spent(self, mix: Mix) -> int:
        """Return what `mix` takes of the budget."""
        return sum(s.price * n for s, n in zip(self.shapes, mix, strict=True))

    def unmet(self, mix: Mix) -> int:
        """Return the missing share of the demand, or of its replicas if more, in parts of `UNMET`."""
        return self.missing(sum(s.service * n for s, n in zip(self.shapes, mix, strict=True)), sum(mix))

    def missing(self, service: int, replicas: int) -> int:
        """Return `unmet` of a mix by its totals."""
        return max(0, -((service - self.whole) // SERVICE_PER_UNMET), self.missing_replicas(replicas))

    def missing_replicas(self, replicas: int) -> int:
        """Return the missing share of `min_replicas`, in parts of `UNMET`, rounded up."""
        if replicas >= self.min_replicas:
            return 0
        return -(UNMET * (replicas - self.min_replicas) // self.min_replicas)

    def exchanged(self, mix: Mix) -> int:
        """Return how many replicas change their shape."""
        kept = sum(min(s.held, n) for s, n in zip(self.shapes, mix, strict=True))
        return min(sum(mix), self.held) - kept

    def has_surplus(self, mix: Mix) -> bool:
        """Return whether `mix` has a replica, none that runs, without which it serves as well."""
        service, replicas = sum(s.service * n for s, n in zip(self.shapes, mix, strict=True)), sum(mix)
        unmet = self.missing(service, replicas)
        return any(
            n > max(s.held, s.least) and self.missing(service - s.service, replicas - 1) == unmet
            for s, n in zip(self.shapes, mix, strict=True)
        )


@dataclass(frozen=True, slots=True)
class MixPrices:
    """What mixes of one space cost, in any unit. Prices may be negative."""

    shapes: tuple[Segments, ...]
    unmet: int = 0  # per part of `UNMET`, at least 0
    replicas: tuple[int, ...] = ()  # by number of replicas; the last holds beyond
    exchanged: int = 0  # per replica that changes its shape, at least 0

    def cost(self, space: MixSpace, mix: Mix) -> int:
        """Return what `mix` costs."""
        return (
            sum(price_of_count(segments, n) for segments, n in zip(self.shapes, mix, strict=True))
            + self.unmet * space.unmet(mix)
            + self.of_number(sum(mix))
            + (self.exchanged and self.exchanged * space.exchanged(mix))
        )

    def by_regime(self, space: MixSpace) -> tuple["MixPrices", ...]:
        """Return prices without exchanges, of the lesser of which a mix costs as much as by these.

        As many change their shape as are new, or as stop: the lesser of both. So each new replica pays, or
        each that stops, whichever is cheaper; neither depends on how many replicas there are in all.
        """
        if not self.exchanged:
            return (self,)
        held = [shape.held for shape in space.shapes]
        new = tuple(_dearer(each, n, 0, self.exchanged) for each, n in zip(self.shapes, held, strict=True))
        gone = tuple(_dearer(each, n, -self.exchanged, 0) for each, n in zip(self.shapes, held, strict=True))
        all_go = tuple(each + self.exchanged * sum(held) for each in self.replicas or (0,))
        return MixPrices(new, self.unmet, self.replicas), MixPrices(gone, self.unmet, all_go)

    def of_number(self, replicas: int) -> int:
        """Return the price of the number of replicas."""
        return self.replicas[min(replicas, len(self.replicas) - 1)] if self.replicas else 0


def _dearer(segments: Segments, held: int, within: int, beyond: int) -> Segments:
    """Return the prices of a shape whose replicas up to `held` cost so much more, and those beyond it."""
    found, at = list[tuple[int | None, int]](), 0
    for length, slope in segments:
        end = None if length is None else at + length
        if at < held and (end is None or end > held):
            found += [(held - at, slope + within), (None if end is None else end - held, slope + beyond)]
        else:
            found.append((length, slope + (within if at < held else beyond)))
        at = at if end is None else end
    return tuple(found)


def price_of_count(segments: Segments, n: int) -> int:
    """Return what `n` replicas cost; a segment counts once those before it are full."""
    total = 0
    for length, slope in segments:
        if length is None or n <= length:
            return total + slope * n
        total, n = total + slope * length, n - length
    raise ValueError("the last segment has no end")
