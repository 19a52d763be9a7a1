"""spec.replicas: plan and status if another client sets the number of replicas."""

from dataclasses import replace

import pytest

from tangram.api.llm_deployment.status import LLMDeploymentStatus
from tangram.fleet import (
    ApplyDeployment,
    ApplyService,
    BackOff,
    FieldManager,
    InvalidIntent,
    Objective,
    QuotaLimit,
    RemoveDeployment,
    Revision,
    ScaleDeployment,
    WriteProblem,
)
from tangram.plan import plan, render_status, transitions
from tangram.scaling import ScalingParams, classify
from tests.support.fleet import NOW, Cluster, claims, intent, node, shape, snapshot, workload

SLICE, WHOLE = shape("1g.10gb"), shape()
PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)


def set_to(count, **changes):
    changes = {"min_available": min(count, 1)} | changes
    return intent(min_replicas=count, max_replicas=count, replicas=count, **changes)


def decide(observed, owner, *others):
    new_plan = plan(observed, (owner, *others), NOW)
    return new_plan, next(d for d in new_plan.decisions if d.owner_uid == owner.uid)


def status_of(observed, owner, previous=None, signal=None):
    _, decision = decide(observed, owner)
    return render_status(decision, owner, observed, signal, None, previous or {}, NOW)


def condition_of(status, kind):
    condition = next(c for c in status["conditions"] if c["type"] == kind)
    return condition["status"], condition["reason"], condition["message"]


def serving(m, replicas=3, slices=7, **changes):
    return snapshot(
        node("b", mig_1g_10gb=slices),
        claims=claims(m, SLICE, "b", replicas),
        workloads=(workload(m, SLICE, replicas, **changes),),
        services=(("ns", m.name),),
    )


def replicas_of(new_plan):
    return [a.replicas for a in new_plan.actions if isinstance(a, ApplyDeployment)]


# --- a number of replicas


@pytest.mark.parametrize("count", [1, 2, 5])
def test_spec_replicas_overrides_the_scaling_law(count):
    m = set_to(count)
    new_plan, decision = decide(replace(serving(m), desired=((m.uid, 4),)), m)

    assert (decision.desired, decision.placed) == (count, count)
    assert replicas_of(new_plan) == [count]


def test_replicas_without_free_devices_are_missing_and_running_ones_stay():
    m = set_to(9)
    observed = serving(m)
    new_plan, decision = decide(observed, m)

    assert (decision.desired, decision.placed, decision.placed_reason) == (9, 7, "InsufficientCapacity")
    assert replicas_of(new_plan) == [7]
    status = status_of(observed, m)
    assert condition_of(status, "Ready")[:2] == ("True", "MinReplicasReady")
    assert status["replicasDisplay"] == "3/9"


def test_a_quota_bounds_a_number_that_is_set():
    m = set_to(5)
    limit = QuotaLimit("ns", "gpus", "requests.nvidia.com/mig-1g.10gb", hard=4, used=3)
    _, decision = decide(replace(serving(m), quotas=(limit,)), m)

    assert (decision.placed, decision.placed_reason) == (4, "QuotaExceeded")


def test_a_budget_bounds_a_number_that_is_set():
    m = set_to(5, budget_per_hour=1.8)  # of 0.44 $/h each
    _, decision = decide(serving(m), m)

    assert (decision.placed, decision.placed_reason) == (4, "OverBudget")


def test_a_lower_number_during_a_rollout_stops_only_the_replicas_above_it():
    m = set_to(2, generation=2)
    rolling = serving(m, 4, updated=1, total=4, owner_generation=1)
    new_plan, _ = decide(rolling, m)

    assert replicas_of(new_plan) == [2]
    assert not [a for a in new_plan.actions if isinstance(a, RemoveDeployment)]


def test_a_move_keeps_as_many_available_as_are_set():
    """The old shape may not be used any more; the new one arrives while the number is set to 3."""
    m = set_to(3, allowed_skus=("L4",))
    cluster = Cluster(
        snapshot(
            node("b", mig_1g_10gb=7),
            node("c", "L4", gpu=3),
            claims=claims(m, SLICE, "b", 3),
            workloads=(workload(m, SLICE, 3),),
        ),
        (m,),
    )
    for _ in range(8):
        cluster.perform(plan(cluster.observed, (m,), NOW))
        cluster.settle()
        assert sum(w.available for w in cluster.observed.workloads) >= 3

    assert {w.shape.sku: w.replicas for w in cluster.observed.workloads} == {"L4": 3}


