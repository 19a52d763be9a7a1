"""The status: conditions, columns, and no write without a change."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.api.llm_deployment.status import LLMDeploymentStatus
from tangram.eligibility.reasons import Reason
from tangram.fleet import (
    LAYOUT,
    Advice,
    FactsKey,
    Inspection,
    InspectionFailure,
    InvalidIntent,
    MIGPolicy,
    Objective,
    PartitionView,
    Pool,
    RecommendedChange,
    WriteProblem,
)
from tangram.plan import plan, render_status
from tangram.scaling import EvidenceMemory, Sample, ScalingDecision, ScalingMemory, ScalingParams, classify
from tangram.scaling.outlook.forecast import Forecast
from tangram.scaling.outlook.load_outlook import NeedLimit, ReplicaNeed, RunnerUp
from tests.support.fleet import (
    FACTS_1B,
    IMAGE,
    NOW,
    Cluster,
    claims,
    intent,
    node,
    shape,
    snapshot,
    tpot,
    workload,
)

PARAMS = ScalingParams(window_s=60, scrape_interval_s=15, up_after_s=10, down_after_s=120)
TTFT = Objective(90, 1000)
SLICE, WHOLE = shape("1g.10gb"), shape()
NEW = "pvc://claim/new"
KEY = FactsKey("ns", NEW, IMAGE)
TYPES = ["Ready", "Accepted", "ModelReady", "Placed", "Available", "ScalingActive", "SLOMet"]


def job(result=None):
    return Inspection(KEY, "ns", "tangram-inspect-1", "ju", NOW - 60, result)


def status_of(observed, owner, *, previous=None, now=NOW, signal=None, scale=None, others=()):
    """Plan, and return the status of `owner`."""
    new_plan = plan(observed, (owner, *others), now)
    decision = next(d for d in new_plan.decisions if d.owner_uid == owner.uid)
    return render_status(decision, owner, observed, signal, scale, previous or {}, now)


def conditions(status):
    return {c["type"]: c for c in status["conditions"]}


def condition_of(status, kind):
    condition = conditions(status)[kind]
    return condition["status"], condition["reason"]


def serving(m, replicas=1, at=SLICE, **changes):
    return snapshot(
        node("b", mig_1g_10gb=4, gpu=1),
        claims=claims(m, at, "b", replicas),
        workloads=(workload(m, at, replicas, **changes),),
        services=(("ns", m.name),),
    )


def measured(ready=1, problem="", now=NOW, **values):
    base = {
        "at": now,
        "targets": float(ready),
        "age_s": 3.0,
        "waiting": 0.0,
        "running": 4.0,
        "running_mean": 4.0,
    }
    sample = Sample(**({**base, "requests": 100.0, "ttft_attainment": 0.97, "ttft_s": 0.412} | values))
    return classify(sample, problem, ready=ready, params=PARAMS, now=now)


# --- the whole status


def test_the_conditions_of_a_serving_deployment_are_true():
    m = intent(ttft=TTFT, max_replicas=3)
    status = status_of(serving(m), m, signal=measured())

    assert [c["type"] for c in status["conditions"]] == TYPES
    assert condition_of(status, "Ready") == ("True", "AllReplicasReady")
    assert condition_of(status, "SLOMet") == ("True", "WithinTarget")
    assert condition_of(status, "ScalingActive") == ("True", "MetricsFresh")
    assert status["replicasDisplay"] == "1/1"
    assert status["placement"]["display"] == "H100-80GB-SXM:1g.10gb x1"
    assert status["cost"] == {"perHour": "0.44"}
    assert status["url"] == "http://m.ns.svc"
    assert status["model"]["facts"]["weightBytes"] == FACTS_1B.weight_bytes
    assert status["slo"] == {
        "time": "2026-11-21T10:00:00Z",
        "windowSeconds": 60,
        "samples": 100,
        "ttftAttainment": "0.970",
        "ttftMilliseconds": 412,
    }


SITUATIONS = {
    "new": (snapshot(node("b", mig_1g_10gb=1)), intent()),
    "serving": (serving(intent()), intent()),
    "uninspected": (snapshot(node("b", gpu=1)), intent(uri=NEW)),
    "too big": (snapshot(node("b", "L4", gpu=1)), intent(uri="image:///m/70b")),
    "too slow": (snapshot(node("b", "L4", gpu=1)), intent(tpot=tpot(1))),
    "no room": (snapshot(node("b", mig_1g_10gb=1)), intent(min_replicas=3)),
    "no nodes": (snapshot(), intent()),
    "paused": (serving(intent()), intent(paused=True)),
    "invalid": (snapshot(), InvalidIntent("uid-m", "ns", "m", 4, NOW, "spec.model.uri is wrong")),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_status_fits_the_crd_and_is_complete(name):
    observed, owner = SITUATIONS[name]
    status = status_of(observed, owner, signal=measured())

    parsed = LLMDeploymentStatus.model_validate(status)
    assert parsed.model_dump(by_alias=True, exclude_unset=True, mode="json") == status
    assert [c["type"] for c in status["conditions"]] == TYPES
    assert all(c["observedGeneration"] == owner.generation for c in status["conditions"])
    assert status["observedGeneration"] == owner.generation
    assert {c["reason"] for c in status["conditions"]} <= {reason.value for reason in Reason}


@pytest.mark.parametrize("name", SITUATIONS)
def test_an_unchanged_observation_never_changes_the_status(name):
    observed, owner = SITUATIONS[name]
    first = status_of(observed, owner, signal=measured())

    for seconds in (1, 59, 61, 86_400):
        later = status_of(
            observed, owner, previous=first, now=NOW + seconds, signal=measured(now=NOW + seconds)
        )
        assert later == first


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_condition_that_is_not_true_says_since_when(name):
    observed, owner = SITUATIONS[name]

    for condition in status_of(observed, owner)["conditions"]:
        assert condition["message"]
        assert (condition["status"] == "True") != condition["message"].endswith(
            "(since 2026-11-21T10:00:00Z)"
        )


# --- Ready has the reason of the condition that causes it


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("new", ("False", "ReplicasStarting")),
        ("serving", ("True", "AllReplicasReady")),
        ("uninspected", ("False", "Inspecting")),
        ("too big", ("False", "Infeasible")),
        ("too slow", ("False", "SLOUnreachable")),
        ("no room", ("False", "InsufficientCapacity")),
        ("no nodes", ("False", "InsufficientCapacity")),
        ("paused", ("True", "Paused")),
        ("invalid", ("False", "InvalidSpec")),
    ],
)
def test_ready_has_the_reason_of_the_condition_that_causes_it(name, expected):
    assert condition_of(status_of(*SITUATIONS[name]), "Ready") == expected


def test_the_younger_of_two_llmdeployments_with_one_name_reports_the_collision():
    old, young = intent("old", created_at=1.0, served_name="x"), intent("young", served_name="x")
    status = status_of(snapshot(node("b", mig_1g_10gb=2)), young, others=(old,))

    assert (
        condition_of(status, "Ready") == condition_of(status, "Accepted") == ("False", "ModelNameCollision")
    )
    assert condition_of(status, "Placed") == ("Unknown", "NotAccepted")


def test_pods_that_do_not_start_are_reported_with_the_message_of_the_cluster():
    m = intent()
    status = status_of(serving(m, available=0, message="CrashLoopBackOff: exit 1"), m)

    assert (
        condition_of(status, "Ready") == condition_of(status, "Available") == ("False", "ReplicasNotStarting")
    )
    assert "CrashLoopBackOff: exit 1" in conditions(status)["Ready"]["message"]


def test_available_names_the_deployment_whose_pods_start():
    m = intent()
    status = status_of(serving(m, available=0), m)

    assert condition_of(status, "Ready") == ("False", "ReplicasStarting")
    assert workload(m, SLICE).name in conditions(status)["Ready"]["message"]


@pytest.mark.parametrize("reason", ["NameTaken", "Forbidden", "Rejected"])
def test_a_refusal_of_the_api_server_is_reported(reason):
    m = intent()
    observed = snapshot(node("b", gpu=1), problems=(WriteProblem(m.uid, reason, "a Service m is there"),))
    status = status_of(observed, m)

    assert condition_of(status, "Ready") == condition_of(status, "Available") == ("False", reason)


def test_a_failed_checkpoint_keeps_its_reason_while_it_is_inspected_again():
    m = intent(uri=NEW)
    failed = snapshot(inspections=(job(InspectionFailure("NotFound", "no such directory", NOW)),))
    first = status_of(failed, m)
    again = status_of(snapshot(inspections=(job(),)), m, previous=first, now=NOW + 61)
    fixed = status_of(snapshot(facts=((KEY, FACTS_1B),)), m, previous=again, now=NOW + 70)

    assert condition_of(first, "ModelReady") == condition_of(first, "Ready") == ("False", "NotFound")
    assert again == first
    assert condition_of(fixed, "ModelReady") == ("True", "Inspected")


def test_ready_does_not_flap_while_a_checkpoint_fails_with_a_new_image():
    m = intent()
    key = FactsKey("ns", m.model_uri, "engine:2")
    running = Inspection(key, "ns", "tangram-inspect-1", "ju", NOW)
    failed = replace(running, result=InspectionFailure("InspectionFailed", "it ran too long", NOW + 600))
    new = replace(serving(m), engine_image="engine:2")
    first = status_of(
        replace(new, inspections=(failed,)), m, previous=status_of(serving(m), m), now=NOW + 600
    )
    between = status_of(new, m, previous=first, now=NOW + 661)
    again = status_of(replace(new, inspections=(running,)), m, previous=between, now=NOW + 662)

    assert condition_of(first, "Ready") == ("False", "InspectionFailed")
    assert first == between == again


def test_a_stuck_second_inspection_reports_what_it_waits_for():
    m = intent(uri=NEW)
    failed = snapshot(inspections=(job(InspectionFailure("InspectionFailed", "it ran too long", NOW)),))
    stuck = snapshot(inspections=(replace(job(), message="pod p: ErrImagePull: not found"),))
    status = status_of(stuck, m, previous=status_of(failed, m), now=NOW + 70)

    assert (
        condition_of(status, "ModelReady") == condition_of(status, "Ready") == ("False", "InspectionFailed")
    )
    assert "ErrImagePull" in conditions(status)["Ready"]["message"]


def test_a_new_uri_does_not_keep_the_failure_of_the_old_one():
    failed = snapshot(inspections=(job(InspectionFailure("NotFound", "no such directory", NOW)),))
    first = status_of(failed, intent(uri=NEW))

    status = status_of(snapshot(), intent(uri="pvc://claim/other"), previous=first)

    assert condition_of(status, "ModelReady") == ("Unknown", "Inspecting")


# --- generations and rollouts


def test_a_new_generation_is_not_ready_before_the_deployment_was_rewritten():
    m = intent()
    first = status_of(serving(m), m)
    status = status_of(serving(m), replace(m, generation=2), previous=first)

    assert condition_of(first, "Ready") == ("True", "AllReplicasReady")
    assert condition_of(status, "Ready") == ("False", "RolloutInProgress")
    assert condition_of(status, "Available") == ("True", "MinReplicasAvailable")


def test_an_unobserved_write_makes_only_a_new_generation_unready():
    m = intent()
    first = status_of(serving(m), m)

    assert condition_of(status_of(serving(m, settled=False), m, previous=first), "Ready") == (
        "True",
        "AllReplicasReady",
    )
    assert condition_of(status_of(serving(m, settled=False), m), "Ready") == ("False", "RolloutInProgress")


def test_pods_of_an_old_template_mean_a_rollout():
    m = intent()

    assert condition_of(status_of(serving(m, total=2, updated=1), m), "Ready") == (
        "False",
        "RolloutInProgress",
    )


def test_a_rollout_that_the_minimum_forbids_reports_what_it_waits_for():
    m = intent(min_replicas=4)
    status = status_of(serving(m, 4, total=5, updated=1, message="pod x: Unschedulable"), m)

    assert condition_of(status, "Ready") == ("False", "RolloutInProgress")
    assert condition_of(status, "Placed") == ("True", "Placed")
    for kind in ("Ready", "Placed"):
        assert (
            "the rollout waits for one free 1g.10gb on H100-80GB-SXM" in conditions(status)[kind]["message"]
        )


def test_a_new_engine_image_does_not_make_a_serving_deployment_unready():
    m = intent()
    first = status_of(serving(m), m)
    status = status_of(replace(serving(m), engine_image="engine:2"), m, previous=first)

    assert condition_of(status, "ModelReady") == ("Unknown", "Inspecting")
    assert condition_of(status, "Ready")[0] == "True"
    assert status["placement"]["display"] == "H100-80GB-SXM:1g.10gb x1"


def test_an_older_shape_that_serves_makes_it_available_but_not_ready():
    m = intent(tpot=tpot(2))
    status = status_of(serving(m), m)

    assert condition_of(status, "Available") == ("True", "MinReplicasAvailable")
    assert condition_of(status, "Ready") == ("False", "RolloutInProgress")
    assert status["cost"]["perHour"] == "3.51"  # one GPU, and the slice that still serves


def test_replicas_of_another_shape_cost_what_the_pool_of_their_node_sets():
    m = intent(tpot=tpot(2))
    left = Pool("left", (("side", "left"),), price_per_gpu_hour=7.0)
    observed = serving(m)
    (only,) = observed.nodes
    observed = replace(observed, nodes=(replace(only, labels=(("side", "left"),)),), pools=(left,))

    assert status_of(observed, m)["cost"]["perHour"] == "8.00"  # a GPU for 7, and a seventh of one


def test_running_replicas_cost_what_their_own_pool_sets_and_not_the_one_that_the_spec_names():
    m = intent(paused=True, pools=("right",))
    left = Pool("left", (("side", "left"),), price_per_gpu_hour=7.0)
    right = Pool("right", (("side", "right"),), price_per_gpu_hour=70.0)
    observed = serving(m)
    (only,) = observed.nodes
    nodes = tuple(
        replace(only, name=name, labels=(("side", side),)) for name, side in (("b", "left"), ("c", "right"))
    )

    status = status_of(replace(observed, nodes=nodes, pools=(left, right)), m)

    assert status["cost"]["perHour"] == "1.00"


def test_a_price_of_the_operator_holds_where_no_pool_sets_one():
    m = intent(tpot=tpot(2))
    prices = (("H100-80GB-SXM", 14.0),)

    status = status_of(replace(serving(m), prices=prices, pools=(Pool("left", (("side", "left"),)),)), m)

    assert status["cost"]["perHour"] == "16.00"


def test_ready_is_true_above_the_minimum_though_replicas_are_missing():
    m = intent(max_replicas=9)
    status = status_of(replace(serving(m, 4), desired=((m.uid, 6),)), m)

    assert condition_of(status, "Ready") == ("True", "MinReplicasReady")
    assert condition_of(status, "Placed") == ("False", "InsufficientCapacity")
    assert "4 of 6 replicas placed" in conditions(status)["Ready"]["message"]
    assert status["replicasDisplay"] == "4/6"


def test_a_condition_keeps_its_time_until_its_status_changes():
    m = intent()
    first = status_of(serving(m, available=0), m)
    second = status_of(serving(m, available=0, message="ImagePullBackOff"), m, previous=first, now=NOW + 5)
    third = status_of(serving(m), m, previous=second, now=NOW + 9)

    times = [conditions(status)["Available"]["lastTransitionTime"] for status in (first, second, third)]
    assert times == ["2026-11-21T10:00:00Z", "2026-11-21T10:00:00Z", "2026-11-21T10:00:09Z"]


# --- latency


def test_a_missed_objective_is_reported_with_its_bucket_edge():
    m = intent(ttft=Objective(90, 2000), max_replicas=2)
    status = status_of(serving(m), m, signal=measured(ttft_attainment=0.5))

    assert condition_of(status, "SLOMet") == ("False", "TTFTExceeded")
    assert "measured at the histogram edge of 1000 ms" in conditions(status)["SLOMet"]["message"]
    assert condition_of(status, "Ready")[0] == "True"


def test_late_tokens_miss_the_tpot_objective_before_a_request_ends():
    m = intent(tpot=tpot(60))
    signal = measured(tpot_attainment=None, itl_attainment=0.2)

    assert condition_of(status_of(serving(m), m, signal=signal), "SLOMet") == ("False", "TPOTExceeded")


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (None, ("Unknown", "MetricsMissing")),
        (measured(age_s=60.0), ("Unknown", "MetricsStale")),
        (measured(targets=0.0), ("Unknown", "MetricsMissing")),
        (measured(requests=0.0, running=0.0, running_mean=0.0), ("Unknown", "NoTraffic")),
        (measured(requests=5.0), ("Unknown", "InsufficientSamples")),
        (measured(ttft_attainment=None), ("Unknown", "InsufficientSamples")),
    ],
)
def test_slo_met_is_unknown_without_measurements(signal, expected):
    m = intent(ttft=TTFT)

    assert condition_of(status_of(serving(m), m, signal=signal), "SLOMet") == expected


def test_slo_met_is_unknown_without_objectives():
    assert condition_of(status_of(serving(intent()), intent(), signal=measured()), "SLOMet") == (
        "Unknown",
        "NoObjective",
    )


def test_a_load_at_the_objective_changes_slo_met_at_most_once_a_minute():
    m = intent(ttft=TTFT)
    status, changes = status_of(serving(m), m, signal=measured()), 0
    for second in range(15, 600, 15):
        signal = measured(now=NOW + second, ttft_attainment=0.89 if second % 30 else 0.91)
        after = status_of(serving(m), m, previous=status, now=NOW + second, signal=signal)
        changes += condition_of(after, "SLOMet") != condition_of(status, "SLOMet")
        status = after

    assert 1 <= changes <= 10


def test_measurements_for_old_objectives_do_not_count_for_a_new_generation():
    m = intent(ttft=TTFT)
    first = status_of(serving(m), m, signal=measured())
    m = replace(m, generation=2, ttft=Objective(90, 100))
    slow = measured(now=NOW + 5, ttft_attainment=0.1)
    status = status_of(serving(m), m, previous=first, now=NOW + 5, signal=slow)

    assert condition_of(first, "SLOMet") == ("True", "WithinTarget")
    assert condition_of(status, "SLOMet") == ("False", "TTFTExceeded")
    assert status["slo"]["ttftAttainment"] == "0.100"


def test_lost_metrics_are_reported_at_once():
    m = intent(ttft=TTFT)
    first = status_of(serving(m), m, signal=measured())
    signal = classify(None, "connection refused", ready=1, params=PARAMS, now=NOW + 1)

    assert (
        condition_of(status_of(serving(m), m, previous=first, now=NOW + 1, signal=signal), "SLOMet")[0]
        == "Unknown"
    )


@given(st.lists(st.tuples(st.floats(0.9, 1), st.floats(0.3, 0.5), st.floats(20, 500)), max_size=30))
@settings(deadline=None)
def test_numbers_are_written_at_most_once_a_minute(readings):
    m = intent(ttft=TTFT)
    status, writes = {}, []
    for i, (attainment, ttft_s, requests) in enumerate(readings):
        now = NOW + 15 * i
        signal = measured(now=now, ttft_attainment=attainment, ttft_s=ttft_s, requests=requests)
        after = status_of(serving(m), m, previous=status, now=now, signal=signal)
        if after != status:
            writes.append(now)
        status = after

    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(writes))


def test_small_changes_of_measurements_are_not_written():
    m = intent(ttft=TTFT)
    first = status_of(serving(m), m, signal=measured())
    signal = measured(now=NOW + 300, ttft_attainment=0.975, ttft_s=0.43, requests=105.0)

    assert status_of(serving(m), m, previous=first, now=NOW + 300, signal=signal) == first


# --- scaling


def scaled(at=NOW, before=1, after=2, reason="SLOViolated"):
    message = "ttft objective missed: 1 -> 2"
    warning = message if reason in ("AtMaximum", "ReplicasNotStarting") else ""
    return ScalingDecision(at, after, before, reason, message, ScalingMemory(), warning=warning)


def test_the_last_scaling_is_kept_until_the_next():
    m = intent(max_replicas=3)
    first = status_of(serving(m), m, scale=scaled())
    held = scaled(NOW + 99, 2, 2, "Steady")

    assert first["lastScale"] == {"time": "2026-11-21T10:00:00Z", "from": 1, "to": 2, "reason": "SLOViolated"}
    assert (
        status_of(serving(m), m, previous=first, now=NOW + 99, scale=held)["lastScale"] == first["lastScale"]
    )


@pytest.mark.parametrize(
    ("desired", "signal", "expected"),
    [
        (intent(), measured(), ("False", "Disabled")),
        (intent(max_replicas=2), None, ("False", "MetricsMissing")),
        (intent(max_replicas=2), measured(age_s=60.0), ("False", "MetricsStale")),
        (intent(max_replicas=2), measured(ready=0), ("Unknown", "NoReadyReplicas")),
        (intent(max_replicas=2), measured(requests=3.0), ("True", "MetricsFresh")),
        (intent(max_replicas=2, paused=True), measured(), ("False", "Paused")),
    ],
)
def test_scaling_active_reports_whether_replicas_can_follow_the_load(desired, signal, expected):
    assert condition_of(status_of(serving(desired), desired, signal=signal), "ScalingActive") == expected


def test_scaling_active_says_how_many_pods_the_operator_read_itself():
    m = intent(max_replicas=2)
    signal = replace(measured(), pods_read="3 of 3 pods")

    assert conditions(status_of(serving(m), m, signal=signal))["ScalingActive"]["message"] == (
        "metrics are recent, read from 3 of 3 pods"
    )


def test_replicas_that_never_start_stop_the_scaling():
    m = intent(max_replicas=9)
    status = status_of(
        serving(m, 2), m, signal=measured(ready=2), scale=scaled(NOW, 4, 4, "ReplicasNotStarting")
    )

    assert condition_of(status, "ScalingActive") == ("False", "ReplicasNotStarting")


def test_an_objective_that_more_replicas_do_not_meet_is_reported_with_numbers():
    m = intent(tpot=tpot(50), max_replicas=9)
    why = "a request alone on a replica is predicted to take 55 ms per token"
    decision = replace(scaled(NOW, 2, 2, "Steady"), tpot_unreachable=why)
    slow = measured(ready=2, tpot_attainment=0.1)

    status = status_of(serving(m, 2), m, signal=slow, scale=decision)

    assert condition_of(status, "SLOMet") == ("False", "TPOTExceeded")
    assert why in conditions(status)["SLOMet"]["message"]
    assert why in conditions(status)["ScalingActive"]["message"]


@pytest.mark.parametrize(("missed", "shown"), [("ttft", True), ("tpot", False)])
def test_why_no_replica_helps_is_shown_with_the_objective_that_is_missed(missed, shown):
    m = intent(ttft=TTFT, tpot=tpot(50), max_replicas=9)
    why = "P90 of the time to the first token on an idle replica is predicted to be 1500 ms"
    decision = replace(scaled(NOW, 2, 2, "Steady"), ttft_unreachable=why)
    attainments = {"ttft_attainment": 0.99, "tpot_attainment": 0.99, f"{missed}_attainment": 0.1}

    status = status_of(serving(m, 2), m, signal=measured(ready=2, **attainments), scale=decision)

    assert condition_of(status, "SLOMet") == ("False", f"{missed.upper()}Exceeded")
    assert (why in conditions(status)["SLOMet"]["message"]) is shown
    assert why in conditions(status)["ScalingActive"]["message"]


def test_the_status_keeps_what_the_scaling_law_learned():
    m = intent(max_replicas=9)
    learned = replace(scaled(), memory=ScalingMemory(subject="m", evidence=EvidenceMemory(violated_rate=1.5)))

    first = status_of(serving(m), m, scale=learned)

    learned_block = {name: value for name, value in first["scaling"].items() if name != "decisions"}
    assert learned_block == {"learnedUnder": "m", "violatedRequestsPerSecond": "1.50"}
    assert status_of(serving(m), m, previous=first)["scaling"] == first["scaling"]


def test_the_status_has_the_last_five_decisions_and_why():
    m = intent("m", max_replicas=9)
    previous = {}

    for to in range(2, 9):
        scale = replace(scaled(), replicas=to, previous=to - 1, message=f"{to} requests/s" + "x" * 600)
        previous = status_of(serving(m), m, scale=scale, previous=previous)
    quiet = status_of(serving(m), m, scale=replace(scaled(), replicas=8, previous=8), previous=previous)

    decisions = quiet["scaling"]["decisions"]
    assert [(d["from"], d["to"]) for d in decisions] == [(7, 8), (6, 7), (5, 6), (4, 5), (3, 4)]
    assert all(len(d["message"]) == 512 for d in decisions)


NEED = ReplicaNeed(
    9,
    10,
    Forecast(90.0, 20.0, (20.0,) * 9),
    2.4,
    0.00841,
    0.0,
    0.01,
    NeedLimit.ERROR_BUDGET,
    RunnerUp(8, 0.023),
)


def test_a_decision_by_a_forecast_is_shown_beside_one_replica_fewer():
    m = intent("m", max_replicas=9)

    status = status_of(serving(m), m, scale=replace(scaled(reason="LoadForecast"), need=NEED))

    assert status["scaling"]["decisions"][0]["need"] == {
        "replicas": 9,
        "expectedMissedShare": "0.00841",
        "errorBudget": "0.01000",
        "limit": "ErrorBudget",
        "spareReplicas": 0,
        "spareCostPerHour": "0.00",
        "runnerUp": {"replicas": 8, "expectedMissedShare": "0.02300"},
    }
    LLMDeploymentStatus.model_validate(status)


def test_spare_replicas_are_shown_with_what_they_cost_on_their_shape():
    m = intent("m", max_replicas=9)
    scale = replace(scaled(), need=replace(NEED, spare=2))
    priced = replace(serving(m), prices=(("H100-80GB-SXM", 10.5),))  # a slice 1g.10gb: a seventh of it

    status = status_of(priced, m, scale=scale)

    shown = LLMDeploymentStatus.model_validate(status).scaling.decisions[0].need
    assert (shown.spare_replicas, shown.spare_cost_per_hour) == (2, "3.00")


def test_spare_replicas_without_a_known_price_have_no_cost():
    m = intent("m", max_replicas=9)
    at = shape(sku="GB200-186GB")
    unpriced = snapshot(node("a", "GB200-186GB", gpu=4), workloads=(workload(m, at, 2),))

    status = status_of(unpriced, m, scale=replace(scaled(), need=replace(NEED, spare=2)))

    need = status["scaling"]["decisions"][0]["need"]
    assert need["spareReplicas"] == 2
    assert "spareCostPerHour" not in need


@pytest.mark.parametrize(("counted", "cost"), [(SLICE, "3.00"), (WHOLE, "21.00")])
def test_in_a_move_spare_replicas_cost_what_the_counted_shape_does(counted, cost):
    m = intent("m", max_replicas=9)
    observed = serving(m)
    moving = replace(
        observed,
        workloads=(*observed.workloads, workload(m, WHOLE)),
        desired_of=((m.uid, counted),),
        prices=(("H100-80GB-SXM", 10.5),),
    )

    status = status_of(moving, m, scale=replace(scaled(), need=replace(NEED, spare=2)))

    assert status["scaling"]["decisions"][0]["need"]["spareCostPerHour"] == cost


def test_spare_replicas_of_no_single_shape_have_no_cost():
    m = intent("m", max_replicas=9)
    observed = serving(m)
    both = replace(observed, workloads=(*observed.workloads, workload(m, WHOLE)))
    none = replace(observed, workloads=())

    for of in (both, none):
        status = status_of(of, m, scale=replace(scaled(), need=replace(NEED, spare=2)))
        assert "spareCostPerHour" not in status["scaling"]["decisions"][0]["need"]


def test_the_longest_calculation_is_shown_whole():
    m = intent("m", max_replicas=9)
    load = Forecast(90.0, 23456.7, (23456.7,) * 9)
    longest = replace(
        NEED, replicas=9999, runner_up=RunnerUp(9998, 0.23), load=load, spare=4321, backlog_rate=1234.5
    )
    longest = replace(longest, limit=NeedLimit.QUEUE)

    status = status_of(serving(m), m, scale=replace(scaled(), need=longest, message=longest.cause))

    (shown,) = LLMDeploymentStatus.model_validate(status).scaling.decisions
    assert shown.message == longest.cause
    assert "4321 of 9999 are spare" in shown.message


def test_one_replica_and_a_decision_without_a_forecast_have_no_runner_up():
    m = intent("m", max_replicas=9)
    one = replace(NEED, replicas=1, limit=NeedLimit.ONE_REPLICA, runner_up=None)

    forecast = status_of(serving(m), m, scale=replace(scaled(), need=one))
    reactive = status_of(serving(m), m, scale=scaled())

    assert "runnerUp" not in forecast["scaling"]["decisions"][0]["need"]
    assert "need" not in reactive["scaling"]["decisions"][0]


def test_a_set_number_of_replicas_shows_the_recommended_one():
    m = intent("m", max_replicas=2, min_replicas=2, replicas=2)

    status = status_of(serving(m), m, scale=replace(scaled(), recommended=4))

    assert status["scaling"]["recommendedReplicas"] == 4


def test_reaching_the_maximum_is_reported():
    m = intent(max_replicas=2)
    status = status_of(serving(m, 2), m, signal=measured(ready=2), scale=scaled(NOW, 2, 2, "AtMaximum"))

    assert "objective missed" in conditions(status)["ScalingActive"]["message"]


# --- advice of the recommended plan


def advised(observed, m, advice):
    (decision,) = plan(observed, (m,), NOW).decisions
    return render_status(decision, m, observed, None, None, {}, NOW, advice)


def test_the_status_explains_missing_replicas_and_the_change_that_would_serve_them():
    m = intent(min_replicas=3)
    advice = Advice("fp-1", 0.0, ("2 slices of 1g.10gb",), (RecommendedChange("GPUs", "add one 1g.10gb"),))
    status = advised(snapshot(node("b", mig_1g_10gb=2)), m, advice)

    placement = LLMDeploymentStatus.model_validate(status).placement
    assert placement is not None
    assert (placement.plan, placement.because) == ("fp-1", ("2 slices of 1g.10gb",))
    assert [(r.dimension, r.text) for r in placement.relaxations] == [("GPUs", "add one 1g.10gb")]


def test_the_status_has_no_advice_if_the_recommended_plan_changes_nothing():
    m = intent()
    status = advised(serving(m), m, Advice("fp-1", 2.0))

    assert not {"plan", "because", "relaxations"} & set(status["placement"])


def test_available_does_not_wait_for_pods_that_have_no_placement():
    m = intent(min_replicas=3)
    observed = snapshot(
        node("b", mig_1g_10gb=2),
        workloads=(workload(m, shape("1g.10gb"), 2),),
        claims=claims(m, shape("1g.10gb"), "b", 2),
    )
    condition = conditions(status_of(observed, m))["Available"]

    assert condition["reason"] == "WaitingForPlacement"
    others = "the others wait until condition Placed is True"
    assert condition["message"].startswith(f"2 of at least 3 available; {others}")


def test_another_layout_is_recommended_only_for_missing_replicas():
    layout = RecommendedChange(LAYOUT, "FleetPlan fp-1 serves it whole: 1 GPUs cut anew")
    advice = Advice("fp-1", 0.0, (), (layout,))
    short = advised(snapshot(node("b", mig_1g_10gb=2)), intent(min_replicas=3), advice)
    m = intent()

    assert short["placement"]["plan"] == "fp-1"
    assert short["placement"]["relaxations"] == [{"dimension": "layout", "text": layout.text}]
    assert not {"plan", "relaxations"} & set(advised(serving(m), m, advice)["placement"])


@pytest.mark.parametrize(
    ("of", "offer", "ready"),
    [
        (intent(mig=MIGPolicy.REQUIRED), {"gpu": 1}, ("False", "WaitingForConsent")),
        (intent(min_replicas=3), {"mig_1g_10gb": 2}, ("False", "WaitingForConsent")),
    ],
)
def test_a_model_that_waits_for_a_consent_names_the_plan_that_can_be_approved(of, offer, ready):
    layout = RecommendedChange(LAYOUT, "FleetPlan fp-1 serves it whole: 1 GPUs cut anew")
    waits = PartitionView(waiting=(("ns/m", "60336f49ed9c"),))
    status = advised(snapshot(node("b", **offer), partition=waits), of, Advice("fp-1", 0.0, (), (layout,)))

    assert LLMDeploymentStatus.model_validate(status)
    assert (condition_of(status, "Placed"), condition_of(status, "Ready")) == (ready, ready)
    assert "tangram approve 60336f49ed9c" in conditions(status)["Ready"]["message"]
    assert status["placement"]["relaxations"] == [
        {"dimension": "layout", "text": "FleetPlan 60336f49ed9c: tangram approve 60336f49ed9c"}
    ]


def test_a_replica_that_its_spec_rules_out_is_not_ready_while_a_consent_is_waited_for():
    of = intent(mig=MIGPolicy.REQUIRED)
    waits = PartitionView(waiting=(("ns/m", "60336f49ed9c"),))
    seen = snapshot(
        node("b", gpu=1),
        workloads=(workload(of, shape()),),
        claims=claims(of, shape(), "b"),
        partition=waits,
    )

    assert condition_of(status_of(seen, of), "Ready") == ("False", "WaitingForConsent")


def test_alternatives_state_replicas_cost_and_the_reason_of_rejection():
    m = intent(tpot=tpot(8))
    observed = snapshot(
        node("a", "GB200-186GB", gpu=1), node("b", mig_1g_10gb=1, gpu=1), node("c", "L4", gpu=1)
    )
    alternatives = status_of(observed, m)["placement"]["alternatives"]

    assert [(a["shape"], a["replicas"], a["rejectedBecause"]) for a in alternatives] == [
        ("H100-80GB-SXM", 1, "Dearer"),
        ("L4", 1, "TPOT"),
        ("GB200-186GB", 1, "NoPrice"),
    ]
    assert [a.get("costPerHour") for a in alternatives] == ["3.07", "0.54", None]


# --- from creation to ready


def test_an_llmdeployment_goes_through_its_reasons_until_it_is_ready():
    m = intent(ttft=TTFT)
    cluster = Cluster(snapshot(node("b", mig_1g_10gb=1)), (m,))
    status, reasons = {}, []
    for step in range(4):
        new_plan = plan(cluster.observed, (m,), NOW + step)
        status = render_status(new_plan.decisions[0], m, cluster.observed, None, None, status, NOW + step)
        reasons.append(condition_of(status, "Ready")[1])
        cluster.perform(new_plan)
        if step:
            cluster.settle()

    assert reasons == ["ReplicasStarting", "ReplicasStarting", "AllReplicasReady", "AllReplicasReady"]


def test_the_status_shows_the_saving_of_a_slice_against_its_gpu():
    whole = status_of(serving(intent(), at=WHOLE), intent())

    assert whole["cost"]["perHour"] == "3.07"
    assert whole["placement"]["alternatives"][0]["costPerHour"] == "0.44"
