"""The share of requests that misses an objective rises with the load of a replica."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.scaling.outlook.replica_capacity import CapacityCorrection, ReplicaCapacity

KNEE = ReplicaCapacity(((99, 2.0), (95, 3.0), (90, 3.4), (50, 4.0)))
RATES = st.lists(st.floats(0, 1e4), min_size=4, max_size=4).map(sorted)


def test_at_the_rate_of_a_percentile_the_others_miss():
    for percentile, rate in KNEE.rates:
        assert KNEE.missed_share(rate) == pytest.approx(1 - percentile / 100)
    assert KNEE.rate_at(95) == 3.0
    assert KNEE.rate_at(97) == 3.0, "a percentile between two is that of the less strict one"


def test_hardly_any_request_misses_far_below_and_all_miss_far_above():
    assert KNEE.missed_share(0.0) < 0.001
    assert KNEE.missed_share(40.0) == 1.0


def test_a_replica_that_carries_half_misses_as_much_at_half_the_load():
    assert KNEE.corrected(CapacityCorrection(0.5)).missed_share(1.6) == pytest.approx(KNEE.missed_share(3.2))


@given(RATES, st.floats(0, 1e5), st.floats(0, 1e5))
def test_more_load_never_misses_less(rates, one, other):
    capacity = ReplicaCapacity(tuple(zip((99, 95, 90, 50), rates, strict=True)))

    low, high = sorted((one, other))

    assert 0 <= capacity.missed_share(low) <= capacity.missed_share(high) <= 1


def test_loads_count_in_units_of_the_strictest_percentile_that_loads_meet():
    assert KNEE.reference_percentile(90) == 99
    for strictest in (0.0, 0.8):  # hardly any load meets it
        assert (
            ReplicaCapacity(((99, strictest), (95, 3.0), (90, 3.4), (50, 4.0))).reference_percentile(90) == 90
        )


def test_a_knee_where_no_load_meets_the_strictest_percentile_is_no_cliff():
    capacity = ReplicaCapacity(((99, 0.0), (95, 3.0), (90, 3.0), (50, 3.0)))

    assert 0.05 < capacity.missed_share(3.01) < 0.2


def test_the_idle_ttft_between_two_percentiles_is_that_of_the_less_strict_one():
    capacity = replace(KNEE, idle_ttft=((99, 900.0), (95, 600.0), (90, 500.0), (50, 300.0)))

    assert [capacity.idle_ttft_ms(p) for p in (99.5, 99, 97, 90, 50)] == [900.0, 900.0, 600.0, 500.0, 300.0]
    assert KNEE.idle_ttft_ms(99) is None


def test_unavoidable_misses_are_those_of_any_load():
    capacity = KNEE.corrected(CapacityCorrection(unavoidable_share=0.02))

    assert capacity.missed_share(0.0) == pytest.approx(0.02, abs=0.001)
    assert capacity.missed_share(2.0) == pytest.approx(1 - 0.98 * 0.99)
    assert capacity.missed_share(40.0) == 1.0
