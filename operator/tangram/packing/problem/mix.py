"""What limits the mixes of one demand, and the whole units in which service is counted."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from tangram.fleet import ShapeKey, Spread
from tangram.fleet.intent import RATE_TOLERANCE
from tangram.packing.problem.statement import Demand, Part

# Units of a demand that is not served at all: up to 16 parts of it, and many more counts, divide it.
UNMET = 720_720
SCALE = 1024  # service is counted this much finer than what is unmet: hundreds of replicas add up to no unit
WHOLE_SERVICE = UNMET * SCALE  # service of a demand that is served whole
_REACHED = 1 + Fraction(repr(RATE_TOLERANCE))
NANO = 10**9  # parts of a dollar in which budgets are compared
_MANY = 10**6  # replicas

MixCounts = tuple[tuple[ShapeKey, int], ...]  # sorted by shape, counts above zero
Crowded = tuple[int, int]  # most replicas that run on one node, and in one zone
NOWHERE: Crowded = (0, 0)


def served_units(rate: float, demanded: float) -> int:
    """Return what one replica of `rate` serves of `demanded` requests per second: at most `WHOLE_SERVICE`.

    Rounded up, so that replicas that reach the rate but for the rounding of floating point serve all of it.
    """
    if demanded <= 0:
        return WHOLE_SERVICE
    return min(WHOLE_SERVICE, math.ceil(WHOLE_SERVICE * Fraction(rate) / Fraction(demanded) * _REACHED))


def replicas_needed(demanded: float, rate: float, least: int) -> int:
    """Return how many replicas of `rate` requests per second each serve `demanded`; at least `least`.

    In the whole units of the solver, which `fleet.replicas_for` does not know.
    """
    return max(least, -(-WHOLE_SERVICE // served_units(rate, demanded)) if demanded > 0 else 0)


def unmet_units(service: int, replicas: int, whole: int, least: int) -> int:
    """Return the missing share of the rate or of the least replicas, whichever is larger; 0 to UNMET.

    `whole`: service of a demand that is served whole; 0 where no rate is demanded. Rounded up.
    """
    return max(0, -((service - whole) // SCALE), missing_replicas(replicas, least))


def missing_replicas(replicas: int, least: int) -> int:
    """Return the missing share of the least replicas alone."""
    return -(UNMET * (replicas - least) // least) if replicas < least else 0


@dataclass(frozen=True, slots=True)
class MixItem:
    """One shape of a mix."""

    shape: ShapeKey
    serves: int  # by one replica, in parts of WHOLE_SERVICE; 0: it stays where it is and serves nothing
    price: int  # of one replica, USD per hour / NANO
    alone: int  # more of them serve no more
    most: int  # more of them allow no more in one place, either


@dataclass(frozen=True, slots=True)
class MixLimits:
    """What limits the mixes of one demand."""

    items: tuple[MixItem, ...]  # sorted by shape
    rated: bool  # whether a rate is demanded, not replicas alone
    least: int  # replicas that have to be there
    most: int  # replicas at most
    budget: int | None  # USD per hour / NANO
    uniform: bool  # all replicas on one shape
    always: tuple[MixCounts, ...]  # allowed whatever the limits
    pinned: MixCounts = ()  # stay where they are, unless the demand is served whole by fewer of what runs

    @property
    def shapes(self) -> tuple[ShapeKey, ...]:
        """Every shape, sorted."""
        return tuple(item.shape for item in self.items)

    def unmet(self, counts: Mapping[ShapeKey, int]) -> int:
        """Return the missing share of the rate or of the least replicas, whichever is larger; 0 to UNMET."""
        service = sum(item.serves * counts.get(item.shape, 0) for item in self.items)
        return unmet_units(service, self.serving(counts), WHOLE_SERVICE if self.rated else 0, self.least)

    def serving(self, counts: Mapping[ShapeKey, int]) -> int:
        """Return how many replicas serve."""
        return sum(counts.get(item.shape, 0) for item in self.items if item.serves)

    def allows(self, counts: Mapping[ShapeKey, int], running: Mapping[ShapeKey, int]) -> bool:
        """Whether a mix is within the limits."""
        used = {shape: n for shape, n in counts.items() if n}
        if tuple(sorted(used.items())) in self.always:
            return True
        by_shape = {item.shape: item for item in self.items}
        if not set(used) <= set(by_shape) or (self.uniform and len(used) > 1):
            return False
        if self.serving(used) > self.most:
            return False
        if not self.keeps_pinned(used, running):
            return False
        return self.budget is None or sum(by_shape[s].price * n for s, n in used.items()) <= self.budget

    def keeps_pinned(self, used: Mapping[ShapeKey, int], running: Mapping[ShapeKey, int]) -> bool:
        """Whether every pinned replica stays, or fewer of what runs serve the demand whole."""
        if all(used.get(shape, 0) >= n for shape, n in self.pinned):
            return True
        return all(n <= running.get(shape, 0) for shape, n in used.items()) and not self.unmet(used)

    def within(self, running: Mapping[ShapeKey, int]) -> list[dict[ShapeKey, int]]:
        """Return allowed mixes of what runs: of one shape or of all, fewer where they are limited."""
        usable = {shape: n for shape, n in running.items() if shape in set(self.shapes)}
        mixes = [dict(self.pinned), {}]
        for mix in (usable, *({shape: n} for shape, n in sorted(usable.items()))):
            left = dict(mix)
            while left:
                if self.allows(left, running):
                    mixes.append(dict(left))
                    break
                last = max(left)
                left[last] -= 1
                left = {shape: n for shape, n in left.items() if n}
        return [counts for counts in mixes if self.allows(counts, running)]

    @property
    def least_unmet(self) -> int:
        """Less cannot be left unserved, whatever room there is; of a budget, its linear relaxation."""
        if not self.rated and not self.least:
            return 0
        serving = [item for item in self.items if item.serves]
        best = max((item.serves for item in serving), default=0) * self.most
        if self.budget is not None and not self.always and all(item.price for item in serving):
            dense = max((Fraction(item.serves, item.price) for item in serving), default=Fraction(0))
            best = min(best, math.floor(dense * self.budget))
        least = (
            unmet_units(best, self.least, WHOLE_SERVICE, self.least) if self.rated else UNMET * (not serving)
        )
        return min((least, *(self.unmet(dict(counts)) for counts in self.always)))


def most_of_use(spread: Spread, alone: int, crowded: Crowded = NOWHERE) -> int:
    """Return how many replicas of a shape may be of use, `alone` of which serve a demand whole.

    More replicas allow more of them in one place. But where a plan has a whole period more than `alone`, and
    without it the places still hold what runs there, it can do without. With one share the period is
    1 / share: no more places than that are full, and one less in each of them is what the smaller number
    allows. With two, it is a number of replicas of which both shares are whole: each place gives its part.
    """
    share_limits = zip((spread.node, spread.zone), crowded, strict=True)
    limits = [(Fraction(repr(share)), most) for share, most in share_limits if share < 1]
    if not limits:
        return alone
    enough = max(alone, *(math.floor((most - 1) / share) + 1 for share, most in limits))
    shares = [share for share, _ in limits]
    period = (
        math.lcm(*(share.denominator for share in shares)) if len(shares) > 1 else math.floor(1 / shares[0])
    )
    return enough + period - 1


def mix_limits_of(
    demand: Demand,
    running: Mapping[ShapeKey, int],
    pinned: Mapping[ShapeKey, int],
    hourly: Mapping[ShapeKey, float],
    room: Callable[[ShapeKey], int],
    crowded: Crowded = NOWHERE,
) -> MixLimits:
    """Return what limits the mixes of a demand.

    `hourly`: USD of a pinned replica that stands on no offer. `room`: most replicas that a fleet could hold.
    """
    most = _MANY if demand.max_replicas is None else demand.max_replicas
    items = _offered_items(demand, pinned, lambda shape: min(most, room(shape)), crowded)
    for shape, count in pinned.items():
        items.setdefault(shape, MixItem(shape, 0, math.floor(hourly[shape] * NANO), count, count))
    budget = demand.budget_per_hour
    stays = tuple(sorted(pinned.items()))
    mix = MixLimits(
        items=tuple(items[shape] for shape in sorted(items)),
        rated=demand.rate > 0,
        least=demand.min_replicas,
        most=most,
        budget=None if budget is None else math.floor(budget * NANO) + 1,
        uniform=demand.uniform,
        always=(stays,) if stays else (),
        pinned=stays,
    )
    protected = [{part.shape: part.count} for part in demand.protected]
    allowed = {tuple(counts.items()) for counts in protected if mix.keeps_pinned(counts, running)}
    return replace(mix, always=tuple(sorted({*mix.always, *allowed})))


def _offered_items(
    demand: Demand,
    pinned: Mapping[ShapeKey, int],
    most: Callable[[ShapeKey], int],
    crowded: Crowded,
) -> dict[ShapeKey, MixItem]:
    """Return the items of the offers. `most`: replicas of a shape that demand and fleet allow."""
    items = dict[ShapeKey, MixItem]()
    for offer in demand.offers:
        serves = served_units(offer.rate, demand.rate)
        alone = replicas_needed(demand.rate, offer.rate, demand.min_replicas)
        useful, stay = most_of_use(demand.spread, alone, crowded), pinned.get(offer.shape, 0)
        alone, useful = (max(stay, min(n, most(offer.shape))) for n in (alone, useful))
        price = math.floor(offer.price_per_hour * NANO)
        items[offer.shape] = MixItem(offer.shape, serves, price, alone, useful)
    return items


def on_any_fleet(demand: Demand) -> MixLimits:
    """Return the limits of a demand as if nothing ran, and budget and fleet had room for every mix."""
    return mix_limits_of(replace(demand, budget_per_hour=None, protected=()), {}, {}, {}, lambda _: _MANY)


def least_unmet(demand: Demand) -> int:
    """Return what no fleet would serve of a demand, in parts of UNMET."""
    return 0 if demand.slices else on_any_fleet(demand).least_unmet


def parts_alone(demand: Demand) -> tuple[Part, ...]:
    """Return of each offer as many replicas as serve a demand whole, or as it may have; of a request, all."""
    return demand.slices or tuple(Part(*item.shape, item.alone) for item in on_any_fleet(demand).items)
