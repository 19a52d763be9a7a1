"""The pricing problem against complete enumeration, which shares only the definition of a mix's cost."""

import itertools
import math
import random
from fractions import Fraction

import pytest

from tangram.packing.column_generation.label_search import PricingEffort
from tangram.packing.column_generation.mix_space import MixPrices, MixShape, MixSpace
from tangram.packing.column_generation.pricing import MixPricing
from tangram.packing.problem.mix import SCALE, UNMET, WHOLE_SERVICE, served_units

RATE = 60.0


def every_mix(space):
    ranges = [range(shape.room + 1) for shape in space.shapes]
    return {mix for mix in itertools.product(*ranges) if feasible(space, mix)} | set(space.extra)


def feasible(space, mix):
    return (
        all(n >= shape.least for n, shape in zip(mix, space.shapes, strict=True))
        and sum(mix) <= (math.inf if space.max_replicas is None else space.max_replicas)
        and sum(n * s.price for n, s in zip(mix, space.shapes, strict=True))
        <= (math.inf if space.budget is None else space.budget)
        and (not space.uniform or sum(n > 0 for n in mix) <= 1)
    )


def unmet(space, mix):
    service = sum(n * shape.service for n, shape in zip(mix, space.shapes, strict=True))
    missing = [0, math.ceil(Fraction(space.whole - service, SCALE))]
    if space.min_replicas:
        missing.append(math.ceil(Fraction(UNMET * (space.min_replicas - sum(mix)), space.min_replicas)))
    return max(missing)


def cost(space, prices, mix):
    """The definition, replica by replica."""
    total = 0
    for n, shape, slopes in zip(mix, space.shapes, prices.shapes, strict=True):
        total += sum(slopes[sum(bend <= before for bend in shape.bends)] for before in range(n))
    total += prices.unmet * unmet(space, mix) + prices.constant
    held = sum(shape.held for shape in space.shapes)
    kept = sum(min(n, shape.held) for n, shape in zip(mix, space.shapes, strict=True))
    return total + prices.exchanged * (min(sum(mix), held) - kept)


def instance(rng):
    """A random demand of up to four shapes, with any of the features, and prices for it."""
    shapes, scale = [], rng.choice([1, 1000, 10**9])
    for _ in range(rng.randint(1, 4)):
        rate = rng.choice(
            [0.0, RATE / 3, RATE / 7, RATE / 7 * (1 + 1e-12), 13.0, 100 * RATE, rng.uniform(3, 40)]
        )
        room = rng.randint(0, 5)
        held = rng.choice([0, 0, rng.randint(0, 3)])
        least = min(room, held, rng.choice([0, 0, 0, 1]))
        bends = {held} - {0} | {rng.randint(1, 4) for _ in range(rng.choice([0, 0, 1]))}
        serves = served_units(rate, RATE) if rate else 0
        shapes.append(MixShape(serves, room, rng.randint(0, 9), held, least, tuple(sorted(bends))))
    pinned = sum(shape.least for shape in shapes)
    space = MixSpace(
        tuple(shapes),
        whole=rng.choice([WHOLE_SERVICE, WHOLE_SERVICE, WHOLE_SERVICE, 0]),
        min_replicas=rng.choice([0, 1, 1, 2, 3, 7]),
        max_replicas=rng.choice([None, None, pinned + rng.randint(0, 6)]),
        budget=rng.choice([None, None, sum(s.least * s.price for s in shapes) + rng.randint(0, 40)]),
        uniform=rng.random() < 0.2 and sum(shape.least > 0 for shape in shapes) <= 1,
        extra=tuple(
            tuple(rng.randint(0, 4) for _ in shapes) for _ in range(rng.choice([0, 0, 1]))
        ),
    )  # fmt: skip
    lowest = rng.choice([0, 0, -3])
    return space, MixPrices(
        tuple(
            [scale * rng.randint(lowest, 12) + rng.randint(0, 3) for _ in range(len(shape.bends) + 1)]
            for shape in shapes
        ),
        unmet=rng.choice([0, 1, scale * 60 // UNMET, scale * 300 // UNMET + 1]),
        exchanged=rng.choice([0, 0, scale * 2]),
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_mixes_and_their_proof_are_those_of_all_mixes(seed):
    rng = random.Random(seed)
    for _ in range(20):
        space, prices = instance(rng)
        costs = {mix: cost(space, prices, mix) for mix in every_mix(space)}
        least = min(costs.values())
        for most in (least, least + 1, max(costs.values()) + 1):
            bound, ranked = below(space, prices, most)
            rough, some = below(space, prices, most, thorough=False)

            assert rough <= bound == least
            assert [each for each, _ in ranked[:1]] == [least] * (most > least)
            for found in (ranked, some):
                assert len({mix for _, mix in found}) == len(found) <= 5
                assert found == sorted((costs[mix], mix) for _, mix in found)
                assert all(each < most for each, _ in found)


def below(space, prices, most, effort=10**9, *, thorough=True):
    return MixPricing(space).below(prices, most, 5, PricingEffort(effort), thorough=thorough)


def test_a_bound_that_is_enough_is_not_exceeded():
    space = MixSpace((MixShape(WHOLE_SERVICE // 2, 3),))

    assert below(space, MixPrices(((10,),), unmet=1), 7) == (7, [])


@pytest.mark.parametrize("count", [1, 3, 7, 17, 300, 700])
def test_replicas_that_share_a_rate_serve_it_whole(count):
    space = MixSpace((MixShape(served_units(RATE / count, RATE), 1000),))

    assert space.missing(count * space.shapes[0].service, count) == 0
    assert space.missing((count - 1) * space.shapes[0].service, count - 1) == math.ceil(
        Fraction(UNMET, count)
    )


def test_a_rate_missed_by_less_than_1e9_of_it_is_met_and_one_missed_by_more_is_not():
    assert served_units(RATE * (1 - 9e-10), RATE) == WHOLE_SERVICE
    assert 0 < WHOLE_SERVICE - served_units(RATE * (1 - 3e-9), RATE) <= SCALE


def test_a_space_without_a_feasible_mix_is_refused():
    with pytest.raises(ValueError, match="no mix is feasible"):
        MixSpace((MixShape(WHOLE_SERVICE, 3, held=2, least=2),), max_replicas=1)


def test_a_search_ends_with_its_labels_and_keeps_a_valid_bound():
    rng = random.Random(3)
    shapes = tuple(
        MixShape(served_units(rng.uniform(0.9, 1.1), 60.0), 60, held=3, bends=(3,)) for _ in range(12)
    )
    space = MixSpace(shapes, min_replicas=20)
    prices = MixPrices(
        tuple((rng.randint(10**6, 10**6 + 10**4), 10**6) for _ in shapes), unmet=10**4, exchanged=10**5
    )
    most, few, many = 10**8, PricingEffort(1_000), PricingEffort(10**9)

    short, _ = MixPricing(space).below(prices, most, 4, few)
    long, ((cheapest, _), *_) = MixPricing(space).below(prices, most, 4, many)

    assert few.over
    assert 10**9 - many.labels > 2_000
    assert short < long == cheapest
