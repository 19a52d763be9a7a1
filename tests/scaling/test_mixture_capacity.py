"""The capacity of a replica by the mixture of its requests."""

from dataclasses import replace

import pytest

from tangram.capacity.load.latency import ReplicaUnderLoad
from tangram.catalog.prices import Prices
from tangram.fleet import Lengths, Objective, Objectives
from tangram.scaling.outlook import mixture_capacity
from tangram.scaling.outlook.mixture_capacity import MixtureCapacity
from tangram.simulator.cluster.engine_setups import EngineSetups
from tests.support.fleet import FACTS_8B, shape
from tests.support.simulated_fleets import served_intent

OBJECTIVES = Objectives(Objective(99, 1000), Objective(99, 30))
PROMPTS, ANSWERS = Lengths(700.0, 1400.0), Lengths(150.0, 180.0)


@pytest.fixture(scope="module")
def engine():
    intent = served_intent()
    return EngineSetups([(intent, FACTS_8B)], Prices({})).setup(intent.uid, shape())


def capacity(engine, objectives=OBJECTIVES):
    return MixtureCapacity(engine.steps, engine.limits, PROMPTS, ANSWERS, objectives)


def test_rates_are_those_of_the_capacity_model_at_each_percentile(engine):
    replica = ReplicaUnderLoad(engine.steps, engine.limits, PROMPTS, ANSWERS)

    rates = capacity(engine)(700.0, 150.0).rates

    assert [percentile for percentile, _ in rates] == [99, 95, 90, 50]
    assert [rate for _, rate in rates] == [
        replica.max_rate(Objective(p, 1000), Objective(p, 30)) for p in (99, 95, 90, 50)
    ]
    assert 0 < rates[0][1] <= rates[-1][1]


def test_longer_requests_leave_a_lower_rate_at_every_percentile(engine):
    of = capacity(engine)

    for longer in (of(1400.0, 150.0), of(700.0, 300.0)):
        for (_, low), (_, high) in zip(longer.rates, of(700.0, 150.0).rates, strict=True):
            assert 0 < low < high


def test_other_means_keep_the_spread_of_the_usual_lengths(engine, monkeypatch):
    seen = []
    real = mixture_capacity.ReplicaUnderLoad
    monkeypatch.setattr(
        mixture_capacity, "ReplicaUnderLoad", lambda *given: seen.append(given[2:]) or real(*given)
    )

    capacity(engine)(1000.0, 200.0)

    assert seen == [(Lengths(1000.0, 2000.0), Lengths(200.0, pytest.approx(240.0)))]


def test_a_mixture_is_computed_once(engine, monkeypatch):
    of = capacity(engine)
    first = of(700.0, 150.0)
    monkeypatch.setattr(mixture_capacity, "ReplicaUnderLoad", lambda *_: pytest.fail("computed again"))

    assert of(700.0, 150.0) is first


@pytest.mark.parametrize("name", ["ttft", "tpot"])
def test_one_objective_is_enough_and_none_has_no_capacity(engine, name):
    one = replace(OBJECTIVES, **{name: None})

    assert capacity(engine, one)(700.0, 150.0).rates[0][1] >= capacity(engine)(700.0, 150.0).rates[0][1] > 0
    assert capacity(engine, Objectives(None, None))(700.0, 150.0) is None


def test_objectives_that_an_idle_replica_misses_leave_a_rate_of_zero(engine):
    assert capacity(engine, replace(OBJECTIVES, tpot=Objective(99, 1)))(700.0, 150.0).rate_at(50) == 0.0


def test_a_ttft_objective_that_a_nearly_idle_replica_misses_is_seen_at_its_percentile(engine):
    idle = ReplicaUnderLoad(engine.steps, engine.limits, PROMPTS, ANSWERS).under(0.0).ttft_s
    between = 1000 * (idle.p90 + idle.p99) / 2

    of = capacity(engine, replace(OBJECTIVES, ttft=Objective(99, between)))(700.0, 150.0)

    assert of.idle_ttft_ms(99) == 1000 * idle.p99 > between > of.idle_ttft_ms(90)
    assert of.rate_at(99) == 0.0 < of.rate_at(90)
    assert of.without_ttft == capacity(engine, replace(OBJECTIVES, ttft=None))(700.0, 150.0)


def test_without_a_ttft_objective_or_without_another_one_nothing_is_left_out(engine):
    assert capacity(engine, replace(OBJECTIVES, ttft=None))(700.0, 150.0).idle_ttft == ()
    assert capacity(engine, replace(OBJECTIVES, tpot=None))(700.0, 150.0).without_ttft is None
