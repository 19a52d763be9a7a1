"""What one replica carries, and whether fewer replicas would carry what there is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Objective, Objectives
from tangram.scaling import (
    EvidenceMemory,
    Sample,
    ScalingMemory,
    ScalingObservation,
    ScalingParams,
    SupplyMemory,
    classify,
    decide,
    forget_learned,
    limits,
)
from tangram.scaling.sample import Window
from tests.support.fleet import intent

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=30, down_after_s=300)
CHAT = intent(ttft=Objective(90, 1000), tpot=Objective(90, 60), max_replicas=9)
LONG = EvidenceMemory()  # of replicas that have been ready for long
LONG_S = 9000.0
CALM = Sample(
    at=9000.0,
    targets=2.0,
    age_s=1.0,
    waiting=0.0,
    running=4.0,
    running_mean=4.0,
    requests=60.0,
    ttft_attainment=0.99,
    tpot_attainment=0.99,
)

UNKNOWN = Sample(at=9000.0, waiting=0.0, running=0.0)


def carries(replicas=1, memory=LONG, *, light=False, **changes):
    return limits.would_carry(memory, PARAMS, CHAT, replace(CALM, **changes), replicas, light=light)


def learned(*samples, memory=LONG, queued=False, stable_s=LONG_S):
    """What is known after `samples`, and after the violation, if there was one, has ended."""
    for sample in samples:
        memory = limits.learn(memory, PARAMS, CHAT, sample=sample, ready=2, queued=queued, stable_s=stable_s)
    return limits.learn(memory, PARAMS, CHAT, sample=UNKNOWN, ready=3, queued=False, stable_s=LONG_S)


@pytest.mark.parametrize(("kv_usage", "down"), [(0.69, True), (0.71, False), (None, True)])
def test_the_cache_after_the_step_decides(kv_usage, down):
    assert carries(kv_usage=kv_usage) is down
    assert carries(kv_usage=kv_usage, light=True) is down


def test_a_rate_that_was_too_much_for_so_few_is_not_tried_again():
    memory = replace(LONG, violated_rate=1.2)  # 60 requests in 60 s are 1.0 for one replica

    assert not carries(memory=memory)
    assert not carries(memory=memory, light=True)
    assert carries(memory=replace(LONG, violated_rate=1.5))


def test_a_load_that_has_ended_is_not_held_against_a_step_down():
    memory = replace(LONG, violated_rate=0.5)
    ended = (Window(300, 2.0, 0.1), Window(1500, 1500.0, 9.0))
    constant = (Window(300, 60.0, 1.0), Window(1500, 1500.0, 9.0))

    assert carries(memory=memory, light=True, requests=1.0, wider=ended)
    assert not carries(memory=memory, light=True, requests=60.0, wider=constant)


def test_an_age_does_not_make_it_be_tried_again():
    memory = learned(replace(CALM, ttft_attainment=0.5))

    assert memory.violated_rate == 0.5
    years_later = replace(CALM, at=1e9)
    assert not limits.would_carry(memory, PARAMS, CHAT, years_later, 1, light=False)


def test_a_lasting_queue_is_a_load_that_was_too_much():
    assert learned(CALM, queued=True).violated_rate == 0.5


def test_less_that_was_too_much_lowers_it_and_more_that_was_carried_raises_it():
    violated = replace(CALM, ttft_attainment=0.5)
    low = learned(violated, memory=replace(LONG, violated_rate=2.0))
    high = learned(CALM, memory=replace(LONG, violated_rate=0.2))

    assert (low.violated_rate, high.violated_rate) == (0.5, 0.5)
    assert learned(violated, memory=replace(LONG, violated_rate=0.4)).violated_rate == 0.4


def test_a_lucky_minute_proves_nothing_where_wider_windows_are_known():
    wider = (Window(300, 60.0, 1.0, 0.99, 0.99), Window(1500, 300.0, 1.0, 0.7, 0.99))

    assert learned(replace(CALM, wider=wider), memory=replace(LONG, violated_rate=0.2)).violated_rate == 0.2


def test_the_most_of_a_violation_counts_since_a_window_lags_behind_load_that_rises():
    rising = [replace(CALM, ttft_attainment=0.5, requests=n) for n in (30.0, 60.0, 120.0, 90.0)]

    assert learned(*rising).violated_rate == 1.0


def test_nothing_is_learned_of_a_window_in_which_replicas_came_or_went():
    assert learned(replace(CALM, ttft_attainment=0.1), stable_s=10.0) == LONG


def test_an_idle_prediction_above_the_bucket_edge_is_out_of_reach():
    # 60 ms are checked at 50 ms.
    assert "55 ms" in limits.tpot_unreachable(replace(LONG, idle_tpot_ms=55.0), CHAT)
    assert limits.tpot_unreachable(replace(LONG, idle_tpot_ms=45.0), CHAT) == ""


def test_what_was_measured_wins_over_what_is_predicted():
    predicted = replace(LONG, idle_tpot_ms=55.0)

    assert learned(CALM, memory=predicted).tpot_reachable is True
    assert limits.tpot_unreachable(learned(CALM, memory=predicted), CHAT) == ""


@pytest.mark.parametrize(
    ("running", "missed", "reachable"),
    [
        (0.4, 0.9, False),
        (0.4, 0.38, None),  # 0.67 of the requests were alone: 0.4 may miss
        (2.0, 0.9, None),  # 0.14 of them were
        (2.0, 1.0, False),
        (9.0, 1.0, None),
    ],
)
def test_tokens_that_are_slow_for_requests_alone_are_not_made_faster_by_replicas(running, missed, reachable):
    slow = replace(CALM, running_mean=running, tpot_attainment=1 - missed, requests=120.0)

    assert learned(slow).tpot_reachable is reachable


def test_a_few_good_requests_do_not_undo_that_tokens_are_slow_at_low_load():
    slow = learned(replace(CALM, running_mean=0.4, tpot_attainment=0.1))
    good_minute = replace(
        CALM,
        requests=30.0,
        running_mean=2.0,
        wider=(Window(300.0, 150.0, 2.0, 0.99, 0.5), Window(1800.0, 900.0, 2.0, 0.99, 0.3, is_widest=True)),
    )
    lasting = replace(good_minute, wider=(Window(300.0, 150.0, 2.0, 0.99, 0.95, is_widest=True),))

    assert learned(good_minute, memory=slow).tpot_reachable is False
    assert learned(lasting, memory=slow).tpot_reachable is True


# --- TTFT: P90 of 1000 ms, two replicas


def ttft_missed(share, running=0.2, requests=60.0, **changes):
    """Return a reading in which this share of the requests missed TTFT, at so many running requests."""
    return replace(CALM, running_mean=running, ttft_attainment=1 - share, requests=requests, **changes)


def test_a_prediction_above_the_objective_for_an_idle_replica_is_out_of_reach():
    why = limits.ttft_unreachable(replace(LONG, idle_ttft_ms=1500.0), CHAT)

    assert "P90" in why
    assert "1500 ms" in why
    assert "the objective of 1000 ms" in why
    assert limits.ttft_unreachable(replace(LONG, idle_ttft_ms=999.0), CHAT) == ""
    assert limits.ttft_unreachable(replace(LONG, idle_ttft_ms=1500.0), replace(CHAT, ttft=None)) == ""


def test_only_the_objective_that_is_out_of_reach_does_not_count():
    memory = replace(LONG, idle_ttft_ms=1500.0)

    assert limits.reachable_objectives(memory, CHAT) == replace(CHAT, ttft=None)
    assert limits.reachable_objectives(replace(memory, ttft_reachable=True), CHAT) == CHAT
    assert limits.reachable_objectives(replace(memory, idle_tpot_ms=99.0), CHAT).objectives == Objectives()
    assert limits.forecast_objectives(replace(memory, idle_tpot_ms=99.0), CHAT) == Objectives(None, CHAT.tpot)


@pytest.mark.parametrize(
    ("reading", "reachable"),
    [
        (ttft_missed(0.9), False),
        (ttft_missed(0.9, running=1.9), None),  # 0.95 of each replica is busy: nearly all may have waited
        (ttft_missed(0.3, running=0.4), None),  # 0.2 may have waited: 0.28 may miss
        (ttft_missed(0.6, running=0.4), False),
        (ttft_missed(0.9, requests=19.0), None),
        (ttft_missed(0.0), True),
        (ttft_missed(0.0, requests=40.0), None),  # at P90 four of 40 may miss: too few to know
    ],
    ids=["alone", "busy", "beside others", "more than beside others", "few", "met", "met by few"],
)
def test_requests_that_miss_their_first_token_alone_are_not_helped_by_replicas(reading, reachable):
    assert learned(reading).ttft_reachable is reachable


def test_a_measured_ttft_wins_over_the_predicted_one_both_ways():
    slow, fast = replace(LONG, idle_ttft_ms=1500.0), replace(LONG, idle_ttft_ms=100.0)

    assert limits.ttft_unreachable(learned(ttft_missed(0.0), memory=slow), CHAT) == ""
    assert "alone" in limits.ttft_unreachable(learned(ttft_missed(0.9), memory=fast), CHAT)
    again = learned(ttft_missed(0.0), memory=learned(ttft_missed(0.9)))
    assert again.ttft_reachable is True


def test_the_load_that_was_too_much_for_a_ttft_out_of_reach_is_forgotten():
    memory = learned(ttft_missed(0.9), memory=replace(LONG, violated_rate=0.1, violated_load=0.1))

    assert (memory.violated_rate, memory.violated_load) == (None, None)


def test_what_was_learned_of_ttft_ends_with_the_shape_and_with_the_objectives():
    supply = SupplyMemory(ready=2, stable_since=0.0, settled_ready=2)
    evidence = EvidenceMemory(ttft_reachable=False, idle_ttft_ms=1500.0)
    memory = ScalingMemory(2, "other objectives", supply, evidence)
    signal = classify(CALM, "", ready=2, params=PARAMS, now=9000.0)

    decision = decide(memory, PARAMS, CHAT, ScalingObservation(9000.0, 2, signal))

    for forgotten in (forget_learned(memory), decision.memory):
        assert forgotten.evidence.ttft_reachable is not False
        assert forgotten.evidence.idle_ttft_ms is None


@given(st.floats(0, 1), st.floats(0, 3), st.integers(1, 100_000))
def test_misses_that_other_requests_may_explain_prove_nothing(missed, running, requests):
    """Requests alone miss as often as the objective allows, and others, as many as run on average, all."""
    busy = min(1.0, running / 2)
    explained = busy + (1 - busy) * 0.1
    reading = ttft_missed(min(missed, explained), running, float(requests))

    assert learned(reading).ttft_reachable is not False
