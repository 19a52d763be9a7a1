"""Days of a simulated fleet under the law: a constant load comes to a constant number of replicas."""

import math
from dataclasses import replace

import pytest

from tangram.fleet import Objective
from tangram.scaling import ScalingParams
from tests.scaling.plant import Engine, Plant, changes
from tests.support.fleet import intent

pytestmark = pytest.mark.slow

CHAT = intent(max_replicas=8, min_replicas=1, ttft=Objective(90, 1000), tpot=Objective(90, 50))
TPOT_BOUND = Engine()  # 16 requests beside each other meet 50 ms per token
KV_BOUND = Engine(cache=6, beside_s=0.0)


def constant(per_second):
    return lambda _now: per_second


@pytest.mark.parametrize(
    ("engine", "per_second"),
    [(TPOT_BOUND, 5.0), (TPOT_BOUND, 3.6), (KV_BOUND, 3.0), (Engine(slots=4, beside_s=0.0), 1.4)],
    ids=["tpot", "tpot at the edge", "kv cache", "slots"],
)
def test_a_constant_load_keeps_a_constant_number_of_replicas_all_day(engine, per_second):
    plant = Plant(CHAT, engine, constant(per_second))

    decisions = plant.run(hours=24)

    settling, rest = decisions[: 4 * 240], decisions[4 * 240 :]
    assert decisions[-1].replicas > 1, "the load is meant to need more than one"
    assert len(changes(settling)) <= 5, changes(decisions)
    assert changes(rest) == []


def test_replicas_follow_the_day_down_and_up():
    def rate(now):
        return 2.0 + 1.8 * math.sin(2 * math.pi * now / 86400)

    plant = Plant(CHAT, replace(TPOT_BOUND, tokens=200.0), rate)

    decisions = plant.run(hours=36)

    second = decisions[12 * 240 :]
    assert max(d.replicas for d in second) >= 3
    assert min(d.replicas for d in second) == 1
    assert len(changes(second)) <= 2 * (max(d.replicas for d in second) - 1) + 2, changes(second)


def test_an_objective_that_one_request_alone_misses_adds_nothing():
    slow = replace(TPOT_BOUND, token_s=0.06)
    plant = Plant(CHAT, slow, constant(1.0), idle_tpot_ms=60.0)

    decisions = plant.run(hours=2)

    assert {d.replicas for d in decisions} == {1}
    assert "60 ms per token" in decisions[-1].unreachable


def test_without_a_prediction_growth_for_it_ends_at_low_load_and_is_taken_back():
    slow = replace(TPOT_BOUND, token_s=0.06, beside_s=0.0)
    plant = Plant(CHAT, slow, constant(0.5))  # three requests at a time

    decisions = plant.run(hours=24)

    assert max(d.replicas for d in decisions) < CHAT.max_replicas
    assert decisions[-1].replicas == 1
    assert "low load" in decisions[-1].unreachable
    assert changes(decisions[12 * 240 :]) == []


def test_queues_add_replicas_although_the_time_per_token_cannot_be_met():
    slow = replace(KV_BOUND, token_s=0.06)
    plant = Plant(CHAT, slow, constant(2.0), idle_tpot_ms=60.0)

    decisions = plant.run(hours=2)

    assert decisions[-1].replicas >= 2
    assert any(d.reason in ("QueueGrowing", "SLOViolated") for d in decisions)


SLOW_PREFILL = replace(TPOT_BOUND, prefill_s=1.5)


def test_a_ttft_objective_that_an_idle_replica_misses_adds_nothing():
    plant = Plant(CHAT, SLOW_PREFILL, constant(1.0), idle_ttft_ms=1550.0)

    decisions = plant.run(hours=2)

    assert {d.replicas for d in decisions} == {1}
    assert "predicted to be 1550 ms" in decisions[-1].unreachable


def test_without_a_prediction_growth_for_ttft_ends_at_low_load_and_is_taken_back():
    plant = Plant(CHAT, SLOW_PREFILL, constant(0.5))  # nearly two requests at a time

    decisions = plant.run(hours=24)

    assert 1 < max(d.replicas for d in decisions) < CHAT.max_replicas
    assert decisions[-1].replicas == 1
    assert "missed by requests alone" in decisions[-1].unreachable
    assert changes(decisions[12 * 240 :]) == []


