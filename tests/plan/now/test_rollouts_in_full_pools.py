"""A rollout in a pool without a free device completes and keeps the minimum."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import ApplyDeployment, ResumeRollout
from tangram.plan import plan
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload
from tests.support.rolling import Rolling

SLICE = shape("1g.10gb")


def intent_of(minimum, maximum=7):
    return intent(min_replicas=minimum, max_replicas=maximum)


def applied(observed, *intents):
    new_plan = plan(observed, intents, NOW)
    (decision,) = [d for d in new_plan.decisions if d.owner_uid == intents[0].uid]
    (action,) = [
        a for a in new_plan.actions if isinstance(a, ApplyDeployment) and a.owner_uid == intents[0].uid
    ]
    return decision, action


def snapshot_of(m, pool, state, *, in_place=False):
    running = workload(
        m,
        SLICE,
        state.replicas,
        available=state.available,
        updated=state.updated,
        total=state.total,
        in_place=in_place,
    )
    return snapshot(
        node("b", mig_1g_10gb=pool),
        claims=claims(m, SLICE, "b", state.available),
        workloads=(running,),
        desired=((m.uid, state.replicas),),
    )


def begun(m, pool, replicas):
    """The first round after the template changed: one surge pod was created, with or without a device."""
    state = Rolling(pool, replicas)
    state.step(0)
    return state


def test_a_rollout_with_a_free_device_starts_a_surge_pod_first():
    m = intent_of(1)
    _, action = applied(snapshot_of(m, 8, begun(m, 8, 7)), m)

    assert action.max_unavailable == 0


def test_a_rollout_in_a_full_pool_stops_a_pod_first():
    m = intent_of(1)
    decision, action = applied(snapshot_of(m, 7, begun(m, 7, 7)), m)

    assert (action.replicas, action.max_unavailable) == (7, 1)
    assert decision.placed_reason == "Placed"


def test_a_rollout_at_the_minimum_stops_no_pod_and_names_the_missing_device():
    m = intent_of(7)
    decision, action = applied(snapshot_of(m, 7, begun(m, 7, 7)), m)

    assert action.max_unavailable == 0
    assert decision.rollout_waits == "the rollout waits for one free 1g.10gb on H100-80GB-SXM"
    assert decision.rollout_waits in decision.placed_message


@pytest.mark.parametrize(("in_place", "expected"), [(True, 1), (False, 0)])
def test_a_device_freed_during_a_rollout_does_not_change_its_strategy(in_place, expected):
    m = intent_of(1)
    _, action = applied(snapshot_of(m, 8, Rolling(8, 7), in_place=in_place), m)

    assert action.max_unavailable == expected


def test_the_default_strategy_returns_after_the_rollout():
    m = intent_of(1)
    done = Rolling(7, 7)
    done.old, done.new = 0, 7
    _, action = applied(snapshot_of(m, 7, done, in_place=True), m)

    assert action.max_unavailable == 0


def test_pods_that_are_still_to_come_are_no_rollout():
    m = intent_of(1)
    growing = replace(snapshot_of(m, 3, Rolling(3, 3)), desired=((m.uid, 3),))
    few = replace(growing, workloads=(workload(m, SLICE, 3, available=2, updated=2, total=2),))
    _, action = applied(few, m)

    assert action.max_unavailable == 0


def test_replicas_lost_with_a_node_do_not_use_the_disruption_budget():
    m = intent_of(1)
    _, action = applied(snapshot_of(m, 5, begun(m, 5, 7)), m)

    assert (action.replicas, action.max_unavailable) == (7, 3)


def test_the_device_for_a_surge_pod_is_not_given_to_a_younger_llmdeployment():
    m, young = intent_of(1), intent("young", created_at=NOW)
    rolling = snapshot_of(m, 8, Rolling(8, 7))
    steady = replace(rolling, workloads=(replace(rolling.workloads[0], updated=7),))

    placed = [
        {d.owner_uid: d.placed for d in plan(observed, (m, young), NOW).decisions}
        for observed in (steady, rolling)
    ]
    assert placed == [{m.uid: 7, young.uid: 1}, {m.uid: 7, young.uid: 0}]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 8), st.integers(1, 9))
@settings(deadline=None)
def test_every_rollout_ends_or_names_what_it_waits_for_and_keeps_the_minimum(pool, replicas, below, later):
    minimum = max(1, replicas - below)
    m = intent_of(minimum, 9)
    state, in_place, strategies = Rolling(pool, replicas), False, []
    start = state.available
    state.step(0)
    decision = None
    for turn in range(60):
        size = max(pool, later) if turn > 5 else pool  # another one may leave the pool meanwhile
        state.units = size
        decision, action = applied(snapshot_of(m, size, state, in_place=in_place), m)
        assert action.replicas == replicas
        in_place = action.max_unavailable > 0
        strategies.append(in_place)
        state.step(action.max_unavailable)
        assert state.available >= min(start, minimum)

    is_done = state.total == state.updated
    assert is_done or decision.rollout_waits
    assert is_done == (decision.rollout_waits == "")
    assert not strategies[-1]
    assert sum(a != b for a, b in pairwise(strategies)) <= 2


def resumptions(**changes):
    """The actions that resume a Deployment of three replicas without a pod of the new template."""
    m = intent_of(1)
    observed = snapshot_of(m, 8, Rolling(8, 3))
    state = {"updated": 0, "total": 3, "settled": True} | changes
    observed = replace(observed, workloads=(replace(observed.workloads[0], **state),))
    return [action for action in plan(observed, (m,), NOW).actions if isinstance(action, ResumeRollout)]


def test_a_rollout_that_its_controller_has_observed_but_not_begun_is_resumed():
    (action,) = resumptions()

    assert action.replicas == 3


@pytest.mark.parametrize(
    "changes",
    [{"settled": False}, {"updated": 1}, {"updated": 3}, {"replicas": 2}],
    ids=["its controller has not seen it", "it has begun", "it is over", "its size is about to change"],
)
def test_a_rollout_in_progress_is_left_to_its_controller(changes):
    assert resumptions(**changes) == []
