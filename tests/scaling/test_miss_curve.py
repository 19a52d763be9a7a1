"""The share of requests that misses an objective where the load varies within a minute."""

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.scaling.outlook.miss_curve import MissCurve

KNEE = ((99, 2.0), (95, 3.0), (90, 3.4), (50, 4.0))
RATES = st.lists(st.floats(0, 1e4), min_size=4, max_size=4).map(
    lambda rates: tuple(zip((99, 95, 90, 50), sorted(rates), strict=True))
)
SPREADS = st.one_of(st.just(0.0), st.floats(0.0, 1.5))


def missed_by_counting(mean_load, spread):
    """Return the share of requests that miss in seconds with a lognormal load of this mean."""
    steady, seconds = MissCurve(KNEE), 20_000
    requests = misses = 0.0
    for second in range(seconds):
        deviation = spread * NormalDist().inv_cdf((second + 0.5) / seconds)
        load = mean_load * math.exp(deviation - spread**2 / 2)
        requests, misses = requests + load, misses + load * steady.missed_share(load)
    return misses / requests


@pytest.mark.parametrize("spread", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("load", [0.5, 1.5, 3.0, 4.5])
def test_misses_are_those_of_the_loads_within_the_minute(load, spread):
    assert MissCurve(KNEE, spread).missed_share(load) == pytest.approx(
        missed_by_counting(load, spread), rel=0.03, abs=1e-4
    )


def test_more_requests_miss_below_the_knee_and_fewer_above_where_the_load_varies():
    steady, varying = MissCurve(KNEE), MissCurve(KNEE, 0.5)

    assert varying.missed_share(2.0) > 3 * steady.missed_share(2.0)
    assert varying.missed_share(4.4) < steady.missed_share(4.4)


@given(RATES, SPREADS, st.floats(0, 1e5), st.floats(0, 1e5))
def test_more_load_never_misses_less(rates, spread, one, other):
    curve = MissCurve(rates, spread)

    low, high = sorted((one, other))

    assert 0 <= curve.missed_share(low) <= curve.missed_share(high) + 1e-12 <= 1 + 2e-12


@given(st.floats(0.01, 1e4), SPREADS, st.sampled_from([99, 95, 90, 50]))
def test_at_the_rate_of_a_percentile_the_others_miss(scale, spread, percentile):
    curve = MissCurve(tuple((known, scale * rate) for known, rate in KNEE), spread)

    rate = curve.rate_at(percentile)

    assert 0 < rate <= scale * dict(KNEE)[percentile] * (1 + 1e-9)
    assert curve.missed_share(rate) <= 1 - percentile / 100 + 1e-6
    assert percentile == 50 or curve.missed_share(1.05 * rate) > 1 - percentile / 100


@pytest.mark.parametrize("load", [0.0, 1e-300, 1e300, math.inf])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_any_load_has_a_share(load, spread):
    assert MissCurve(KNEE, spread).missed_share(load) == pytest.approx(1.0 if load > 1 else 0.0, abs=0.002)


def test_a_load_that_varies_hardly_is_steady():
    for spread in (0.0, 1e-300, 0.04):
        assert MissCurve(KNEE, spread).missed_share(2.5) == MissCurve(KNEE).missed_share(2.5)


def test_where_no_load_meets_the_objectives_no_rate_does():
    assert MissCurve(((99, 0.0), (95, 0.0), (90, 0.0), (50, 0.0)), 0.5).rate_at(90) == 0.0