@pytest.mark.parametrize(
    ("engine", "per_second"),
    [(replace(KV_BOUND, prefill_s=1.5), 3.0), (SLOW_PREFILL, 7.0)],
    ids=["queue", "tpot"],
)
def test_queues_and_the_other_objective_add_replicas_although_ttft_cannot_be_met(engine, per_second):
    plant = Plant(CHAT, engine, constant(per_second), idle_ttft_ms=1550.0)

    decisions = plant.run(hours=2)

    assert decisions[-1].replicas >= 2
    assert not [d for d in decisions if "ttft" in d.message]


def test_a_wrong_prediction_of_ttft_is_measured_away():
    plant = Plant(CHAT, Engine(slots=4, beside_s=0.0), constant(1.4), idle_ttft_ms=1550.0)

    decisions = plant.run(hours=24)

    assert decisions[-1].replicas > 1
    assert decisions[-1].unreachable == ""


def test_thin_traffic_that_misses_its_objective_adds_a_replica():
    long = Engine(slots=1, tokens=3000, beside_s=0.0)  # a minute each, one at a time
    plant = Plant(replace(CHAT, max_running_requests=64), long, constant(1 / 80))

    decisions = plant.run(hours=6)

    assert decisions[-1].replicas > 1


def test_thin_traffic_gives_back_what_it_does_not_need():
    long = Engine(tokens=6000, beside_s=0.0)  # two minutes each
    plant = Plant(CHAT, long, constant(1 / 60), replicas=4)

    decisions = plant.run(hours=6)

    assert decisions[-1].replicas == 1


def test_a_jump_of_the_load_is_answered_within_minutes():
    plant = Plant(CHAT, TPOT_BOUND, lambda now: 1.0 if now < 7200 else 12.0)

    decisions = plant.run(hours=3)

    first = next(d for d in decisions if d.at > 7200 and d.replicas > d.previous)
    assert max(d.replicas for d in decisions if d.at <= 7200) == 1
    assert first.at - 7200 <= 180
    assert decisions[-1].replicas >= 4


def test_replicas_go_soon_after_a_burst_has_ended():
    windows = ScalingParams(20, 5, up_after_s=10, down_after_s=45, min_samples=10, start_s=10)
    engine = replace(TPOT_BOUND, start_s=15.0)
    plant = Plant(CHAT, engine, lambda now: 8.0 if 300 <= now < 420 else 0.01, params=windows)

    decisions = plant.run(hours=0.25)

    most = max(d.replicas for d in decisions)
    assert 3 <= most <= 6
    assert not [d for d in decisions if d.at > 440 and d.replicas > d.previous]
    assert next(d.at for d in decisions if d.at > 420 and d.replicas == 1) <= 420 + 120 + 45 * most


@pytest.mark.parametrize("predicted", [1.2, 2.4, 9.0], ids=["half", "right", "four times"])
def test_a_constant_load_is_constant_whatever_the_capacity_model_predicts(predicted):
    plant = Plant(CHAT, TPOT_BOUND, constant(5.0), replica_rate=predicted)

    decisions = plant.run(hours=12)

    assert decisions[-1].replicas in (2, 3, 4)  # two miss the objective by half a point
    # Where half is predicted: up to the predicted number in two orders or three, and down as the misses show.
    assert len(changes(decisions[: 4 * 240])) <= 5, changes(decisions)
    assert changes(decisions[4 * 240 :]) == []
    assert plant.counts["tpot_good"] / plant.counts["ended"] > 0.99


def test_with_a_forecast_replicas_follow_the_day_with_fewer_misses_and_less_cost():
    def rate(now):
        return 8.0 + 7.0 * math.sin(2 * math.pi * now / 43200)

    big = replace(CHAT, max_replicas=20)
    plants = [Plant(big, TPOT_BOUND, rate, replica_rate=predicted) for predicted in (None, 2.4)]

    reacting, forecasting = (plant.run(hours=12) for plant in plants)  # one period

    cost = [sum(d.replicas for d in decisions) for decisions in (reacting, forecasting)]
    met = [plant.counts["tpot_good"] / plant.counts["ended"] for plant in plants]
    assert cost[1] < 0.8 * cost[0]
    assert met[1] >= 0.95