def test_a_replica_set_in_a_paused_or_refused_object_changes_nothing_that_runs():
    for count in (0, 5):
        m = set_to(count, paused=True)
        new_plan, decision = decide(serving(m), m)
        assert (new_plan.actions, decision.placed_reason) == ((), "Paused")
        refused = InvalidIntent(m.uid, "ns", "m", 2, NOW, "spec.model.uri is wrong")
        new_plan, decision = decide(serving(m), refused)
        assert (new_plan.actions, decision.desired) == ((), 3)


def test_an_llmdeployment_whose_model_name_is_taken_keeps_its_replicas_at_zero():
    older = intent("older", served_name="m", created_at=NOW - 5000)
    m = set_to(0, served_name="m")
    new_plan, decision = decide(serving(m), m, older)

    assert decision.accepted_reason == "ModelNameCollision"
    assert not [a for a in new_plan.actions if a.owner_uid == m.uid]


# --- zero replicas


def test_zero_replicas_stop_every_deployment_and_keep_the_service():
    m = set_to(0)
    old = workload(m, WHOLE, 1)
    observed = serving(m)
    new_plan, decision = decide(replace(observed, workloads=(*observed.workloads, old)), m)

    assert (decision.desired, decision.placed, decision.placed_reason) == (0, 0, "ScaledToZero")
    assert [type(a) for a in new_plan.actions] == [ApplyService, RemoveDeployment, RemoveDeployment]
    assert decision.price_per_hour == 0


def test_zero_replicas_hold_no_gpu():
    m, other = set_to(0), intent("other", created_at=NOW)
    observed = snapshot(node("b", mig_1g_10gb=1), workloads=(workload(m, SLICE, 1, available=0, total=0),))
    _, decision = decide(observed, other, m)

    assert decision.placed == 1


@pytest.mark.parametrize("uri", ["image:///m/70b", "pvc://claim/unknown"])
def test_zero_replicas_run_nothing_even_without_a_fitting_shape_or_checkpoint(uri):
    m = set_to(0, uri=uri)
    new_plan, decision = decide(serving(m, 2), m)

    assert decision.placed_reason == "ScaledToZero"
    assert [type(a) for a in new_plan.actions if isinstance(a, RemoveDeployment | ScaleDeployment)] == [
        RemoveDeployment
    ]


def test_zero_replicas_are_ready_and_reported_as_intended():
    m = set_to(0, replicas_set_by=FieldManager("kubectl", "scale", "2026-11-22T10:00:00Z"))
    blind = classify(None, "", ready=0, params=PARAMS, now=NOW)
    before = status_of(serving(m, 2), intent(min_replicas=2))
    before |= {"slo": {"time": "2026-11-21T10:00:00Z", "windowSeconds": 60, "samples": 3}}
    status = status_of(snapshot(node("b", mig_1g_10gb=7)), m, before, blind)

    for kind in ("Ready", "Placed", "Available"):
        state, reason, message = condition_of(status, kind)
        assert (state, reason) == ("True", "ScaledToZero")
        assert "spec.replicas is 0" in message
    assert (status["replicas"], status["readyReplicas"], status["replicasDisplay"]) == (0, 0, "0/0")
    assert "slo" not in status  # an alert would go on for what is not measured any more
    assert "placement" not in status
    assert status["cost"] == {"perHour": "0.00"}
    assert [n.reason for n in transitions(before, status) if n.type == "Warning"] == []
    LLMDeploymentStatus.model_validate(status)


def test_zero_replicas_do_not_hide_a_refusal_of_the_api_server():
    m = set_to(0)
    problem = WriteProblem(m.uid, "NameTaken", "Service m is another's")
    status = status_of(snapshot(node("b", mig_1g_10gb=7), problems=(problem,)), m)

    assert condition_of(status, "Ready")[:2] == ("False", "NameTaken")


def test_from_none_to_two_places_them_anew_and_back_to_the_law():
    m = set_to(2)
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=7)), (m,))
    cluster.perform(plan(cluster.observed, (m,), NOW))
    cluster.settle()
    assert [w.available for w in cluster.observed.workloads] == [2]

    off = set_to(0)
    cluster.intents = (off,)
    cluster.perform(plan(cluster.observed, (off,), NOW))
    assert cluster.observed.workloads == ()

    auto = intent(max_replicas=4)
    cluster.intents = (auto,)
    cluster.perform(plan(cluster.observed, (auto,), NOW))
    cluster.settle()
    assert [w.available for w in cluster.observed.workloads] == [1]


