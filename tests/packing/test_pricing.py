"""The pricing problem against complete enumeration, which shares only the definition of a mix's cost."""

import itertools
import math
import random
from fractions import Fraction

import pytest

from tangram.packing.problem.mix import UNMET
from tangram.packing.search.label_search import PricingEffort
from tangram.packing.search.mix_space import (
    SERVICE_PER_UNMET,
    WHOLE,
    MixPrices,
    MixShape,
    MixSpace,
    service_units,
)
from tangram.packing.search.pricing import enumerate_within, minimum, several

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
    missing = [0, math.ceil(Fraction(space.whole - service, SERVICE_PER_UNMET))]
    if space.min_replicas:
        missing.append(math.ceil(Fraction(UNMET * (space.min_replicas - sum(mix)), space.min_replicas)))
    return max(missing)


def cost(space, prices, mix):
    """The definition, replica by replica."""
    total = 0
    for n, segments in zip(mix, prices.shapes, strict=True):
        slopes = []
        for length, slope in segments:
            slopes += [slope] * (n if length is None else length)
        total += sum(slopes[:n])
    total += prices.unmet * unmet(space, mix)
    if prices.replicas:
        total += prices.replicas[min(sum(mix), len(prices.replicas) - 1)]
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
        shapes.append(MixShape(service_units(rate, RATE), room, rng.randint(0, 9), held, least))
    pinned = sum(shape.least for shape in shapes)
    space = MixSpace(
        tuple(shapes),
        whole=rng.choice([WHOLE, WHOLE, WHOLE, 0]),
        min_replicas=rng.choice([0, 1, 1, 2, 3, 7]),
        max_replicas=rng.choice([None, None, pinned + rng.randint(0, 6)]),
        budget=rng.choice([None, None, sum(s.least * s.price for s in shapes) + rng.randint(0, 40)]),
        uniform=rng.random() < 0.2 and sum(shape.least > 0 for shape in shapes) <= 1,
        surplus=rng.random() < 0.3,
        extra=tuple(
            tuple(rng.randint(0, 4) for _ in shapes) for _ in range(rng.choice([0, 0, 1]))
        ),
    )  # fmt: skip
    lowest = rng.choice([0, 0, -3])
    return space, MixPrices(
        tuple(
            (
                *((rng.randint(0, 2), scale * rng.randint(-5, 12)) for _ in range(rng.choice([0, 0, 1, 2]))),
                (None, scale * rng.randint(lowest, 12) + rng.randint(0, 3)),
            )
            for _ in shapes
        ),
        unmet=rng.choice([0, 1, scale * 60 // UNMET, scale * 300 // UNMET + 1]),
        replicas=rng.choice(
            [(), (), tuple(scale * rng.randint(-4, 4) for _ in range(5)), (0, 0, scale, 2 * scale, 5 * scale)]
        ),
        exchanged=rng.choice([0, 0, scale * 2]),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_minimum_and_its_proof_are_those_of_all_mixes(seed):
    rng = random.Random(seed)
    for _ in range(20):
        space, prices = instance(rng)
        costs = {mix: cost(space, prices, mix) for mix in every_mix(space)}

        bound, mix = minimum(space, prices)

        assert mix in costs, (space, prices)
        assert prices.cost(space, mix) == costs[mix]
        assert bound == costs[mix] == min(costs.values()), (space, prices)


@pytest.mark.parametrize("seed", range(20, 30))
def test_every_mix_within_a_price_is_listed_unless_a_replica_of_it_is_idle(seed):
    rng = random.Random(seed)
    for _ in range(20):
        space, prices = instance(rng)
        costs = {mix: cost(space, prices, mix) for mix in every_mix(space)}
        most = min(costs.values()) + (max(costs.values()) - min(costs.values())) // rng.choice([1, 3, 20])
        within = {mix for mix in costs if costs[mix] <= most}
        needed = {mix for mix in within if not_idle(space, mix)}

        listed = enumerate_within(space, prices, most, 10_000)

        assert listed == sorted(needed), (space, prices)
        if len(needed) > 1:
            assert enumerate_within(space, prices, most, len(needed) - 1) is None


def not_idle(space, mix):
    """Whether a mix needs all of its replicas that do not run, or constraints outside may."""
    if space.surplus or mix in space.extra:
        return True
    fewer = ((*mix[:i], n - 1, *mix[i + 1 :]) for i, n in enumerate(mix) if n > space.shapes[i].held)
    shorter = [less for less in fewer if all(n >= s.least for n, s in zip(less, space.shapes, strict=True))]
    return all(unmet(space, less) != unmet(space, mix) for less in shorter)


@pytest.mark.parametrize("seed", range(30, 40))
def test_several_mixes_are_feasible_distinct_and_the_best_comes_first(seed):
    rng = random.Random(seed)
    for _ in range(20):
        space, prices = instance(rng)

        bound, mixes = several(space, prices, 5)
        rough, suggested = several(space, prices, 5, quick=True)

        assert len(set(mixes)) == len(mixes) <= 5
        assert set(mixes) <= every_mix(space)
        assert (bound, mixes[0]) == minimum(space, prices)
        assert set(suggested) <= every_mix(space)
        assert rough <= bound <= prices.cost(space, suggested[0])


@pytest.mark.parametrize("count", [1, 3, 7, 17, 300, 700])
def test_replicas_that_share_a_rate_serve_it_whole(count):
    space = MixSpace((MixShape(service_units(RATE / count, RATE), 1000),))

    assert space.unmet((count,)) == 0
    assert space.unmet((count - 1,)) == math.ceil(Fraction(UNMET, count))


def test_a_rate_missed_by_less_than_1e9_of_it_is_met_and_one_missed_by_more_is_not():
    assert MixSpace((MixShape(service_units(RATE * (1 - 9e-10), RATE), 1),)).unmet((1,)) == 0
    assert MixSpace((MixShape(service_units(RATE * (1 - 3e-9), RATE), 1),)).unmet((1,)) == 1


def test_a_space_without_a_feasible_mix_is_refused():
    with pytest.raises(ValueError, match="no mix is feasible"):
        MixSpace((MixShape(WHOLE, 3, held=2, least=2),), max_replicas=1)


def test_a_mix_with_fewer_replicas_than_run_does_not_pass_for_one_with_as_many():
    shapes = (
        MixShape(service_units(RATE / 7, RATE), 3),
        MixShape(service_units(33.0, RATE), 5, held=2, least=1),
    )
    space = MixSpace(shapes, max_replicas=3)
    prices = MixPrices((((None, 2),), ((1, 6), (None, 5))), replicas=(-3, 2, -2, -2, -2), exchanged=2)

    assert minimum(space, prices) == (8, (0, 1))


def test_a_search_ends_with_its_labels_and_keeps_a_valid_bound():
    rng = random.Random(3)
    shapes = tuple(MixShape(service_units(rng.uniform(0.9, 1.1), 60.0), 60, held=3) for _ in range(12))
    space = MixSpace(shapes, min_replicas=20)
    prices = MixPrices(
        tuple([(3, rng.randint(10**6, 10**6 + 10**4)), (None, 10**6)] for _ in shapes),
        unmet=10**4,
        replicas=tuple(rng.randint(0, 10**5) for _ in range(60)),
        exchanged=10**5,
    )
    few, many = PricingEffort(2_000), PricingEffort(10**9)

    short, _ = several(space, prices, 4, effort=few)
    long, (best, *_) = several(space, prices, 4, effort=many)

    assert few.over
    assert 10**9 - many.labels > 4_000
    assert short <= long <= prices.cost(space, best)
