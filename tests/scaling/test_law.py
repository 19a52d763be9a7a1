"""Loads by the minute, lengths and a predicted capacity: what a step of the law knows beside a reading."""

from dataclasses import replace
from random import Random

import pytest

from tangram.fleet import Objective, Traffic
from tangram.fleet.lengths import around
from tangram.scaling import Sample, ScalingParams, classify
from tangram.scaling.law import Law, LawObservation, LawState
from tangram.scaling.outlook.load_history import MOST_BINS, LoadHistory
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Window
from tests.support.fleet import intent, shape, workload

BEFORE = LawState()
PARAMS = ScalingParams(window_s=60.0, scrape_interval_s=15.0, up_after_s=30.0, down_after_s=300.0)
LAW = Law(PARAMS)
CHAT = intent(
    ttft=Objective(90, 1000),
    tpot=Objective(90, 50),
    traffic=Traffic(None, around(700), around(150)),
    max_replicas=40,
)


def capacity(prompt, answer):
    """Return a capacity in inverse proportion to the tokens of a request: 5 requests/s of 850."""
    rate = 4250 / (prompt + answer)
    return ReplicaCapacity(((99, 0.8 * rate), (95, 0.9 * rate), (90, rate), (50, 1.2 * rate)))


def sample(at, arrived=600.0, prompt=None, answer=None):
    wider = Window(300.0, 3000.0, prompt_tokens_mean=prompt, answer_tokens_mean=answer)
    return Sample(
        at=at,
        targets=4,
        age_s=5.0,
        waiting=0.0,
        running=2.0,
        running_mean=2.0,
        requests=arrived,
        arrived=arrived,
        wider=(wider,),
    )


def observation(reading, **changes):
    signal = classify(reading, "", ready=4, params=PARAMS, now=reading.at)
    seen = LawObservation(
        reading.at,
        CHAT,
        signal,
        ready=4,
        existing=4,
        current=4,
        shapes=frozenset({shape()}),
        capacity_of=capacity,
        start_s=80.0,
    )
    return replace(seen, **changes)


def after(*readings, law=LAW, state=BEFORE, **changes):
    """Return state and decision after these readings."""
    decision = None
    for reading in readings:
        state, decision = law.step(state, observation(reading, **changes))
    return state, decision


def test_a_bin_ends_with_each_full_minute():
    state, _ = after(sample(630.0), sample(645.0), sample(661.0, 1200.0), sample(851.0, 60.0))

    assert state.history.rates == (10.0, 20.0, None, None, 1.0)
    assert state.history.end_s == 840.0


def test_without_an_arrival_counter_first_tokens_stand_in():
    state, _ = after(replace(sample(630.0), arrived=None, requests=300.0))

    assert state.history.rates == (5.0,)


@pytest.mark.parametrize(("message", "is_late"), [("", False), ("a container crashes", True)])
def test_replicas_are_not_late_before_the_budget_of_their_startup_probes(message, is_late):
    starting = replace(workload(CHAT, shape(), 4), start_budget_s=7200, message=message)
    readings = [sample(15.0 * step) for step in range(1, 100)]

    state, _ = after(*readings, ready=1, workloads=(starting,))

    assert (state.memory.supply.written_off > 0) is is_late


def test_longer_requests_need_more_replicas():
    unstated = replace(CHAT, traffic=Traffic())
    _, short = after(sample(630.0, prompt=500.0, answer=100.0), intent=unstated)
    _, long = after(sample(630.0, prompt=2000.0, answer=400.0), intent=unstated)

    assert long.need.replicas > 2 * short.need.replicas
    assert short.need.load.horizon_s > 80.0


