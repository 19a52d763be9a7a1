"""The bundles of one LLMDeployment: what serves it and, where the fleet is too small, what it can hold."""

import math
from collections.abc import Iterator, Mapping

from tangram.packing import Bundle, Part, ShapeKey
from tangram.packing import Offer as PackingOffer
from tangram.packing.bundles import bundles
from tangram.planner.joint.deployment import Wanted
from tangram.planner.joint.shapes import Offer, Sized, replicas

_STEPS = 12  # counts of one shape that serve only what there is room for
_MOST_SHORT = 100

Counts = tuple[tuple[Offer, int], ...]
Room = Mapping[ShapeKey, int]  # most replicas that the fleet could hold


def menu(sized: Sized, room: Room, running: Mapping[ShapeKey, int]) -> tuple[Bundle, ...]:
    """Return the bundles to choose from, those that the fleet cannot hold left out."""
    wanted = sized.wanted
    offers = [PackingOffer(*o.key, o.rate, o.price_per_hour) for o in sized.offers if room[o.key]]
    found = bundles(offers, wanted.rps or 0.0, least=wanted.least, most=wanted.most, running=running)
    fit = {b.parts: b for b in found if all(part.count <= room[part.shape] for part in b.parts)}
    for bundle in _by_room(sized, room):
        fit.setdefault(bundle.parts, bundle)
    if wanted.uniform:
        fit = {parts: bundle for parts, bundle in fit.items() if len(parts) <= 1}
    return tuple(sorted(fit.values(), key=lambda b: (b.unmet, b.price_per_hour, b.parts)))


def _by_room(sized: Sized, room: Room) -> list[Bundle]:
    """What fills the fleet, of shapes of which it cannot hold enough: alone, or beside another board's."""
    wanted = sized.wanted
    limits = {key: count if wanted.most is None else min(count, wanted.most) for key, count in room.items()}
    found = [_bundle(wanted, counts) for counts in _filling(sized, limits)]
    found.sort(key=lambda b: (len(b.parts), b.unmet, b.price_per_hour, b.parts))
    return found[:_MOST_SHORT]


def _filling(sized: Sized, room: Room) -> Iterator[Counts]:
    wanted = sized.wanted
    for offer in sized.offers:
        most = room[offer.key]
        if not 0 < most < replicas(wanted, offer):
            continue
        step = math.ceil(most / _STEPS)
        yield from (((offer, count),) for count in range(most, 0, -step))
        for other in sized.offers:
            more = min(_rest(wanted, offer, most, other), room[other.key])
            allowed = wanted.most is None or most + more <= wanted.most
            if other.key.sku != offer.key.sku and more > 0 and allowed:
                yield ((offer, most), (other, more))


def _rest(wanted: Wanted, main: Offer, count: int, other: Offer) -> int:
    left = 0.0 if wanted.rps is None else wanted.rps - count * main.rate
    return max(math.ceil(left / other.rate * (1 - 1e-9)), wanted.least - count)


def _bundle(wanted: Wanted, counts: Counts) -> Bundle:
    parts = tuple(sorted(Part(o.key.sku, o.key.profile, o.key.tensor_parallel, n) for o, n in counts))
    price = sum(offer.price_per_hour * n for offer, n in counts)
    return Bundle(parts, price, unmet(wanted, counts))


def unmet(wanted: Wanted, counts: Counts) -> float:
    """Return the share of the demand that these replicas leave unserved."""
    short = max(0.0, 1 - sum(n for _, n in counts) / wanted.least)
    if wanted.rps is None:
        return short
    rate = sum(offer.rate * n for offer, n in counts)
    return max(short, 0.0 if rate >= wanted.rps * (1 - 1e-9) else 1 - rate / wanted.rps)
