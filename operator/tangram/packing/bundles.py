"""Bundles of one demand: which counts of which shapes would serve it, and how much of it.

A main shape filled up plus at most one remainder shape; what runs already, topped up or trimmed; truncated
ones, and none at all, so that shortage is a choice with a price. Free integer mixes of all shapes would be at
best a few per cent cheaper and do not solve at scale.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tangram.packing.problem import Bundle, Offer, Part, ShapeKey

MOST = 100  # full bundles kept per demand: with 30 good fits were lost, beyond 100 nothing was gained
_SHORT = 240  # truncated ones
_FRACTIONS = (0.75, 0.5, 0.25)  # of truncated ones
_ALL_COUNTS = 8  # up to here every truncated count is offered, above it fractions
_EPSILON = 1e-9

Counts = tuple[tuple[int, int], ...]  # (number of the offer, replicas), sorted


@dataclass(frozen=True, slots=True)
class _Menu:
    """One demand and what would serve it."""

    offers: tuple[Offer, ...]
    rate: float
    least: int
    most: int

    def needed(self, offer: int, served: float = 0.0, replicas: int = 0) -> int:
        """Replicas of `offer` that serve what `served` leaves, and reach the minimum with `replicas` more."""
        left = max(0.0, self.rate - served)
        return max(math.ceil(left / self.offers[offer].rate - _EPSILON), self.least - replicas, 0)

    def served(self, counts: Counts) -> float:
        """Return the requests per second that `counts` sustains."""
        return sum(self.offers[offer].rate * n for offer, n in counts)

    def price(self, counts: Counts) -> float:
        """Return USD per hour."""
        return sum(self.offers[offer].price_per_hour * n for offer, n in counts)

    def unmet(self, counts: Counts) -> float:
        """Return the share of the demand that `counts` leaves, or of its minimum of replicas if more."""
        served = self.served(counts) / self.rate if self.rate else 1.0
        there = sum(n for _, n in counts) / self.least if self.least else 1.0
        missing = 1 - min(1.0, served, there)
        return missing if missing > _EPSILON else 0.0

    def bundle(self, counts: Counts) -> Bundle:
        """Return `counts` as the solver reads it."""
        shapes = sorted((self.offers[offer].shape, n) for offer, n in counts)
        parts = tuple(Part(s.sku, s.profile, s.tensor_parallel, n) for s, n in shapes)
        return Bundle(parts, self.price(counts), self.unmet(counts))


def bundles(
    offers: Iterable[Offer],
    rate: float,
    *,
    least: int = 1,
    most: int | None = None,
    running: Mapping[ShapeKey, int] | None = None,
    keep: int = MOST,
) -> tuple[Bundle, ...]:
    """Return the bundles worth choosing from, the cheapest full ones first, the empty one last.

    `rate`: requests per second to be served; `least` and `most`: replicas; `running`: what runs now, which
    stays on the menu as far as `offers` know its shapes.
    """
    known = tuple(sorted(offer for offer in offers if offer.rate > 0))
    menu = _Menu(known, rate, least, max(least, most or 10**6))
    numbers = {offer.shape: number for number, offer in enumerate(known)}
    present = _counts({numbers[s]: n for s, n in (running or {}).items() if s in numbers})
    found = {counts for counts in (*_full(menu), *_kept(menu, present), *_truncated(menu)) if counts}
    ranked = sorted((menu.unmet(counts), menu.price(counts), counts) for counts in found)
    full = _diverse([counts for unmet, _, counts in ranked if unmet == 0.0], keep, present)
    short = _diverse([counts for unmet, _, counts in ranked if 0.0 < unmet < 1.0], _SHORT, present)
    return (*map(menu.bundle, full), *map(menu.bundle, short), Bundle((), 0.0, 1.0))


def _full(menu: _Menu) -> Iterator[Counts]:
    """One shape alone, or most or half of it completed with another: never more than either needs alone."""
    needed = [menu.needed(offer) for offer in range(len(menu.offers))]
    for main, alone in enumerate(needed):
        if alone <= menu.most:
            yield ((main, alone),)
        for count in {alone - 1, math.ceil(alone / 2)}:
            if not 0 < count < alone:
                continue
            served = menu.offers[main].rate * count
            for rest in range(len(menu.offers)):
                more = menu.needed(rest, served, count)
                if rest != main and 0 < more < needed[rest] and count + more <= menu.most:
                    yield _counts({main: count, rest: more})


def _kept(menu: _Menu, present: Counts) -> Iterator[Counts]:
    """What runs now: as it is, topped up with each shape, trimmed one shape at a time."""
    if not present:
        return
    running, total = dict(present), sum(n for _, n in present)
    if total <= menu.most:
        yield present
    for offer in range(len(menu.offers)):
        more = menu.needed(offer, menu.served(present), total)
        if more and total + more <= menu.most:
            yield _counts({**running, offer: running.get(offer, 0) + more})
    for offer, n in present:
        others = _counts({other: count for other, count in running.items() if other != offer})
        fewer = menu.needed(offer, menu.served(others), total - n)
        if fewer < n:
            yield _counts({**dict(others), offer: fewer})


def _truncated(menu: _Menu) -> Iterator[Counts]:
    for offer in range(len(menu.offers)):
        alone = min(menu.needed(offer), menu.most + 1)
        counts = {alone - 1, *(round(alone * f) for f in _FRACTIONS)}
        counts |= {2**n for n in range(alone.bit_length())}  # where the fleet has room for few
        if alone <= _ALL_COUNTS:
            counts = set(range(1, alone))
        yield from (((offer, n),) for n in counts if 0 < n < alone)


def _counts(counts: Mapping[int, int]) -> Counts:
    return tuple(sorted((offer, n) for offer, n in counts.items() if n > 0))


def _diverse(ranked: list[Counts], keep: int, present: Counts) -> list[Counts]:
    """Keep what runs, then the best of every set of shapes before the second best of any, one shape first."""
    seen: dict[tuple[int, ...], list[Counts]] = {}
    order = []
    for number, counts in enumerate(ranked):
        rivals = seen.setdefault(tuple(offer for offer, _ in counts), [])
        if any(all(a <= b for (_, a), (_, b) in zip(less, counts, strict=True)) for less in rivals):
            continue
        rivals.append(counts)
        order.append((counts != present, len(counts) > 1, len(rivals), number))
    return [ranked[number] for number in sorted(number for *_, number in sorted(order)[:keep])]
