"""What the scaling law guarantees whatever it reads: random readings, outages, starts and outside changes."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Objective
from tangram.scaling import (
    Sample,
    ScalingMemory,
    ScalingObservation,
    ScalingParams,
    SignalState,
    classify,
    decide,
    recalled,
    record,
    sample_from,
)
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Window
from tests.support.examples import examples
from tests.support.fleet import intent

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=30, down_after_s=300)
CHAT = intent(min_replicas=2, max_replicas=12, ttft=Objective(99, 1000), tpot=Objective(90, 50))
SHARE = st.one_of(st.none(), st.floats(0, 1))


@st.composite
def readings(draw):
    """One reading, or None in an outage: any load, any latency, any age."""
    if draw(st.integers(0, 9)) == 0:
        return None
    rate, share, age = draw(st.floats(0, 200)), draw(SHARE), draw(st.sampled_from([3.0, 10.0, 60.0, 400.0]))

    def counted(seconds, is_widest=False):
        return Window(seconds, rate * seconds, 3.0, share, share, share, is_widest, rate * seconds)

    return Sample(
        at=0.0,
        targets=draw(st.sampled_from([0.0, 5.0, 50.0])),
        age_s=age,
        waiting=draw(st.sampled_from([0.0, 1.0, 40.0, 5000.0])),
        running=draw(st.floats(0, 100)),
        running_mean=3.0,
        requests=draw(st.one_of(st.none(), st.just(rate * 60))),
        arrived=draw(st.one_of(st.none(), st.just(rate * 60))),
        ttft_attainment=share,
        tpot_attainment=share,
        itl_attainment=share,
        kv_usage=draw(st.one_of(st.none(), st.floats(0, 12))),
        wider=(counted(300.0), counted(1500.0, is_widest=True)),
    )


@st.composite
def rounds(draw):
    """What one round sees: a reading, the share of ordered replicas that is ready, seconds since the last."""
    return (
        draw(readings()),
        draw(st.sampled_from([0.0, 0.5, 1.0, 1.0])),
        draw(st.sampled_from([15.0, 15.0, 15.0, 300.0, -60.0])),
    )


def outlook(rate, replica_rate):
    capacity = ReplicaCapacity(
        ((99, 0.8 * replica_rate), (95, 0.9 * replica_rate), (90, replica_rate), (50, 1.2 * replica_rate))
    )
    return LoadOutlook(LoadHistory(0.0, (rate,) * 30), capacity, 60.0)


OUTLOOKS = st.one_of(st.none(), st.builds(outlook, st.floats(0, 200), st.floats(0.01, 100)))
HISTORIES = st.lists(rounds(), min_size=1, max_size=30)


def play(history, known, of=CHAT, memory=None):
    """Return (signal, ready, decision) of each round."""
    memory, now, played = memory or ScalingMemory(), 1_000_000.0, []
    last = None
    for reading, share, seconds in history:
        now += seconds
        if reading is not None:
            last = replace(reading, at=now)
        held = memory.replicas if memory.replicas is not None else of.min_replicas
        ready = math.floor(share * held)
        signal = classify(last, "" if reading else "down", ready=ready, params=PARAMS, now=now)
        memory = memory if memory.replicas is not None else replace(memory, replicas=held)
        decision = decide(memory, PARAMS, of, ScalingObservation(now, ready, signal, held, known))
        played.append((signal, ready, decision))
        memory = decision.memory
    return played


@examples(40)
@given(HISTORIES, OUTLOOKS)
def test_replicas_stay_within_bounds_and_never_fall_without_fresh_metrics(history, known):
    for signal, _, decision in play(history, known):
        assert CHAT.min_replicas <= decision.replicas <= CHAT.max_replicas
        if decision.replicas < decision.previous:
            assert signal.state is SignalState.FRESH
        if signal.state in (SignalState.STALE, SignalState.BLIND):
            assert decision.replicas == decision.previous


@examples(40)
@given(HISTORIES, OUTLOOKS)
def test_one_order_at_most_doubles_or_adds_four(history, known):
    for _, _, decision in play(history, known):
        assert decision.replicas <= max(2 * decision.previous, decision.previous + 4)


@examples(30)
@given(HISTORIES, OUTLOOKS)
def test_an_order_on_its_way_is_added_to_only_for_more_than_one_replica(history, known):
    for _, ready, decision in play(history, known):
        missing = decision.previous - decision.memory.supply.written_off - ready
        if decision.reason == "LoadForecast" and missing > 0 and decision.memory.supply.failed_orders == 0:
            assert decision.need is not None
            assert decision.need.replicas + decision.memory.supply.written_off > decision.previous


@examples(30)
@given(HISTORIES, OUTLOOKS)
def test_equal_inputs_give_equal_decisions(history, known):
    assert play(history, known) == play(history, known)


@examples(40)
@given(HISTORIES, OUTLOOKS, readings())
def test_a_restart_changes_nothing(history, known, reading):
    """The new leader has the recorded state alone: it may wait longer, and removes nothing."""
    *_, (_, _, last) = play(history, known)
    block = json.loads(json.dumps(record(last.memory)))
    assert len(json.dumps(block)) <= 4096

    memory = replace(recalled(block), replicas=last.replicas)
    (_, _, after), *_ = play([(reading, 1.0, 15.0)], known, memory=memory)

    assert after.replicas >= last.replicas


@examples(30)
@given(HISTORIES, OUTLOOKS, st.integers(0, 40))
def test_a_number_that_is_set_from_outside_is_kept_and_the_recommendation_told(history, known, number):
    of = replace(CHAT, replicas=number, min_replicas=number, max_replicas=number)

    for signal, _, decision in play(history, known, of):
        assert decision.replicas == number
        if known is not None and signal.state is SignalState.FRESH and signal.sample.arrived is not None:
            assert decision.recommended is not None


@examples(25)
@given(HISTORIES, OUTLOOKS)
def test_every_number_that_is_remembered_is_finite(history, known):
    for _, _, decision in play(history, known):
        memory = decision.memory
        counts = (*memory.capacity.load_misses.requests, *memory.capacity.load_misses.misses)
        numbers = (*memory.capacity.correction, *memory.capacity.loads, *counts)
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert 1e-4 <= memory.capacity.correction.trusted_share <= 2.0
        assert 0.0 <= memory.capacity.correction.load_spread <= 1.5
        assert 0.0 <= memory.capacity.correction.unavoidable_share <= 1.0
        assert len(memory.recommendations) <= 49


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e12", "nonsense"])
def test_a_reading_with_an_absurd_arrival_count_is_rejected_whole(value):
    results = {"targets": "1", "age_s": "1", "waiting": "0", "running": "0", "arrived": value}

    assert not isinstance(sample_from(results, 0.0), Sample)