# --- status


def test_the_status_has_pod_counts_selector_and_the_client_that_set_replicas():
    m = set_to(4, replicas_set_by=FieldManager("kube-controller-manager", "scale", "2026-11-22T10:00:00Z"))
    status = status_of(serving(m, 4, available=3, ready=3, total=5), m)

    assert (status["replicas"], status["replicasDisplay"]) == (5, "3/4")
    assert status["selector"] == (
        "app.kubernetes.io/component=engine,app.kubernetes.io/managed-by=tangram,tangram.dev/llmdeployment=m"
    )
    assert status["replicasSetBy"] == {
        "manager": "kube-controller-manager",
        "subresource": "scale",
        "time": "2026-11-22T10:00:00Z",
    }
    state, reason, message = condition_of(status, "ScalingActive")
    assert (state, reason) == ("False", "ReplicasSet")
    assert message.startswith(
        "spec.replicas is 4, set by kube-controller-manager (scale) at 2026-11-22T10:00:00Z; without it"
        " Tangram scales: tangram scale m -n ns --auto"
    )
    LLMDeploymentStatus.model_validate(status)
    assert status_of(serving(m, 4, available=3, ready=3, total=5), m, status) == status


def test_the_status_says_that_the_client_is_not_recorded():
    status = status_of(serving(set_to(3)), set_to(3))

    assert "replicasSetBy" not in status
    assert "is 3 (set by a client that is not recorded)" in condition_of(status, "ScalingActive")[2]


def test_growth_that_is_asked_for_from_outside_leaves_it_available():
    """An autoscaler asks for more than run: that is no outage, unless fewer than scaling.minReplicas do."""
    m = set_to(6, min_available=2)
    assert condition_of(status_of(serving(m, 3), m), "Available")[:2] == ("True", "MinReplicasAvailable")
    assert condition_of(status_of(serving(m, 1), m), "Available")[0] == "False"


# --- a new generation that changes the number alone


def written(m, count, generation=2):
    """`m` after a write of spec.replicas: a new generation, and the same revision."""
    return replace(
        m, replicas=count, min_replicas=count, max_replicas=count, min_available=1, generation=generation
    )


BEFORE = replace(intent(ttft=Objective(90, 1000), max_replicas=9), revision=Revision(1, "abc"))


def test_a_change_of_spec_replicas_is_no_rollout_and_ready_stays():
    observed = serving(BEFORE, 2)
    before = status_of(observed, BEFORE)
    status = status_of(observed, written(BEFORE, 5), before)

    assert condition_of(status, "Ready")[:2] == ("True", "MinReplicasReady")
    assert status["observedGeneration"] == 2
    assert status["revision"] == {"generation": 1, "hash": "abc"}
    assert [n.reason for n in transitions(before, status) if n.type == "Warning"] == []
    unsettled = status_of(serving(BEFORE, 2, settled=False), written(BEFORE, 5), before)
    assert condition_of(unsettled, "Ready")[0] == "True"


def test_any_other_change_is_a_rollout():
    changed = replace(written(BEFORE, 5), revision=Revision(2, "def"))
    status = status_of(serving(BEFORE, 2), changed, status_of(serving(BEFORE, 2), BEFORE))

    assert condition_of(status, "Ready")[:2] == ("False", "RolloutInProgress")


def test_a_shape_in_back_off_stays_in_back_off_for_it():
    m = written(BEFORE, 5)
    back_off = BackOff(m.uid, 1, SLICE, "Unschedulable", "no CPU", 2, NOW - 10, NOW + 200, 1)
    _, decision = decide(replace(serving(BEFORE, 2), back_offs=(back_off,)), m)
    assert (decision.placed, decision.placed_reason) == (2, "Unschedulable")

    other = replace(m, revision=Revision(2, "def"))
    _, decision = decide(replace(serving(BEFORE, 2), back_offs=(back_off,)), other)
    assert decision.placed == 5


def test_measurements_stay_after_a_change_of_spec_replicas():
    before = status_of(serving(BEFORE, 2), BEFORE)
    before |= {"slo": {"time": "2026-11-21T09:59:50Z", "windowSeconds": 60, "samples": 3}}
    status = status_of(serving(BEFORE, 2), written(BEFORE, 5), before)

    assert status["slo"] == before["slo"]
