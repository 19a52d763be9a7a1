"""Which shapes have replicas that become ready, and which have late ones alone."""

from dataclasses import replace
from random import Random

import pytest

from tangram.fleet import FetchState, Shape, StartOutcome, Unscheduled
from tangram.scaling import ScalingParams, SupplyMemory
from tangram.scaling import ordered_replicas as supply
from tests.support.fleet import NOW, intent, shape, workload

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120, start_s=60)
M = intent(min_replicas=2)
SLICE, WHOLE = shape("1g.10gb"), shape()
DEADLINE_S = 180.0


class Starts:
    """The starts of one LLMDeployment over time, observed every 15 seconds."""

    def __init__(self, start_s=None):
        self.starts, self.now, self.memory = (), NOW, SupplyMemory(start_s=start_s)

    def see(self, *workloads, seconds=15.0):
        end = self.now + seconds
        while self.now < end:
            self.now += 15.0
            self.starts = supply.observe_shapes(self.starts, workloads, self.memory, PARAMS, self.now)
        return self.late

    @property
    def late(self):
        return {o.shape: o.is_late for o in supply.start_outcomes(M.uid, self.starts)}


def crashing(at=SLICE, **changes):
    return workload(M, at, 2, **{"available": 0, **changes})


def test_a_shape_of_which_no_replica_is_ready_by_the_deadline_is_late():
    starts = Starts()

    assert starts.see(crashing(), seconds=DEADLINE_S) == {}
    assert starts.see(crashing()) == {SLICE: True}


def test_a_shape_whose_pods_fetch_their_checkpoint_is_not_late_until_one_has_it():
    starts, fetch = Starts(), FetchState(size=140 * 10**9, pods=2, fetched=0, since=NOW)

    assert starts.see(crashing(fetch=fetch), seconds=9000) == {}
    starts.see(crashing(fetch=replace(fetch, fetched=1)), seconds=DEADLINE_S)
    assert starts.see(crashing(fetch=replace(fetch, fetched=1))) == {SLICE: True}


def test_a_runtime_that_may_start_for_longer_is_not_late_unless_it_crashes():
    slow = {"start_budget_s": 1300}

    assert Starts().see(crashing(message="CrashLoopBackOff", **slow), seconds=DEADLINE_S + 15) == {
        SLICE: True
    }
    starts = Starts()
    assert starts.see(crashing(**slow), seconds=1300) == {}
    assert starts.see(crashing(**slow), seconds=30) == {SLICE: True}


def test_a_shape_with_a_ready_replica_is_not_late_however_many_others_are():
    assert Starts().see(crashing(available=1), seconds=9000) == {SLICE: False}


def test_the_deadline_is_never_shorter_than_before_a_start_was_measured():
    assert Starts(start_s=5.0).see(crashing(), seconds=DEADLINE_S) == {}
    slow = Starts(start_s=300.0)
    assert slow.see(crashing(), seconds=900) == {}
    assert slow.see(crashing()) == {SLICE: True}


def test_a_replica_that_is_ready_for_a_moment_between_two_crashes_changes_nothing():
    starts = Starts()
    for _ in range(8):
        starts.see(crashing(available=1))
        starts.see(crashing(), seconds=45)

    assert starts.see(crashing(available=1)) == {SLICE: True}
    assert starts.see(crashing(available=1), seconds=60) == {SLICE: False}


@pytest.mark.parametrize(
    "waiting",
    [
        {"total": 2, "unscheduled": Unscheduled(2, NOW, "0/1 nodes are available")},
        {"total": 0, "updated": 0, "refused": "FailedCreate: exceeded quota: pods"},
        {"replicas": 0, "total": 0},
    ],
)
def test_replicas_that_wait_for_a_device_or_a_quota_are_not_late(waiting):
    starts = Starts()
    assert starts.see(replace(crashing(), **waiting), seconds=9000) == {}
    assert starts.see(crashing(), seconds=DEADLINE_S - 15) == {}


def test_replicas_that_are_ready_during_a_rollout_say_nothing_about_its_revision():
    rolling = crashing(available=1, total=3, updated=1)
    assert Starts().see(rolling, seconds=9000) == {}


def test_another_revision_starts_anew():
    starts = Starts()
    starts.see(crashing(), seconds=300)

    assert starts.see(crashing(owner_generation=2)) == {}


def test_a_clock_that_is_set_back_makes_nothing_late():
    starts = Starts()
    starts.see(crashing(), seconds=150)
    starts.now -= 7200.0

    assert starts.see(crashing(), seconds=DEADLINE_S) == {}


def test_each_shape_has_its_own_deadline():
    starts = Starts()
    starts.see(crashing(), seconds=195)

    assert starts.see(crashing(), crashing(WHOLE)) == {SLICE: True}
    assert starts.see(crashing(), crashing(WHOLE), seconds=195) == {SLICE: True, WHOLE: True}


def test_what_runs_no_more_is_forgotten():
    starts = Starts()
    starts.see(crashing(), seconds=300)

    assert starts.see() == {}
    assert starts.starts == ()


def test_a_thousand_shapes_are_each_observed_in_any_order():
    shapes = [Shape("H100-80GB-SXM", f"{i}g.10gb") for i in range(1000)]
    starts, workloads = Starts(), [crashing(at, available=i % 2) for i, at in enumerate(shapes)]
    starts.see(*workloads, seconds=195)
    once = starts.starts
    Random(0).shuffle(workloads)

    assert supply.observe_shapes(once, workloads, starts.memory, PARAMS, starts.now) == once
    assert starts.late == {at: not i % 2 for i, at in enumerate(shapes)}


def test_an_outcome_names_the_revision_that_it_is_about():
    starts = Starts()
    starts.see(crashing(owner_generation=7), seconds=195)

    assert supply.start_outcomes("u", starts.starts) == (StartOutcome("u", SLICE, 7, is_late=True),)
