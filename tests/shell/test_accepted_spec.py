"""An LLMDeployment that is edited into a spec that is not accepted: its last accepted spec stays in force.

Each round is that of a new operator process: what stays in force is in the status alone.
"""

import copy
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tangram.api.common.accepted_spec import MOST_CHARACTERS, accepted_spec_block
from tangram.fleet import ApplyDeployment, StartInspection
from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import GENERATION_ANNOTATION, LLM_DEPLOYMENTS, NODES, PODS
from tangram.shell.objects import manifests
from tangram.shell.report.pool_status import pool_statuses
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.apiserver import LiveCluster, eventually, llm
from tests.support.views import NOW, PRODUCT, SETTINGS, Round, one_round, running

Object = dict[str, Any]

GOLD = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "gold", "labels": {"tangram.dev/priority-class": "true"}},
    "value": 5,
    "preemptionPolicy": "Never",
}


def seen(*edited: Object, classes: tuple[Object, ...] = ()) -> MirrorView:
    """A fleet in which a and b run one replica each, with these LLMDeployments in place of theirs."""
    named = {obj["metadata"]["name"]: obj for obj in (*running("a", "b").llm_deployments, *edited)}
    view = replace(running("a", "b"), llm_deployments=tuple(named.values())).view()
    return replace(
        view, priority_classes=tuple(kept_fields.priority_class(copy.deepcopy(c)) for c in classes)
    )


@cache
def accepted_b() -> Object:
    """LLMDeployment b after the round in which it was accepted."""
    return named("b", "b", one_round(seen(named("b", "b"))).statuses["uid-b"])


def accepted(classes: tuple[Object, ...] = (), **spec: Any) -> Object:
    """LLMDeployment a after the round in which it was accepted; the law has ordered two replicas since."""
    (obj,) = running("a", spec=spec).llm_deployments
    status = one_round(seen(obj, classes=classes)).statuses["uid-a"]
    assert condition(status, "Accepted")[:2] == ("True", "Valid")
    return {**obj, "status": json.loads(json.dumps(status)) | {"desiredReplicas": 2}}


def edited(obj: Object, **spec: Any) -> Object:
    return {**obj, "metadata": obj["metadata"] | {"generation": 2}, "spec": obj["spec"] | spec}


