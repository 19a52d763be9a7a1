"""Whatever is picked: no wish could have more of what is left, with all else as it is."""

import random

import pytest

from tangram.planner.placement.pick import UnitOffer, Wish, pick


def fleet(seed):
    """Random wishes over groups of units; many of them short, some beyond what is decided jointly."""
    rng = random.Random(seed)
    groups = rng.randint(1, 4)
    free = tuple(rng.randint(0, 40) for _ in range(groups))
    wishes = []
    for _ in range(rng.choice((2, 5, 30, 110))):
        offers = []
        for _ in range(rng.randint(1, 3)):
            some = tuple(rng.sample(range(groups), rng.randint(1, groups)))
            wanted, held = rng.choice((1, 2, 7, 30)), rng.choice((0, 0, 0, 1, 2))
            most = rng.choice((wanted, wanted, 10**9, rng.randint(0, wanted)))
            least = rng.choice((0, 1, 1, min(2, wanted)))
            price = rng.choice((0.5, 1.0, 2.0))
            offers.append(
                UnitOffer(some, wanted, most, least, min(held, wanted), price, apart=rng.random() < 0.8)
            )
        wishes.append(Wish(tuple(offers)))
    return tuple(wishes), free, tuple(rng.choice((0.5, 1.0, 2.0)) for _ in range(groups))


def better(wish, got, left):
    """The offers of which the wish could have more replicas than it has, all else kept."""
    own = dict(got.units)
    now = 1.0 if got.offer is None else max(0.0, 1 - got.count / wish.offers[got.offer].wanted)
    for offer in wish.offers:
        units = sum(left[group] + own.get(group, 0) for group in offer.groups)
        count = min(offer.wanted, offer.most, offer.held + units)
        if count >= max(1, offer.least) and max(0.0, 1 - count / offer.wanted) < now - 1e-9:
            yield offer


@pytest.mark.parametrize("seed", range(40))
def test_no_wish_could_have_more_of_what_is_left(seed):
    wishes, free, prices = fleet(seed)

    picked = pick(wishes, free, prices)

    left = list(free)
    for got in picked:
        for group, count in got.units:
            left[group] -= count
    assert min(left) >= 0
    assert [
        (number, list(better(wish, got, left)))
        for number, (wish, got) in enumerate(zip(wishes, picked, strict=True))
        if list(better(wish, got, left))
    ] == []
