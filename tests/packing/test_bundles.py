import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.packing import Offer, ShapeKey
from tangram.packing.bundles import MOST, bundles

SKU = "H100-80GB-SXM"
BIG = Offer(*ShapeKey(SKU, "3g.40gb"), 10.0, 1.5)
MID = Offer(*ShapeKey(SKU, "2g.20gb"), 5.0, 0.88)
TINY = Offer(*ShapeKey(SKU, "1g.10gb"), 2.0, 0.44)


def counts(bundle):
    return {part.profile: part.count for part in bundle.parts}


def test_a_shape_alone_and_one_completed_with_another_are_offered():
    found = [counts(bundle) for bundle in bundles((BIG, TINY), 23.0)]

    assert {"3g.40gb": 3} in found
    assert {"3g.40gb": 2, "1g.10gb": 2} in found
    assert {"1g.10gb": 12} in found


def test_the_cheapest_full_bundle_is_first_and_the_empty_one_is_last():
    found = bundles((BIG, MID, TINY), 23.0)
    full = [bundle for bundle in found if bundle.unmet == 0]

    assert found[0].price_per_hour == min(bundle.price_per_hour for bundle in full)
    assert (found[-1].parts, found[-1].unmet, found[-1].price_per_hour) == ((), 1.0, 0.0)
    assert found[0].price_per_hour == pytest.approx(2 * 1.5 + 0.88)


def test_truncated_bundles_say_how_much_they_leave():
    short = {tuple(counts(b).items()): b.unmet for b in bundles((BIG,), 23.0) if 0 < b.unmet < 1}

    assert short == {(("3g.40gb", 1),): pytest.approx(13 / 23), (("3g.40gb", 2),): pytest.approx(3 / 23)}


def test_without_traffic_the_minimum_is_what_is_wanted():
    found = bundles((BIG, TINY), 0.0, least=2)

    assert counts(found[0]) == {"1g.10gb": 2}
    assert {"1g.10gb": 1} in [counts(b) for b in found if b.unmet == pytest.approx(0.5)]


def test_the_maximum_turns_what_would_be_needed_into_shortage():
    found = bundles((TINY,), 20.0, most=4)

    assert all(bundle.unmet > 0 for bundle in found)
    assert max(bundle.replicas for bundle in found) == 4


def test_what_runs_stays_on_the_menu_topped_up_and_trimmed():
    running = {BIG.shape: 1, MID.shape: 2, TINY.shape: 1}

    same = [counts(b) for b in bundles((BIG, MID, TINY), 21.5, running=running)]
    more = [counts(b) for b in bundles((BIG, MID, TINY), 30.0, running=running)]
    less = [counts(b) for b in bundles((BIG, MID, TINY), 16.0, running=running)]

    assert {"3g.40gb": 1, "2g.20gb": 2, "1g.10gb": 1} in same
    assert {"3g.40gb": 2, "2g.20gb": 2, "1g.10gb": 1} in more
    assert {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1} in less


def test_shapes_that_serve_nothing_are_left_out():
    assert bundles((Offer(*TINY.shape, 0.0, 0.1),), 1.0) == bundles((), 1.0)


OFFERS = st.lists(
    st.builds(
        lambda shape, rate, price: Offer(*shape, rate, price),
        st.sampled_from([ShapeKey(f"S{i}", p) for i in range(4) for p in ("1g", "2g", "gpu")]),
        st.floats(0.1, 50.0),
        st.floats(0.05, 20.0),
    ),
    max_size=12,
    unique_by=lambda offer: offer.shape,
)


@given(OFFERS, st.floats(0, 500), st.integers(1, 4), st.none() | st.integers(1, 30))
def test_every_bundle_keeps_its_word_and_none_contains_a_better_one(offers, rate, least, most):
    known = {offer.shape: offer for offer in offers}
    found = bundles(offers, rate, least=least, most=most)

    assert len({bundle.parts for bundle in found}) == len(found)
    assert sum(bundle.unmet == 0 for bundle in found) <= MOST
    for bundle in found:
        served = sum(known[part.shape].rate * part.count for part in bundle.parts)
        price = sum(known[part.shape].price_per_hour * part.count for part in bundle.parts)
        assert bundle.price_per_hour == pytest.approx(price)
        assert most is None or bundle.replicas <= max(least, most)
        if bundle.unmet == 0:
            assert served >= rate * (1 - 1e-6)
            assert bundle.replicas >= least
        elif bundle.parts:
            enough = min(served / rate if rate else 1.0, bundle.replicas / least)
            assert bundle.unmet == pytest.approx(1 - enough)
    full = [bundle for bundle in found if bundle.unmet == 0]
    for one, other in itertools.permutations(full, 2):
        sizes = {part.shape: part.count for part in other.parts}
        assert not all(sizes.get(part.shape, 0) >= part.count for part in one.parts)


@given(OFFERS, st.floats(0.1, 500))
def test_the_best_single_shape_is_never_lost(offers, rate):
    found = bundles(offers, rate)
    alone = [math.ceil(rate / o.rate - 1e-9) * o.price_per_hour for o in offers]

    if alone:
        cheapest = min(b.price_per_hour for b in found if b.unmet == 0)
        assert cheapest <= min(alone) + 1e-9