def condition(status: Object, kind: str) -> tuple[str, str, str]:
    found = next(each for each in status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def applied(done: Round) -> list[ApplyDeployment]:
    return [a for a in done.plan.actions if isinstance(a, ApplyDeployment) and a.owner_uid == "uid-a"]


def exported(done: Round, metric: str) -> float | None:
    return done.metrics.registry.get_sample_value(metric, {"namespace": "ns", "llmdeployment": "a"})


REFUSED: dict[str, tuple[Object, str, str]] = {
    "unknown SKU": ({"placement": {"allowedSKUs": ["H1000"]}}, "InvalidSpec", "no GPU is called 'H1000'"),
    "bounds": ({"scaling": {"minReplicas": 3, "maxReplicas": 2}}, "InvalidSpec", "spec.scaling.minReplicas"),
    "no model": ({"model": {}}, "InvalidSpec", "spec.model.uri"),
    "priority class": ({"priorityClassName": "gone"}, "PriorityClassNotFound", "gone does not exist"),
    "metadata": ({"metadata": {"labels": {"x": "y"}}}, "MetadataKeyNotAllowed", "the key x is not allowed"),
    "name of another": (
        {"model": {"uri": "image:///a", "servedName": "b"}},
        "ModelNameCollision",
        "b of this namespace already serves 'b'",
    ),
    "too large": (
        {"engine": {"resources": {"requests": {"cpu": "512"}}}},
        "AboveLimit",
        "engine.resources.requests.cpu",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_last_accepted_spec_stays_in_force_and_is_named(case: str) -> None:
    spec, reason, why = REFUSED[case]
    obj = accepted()
    (before,) = applied(one_round(seen(obj)))

    done = one_round(seen(edited(obj, **spec), accepted_b()))

    status = done.statuses["uid-a"]
    assert condition(status, "Accepted")[:2] == condition(status, "Ready")[:2] == ("False", reason)
    message = condition(status, "Accepted")[2]
    assert why in message
    assert "; the spec of generation 1 stays in force" in message
    assert "running replicas stay unchanged" not in message
    assert condition(status, "ScalingActive")[1] != "NotAccepted"
    assert applied(done) == [before]  # with the second replica, and the template as it was
    assert before.replicas == 2
    assert status["acceptedSpec"] == obj["status"]["acceptedSpec"]
    assert (status["observedGeneration"], status["revision"]["generation"]) == (2, 1)
    assert (exported(done, "tangram_desired_replicas"), exported(done, "tangram_placed_replicas")) == (2, 2)
    assert not done.faults.faults


def test_the_status_of_a_refused_edit_does_not_change_from_round_to_round() -> None:
    obj = edited(accepted(), placement={"allowedSKUs": ["H1000"]})
    first = one_round(seen(obj)).statuses["uid-a"]

    again = one_round(seen({**obj, "status": json.loads(json.dumps(first))}))

    assert again.statuses["uid-a"] == first


def test_a_refused_edit_starts_no_rollout() -> None:
    obj = accepted()
    view = seen(edited(obj, scaling={"minReplicas": 3, "maxReplicas": 2}))
    (intent,) = (each for each in one_round(view).intents if each.name == "a")
    (before,) = (each for each in one_round(seen(obj)).intents if each.name == "a")
    (action,) = applied(one_round(view))

    rendered = manifests.deployment(intent, action, SETTINGS)

    assert rendered == manifests.deployment(before, action, SETTINGS)
    assert rendered["metadata"]["annotations"][GENERATION_ANNOTATION] == "1"


def test_pausing_and_a_number_from_outside_work_beside_a_refused_edit() -> None:
    bad = edited(accepted(), placement={"allowedSKUs": ["H1000"]})

    paused = one_round(seen(edited(bad, paused=True)))
    off = one_round(seen(edited(bad, replicas=0)))

    assert (applied(paused), condition(paused.statuses["uid-a"], "Placed")[1]) == ([], "Paused")
    assert condition(off.statuses["uid-a"], "Placed")[1] == "ScaledToZero"
    assert "acceptedSpec" in off.statuses["uid-a"]


def test_a_mended_spec_is_in_force_at_once() -> None:
    obj = accepted()
    bad = edited(obj, placement={"allowedSKUs": ["H1000"]})
    refused = {**bad, "status": json.loads(json.dumps(one_round(seen(bad)).statuses["uid-a"]))}

    undone = one_round(seen({**refused, "spec": obj["spec"]})).statuses["uid-a"]
    other = one_round(seen(edited(refused, placement={}, scaling={"minReplicas": 2}))).statuses["uid-a"]

    assert condition(undone, "Accepted")[:2] == condition(other, "Accepted")[:2] == ("True", "Valid")
    assert undone["acceptedSpec"]["generation"] == 1
    assert (other["acceptedSpec"]["generation"], other["desiredReplicas"]) == (2, 2)


def test_without_a_recorded_spec_replicas_stay_and_that_is_said() -> None:
    obj = accepted()
    del obj["status"]["acceptedSpec"]

    done = one_round(seen(edited(obj, placement={"allowedSKUs": ["H1000"]})))

    _, _, message = condition(done.statuses["uid-a"], "Placed")
    assert "no accepted spec is recorded: running replicas stay unchanged, and are not scaled" in message
    assert applied(done) == []
    assert exported(done, "tangram_placed_replicas") == 1
    assert exported(done, "tangram_cost_dollars_per_hour") == pytest.approx(0.44, abs=0.005)


@pytest.mark.parametrize(
    "recorded", [None, "text", {"generation": 1, "priority": 0, "spec": "{"}, {"generation": 1, "spec": "{}"}]
)
def test_a_record_that_cannot_be_read_counts_as_none(recorded: object) -> None:
    obj = accepted()
    obj["status"]["acceptedSpec"] = recorded

    done = one_round(seen(edited(obj, placement={"allowedSKUs": ["H1000"]})))

    assert applied(done) == []
    assert condition(done.statuses["uid-a"], "Accepted")[:2] == ("False", "InvalidSpec")
    assert not done.faults.faults


def test_a_spec_of_more_than_32_kib_is_not_recorded() -> None:
    room = MOST_CHARACTERS - len('{"note":""}')

    kept, dropped = (accepted_spec_block({"spec": {"note": "x" * n}}, 1) for n in (room, room + 1))

    assert MOST_CHARACTERS == 32 * 1024
    assert kept is not None
    assert (len(kept["spec"]), dropped) == (MOST_CHARACTERS, None)


def test_a_deleted_priority_class_keeps_its_value_and_the_scaling() -> None:
    obj = accepted(classes=(GOLD,), priorityClassName="gold")

    done = one_round(seen(obj))

    status = done.statuses["uid-a"]
    assert condition(status, "Accepted")[:2] == ("False", "PriorityClassNotFound")
    assert "the spec of generation 1 stays in force" in condition(status, "Accepted")[2]
    assert [action.replicas for action in applied(done)] == [2]
    assert [each.priority for each in done.intents if each.name == "a"] == [5]


@pytest.mark.parametrize(
    "forbidden", [{"preemptionPolicy": "PreemptLowerPriority"}, {"metadata": {"name": "gold"}}]
)
def test_no_pod_is_made_in_a_priority_class_that_was_forbidden_later(forbidden: Object) -> None:
    obj = accepted(classes=(GOLD,), priorityClassName="gold")

    done = one_round(seen(obj, classes=(GOLD | forbidden,)))
    bad = one_round(seen(edited(obj, placement={"allowedSKUs": ["H1000"]}), classes=(GOLD | forbidden,)))

    assert applied(done) == applied(bad) == []
    assert condition(bad.statuses["uid-a"], "Accepted")[1] == "InvalidSpec"
    assert "running replicas stay unchanged" in condition(done.statuses["uid-a"], "Accepted")[2]


def named(name: str, served: str, status: Object | None = None) -> Object:
    (obj,) = running(name, spec={"model": {"uri": f"image:///{name}", "servedName": served}}).llm_deployments
    return obj if status is None else {**obj, "status": json.loads(json.dumps(status))}


def test_a_served_name_stays_with_the_one_that_was_accepted_with_it_whatever_the_uids_are() -> None:
    alone = one_round(seen(named("b", "same"), named("a", "a"))).statuses["uid-b"]
    served = named("b", "same", alone)

    beside_new = one_round(seen(served, named("a", "same")))
    both_new = one_round(seen(named("b", "same"), named("a", "same")))

    verdicts = [
        [condition(done.statuses[uid], "Accepted")[:2] for uid in ("uid-a", "uid-b")]
        for done in (beside_new, both_new)
    ]
    taken = ("False", "ModelNameCollision")
    assert verdicts == [[taken, ("True", "Valid")], [("True", "Valid"), taken]]


def test_a_name_that_is_in_force_is_not_given_away_by_a_refused_edit() -> None:
    bad = edited(accepted(), placement={"allowedSKUs": ["H1000"]})

    done = one_round(seen(bad, edited(accepted_b(), model={"uri": "image:///b", "servedName": "a"})))

    assert condition(done.statuses["uid-a"], "Accepted")[1] == "InvalidSpec"
    _, reason, message = condition(done.statuses["uid-b"], "Accepted")
    assert reason == "ModelNameCollision"
    assert "the spec of generation 1 stays in force" in message


def test_the_last_accepted_spec_serves_and_scales_until_the_next_checkpoint_is_known() -> None:
    obj = accepted()
    (before,) = applied(one_round(seen(obj)))
    moved = edited(obj, model={"uri": "pvc://models/none"})

    done = one_round(seen(moved))

    status = done.statuses["uid-a"]
    assert applied(done) == [before]
    assert [a.key.uri for a in done.plan.actions if isinstance(a, StartInspection)] == ["pvc://models/none"]
    assert condition(status, "Accepted")[:2] == ("True", "Valid")
    assert "the spec of generation 1 stays in force" in condition(status, "Accepted")[2]
    assert condition(status, "ModelReady")[1] == condition(status, "Ready")[1] == "Inspecting"
    assert "the spec of generation 1 stays in force" in condition(status, "ModelReady")[2]
    assert (status["model"]["uri"], status["model"]["nextURI"]) == ("image:///a", "pvc://models/none")
    assert status["acceptedSpec"] == obj["status"]["acceptedSpec"]
    assert status["model"]["facts"] == obj["status"]["model"]["facts"]
    again = one_round(seen({**moved, "status": json.loads(json.dumps(status))}))
    assert again.statuses["uid-a"] == status


def test_the_next_spec_is_in_force_once_its_checkpoint_is_known() -> None:
    moved = edited(accepted(), model={"uri": "image:///b"})  # as b has it

    status = one_round(seen(moved, accepted_b())).statuses["uid-a"]

    assert condition(status, "ModelReady")[:2] == ("True", "Inspected")
    assert (status["acceptedSpec"]["generation"], status["model"]["uri"]) == (2, "image:///b")
    assert "nextURI" not in status["model"]


# --- GPUPools

POOL = {
    "apiVersion": "tangram.dev/v1alpha1",
    "kind": "GPUPool",
    "metadata": {"name": "p", "uid": "uid-p", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": PRODUCT},
        "pricePerGPUHour": "7",
        "migPolicy": "Ignore",
    },
}


def pool_round(pool: Object) -> tuple[Round, Object]:
    """One round of a that runs in a GPUPool, and the new status of the GPUPool."""
    (obj,) = running("a", spec={"placement": {"pools": ["p"]}}).llm_deployments
    view = replace(seen(obj), gpu_pools=(pool,))
    ((_, status),) = pool_statuses(view.gpu_pools, fleet_snapshot(view, SETTINGS, NOW), {}, NOW)
    return one_round(view), status


@pytest.mark.parametrize(
    ("spec", "why"),
    [({"sku": "H1000"}, "no GPU is called 'H1000'"), ({"nodes": {"min": 3, "max": 2}}, "nodes.min")],
)
def test_the_last_accepted_spec_of_a_gpu_pool_stays_in_force_and_is_named(spec: Object, why: str) -> None:
    first, status = pool_round(POOL)
    bad = {**POOL, "metadata": POOL["metadata"] | {"generation": 2}, "spec": POOL["spec"] | spec}

    done, refused = pool_round({**bad, "status": json.loads(json.dumps(status))})
    alone, unrecorded = pool_round(bad)

    assert condition(refused, "Accepted")[:2] == ("False", "InvalidSpec")
    assert why in condition(refused, "Accepted")[2]
    assert "; the spec of generation 1 stays in force" in condition(refused, "Accepted")[2]
    assert (refused["acceptedSpec"], refused["nodes"]) == (status["acceptedSpec"], 1)
    assert applied(done) == applied(first)
    cost = "tangram_cost_dollars_per_hour"
    assert exported(done, cost) == exported(first, cost) == pytest.approx(1.0)
    assert "acceptedSpec" not in unrecorded
    assert exported(alone, "tangram_placed_replicas") == 1  # what runs, without its price
    assert "outside of placement.pools (p)" in condition(alone.statuses["uid-a"], "Placed")[2]


# --- on a real API server


@pytest.mark.apiserver
async def test_a_cordon_and_a_refused_edit_leave_a_serving_model_placed_and_scaled(
    cluster: LiveCluster, operator: Any
) -> None:
    first = operator()
    good = llm("chat", cluster.namespace, placement={"allowedSKUs": ["A100-80GB-SXM"]})
    made = await cluster.apply(good)
    await cluster.until("chat", "Ready", "True")
    (pod,) = await cluster.all(PODS)
    node = pod["spec"]["nodeName"]
    first.kill()

    bad = llm("chat", cluster.namespace, placement={"allowedSKUs": ["H1000"]})
    await cluster.apply(bad)
    await cluster.client.merge(NODES, "", node, {"spec": {"unschedulable": True}}, guard=UNGUARDED)
    try:
        operator("second")
        refused = await cluster.until("chat", "Accepted", "False", "InvalidSpec")
        placed = await cluster.until("chat", "Placed", "True", "Placed")
        status = (await cluster.get(LLM_DEPLOYMENTS, "chat") or {})["status"]
    finally:
        await cluster.client.merge(NODES, "", node, {"spec": {"unschedulable": False}}, guard=UNGUARDED)
    await cluster.apply(bad | {"spec": bad["spec"] | {"replicas": 2}})
    await cluster.until("chat", "Accepted", "False", "InvalidSpec")

    async def both_ready() -> bool:
        status = (await cluster.get(LLM_DEPLOYMENTS, "chat") or {})["status"]
        return bool(status.get("readyReplicas") == 2)

    assert f"the spec of generation {made['metadata']['generation']} stays in force" in refused["message"]
    assert f"1 replica runs where no new one is placed: node {node} (cordoned" in placed["message"]
    assert (status["placement"]["placedReplicas"], float(status["cost"]["perHour"]) > 0) == (1, True)
    await eventually(both_ready, 30, "two ready replicas")
    await cluster.apply(good)
    await cluster.until("chat", "Accepted", "True", "Valid")
