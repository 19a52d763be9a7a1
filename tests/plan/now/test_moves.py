"""A move to another shape never drops capacity: old replicas stop as new ones take over their load."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import ApplyDeployment, Objective, ProvisionedLoad, RemoveDeployment, ScaleDeployment
from tangram.plan import plan
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload
from tests.support.kubernetes import Kubernetes

OLD, NEW = shape(), shape(sku="L4")


def moving(minimum=1, old=8, new=8, arrived=0, **changes):
    """An LLMDeployment that ran on H100s, which it may not use any more."""
    m = intent(min_replicas=minimum, max_replicas=8, denied_skus=("H100-80GB-SXM",), **changes)
    observed = snapshot(
        node("h", gpu=8),
        node("l", sku="L4", gpu=new),
        claims=claims(m, OLD, "h", old) + claims(m, NEW, "l", arrived),
        workloads=(workload(m, OLD, old), workload(m, NEW, min(8, new), available=arrived)),
        desired=((m.uid, 8),),
        desired_of=((m.uid, OLD),),
    )
    return m, observed


def left(m, observed):
    """Replicas of the old shape after the plan, and the decision."""
    new_plan = plan(observed, (m,), NOW)
    (old,) = [w for w in observed.workloads if w.shape == OLD]
    for action in new_plan.actions:
        if isinstance(action, RemoveDeployment) and action.uid == old.uid:
            return 0, new_plan.decisions[0]
        if isinstance(action, ScaleDeployment) and action.uid == old.uid:
            return action.replicas, new_plan.decisions[0]
    return old.replicas, new_plan.decisions[0]


@pytest.mark.parametrize(("arrived", "remaining"), [(0, 8), (1, 7), (3, 5), (7, 1), (8, 0)])
def test_as_many_old_replicas_stop_as_available_new_ones_replace(arrived, remaining):
    assert left(*moving(arrived=arrived))[0] == remaining


def test_old_replicas_stay_if_new_ones_find_no_free_devices_and_the_reason_is_reported():
    remaining, decision = left(*moving(new=3, arrived=3))

    assert remaining == 5
    assert decision.placed_reason == "InsufficientCapacity"
    assert (
        f"keeps 5 replicas on {OLD} until enough replicas of {NEW} are available" in decision.placed_message
    )


def test_a_move_does_not_change_the_old_template():
    m, observed = moving(arrived=3)
    assert [a.shape for a in plan(observed, (m,), NOW).actions if isinstance(a, ApplyDeployment)] == [NEW]


def test_replicas_above_the_desired_number_stop_without_replacement():
    m, observed = moving(arrived=0)
    assert left(m, replace(observed, desired=((m.uid, 4),)))[0] == 4


def test_a_new_deployment_that_its_controller_has_not_observed_counts_no_replicas():
    m, observed = moving(arrived=3)
    old, new = observed.workloads
    assert left(m, replace(observed, workloads=(old, replace(new, settled=False))))[0] == 8


def test_after_a_restart_replicas_of_unknown_rate_do_not_stop_early():
    """The number counts replicas of the new shape; the rate of a replica of the old one is unknown."""
    m, observed = moving(arrived=1)
    odd = replace(OLD, precision="fp16")  # not of this checkpoint
    old, new = observed.workloads
    restarted = replace(
        observed,
        workloads=(replace(old, shape=odd), new),
        desired=((m.uid, 3),),
        desired_of=((m.uid, NEW),),
    )
    new_plan = plan(restarted, (m,), NOW)
    assert not [a for a in new_plan.actions if isinstance(a, RemoveDeployment | ScaleDeployment)]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_move_keeps_the_available_capacity_whatever_pods_become_ready_or_fail(seed):
    rng = Random(seed)
    low = rng.randint(1, 4)
    count = rng.randint(low, 9)
    m = intent(min_replicas=low, max_replicas=9)
    cluster = Kubernetes([node("h", gpu=9), node("l", sku="L4", gpu=rng.randint(low, 12))], (), [], rng)
    first = replace(m, denied_skus=("L4",))
    cluster.change(first)
    cluster.desired[m.uid] = count
    for _ in range(6):
        cluster.perform(plan(cluster.seen(), (first,), NOW))
        cluster.pass_time(promptly=True)
    cluster.change(replace(m, denied_skus=("H100-80GB-SXM",), generation=2))

    for _ in range(25):
        before = share(cluster, count)
        new_plan = plan(cluster.seen(), tuple(cluster.intents.values()), NOW)
        cluster.perform(new_plan)
        (decision,) = new_plan.decisions
        assert share(cluster, count) >= min(before, 1) - 1e-9, decision.placed_message
        if rng.random() < 0.3:
            fail(cluster, rng)
        cluster.pass_time()
    for _ in range(10):
        cluster.perform(plan(cluster.seen(), tuple(cluster.intents.values()), NOW))
        cluster.pass_time(promptly=True)
    assert share(cluster, count) >= 1 - 1e-9
    if sum(n for _, n in cluster.nodes["l"].allocatable) >= decision.desired:
        assert {shape for _, shape in cluster.deployments} == {NEW}


def share(cluster, count):
    """Available replicas as a share of the desired ones: the whole on H100s is `count` replicas."""
    of_new = plan(cluster.seen(), tuple(cluster.intents.values()), NOW).decisions[0]
    whole = {OLD: count, NEW: of_new.desired if of_new.shape == NEW else count}
    return sum(min(d.available, d.replicas) / whole[d.shape] for d in cluster.deployments.values())


def fail(cluster, rng):
    """A pod stops being ready."""
    ready = [pod for d in cluster.deployments.values() for pod in d.living if pod.ready and d.shape == NEW]
    if ready:
        rng.choice(ready).ready = False


# 36 requests/s of 3000 + 100 tokens: 4 replicas on H100s (9.14 requests/s each), 22 on A100s (1.69).
LOAD = ProvisionedLoad(36.0, 3000.0, 100.0)
STRONG, WEAK = shape(), shape(sku="A100-80GB-SXM")


def between(old, new, kept, arrived, *, desired, free=40):
    """Return how many of `kept` replicas on `old` stay beside `arrived` ones on `new`."""
    m = intent(
        "m",
        "image:///m/8b",
        ttft=Objective(95, 1000),
        tpot=Objective(95, 60),
        max_replicas=40,
        denied_skus=(old.sku,),
    )
    observed = snapshot(
        node("s", gpu=40 if old == STRONG else free),
        node("w", sku="A100-80GB-SXM", gpu=40 if old == WEAK else free),
        claims=claims(m, old, "s" if old == STRONG else "w", kept)
        + claims(m, new, "w" if old == STRONG else "s", arrived),
        workloads=(workload(m, old, kept), workload(m, new, max(1, arrived), available=arrived)),
        desired=((m.uid, desired),),
        desired_of=((m.uid, old),),
        provisioned=((m.uid, LOAD),),
    )
    new_plan = plan(observed, (m,), NOW)
    (before,) = [w for w in observed.workloads if w.shape == old]
    for action in new_plan.actions:
        if isinstance(action, RemoveDeployment | ScaleDeployment) and action.uid == before.uid:
            return action.replicas if isinstance(action, ScaleDeployment) else 0
    return kept


@pytest.mark.parametrize(
    ("arrived", "remaining"),
    # With one new replica 22 get equal parts; 19 beside three of the new ones; four carry the load alone.
    [(0, 22), (1, 21), (3, 19), (4, 0)],
)
def test_beside_stronger_replicas_weak_ones_stay_until_the_load_needs_none_of_them(arrived, remaining):
    assert between(WEAK, STRONG, 22, arrived, desired=22) == remaining


@pytest.mark.parametrize(
    ("arrived", "remaining"), [(0, 4), (1, 4), (17, 4), (18, 4), (19, 3), (21, 1), (22, 0)]
)
def test_beside_weaker_replicas_strong_ones_stay_until_so_many_are_there_as_the_weak_ones_need(
    arrived, remaining
):
    assert between(STRONG, WEAK, 4, arrived, desired=4) == remaining


def test_without_devices_for_all_weaker_replicas_the_strong_ones_stay():
    assert between(STRONG, WEAK, 4, 10, desired=4, free=10) == 4


@pytest.mark.parametrize(("old", "new", "desired"), [(WEAK, STRONG, 22), (STRONG, WEAK, 4)])
def test_a_move_never_leaves_fewer_replicas_than_the_weakest_needs(old, new, desired):
    """Each round some of the missing new replicas become ready; each gets an equal part of the load."""
    rate = {STRONG: 9.1434, WEAK: 1.6868}
    kept, arrived, alone = desired, 0, 26 - desired
    while kept:
        before = (kept + arrived) * min(rate[s] for s, n in ((old, kept), (new, arrived)) if n)
        kept = between(old, new, kept, arrived, desired=desired)
        left = [s for s, n in ((old, kept), (new, arrived)) if n]
        carried = (kept + arrived) * min(rate[s] for s in left)
        assert carried >= min(before, 36.0) - 1e-6
        arrived = min(alone, arrived + 1)


def test_a_move_among_replicas_that_share_devices_proceeds_in_parts():
    """On twelve slices: nine replicas in fp8 become twelve in bf16, which gain devices from them alone."""
    m = intent("m", "image:///m/8b", tpot=Objective(95, 60), ttft=Objective(95, 1000), max_replicas=40)
    old, new = shape("3g.40gb", precision="fp8"), shape("3g.40gb")
    kept, arrived, before = 9, 3, None
    while (kept, arrived) != before:
        before = kept, arrived
        observed = snapshot(
            node("s", mig_3g_40gb=12),
            claims=claims(m, old, "s", kept) + claims(m, new, "s", arrived),
            workloads=(workload(m, old, kept), workload(m, new, arrived)),
            desired=((m.uid, 9),),
            desired_of=((m.uid, old),),
            provisioned=((m.uid, LOAD),),
        )
        new_plan = plan(observed, (m,), NOW)
        (arrived,) = [a.replicas for a in new_plan.actions if isinstance(a, ApplyDeployment)]
        kept = min((a.replicas for a in new_plan.actions if isinstance(a, ScaleDeployment)), default=kept)

    assert (kept, arrived) == (3, 9)  # no replica in bf16 may take the place of one in fp8 before it is ready
