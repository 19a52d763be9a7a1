"""The forecast covers the load at the horizon with the probability that is asked for."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.scaling.outlook.forecast import DISTRIBUTION, forecast
from tangram.scaling.outlook.load_history import LoadHistory, extended, from_samples
from tests.support.examples import examples

MINUTE = 60.0
RATES = st.lists(st.one_of(st.none(), st.floats(0, 1e4)), max_size=60)


def history(rates, seasons=()):
    return LoadHistory(MINUTE * len(rates), tuple(rates), MINUTE, tuple(seasons))


QUANTILES = tuple(quantile for quantile, _ in DISTRIBUTION)


def rate_at(rates, quantile, horizon_s=120.0, seasons=()):
    """A quantile of the forecast at the end of the last bin."""
    past = history(rates, seasons)
    result = forecast(past, rates[-1], now=past.end_s, horizon_s=horizon_s)
    return result.rates[QUANTILES.index(quantile)]


def noisy(minutes, rate, seed):
    """Rates of Poisson arrivals, by the minute."""
    rng = Random(seed)
    counts = (rng.gauss(rate * MINUTE, math.sqrt(rate * MINUTE)) for _ in range(minutes))
    return [max(0.0, count) / MINUTE for count in counts]


@pytest.mark.parametrize("quantile", [0.6, 0.9, 0.9825])
def test_the_load_exceeds_the_upper_quantile_as_often_as_the_quantile_allows(quantile):
    rates = noisy(700, 5.0, seed=3)

    later = range(240, len(rates) - 2)
    exceeded = sum(rates[t + 2] > rate_at(rates[t - 239 : t + 1], quantile) for t in later)

    assert (1 - quantile) / 8 <= exceeded / len(later) <= 1.2 * (1 - quantile) + 0.01


def test_a_steady_load_without_noise_needs_hardly_a_margin_once_it_is_known():
    assert rate_at([5.0] * 240, 0.9825) < 5.0 * 1.08
    assert rate_at([5.0] * 5, 0.9825) > 5.0 * 1.2, "five minutes prove no steadiness"


def test_a_rising_load_is_forecast_above_its_present_level():
    rising = [1.0 + 0.05 * minute for minute in range(200)]

    assert rate_at(rising, 0.6, horizon_s=300) > rising[-1] + 0.15


def test_a_leap_from_silence_widens_the_margin_of_silence_alone():
    before = noisy(60, 0.1, seed=1)
    rates = [*before, *noisy(30, 6.0, seed=2)]

    assert rate_at(rates, 0.9825) < 1.6 * 6.0
    assert rate_at([*rates, *noisy(10, 0.1, seed=3)], 0.995) > 2 * rate_at(before, 0.995)


def test_the_present_rate_is_assumed_to_stay_at_a_level_that_is_new():
    rates = [*noisy(60, 0.5, seed=1), 6.0]

    assert rate_at(rates, 0.4) > 5.0


def test_bursts_of_the_past_raise_the_margin():
    quiet = noisy(240, 5.0, seed=5)
    bursty = [rate * (4 if minute % 40 == 7 else 1) for minute, rate in enumerate(quiet)]

    assert rate_at(bursty, 0.9825) > 1.5 * rate_at(quiet, 0.9825)


def test_a_day_that_repeats_is_forecast_before_its_load_rises():
    def rate(minute):
        return 10.0 if 600 <= minute % 1440 < 900 else 1.0

    today, day = range(1440 + 595 - 239, 1440 + 595 + 1), 86400.0
    yesterday = LoadHistory(
        MINUTE * (595 + 30), tuple(rate(m) for m in range(595 - 239 - 300, 595 + 30)), MINUTE
    )
    past = LoadHistory(MINUTE * (1440 + 595), tuple(rate(m - 1) for m in today), MINUTE, ((day, yesterday),))

    result = forecast(past, 1.0, now=past.end_s, horizon_s=600)

    season = next(base for base in result.bases if base.name == "season 86400 s")
    assert season.expected == 10.0
    assert season.weight > 0


def test_without_history_the_margin_is_that_of_bursty_arrivals():
    empty = LoadHistory(0.0)

    assert forecast(empty, 0.0, now=0.0, horizon_s=60).upper > 0
    assert forecast(empty, 5.0, now=0.0, horizon_s=60).upper > 6.0


@examples(50)
@given(RATES, st.floats(0, 1e4), st.floats(1, 4000))
def test_whatever_the_history_the_forecast_is_finite_ascending_and_repeatable(rates, rate, horizon_s):
    past = history(rates)

    result = forecast(past, rate, now=past.end_s + 20, horizon_s=horizon_s)

    assert all(math.isfinite(value) and value >= 0 for value in result.rates)
    assert list(result.rates) == sorted(result.rates)
    assert result == forecast(past, rate, now=past.end_s + 20, horizon_s=horizon_s)


def test_the_quantiles_stand_for_the_whole_distribution():
    assert sum(share for _, share in DISTRIBUTION) == pytest.approx(1.0)
    result = forecast(history(noisy(240, 5.0, seed=9)), 5.0, now=240 * MINUTE, horizon_s=120)
    assert result.mean_of(lambda rate: rate) == pytest.approx(5.0, rel=0.05)


def test_a_history_grows_by_bins_and_keeps_gaps():
    past = from_samples({60.0: 1.0, 180.0: 3.0}, 180.0, 3)

    assert past.rates == (1.0, None, 3.0)
    assert extended(past, 5.0, 300.0, 4).rates == (None, 3.0, None, 5.0)
    assert extended(past, 5.0, 180.0, 4) == past, "a bin counts once"
    assert past.rate_at(60.0) == 1.0
    assert past.rate_at(240.0) is None
