"""ResourceQuotas, refused pods and unscheduled pods in the snapshot of the planner; without an API server."""

import json

import pytest

from tangram.fleet import Claim, QuotaLimit, Unscheduled
from tangram.kube import kinds
from tangram.shell.snapshot.fleet_snapshot import quotas
from tangram.shell.snapshot.recorded_status import recorded_back_offs
from tangram.shell.snapshot.workloads import claims, workload
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.mirrors import sources
from tests.shell.test_fleet_snapshot import deployment, pod

WHY = "0/3 nodes are available: 3 Insufficient cpu."
SINCE = "2026-01-01T00:00:00Z"


def quota(spec=None, **status):
    meta = {"name": "q", "namespace": "ns", "uid": "u", "resourceVersion": "1", "managedFields": [{"x": 1}]}
    return kept_fields.resource_quota({"metadata": meta, "spec": spec or {}, "status": status})


def unscheduled(name, **changes):
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": WHY,
        "lastTransitionTime": SINCE,
    }
    return pod(name, phase="Pending", node_name="", conditions=[condition | changes])


def test_enforced_quota_limits_are_read_in_cores_bytes_and_counts() -> None:
    limits = quota(
        hard={"limits.cpu": "1500m", "requests.memory": "2Gi", "pods": "3", "requests.nvidia.com/gpu": "4"},
        used={"limits.cpu": "500m", "pods": "1"},
    )
    assert quotas(MirrorView(resource_quotas=(limits,))) == (
        QuotaLimit("ns", "q", "limits.cpu", 1.5, 0.5),
        QuotaLimit("ns", "q", "pods", 3, 1),
        QuotaLimit("ns", "q", "requests.memory", 2 * 2**30, 0),
        QuotaLimit("ns", "q", "requests.nvidia.com/gpu", 4, 0),
    )


def test_the_spec_of_a_quota_counts_until_its_controller_has_counted() -> None:
    assert [q.hard for q in quotas(MirrorView(resource_quotas=(quota({"hard": {"pods": "2"}}),)))] == [2]


@pytest.mark.parametrize(
    ("spec", "concerns"),
    [
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
    ],
)
def test_only_quotas_that_count_engine_pods_are_kept(spec, concerns) -> None:
    assert (quota(spec, hard={"pods": "1"}) is not None) is concerns


def selecting(operator, *names):
    term = {"scopeName": "PriorityClass", "operator": operator, "values": list(names)}
    return {"scopeSelector": {"matchExpressions": [term]}}


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        ({}, ["gold", "lead", ""]),
        (selecting("In", "gold", "silver"), ["gold"]),
        (selecting("NotIn", "gold"), ["lead", ""]),
        (selecting("Exists"), ["gold", "lead"]),
        (selecting("DoesNotExist"), [""]),
        ({"scopes": ["PriorityClass"]} | selecting("NotIn", "gold"), ["lead"]),
        (selecting("Later"), []),
    ],
)
def test_a_quota_counts_the_pods_of_the_classes_that_it_selects(spec, counted) -> None:
    (limit,) = quotas(MirrorView(resource_quotas=(quota(spec, hard={"pods": "1"}),)))
    assert [name for name in ("gold", "lead", "") if limit.counts(name)] == counted


def test_new_pods_of_a_deployment_are_of_the_class_of_its_template() -> None:
    obj = deployment()
    assert workload(obj, [], 0.0).priority_class_name == ""
    obj["spec"]["template"] = {"spec": {"priorityClassName": "gold"}}
    assert workload(obj, [], 0.0).priority_class_name == "gold"


def test_the_mirror_keeps_few_fields_of_a_quota() -> None:
    assert len(json.dumps(quota(hard={"pods": "1"}, used={"pods": "1"}))) < 250


def test_an_unreadable_quota_is_skipped_and_reported() -> None:
    errors = []
    view = MirrorView(resource_quotas=(quota(hard={"pods": "many"}), quota(hard={"pods": "1"})))
    assert len(quotas(view, lambda obj, error: errors.append((obj, error)))) == 1
    assert len(errors) == 1


def test_quotas_are_watched_in_the_served_namespaces_and_optional() -> None:
    for namespaces, expected in ((("a", "b"), ["a", "b"]), ((), [""])):
        quota_sources = [s for s in sources(namespaces) if s.kind == kinds.RESOURCE_QUOTAS]
        assert [s.namespace for s in quota_sources] == expected
        assert all(s.optional for s in quota_sources)


def test_unscheduled_pods_are_counted_with_the_time_of_the_first() -> None:
    later = unscheduled("b", lastTransitionTime="2026-01-01T00:05:00Z")
    observed = workload(deployment(), [later, unscheduled("a"), pod("c")], 0.0)

    assert observed.unscheduled == Unscheduled(2, 1767225600.0, WHY)


@pytest.mark.parametrize(
    "odd",
    [
        unscheduled("a", reason="SchedulingGated"),
        unscheduled("a", status="True"),
        unscheduled("a") | {"metadata": unscheduled("a")["metadata"] | {"deletionTimestamp": SINCE}},
    ],
    ids=["gated on purpose", "has a node", "goes already"],
)
def test_other_pods_do_not_count_as_unscheduled(odd) -> None:
    assert workload(deployment(), [odd], 0.0).unscheduled is None


def test_a_refusal_is_read_from_the_conditions_of_the_deployment() -> None:
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota: q",
    }
    assert workload(deployment(conditions=[condition]), [], 0.0).refused == "FailedCreate: exceeded quota: q"
    assert workload(deployment(conditions=[condition | {"status": "False"}]), [], 0.0).refused == ""


def test_a_terminating_pod_states_until_when_it_holds_its_gpu() -> None:
    leaving = pod("a")
    leaving["metadata"]["deletionTimestamp"] = SINCE
    assert claims(MirrorView(pods=(leaving,))) == (Claim("n1", "nvidia.com/gpu", 1, None, 1767225600.0),)


def test_an_unreadable_record_of_back_offs_is_ignored() -> None:
    odd = {"metadata": {"uid": "u", "name": "m", "namespace": "ns"}, "status": {"backOffs": "what"}}
    assert recorded_back_offs(MirrorView(llm_deployments=(odd,))) == {}


def starting(reason, created=SINCE, **waiting):
    state = {"name": "engine", "state": {"waiting": {"reason": reason} | waiting}}
    pending_pod = pod("a", phase="Pending", containerStatuses=[state])
    pending_pod["metadata"]["creationTimestamp"] = created
    return pending_pod


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ImagePullBackOff", "pod a: waits for its image: ImagePullBackOff"),
        ("CreateContainerConfigError", "pod a: waits for a Secret, ConfigMap or user that it names: Create"),
        ("ContainerCreating", "pod a: ContainerCreating: waits for its volumes, image or network"),
        ("SomethingNew", "pod a: SomethingNew"),
    ],
)
def test_what_a_scheduled_pod_waits_for_is_reported_and_excludes_no_shape(reason, expected) -> None:
    observed = workload(deployment(), [starting(reason)], 1767225600.0 + 121)

    assert observed.message.startswith(expected)
    assert (observed.unscheduled, observed.refused) == (None, "")


def test_a_container_in_creation_is_not_reported_at_first() -> None:
    assert workload(deployment(), [starting("ContainerCreating")], 1767225600.0 + 100).message == ""
