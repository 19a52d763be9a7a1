from dataclasses import replace

import pytest

from tangram.scaling import Sample, ScalingParams, SignalState, classify

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=300)
BUSY = Sample(at=100.0, targets=2, age_s=3, waiting=0, running=8, running_mean=8, requests=50)
IDLE = Sample(at=100.0, targets=2, age_s=3, waiting=0, running=0, running_mean=0, requests=0)


def state(sample, ready=2, now=100.0, problem=""):
    return classify(sample, problem, ready=ready, params=PARAMS, now=now).state


def test_recent_metrics_of_enough_requests_are_fresh():
    assert state(BUSY) is SignalState.FRESH


def test_proof_of_idleness_is_fresh():
    signal = classify(IDLE, "", ready=2, params=PARAMS, now=100.0)

    assert signal.state is SignalState.FRESH
    assert signal.light


@pytest.mark.parametrize("field", ["waiting", "running", "age_s", "targets"])
def test_idle_without_proof_is_blind(field):
    assert state(replace(IDLE, **{field: None})) is SignalState.BLIND


@pytest.mark.parametrize("field", ["requests", "running_mean"])
def test_idle_without_a_rate_is_thin(field):
    assert state(replace(IDLE, **{field: None})) is SignalState.THIN


def test_few_requests_at_a_time_count_as_light_load():
    few = replace(BUSY, requests=3, running=1, running_mean=0.4)

    assert classify(few, "", ready=2, params=PARAMS, now=100.0).light


def test_few_long_requests_are_thin():
    assert state(replace(BUSY, requests=3)) is SignalState.THIN


def test_a_replica_that_is_not_scraped_yet_makes_it_thin():
    assert state(BUSY, ready=3) is SignalState.THIN


def test_no_series_while_replicas_are_ready_is_blind():
    assert state(replace(BUSY, targets=0)) is SignalState.BLIND


def test_no_answer_ever_is_blind():
    assert state(None) is SignalState.BLIND


def test_nothing_ready_is_blind_for_another_reason():
    assert classify(BUSY, "", ready=0, params=PARAMS, now=100.0).reason == "NoReadyReplicas"


def test_a_good_sample_ages_while_prometheus_is_silent():
    verdicts = [
        state(BUSY, now=100.0 + age, problem="connection refused") for age in (0, 41, 43, 296, 298, 9999)
    ]

    assert verdicts == [
        SignalState.FRESH,
        SignalState.FRESH,
        SignalState.STALE,
        SignalState.STALE,
        SignalState.BLIND,
        SignalState.BLIND,
    ]


def test_the_problem_is_told():
    signal = classify(None, "connection refused", ready=1, params=PARAMS, now=100.0)

    assert "connection refused" in signal.message


@pytest.mark.parametrize(
    "bad",
    [{"window_s": 30}, {"scrape_interval_s": 0}, {"up_after_s": -1}, {"down_after_s": 0}, {"down_load": 1.5}],
)
def test_windows_that_cannot_work_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        replace(PARAMS, **bad)
