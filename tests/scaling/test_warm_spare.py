"""The replicas of a need that are a warm spare: for load that may come, and is not expected."""

import random
from dataclasses import replace

import pytest
from hypothesis import given

from tangram.scaling import ScalingMemory
from tangram.scaling import feed_forward as law
from tangram.scaling.feed_forward import ExpectedMisses
from tangram.scaling.outlook.forecast import DISTRIBUTION, Forecast
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tests.scaling.test_feed_forward import CHAT, PARAMS, outlook, sample
from tests.scaling.test_runner_up import BUDGETS, CAPACITIES, LOADS, MISSES_AT_ANY_LOAD
from tests.support.examples import examples

EVEN = ReplicaCapacity(((99, 1.6), (95, 1.8), (90, 2.0), (50, 2.6)))
# Probabilities of the quantiles: 0.1, 0.2, 0.2, 0.2, 0.15, 0.1, 0.025, 0.015, 0.01.
CERTAIN, BURSTS = (5.0,) * 9, (5.0,) * 4 + (7.0,) + (9.0,) * 4


@pytest.fixture
def forecast(monkeypatch):
    def replaced(*rates, expected=5.0):
        monkeypatch.setattr(law, "forecast", lambda *_, **__: Forecast(90.0, expected, rates))

    return replaced


def need(known=None, reading=None, *, queued=False):
    known, reading = known or outlook(), reading or sample(5.0)
    return law.needed(ScalingMemory(), PARAMS, CHAT, known, reading, queued=queued, now=0.0)


def test_a_certain_load_has_no_spare(forecast):
    forecast(*CERTAIN)

    found = need()

    assert (found.replicas, found.spare) == (3, 0)  # 5 requests/s, 2 per replica
    assert "spare" not in found.cause


def test_replicas_for_bursts_beyond_the_expected_load_are_spare(forecast):
    # With 3 replicas the requests of both bursts miss, 41 %; with 4 those of the higher one; with 5 none.
    forecast(*BURSTS)

    found = need()

    assert (found.replicas, found.spare) == (5, 2)
    assert found.cause.endswith("; 2 of 5 are spare for load that may come before a replica has started")


def test_one_spare_replica_is_named_in_the_singular(forecast):
    forecast(*(5.0,) * 4, *(7.0,) * 5)

    found = need()

    assert (found.replicas, found.spare) == (4, 1)
    assert found.cause.endswith("; 1 of 4 is spare for load that may come before a replica has started")


def test_replicas_for_a_queue_are_not_spare(forecast):
    forecast(*CERTAIN)

    found = need(reading=sample(5.0, waiting=240.0), queued=True)

    assert (found.replicas, found.spare) == (5, 0)  # 5 requests/s and 4 of queue


def test_a_load_above_all_that_may_come_has_no_negative_spare(forecast):
    forecast(*(3.0,) * 9, expected=9.0)  # an average of forecasts may be beside the average of quantiles

    found = need()

    assert (found.replicas, found.spare) == (2, 0)


def test_a_load_that_no_replica_carries_well_has_a_spare_as_far_as_replicas_are_worth_it(forecast):
    forecast(*CERTAIN)
    certain = need(LoadOutlook(outlook().history, MISSES_AT_ANY_LOAD, 60.0))
    forecast(*BURSTS)
    bursty = need(LoadOutlook(outlook().history, MISSES_AT_ANY_LOAD, 60.0))

    assert certain.missed_share > certain.error_budget
    assert (certain.spare, bursty.spare) == (0, bursty.replicas - certain.replicas)


def test_no_load_has_no_spare(forecast):
    forecast(*(0.0,) * 9, expected=0.0)

    assert (need().replicas, need().spare) == (1, 0)


def test_the_spare_grows_with_the_uncertainty_of_the_load(forecast):
    spares = []
    for spread in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0):
        quantiles = (-4.0, -2.5, -1.0, 1.0, 2.0, 3.5, 5.5, 7.0, 9.0)
        forecast(*(20.0 + spread * error for error in quantiles), expected=20.0)
        spares.append(need(LoadOutlook(outlook().history, EVEN, 60.0)).spare)

    assert spares == sorted(spares)
    assert spares[0] == 0 < spares[3] < spares[-1]


def test_shorter_starts_need_a_smaller_spare():
    spares = []
    for start_s in (30.0, 90.0, 300.0, 600.0, 1200.0):
        known = LoadOutlook(LoadHistory(0.0, wandering(20.0)), EVEN, start_s)
        spares.append(need(known, sample(known.history.rates[-1])).spare)

    assert spares == sorted(spares)
    assert spares[0] < spares[2] < spares[-1]


def wandering(level):
    """Four hours of a load that rises and falls by chance: the later, the less it is known."""
    steps, rates = random.Random(4), []
    for _ in range(240):
        level = max(5.0, min(40.0, level + steps.gauss(0, 2)))
        rates.append(level)
    return tuple(rates)


@examples(100)
@given(LOADS, CAPACITIES, BUDGETS)
def test_an_equal_load_in_one_place_is_an_equal_load_in_nine(loads, capacity, budget):
    one = ExpectedMisses(Forecast(90.0, loads[4], loads).certain, capacity)
    weights = [share for _, share in DISTRIBUTION]

    for replicas in (1, 2, 7):
        in_nine = sum(w * loads[4] * capacity.missed_share(loads[4] / replicas) for w in weights)
        assert one.per_second(replicas) == pytest.approx(in_nine)


@pytest.mark.parametrize(("rate", "replica_rate"), [(5.0, 2.0), (20.0, 0.4), (400.0, 2.0)])
def test_the_spare_costs_a_tenth_of_the_evaluations_at_most(monkeypatch, rate, replica_rate):
    known = outlook(rate, replica_rate)
    shares, real = [], ReplicaCapacity.missed_share
    monkeypatch.setattr(
        ReplicaCapacity, "missed_share", lambda self, load: shares.append(load) or real(self, load)
    )

    found = need(known, sample(rate))
    in_all = len(shares)
    shares.clear()
    ExpectedMisses(found.load, known.capacity).of_certain_load.replicas_within(0.1, found.replica_rate)

    assert 0 < len(shares) <= in_all / 10


def test_the_calculation_is_readable_where_all_is_in_it(forecast):
    forecast(*(2345.6,) * 4, *(3456.7,) * 5, expected=2345.6)

    found = need(reading=sample(5.0, waiting=1234.0), queued=True)

    assert len(found.cause) < 300
    assert replace(found, spare=0).cause == found.cause.rpartition("; ")[0]
