"""The load that replicas are ordered for: replicas of other shapes are counted by it, so it must last."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from tangram.fleet import Objective, ProvisionedLoad
from tangram.scaling import (
    CapacityMemory,
    Sample,
    ScalingMemory,
    ScalingObservation,
    ScalingParams,
    classify,
    decide,
    recalled,
    record,
)
from tangram.scaling.feed_forward import ExpectedMisses
from tangram.scaling.outlook.forecast import Forecast
from tangram.scaling.outlook.load_history import LoadHistory, extended
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.load_steps import provisioned_load, rate_step
from tangram.scaling.outlook.mixture import Mixture
from tangram.scaling.outlook.replica_capacity import CapacityCorrection, ReplicaCapacity
from tangram.scaling.sample import Window
from tests.support.fleet import intent

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=30, down_after_s=300)
CHAT = intent(min_replicas=1, max_replicas=40, ttft=Objective(90, 1000), tpot=Objective(90, 50))
MIXTURE = Mixture(700.0, 150.0)


def knee(rate):
    """Return a capacity with a knee: hardly any request misses below it, nearly all a tenth above."""
    return ReplicaCapacity(((99, 0.98 * rate), (95, 0.99 * rate), (90, rate), (50, 1.05 * rate)))


def sample(at, rate, waiting=0.0, attainment=0.99):
    counted = {"requests": 60 * rate, "arrived": 60 * rate}
    met = {"ttft_attainment": attainment, "tpot_attainment": attainment, "itl_attainment": attainment}
    wider = Window(300.0, 300 * rate, 4.0, attainment, attainment, attainment, True, 300 * rate)
    return Sample(
        at=at,
        targets=20.0,
        age_s=3.0,
        waiting=waiting,
        running=4.0,
        running_mean=4.0,
        kv_usage=0.1,
        wider=(wider,),
        **counted,
        **met,
    )


def decided(
    memory, at, rate, *, ready=4, replica_rate=2.0, mixture=MIXTURE, history=None, of=CHAT, **reading
):
    signal = classify(sample(at, rate, **reading), "", ready=ready, params=PARAMS, now=at)
    known = None
    if replica_rate:
        past = LoadHistory(at, (rate,) * 240) if history is None else history
        known = LoadOutlook(past, knee(replica_rate), 60.0, mixture=mixture)
    memory = memory if memory.replicas is not None else replace(memory, replicas=ready)
    return decide(memory, PARAMS, of, ScalingObservation(at, ready, signal, outlook=known))


def held(replicas, rate, **changes):
    return ScalingMemory(replicas=replicas, provisioned=ProvisionedLoad(rate, 700.0, 150.0), **changes)


def test_of_the_last_replica_only_the_part_that_is_needed_counts():
    # 5 requests/s; a replica meets the P90 up to 2: two and a half replicas would do, so three are needed.
    misses = ExpectedMisses(Forecast(60.0, 5.0, (5.0,) * 9), knee(2.0))

    assert misses.replicas_within(0.1, 2.0) == 3
    assert 2.5 <= misses.least_part(0.1, 3) <= 2.5 * 1.03


def test_a_large_replica_with_little_load_is_counted_by_the_load():
    misses = ExpectedMisses(Forecast(60.0, 0.3, (0.3,) * 9), knee(30.0))

    assert misses.replicas_within(0.1, 30.0) == 1
    assert 0.3 <= misses.least_part(0.1, 1) * 30.0 <= 0.31


def test_where_more_replicas_prevent_too_few_misses_all_of_them_count():
    at_any_load = ReplicaCapacity(((99, 0.0), (95, 0.0), (90, 0.0), (50, 2.0)))
    misses = ExpectedMisses(Forecast(60.0, 5.0, (5.0,) * 9), at_any_load)

    assert misses.least_part(0.1, 4) == 4


@pytest.mark.parametrize("replicas", [1, 2, 9, 40])
def test_the_part_takes_few_evaluations(monkeypatch, replicas):
    evaluated, real = [], ExpectedMisses._per_second
    monkeypatch.setattr(ExpectedMisses, "_per_second", lambda self, n: evaluated.append(n) or real(self, n))

    ExpectedMisses(Forecast(60.0, 2.0 * replicas - 1, (2.0 * replicas - 1,) * 9), knee(2.0)).least_part(
        0.1, replicas
    )

    assert len(evaluated) <= 8


@pytest.mark.parametrize(
    ("rate", "step"), [(1.0, 0), (1.0 + 1e-9, 0), (1.1, 1), (1.11, 2), (1.21, 2), (0.5, -7)]
)
def test_a_rate_becomes_the_next_higher_step(rate, step):
    assert rate_step(rate) == step
    assert 1.1**step >= 0.995 * rate


def test_lengths_keep_their_step_until_they_are_a_whole_step_away():
    first = provisioned_load(None, 5, Mixture(1000.0, 200.0), 0.5)
    near = provisioned_load(first, 5, Mixture(first.prompt_tokens * 1.09, first.answer_tokens / 1.09), 0.5)
    far = provisioned_load(first, 5, Mixture(first.prompt_tokens * 2, first.answer_tokens), 0.5)

    assert near == first
    assert far.prompt_tokens == pytest.approx(2 * first.prompt_tokens, rel=0.05)
    assert far.answer_tokens == first.answer_tokens


def test_a_correction_above_the_prediction_is_of_one_shape_alone():
    assert provisioned_load(None, 0, MIXTURE, 1.7).trusted_share == 1.0
    assert provisioned_load(None, 0, MIXTURE, 0.5).trusted_share == pytest.approx(0.5, rel=0.05)


def test_the_load_rises_at_once():
    decision = decided(held(3, 5.0), 0.0, 11.0)

    assert decision.provisioned.requests_per_second >= 11.0
    assert (
        decision.provisioned.requests_per_second <= 1.1 * decision.need.replica_rate * decision.need.replicas
    )


def test_the_load_falls_after_the_window_like_the_replicas():
    memory, seen = held(9, 17.5), []
    for at in range(0, 700, 15):
        decision = decided(memory, float(at), 3.0, ready=9, attainment=1.0)
        memory = decision.memory
        seen.append((decision.replicas, decision.provisioned.requests_per_second))
    before, after = seen[:20], seen[-1]

    assert set(before) == {(9, 17.5)}
    assert after[0] == 2
    assert 3.0 <= after[1] <= 4.0


def test_replicas_that_a_queue_adds_are_a_load():
    decision = decided(held(2, 1.5, queued_since=0.0), 600.0, 0.1, ready=2, waiting=40.0)

    assert (decision.reason, decision.replicas) == ("QueueGrowing", 6)
    assert decision.provisioned.requests_per_second >= 0.995 * 6 * decision.need.replica_rate


def test_one_reading_cannot_order_a_fleet_of_another_shape():
    """At a knee the misses of one minute may divide what a replica is trusted with by ten."""
    decision = decided(held(2, 1.5), 0.0, 100.0, ready=2)
    needed = decision.need.replicas
    carried = decision.provisioned.requests_per_second

    assert (decision.replicas, needed) == (6, 50)
    assert carried <= 6 * decision.need.replica_rate * 1.1


def test_without_a_forecast_the_load_is_known_as_long_as_the_number_stays():
    same = decided(held(2, 3.0), 0.0, 1.0, ready=2, replica_rate=None)
    grown = decided(held(2, 3.0), 600.0, 1.0, ready=2, replica_rate=None, attainment=0.3)

    assert same.provisioned == held(2, 3.0).provisioned
    assert grown.replicas == 3
    assert grown.provisioned is None


@pytest.mark.parametrize("of", [replace(CHAT, max_replicas=1), replace(CHAT, replicas=1, max_replicas=1)])
def test_bounds_and_a_number_from_outside_do_not_change_the_load(of):
    bounded = decided(held(1, 3.0), 0.0, 7.0, ready=1, of=of)

    assert bounded.replicas == 1
    assert bounded.provisioned.requests_per_second >= 7.0


def test_without_fresh_metrics_the_load_is_the_last_one():
    memory = held(2, 3.0)
    signal = classify(None, "", ready=2, params=PARAMS, now=0.0)
    decision = decide(memory, PARAMS, CHAT, ScalingObservation(0.0, 2, signal))

    assert decision.provisioned == memory.provisioned


def test_a_steady_noisy_load_is_recorded_a_few_times_in_twelve_hours():
    rng, memory, history, loads = Random(5), ScalingMemory(replicas=4), LoadHistory(0.0), []
    for step in range(1, 12 * 240):
        at = 15.0 * step
        rate = rng.gauss(600, 600**0.5) / 60  # ten requests/s on average, Poisson
        if step % 4 == 0:
            history = extended(history, rate, at, 240)
        lengths = Mixture(700 * rng.uniform(0.96, 1.04), 150 * rng.uniform(0.96, 1.04))
        memory = decided(memory, at, rate, ready=7, history=history, mixture=lengths).memory
        loads.append(memory.provisioned)
    settled = loads[480:]

    changes = sum(before != after for before, after in pairwise(settled))
    assert changes <= 4
    assert all(load.requests_per_second >= 10.0 for load in settled)


def test_it_goes_through_a_status():
    load = provisioned_load(None, 23, Mixture(1234.0, 99.0), 0.5)
    memory = ScalingMemory(
        subject="x", capacity=CapacityMemory(CapacityCorrection(load.trusted_share)), provisioned=load
    )
    block = record(memory)

    again = recalled(block).provisioned
    assert again == load
    later = provisioned_load(again, rate_step(load.requests_per_second), Mixture(1234.0, 99.0), 0.5)
    assert record(replace(recalled(block), provisioned=later)) == block


@pytest.mark.parametrize("missing", ["RequestsPerSecond", "PromptTokens", "AnswerTokens", "TrustedShare"])
def test_a_record_with_a_part_missing_is_no_load(missing):
    load = provisioned_load(None, 0, MIXTURE, 1.0)
    block = record(ScalingMemory(subject="x", provisioned=load))

    assert (
        recalled({name: v for name, v in block.items() if name != f"provisioned{missing}"}).provisioned
        is None
    )