def test_lengths_of_minutes_that_vary_by_chance_do_not_move_replicas():
    short = {"prompt": 400.0, "answer": 90.0}
    long = {"prompt": 1200.0, "answer": 250.0}
    readings = [sample(15.0 * step, **(long if step // 20 % 2 else short)) for step in range(1, 961)]

    needs = [after(*readings[: 240 + 20 * part])[1].need.replicas for part in range(1, 4)]

    assert len(set(needs)) == 1


def test_lengths_that_stay_longer_are_followed():
    long = [sample(15.0 * step, prompt=2000.0, answer=400.0) for step in range(1, 961)]

    state, decision = after(*long)

    assert state.mixture.prompt_tokens == pytest.approx(2000, rel=0.05)
    assert decision.need.replicas >= 2 * after(sample(15.0))[1].need.replicas


@pytest.mark.parametrize(
    "changes",
    [
        {"shapes": frozenset()},
        {"shapes": frozenset({shape(), shape(sku="H200-141GB-SXM")})},
        {"capacity_of": None},
        {"capacity_of": lambda _prompt, _answer: None},
        {"intent": replace(CHAT, traffic=Traffic())},
    ],
    ids=["no replica", "two shapes", "no checkpoint", "no objective", "no lengths"],
)
def test_what_cannot_be_predicted_leaves_the_law_to_what_it_measures(changes):
    _, predicted = after(sample(630.0))
    _, decision = after(sample(630.0), **changes)

    assert predicted.need is not None
    assert decision.need is None


def test_replicas_that_move_to_another_shape_are_not_predicted():
    _, decision = after(sample(630.0), state=LawState(shape=shape(sku="H200-141GB-SXM")))

    assert decision.need is None


def test_a_history_from_prometheus_is_continued():
    state, _ = after(sample(661.0), stored=LoadHistory(600.0, (1.0, 2.0)))

    assert state.history.rates[-3:] == (1.0, 2.0, 10.0)
    assert set(state.history.rates[:-3]) == {None}


def test_what_was_seen_stays_and_yesterday_is_taken_from_prometheus():
    seen, _ = after(sample(601.0), sample(661.0))
    yesterday = LoadHistory(7200.0, (4.0,) * 60)

    stored = LoadHistory(660.0, (1.0, 2.0, 3.0), seasons=((86_400.0, yesterday),))
    state, _ = after(sample(662.0), state=seen, stored=stored)

    assert state.history.rates[-3:] == (1.0, 10.0, 10.0)
    assert state.history.seasons == ((86_400.0, yesterday),)


@pytest.mark.parametrize("bins", [2, MOST_BINS])
def test_loads_are_remembered_as_long_as_the_settings_say(bins):
    law = Law(replace(PARAMS, history_s=60.0 * bins))

    state, _ = after(*(sample(60.0 * minute + 5) for minute in range(1, 600)), law=law)
    restored, _ = after(sample(600.0), law=law, stored=LoadHistory(540.0, (1.0,) * 240))

    assert len(state.history.rates) == len(restored.history.rates) == bins


def test_a_burst_is_forgotten_with_the_history_that_holds_it():
    burst = (sample(600.0 + 15 * step, 6000.0) for step in range(8))
    idle = tuple(sample(720.0 + 15 * step, 0.0) for step in range(40))
    state, decision = after(*burst, *idle, law=Law(replace(PARAMS, history_s=120.0)))

    assert decision.need.replicas == 1
    assert state.history.rates == (0.0, 0.0)


def test_equal_states_and_observations_give_equal_decisions():
    state, _ = after(sample(601.0), sample(661.0))

    assert LAW.step(state, observation(sample(700.0))) == LAW.step(state, observation(sample(700.0)))


@pytest.mark.parametrize("number", [1, 3])
def test_the_recommendation_beside_a_set_number_is_what_the_load_needs(number):
    chosen = replace(CHAT, replicas=number, min_replicas=number, max_replicas=number)
    _, free = after(sample(630.0, 6000.0))

    _, decision = after(sample(630.0, 6000.0), intent=chosen)

    assert decision.replicas == number
    assert decision.recommended == free.need.replicas > 20


def running(reading, count):
    """Return the reading with so many running requests on average."""
    wider = tuple(replace(window, running_mean=count) for window in reading.wider)
    return replace(reading, running=count, running_mean=count, wider=wider)


def test_replicas_average_the_load_over_the_time_that_requests_run():
    # 10 requests/s arrive on average, in some minutes far fewer or more. Each runs for two minutes.
    rng = Random(1)
    minutes = [running(sample(600.0 + 60 * m, rng.expovariate(1 / 600.0)), 1200.0) for m in range(1, 121)]
    short = [running(reading, 10.0) for reading in minutes]

    state, long_requests = after(*minutes)
    _, short_requests = after(*short)

    assert state.bins == 4
    assert long_requests.need.load.rates[-1] < 0.85 * short_requests.need.load.rates[-1]
    assert long_requests.need.replicas < short_requests.need.replicas


def slow_prefill(prompt, answer):
    """Return a capacity whose TTFT is beyond the objective above 1000 tokens of prompt, P99 above 500."""
    usual, idle = (
        capacity(prompt, answer),
        ((99, 2.0 * prompt), (95, 1.5 * prompt), (90, prompt), (50, 0.5 * prompt)),
    )
    carried = tuple(
        (p, rate if of <= 1000 else 0.0) for (p, rate), (_, of) in zip(usual.rates, idle, strict=True)
    )
    return ReplicaCapacity(carried, idle_ttft=idle, without_ttft=usual)


def with_lengths(prompt):
    reading = sample(630.0, prompt=prompt, answer=150.0)
    return after(reading, capacity_of=slow_prefill, intent=replace(CHAT, traffic=Traffic()))[1]


def test_a_p99_that_no_load_meets_does_not_end_the_forecast_for_a_p90():
    decision = with_lengths(700.0)

    assert decision.unreachable == ""
    assert decision.need is not None
    assert decision.need.replica_rate == pytest.approx(capacity(700.0, 150.0).rate_at(90), rel=0.1)


def test_lengths_whose_ttft_is_out_of_reach_leave_the_forecast_to_tpot_and_say_so():
    long = with_lengths(2000.0)

    assert "on an idle replica is predicted to be" in long.ttft_unreachable
    assert long.tpot_unreachable == ""
    assert long.need is not None
    assert long.need.replica_rate == pytest.approx(capacity(2000.0, 150.0).rate_at(90), rel=0.1)


def test_without_another_objective_nothing_is_forecast_for_a_ttft_out_of_reach():
    def alone(prompt, answer):
        return replace(slow_prefill(prompt, answer), without_ttft=None)

    ttft_only = replace(CHAT, tpot=None, traffic=Traffic())
    _, decision = after(sample(630.0, prompt=2000.0, answer=150.0), capacity_of=alone, intent=ttft_only)

    assert decision.ttft_unreachable
    assert decision.need is None


def test_misses_of_a_ttft_out_of_reach_add_no_replica():
    def misses(prompt):
        wide = tuple(
            Window(
                seconds, 10.0 * seconds, 2.0, 0.2, 1.0, prompt_tokens_mean=prompt, answer_tokens_mean=150.0
            )
            for seconds in (300.0, 1500.0)
        )
        reading = replace(
            sample(630.0), ttft_attainment=0.2, tpot_attainment=1.0, running_mean=40.0, wider=wide
        )
        later = [replace(reading, at=630.0 + 15.0 * step) for step in range(40)]
        few = replace(CHAT, traffic=Traffic(), max_replicas=8)
        state, replicas = BEFORE, []
        for one in later:
            state, decision = LAW.step(
                state, observation(one, capacity_of=slow_prefill_only_ttft, intent=few)
            )
            replicas.append(decision.replicas)
        return replicas

    def slow_prefill_only_ttft(prompt, answer):
        many = ReplicaCapacity(((99, 8.0), (95, 9.0), (90, 10.0), (50, 12.0)))
        return replace(slow_prefill(prompt, answer), rates=many.rates, without_ttft=many)

    assert max(misses(2000.0)) == 4
    assert max(misses(700.0)) > 4
