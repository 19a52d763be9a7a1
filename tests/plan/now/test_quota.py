"""No devices are reserved for replicas that cannot start: quotas, refused pods, excessive requests."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.fleet import (
    ApplyDeployment,
    BackOff,
    FactsKey,
    InvalidIntent,
    Node,
    Objective,
    PodNeeds,
    PriorityClass,
    QuotaLimit,
    WriteProblem,
)
from tangram.plan import plan, render_status
from tests.support.fleet import CHECKPOINTS, IMAGE, NOW, claims, intent, node, shape, snapshot, workload

WHOLE = shape()
GPU = "requests.nvidia.com/gpu"
NEEDS = PodNeeds(cpu_per_gpu=8.0, memory_per_gpu=64 * 2.0**30)
REFUSED = 'FailedCreate: pods "x" is forbidden: violates PodSecurity "restricted:latest"'


FACTS = tuple(
    (FactsKey(namespace, uri, IMAGE), facts)
    for namespace in ("greedy", "plain")
    for uri, facts in CHECKPOINTS.items()
)


def seeing(*nodes, **changes):
    return snapshot(*nodes, pod_needs=NEEDS, facts=FACTS, **changes)


def fleet(gpus=32, **changes):
    return seeing(node("n", gpu=gpus), **changes)


def quota(resource, hard, used=0.0, namespace="greedy", name="gpus"):
    return QuotaLimit(namespace, name, resource, float(hard), float(used))


def greedy(number=0, minimum=1000):
    return intent(f"g{number}", namespace="greedy", min_replicas=minimum, created_at=NOW - 5000)


def ordinary():
    return intent("plain", namespace="plain", min_replicas=4, max_replicas=8)


def placed(new_plan):
    return {d.owner_uid: d.placed for d in new_plan.decisions}


def replicas(new_plan):
    return {a.owner_uid: a.replicas for a in new_plan.actions if isinstance(a, ApplyDeployment)}


@pytest.mark.parametrize("resource", ["pods", "count/pods", GPU, "requests.cpu", "cpu", "limits.memory"])
def test_a_quota_of_zero_leaves_the_gpus_to_other_llmdeployments_at_once(resource):
    g, m = greedy(), ordinary()
    new_plan = plan(fleet(quotas=(quota(resource, 0),)), (g, m), NOW)

    assert placed(new_plan) == {g.uid: 0, m.uid: 4}
    decision = {d.owner_uid: d for d in new_plan.decisions}[g.uid]
    assert decision.placed_reason == "QuotaExceeded"
    assert f"ResourceQuota gpus of namespace greedy: 0 of 0 {resource} are used" in decision.placed_message
    assert g.uid not in replicas(new_plan)


@pytest.mark.parametrize("resource", ["count/deployments.apps", "count/replicasets.apps"])
def test_no_devices_are_reserved_if_a_quota_allows_no_new_deployment(resource):
    g, m = greedy(), ordinary()
    new_plan = plan(fleet(quotas=(quota(resource, 2, 2),)), (g, m), NOW)

    assert placed(new_plan) == {g.uid: 0, m.uid: 4}


@pytest.mark.parametrize(
    ("resource", "hard", "used", "expected"),
    [(GPU, 5, 0, 5), (GPU, 5, 2, 3), (GPU, 2, 5, 0), ("cpu", 20, 0, 2), ("memory", 200 * 2**30, 0, 3)],
)
def test_no_more_replicas_are_planned_than_the_quota_leaves(resource, hard, used, expected):
    g = intent("g", namespace="greedy", min_replicas=1, max_replicas=1000)
    observed = fleet(quotas=(quota(resource, hard, used),), desired=((g.uid, 100),))
    new_plan = plan(observed, (g,), NOW)

    assert placed(new_plan) == {g.uid: expected}


def test_many_greedy_llmdeployments_share_one_quota_and_another_namespace_is_served():
    many = tuple(greedy(i) for i in range(40))
    m = ordinary()
    new_plan = plan(fleet(quotas=(quota("pods", 6, 2),)), (*many, m), NOW)
    replicas_by_owner = placed(new_plan)

    assert replicas_by_owner.pop(m.uid) == 4
    assert sum(replicas_by_owner.values()) == 4
    assert replicas_by_owner[many[0].uid] == 4


def test_a_quota_of_another_namespace_changes_nothing():
    m = ordinary()
    assert placed(plan(fleet(quotas=(quota("pods", 0),)), (m,), NOW)) == {m.uid: 4}


def test_running_replicas_stay_when_a_quota_is_lowered():
    m = intent("g", namespace="greedy", min_replicas=1, max_replicas=8)
    observed = fleet(
        claims=claims(m, WHOLE, "n", 8), workloads=(workload(m, WHOLE, 8),), quotas=(quota("pods", 3, 8),)
    )
    new_plan = plan(observed, (m,), NOW)

    assert replicas(new_plan) == {m.uid: 8}
    assert new_plan.decisions[0].placed_reason == "Placed"


def test_another_shape_is_used_if_the_quota_allows_that_one():
    m = intent("g", namespace="greedy", min_replicas=2)
    observed = seeing(node("n", gpu=4), node("l", sku="L4", gpu=4), node("s", mig_1g_20gb=4))
    new_plan = plan(replace(observed, quotas=(quota(GPU, 0),)), (m,), NOW)

    assert new_plan.decisions[0].placed == 2
    assert new_plan.decisions[0].shape == shape("1g.20gb")
    assert "QuotaExceeded" in {lost.rejected_because for lost in new_plan.decisions[0].alternatives}


# --- rollouts


def rolling(minimum, used):
    m = intent("g", namespace="greedy", min_replicas=minimum, max_replicas=4)
    old = workload(m, WHOLE, 4, updated=0)
    observed = fleet(
        claims=claims(m, WHOLE, "n", 4),
        workloads=(old,),
        quotas=(quota("pods", 4, used),),
        desired=((m.uid, 4),),
    )
    new_plan = plan(observed, (m,), NOW)
    (action,) = [a for a in new_plan.actions if isinstance(a, ApplyDeployment)]
    return action, new_plan.decisions[0]


def test_a_rollout_without_quota_for_a_surge_pod_goes_in_place():
    action, decision = rolling(1, 4)
    assert (action.replicas, action.max_unavailable, decision.rollout_waits) == (4, 1, "")


def test_a_rollout_at_the_minimum_waits_and_names_the_quota():
    action, decision = rolling(4, 4)
    assert (action.replicas, action.max_unavailable) == (4, 0)
    assert "ResourceQuota gpus of namespace greedy: 4 of 4 pods are used" in decision.rollout_waits


def test_a_rollout_with_quota_for_a_surge_pod_starts_it_first():
    action, decision = rolling(4, 3)
    assert (action.max_unavailable, decision.rollout_waits) == (0, "")


# --- refused pods


def refused(message=REFUSED, total=0, replicas=32, **changes):
    g, m = greedy(), ordinary()
    stuck = workload(g, WHOLE, replicas, available=total, total=total, updated=total, refused=message)
    return g, m, fleet(workloads=(stuck,), claims=claims(g, WHOLE, "n", total), **changes)


def test_after_a_refusal_the_devices_go_to_other_llmdeployments():
    g, m, observed = refused()
    new_plan = plan(observed, (g, m), NOW)

    assert placed(new_plan) == {g.uid: 0, m.uid: 4}
    assert replicas(new_plan)[g.uid] == 0
    decision = {d.owner_uid: d for d in new_plan.decisions}[g.uid]
    assert decision.placed_reason == "FailedCreate"
    assert "violates PodSecurity" in decision.placed_message
    assert "is tried again at 2026-11-21T" in decision.placed_message


def test_pods_created_before_the_refusal_stay():
    g, m, observed = refused(total=3)
    new_plan = plan(observed, (g, m), NOW)

    assert placed(new_plan) == {g.uid: 3, m.uid: 4}
    assert replicas(new_plan)[g.uid] == 3


def test_a_refusal_is_ignored_until_the_controller_observes_the_deployment():
    g, m, observed = refused()
    old = replace(observed.workloads[0], settled=False)
    assert not plan(replace(observed, workloads=(old,)), (g, m), NOW).decisions[0].back_offs


def later(observed, new_plan, **changes):
    """The fleet after the plan, with its recorded back-offs."""
    back_offs = tuple(sorted(back_off for d in new_plan.decisions for back_off in d.back_offs))
    return replace(observed, back_offs=back_offs, **changes)


def test_one_probe_pod_follows_the_back_off_and_each_failure_doubles_it():
    g, _, observed = refused()
    now, waits = NOW, []
    for _ in range(6):
        new_plan = plan(observed, (g,), now)
        (back_off,) = new_plan.decisions[0].back_offs
        waits.append(back_off.until - now)
        assert replicas(new_plan)[g.uid] == 0
        calm = workload(g, WHOLE, 0)
        observed = later(observed, new_plan, workloads=(calm,))
        assert replicas(plan(observed, (g,), back_off.until - 1))[g.uid] == 0
        assert replicas(plan(observed, (g,), back_off.until))[g.uid] == 1
        now = back_off.until + 2
        observed = replace(observed, workloads=(replace(calm, replicas=1, refused=REFUSED),))
    assert waits == [30, 60, 120, 240, 300, 300]


def test_all_pods_follow_when_the_probe_pod_is_created():
    g, _, observed = refused()
    new_plan = plan(observed, (g,), NOW)
    (back_off,) = new_plan.decisions[0].back_offs
    running = workload(g, WHOLE, 1)
    observed = later(observed, new_plan, workloads=(running,), claims=claims(g, WHOLE, "n"))
    new_plan = plan(observed, (g,), back_off.until + 5)

    assert new_plan.decisions[0].back_offs == ()
    assert placed(new_plan) == {g.uid: 32}


def test_an_edited_spec_ends_the_back_off():
    g, _, observed = refused()
    observed = later(observed, plan(observed, (g,), NOW), workloads=(workload(g, WHOLE, 0),))

    assert placed(plan(observed, (replace(g, generation=2),), NOW + 1)) == {g.uid: 32}


def test_a_quota_with_room_again_shortens_the_back_off():
    words = 'FailedCreate: pods "x" is forbidden: exceeded quota: gpus, requested: pods=1'
    g, _, observed = refused(words)
    full, open_again = (quota("pods", 4, 4),), (quota("pods", 8, 4),)
    back_off = BackOff(g.uid, 1, WHOLE, "QuotaExceeded", words, 0, NOW - 900, NOW + 280, 5)
    observed = replace(observed, back_offs=(back_off,), workloads=(workload(g, WHOLE, 0),))

    assert placed(plan(replace(observed, quotas=full), (g,), NOW + 20)) == {g.uid: 0}
    assert placed(plan(replace(observed, quotas=open_again), (g,), NOW + 9)) == {g.uid: 0}
    assert placed(plan(replace(observed, quotas=open_again), (g,), NOW + 10)) == {g.uid: 1}


def test_new_llmdeployments_of_a_namespace_with_refused_pods_start_one_probe_pod():
    g, m, observed = refused()
    many = tuple(greedy(i) for i in range(1, 20))
    new_plan = plan(observed, (g, *many, m), NOW)

    assert placed(new_plan)[m.uid] == 4
    assert max(n for uid, n in placed(new_plan).items() if uid != m.uid) == 1


def test_no_devices_are_reserved_for_a_deployment_that_the_api_server_refuses():
    g, m = greedy(), ordinary()
    problem = WriteProblem(g.uid, "Forbidden", "denied by policy")
    new_plan = plan(fleet(problems=(problem,)), (g, m), NOW)

    assert placed(new_plan) == {g.uid: 0, m.uid: 4}
    assert replicas(new_plan)[g.uid] == 0  # tried without replicas: it takes no room


def test_a_refused_deployment_is_retried_on_the_chosen_shape():
    g = greedy(minimum=2)
    observed = seeing(node("n", gpu=9), node("l", sku="L4", gpu=3))
    chosen = plan(observed, (g,), NOW).decisions[0].shape
    problem = WriteProblem(g.uid, "NameTaken", "taken")
    again = plan(replace(observed, problems=(problem,)), (g,), NOW)

    assert again.decisions[0].shape == chosen == shape(sku="L4")


def test_a_back_off_takes_a_few_hundred_bytes_of_the_status():
    g, _, observed = refused("FailedCreate: " + "x" * 5000)
    decision = plan(observed, (g,), NOW).decisions[0]
    block = render_status(decision, g, observed, None, None, {}, NOW)["backOffs"]

    assert len(block) == 1
    assert len(str(block)) < 500


@given(
    hard=st.integers(0, 12),
    mins=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    gpus=st.integers(0, 20),
    memory=st.sampled_from([None, 64 * 3, 64 * 7]),
)
@settings(max_examples=80, deadline=None)
def test_plans_keep_quotas_in_every_round_and_use_what_they_leave(hard, mins, gpus, memory):
    owners = tuple(greedy(i, low) for i, low in enumerate(mins))
    machine: Node = node("n", gpu=max(gpus, 1))
    pods = dict.fromkeys((g.uid for g in owners), 0)
    allowed = hard if memory is None else min(hard, memory // 64)
    for _ in range(4):
        used = float(sum(pods.values()))
        limits = [quota("pods", hard, used)]
        limits += [quota("requests.memory", memory * 2**30, used * 64 * 2**30, name="mem")] if memory else []
        observed = seeing(
            machine,
            quotas=tuple(sorted(limits)),
            workloads=tuple(workload(g, WHOLE, pods[g.uid]) for g in owners if pods[g.uid]),
            claims=tuple(c for g in owners for c in claims(g, WHOLE, "n", pods[g.uid])),
        )
        pods |= replicas(plan(observed, owners, NOW))
        assert sum(pods.values()) <= min(allowed, max(gpus, 1))
    assert sum(pods.values()) == min(allowed, max(gpus, 1), sum(mins))


@pytest.mark.parametrize(
    "change",
    [
        lambda g: replace(g, paused=True),
        lambda g: replace(g, served_name="older"),
        lambda g: InvalidIntent(g.uid, g.namespace, g.name, g.generation, g.created_at, "spec is odd"),
    ],
    ids=["paused", "not accepted", "invalid"],
)
def test_no_devices_are_reserved_for_refused_pods_of_an_llmdeployment_left_as_it_is(change):
    g, m, observed = refused()
    older = intent("older", namespace="greedy", created_at=NOW - 9000, paused=True)
    new_plan = plan(observed, (older, change(g), m), NOW)

    assert placed(new_plan)[m.uid] == 4
    assert g.uid not in replicas(new_plan)


def test_an_llmdeployment_that_leaves_a_shape_in_back_off_gets_its_quota_first():
    slice_ = shape("1g.10gb")
    first = intent("first", namespace="greedy", min_replicas=4, created_at=NOW - 5000)
    second = intent("second", namespace="greedy", min_replicas=3, max_replicas=3)
    stuck = BackOff(first.uid, 1, slice_, "Unschedulable", "cpu", 1, NOW - 10, NOW + 290, 1)
    observed = seeing(
        node("a", mig_1g_10gb=7),
        node("b", gpu=8),
        quotas=(quota("pods", 6, 1),),
        workloads=(workload(first, slice_, 1),),
        claims=claims(first, slice_, "a"),
        back_offs=(stuck,),
    )
    new_plan = plan(observed, (first, second), NOW)

    assert sum(replicas(new_plan).values()) == 5
    assert placed(new_plan) == {first.uid: 4, second.uid: 1}


def test_growth_on_a_too_slow_shape_gets_its_quota_first():
    slow = intent("slow", namespace="greedy", max_replicas=8, tpot=Objective(90, 1), created_at=NOW - 5000)
    other = intent("other", namespace="greedy", min_replicas=3)
    observed = fleet(
        quotas=(quota("pods", 5, 1),),
        workloads=(workload(slow, WHOLE, 1),),
        claims=claims(slow, WHOLE, "n"),
        desired=((slow.uid, 4),),
    )
    new_plan = plan(observed, (slow, other), NOW)

    assert replicas(new_plan) == {slow.uid: 4, other.uid: 1}


# --- quotas of a PriorityClass


def of_class(name, hard, *terms):
    return replace(quota("pods", hard, name=name), priority_classes=terms or (("In", (name,)),))


def test_a_quota_of_a_priority_class_bounds_only_replicas_of_that_class():
    gold = replace(greedy(0, minimum=4), priority_class_name="gold")
    lead = replace(greedy(1, minimum=4), priority_class_name="lead")
    new_plan = plan(fleet(quotas=(of_class("gold", 1), of_class("lead", 2))), (gold, lead), NOW)
    assert replicas(new_plan) == {gold.uid: 1, lead.uid: 2}


def test_new_replicas_count_with_the_class_of_the_template_until_the_next_rollout():
    owner = replace(greedy(0, minimum=4), priority_class_name="gold")
    running = workload(owner, WHOLE, 1, priority_class_name="lead")
    held = claims(owner, WHOLE, "n", 1)
    observed = fleet(quotas=(of_class("gold", 0), of_class("lead", 2)), workloads=(running,), claims=held)
    assert replicas(plan(observed, (owner,), NOW)) == {owner.uid: 3}


def test_pods_without_a_class_count_with_the_default_class_of_the_cluster():
    classes = tuple(PriorityClass(name, 1, is_global_default=name == "lead") for name in ("gold", "lead"))
    limits = of_class("gold", 1), of_class("lead", 2), of_class("none", 3, ("DoesNotExist", ()))
    owner = greedy(0, minimum=8)
    assert replicas(plan(fleet(quotas=limits, priority_classes=classes), (owner,), NOW)) == {owner.uid: 2}
    assert replicas(plan(fleet(quotas=limits), (owner,), NOW)) == {owner.uid: 3}
