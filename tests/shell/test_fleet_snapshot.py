"""From mirrored objects to the snapshot that the planner reads."""

import json
from typing import Any

import pytest

from tangram.fleet import CheckpointFacts, Claim, FactsKey, InspectionFailure, Shape
from tangram.kube.kinds import Identity
from tangram.shell.objects import manifests
from tangram.shell.settings import EnginePodSettings, Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot, node
from tangram.shell.snapshot.jobs import fleet_jobs
from tangram.shell.snapshot.recorded_status import recorded_scaling
from tangram.shell.snapshot.workloads import claims, engine_pod_names, workload
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView

from tests.support.apiserver import gpu_node, refusal, report  # isort: skip

SETTINGS = Settings(engine_image="engine:1")
OWNER = Identity("ns", "chat", "uid-1")
KEY = FactsKey("ns", "image:///m", "engine:1")
TOLERATIONS = SETTINGS.engine.tolerations


def mirrored_node(**changes):
    raw = gpu_node("n1", 4)
    raw["metadata"]["resourceVersion"] = "1"
    raw["spec"] = changes.pop("spec", {})
    raw["status"] |= changes
    return kept_fields.node(raw)


def deployment(uid="d-uid", name="chat-abc", **status):
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "generation": 2,
            "annotations": {"tangram.dev/shape": manifests.shape_annotation(Shape("H100-80GB-SXM", "gpu"))},
            "ownerReferences": [manifests._owner_reference(OWNER)],
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"tangram.dev/variant": Shape("H100-80GB-SXM", "gpu").variant}},
        },
        "status": status,
    }


def pod(
    name,
    *,
    owner_kind="ReplicaSet",
    owner="chat-abc-77f",
    owner_uid="rs",
    phase="Running",
    node_name="n1",
    **extra,
):
    raw = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"pod-{name}",
            "labels": {"pod-template-hash": "77f", "app.kubernetes.io/managed-by": "tangram"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1" if owner_kind == "Job" else "apps/v1",
                    "kind": owner_kind,
                    "name": owner,
                    "uid": owner_uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}}],
        },
        "status": {"phase": phase} | extra,
    }
    return kept_fields.pod(raw)


def llm(uid="uid-1", name="chat", namespace="ns"):
    """An LLMDeployment, as far as owner references look at it."""
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid}}


def job(*conditions, **changes):
    rendered = manifests.inspect_job(OWNER, KEY, SETTINGS)
    rendered["metadata"] |= {"uid": "job-uid", "creationTimestamp": "2026-01-01T00:00:00Z"}
    rendered["status"] = {"conditions": list(conditions)}
    return rendered | changes


def finished_pod(message, code=0):
    state = {"state": {"terminated": {"exitCode": code, "message": message}}, "name": "inspect"}
    return pod(
        "i",
        owner_kind="Job",
        owner=manifests.inspect_job_name(KEY),
        owner_uid="job-uid",
        containerStatuses=[state],
    )


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, "1Gi of memory that the Job has (OOMKilled)"),
        ({"exitCode": 139, "reason": "Error"}, "ended with Error, exit code 139"),
    ],
)
def test_a_killed_inspection_reports_the_cause(end, says) -> None:
    killed = finished_pod("")
    killed["containers"][0]["terminated"] = end
    failed = {"type": "Failed", "status": "True", "message": "Job has reached the specified backoff limit"}
    (inspection,) = fleet_jobs(MirrorView(llm_deployments=(llm(),), jobs=(job(failed),), pods=(killed,)), 0.0)

    assert inspection.result.reason == "InspectionFailed"
    assert says in inspection.result.message


def test_a_labelled_node_is_usable_with_its_gpus() -> None:
    gpu_node = node(mirrored_node(), ())

    assert (gpu_node.sku, gpu_node.usable, gpu_node.allocatable) == (
        "H100-80GB-SXM",
        True,
        (("nvidia.com/gpu", 4),),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "maintenance", "effect": "NoSchedule"}]}},
        {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        {"conditions": []},
    ],
)
def test_a_node_that_takes_no_pods_is_not_usable(changes) -> None:
    assert not node(mirrored_node(**changes), TOLERATIONS).usable


def usable(taint, *more) -> bool:
    settings = Settings(engine_image="e", engine=EnginePodSettings(tolerations=(*TOLERATIONS, *more)))
    view = MirrorView(nodes=(mirrored_node(spec={"taints": [taint]}),))
    return fleet_snapshot(view, settings, 0).nodes[0].usable


TEAM = {"key": "team", "value": "ml", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taint", "tolerations", "expected"),
    [
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, (), True),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoExecute"}, (), False),
        ({"key": "sku", "value": "gpu", "effect": "NoSchedule"}, (), True),
        ({"key": "sku", "value": "fpga", "effect": "NoSchedule"}, (), False),
        ({"key": "nvidia.com/driver-upgrade", "effect": "NoSchedule"}, (), False),
        ({"key": "team", "effect": "PreferNoSchedule"}, (), True),
        (TEAM, (), False),
        (TEAM, ({"key": "team", "operator": "Exists"},), True),
        (TEAM, ({"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},), True),
        (TEAM, ({"key": "team", "value": "ml"},), True),
        (TEAM, ({"key": "team", "operator": "Equal", "value": "web"},), False),
        (TEAM, ({"key": "team", "operator": "Exists", "effect": "NoExecute"},), False),
        (TEAM, ({"key": "other", "operator": "Exists"},), False),
        (TEAM, ({"operator": "Exists"},), True),
        (TEAM | {"effect": "NoExecute"}, ({"operator": "Exists", "tolerationSeconds": 60},), False),
    ],
)
def test_a_node_is_usable_if_engine_pods_tolerate_its_taints(taint, tolerations, expected) -> None:
    assert usable(taint, *tolerations) is expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, True),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, True),
        ({"cloud.google.com/gke-spot": "true"}, True),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, True),
        ({"karpenter.sh/capacity-type": "on-demand"}, False),
        ({}, False),
    ],
)
def test_a_node_that_may_be_reclaimed_at_short_notice_is_known_by_its_label(label, expected) -> None:
    observed = mirrored_node()
    observed["metadata"]["labels"] |= label

    assert node(observed, ()).spot is expected


def test_claims_count_foreign_pods_and_attribute_own_ones_to_their_llmdeployment() -> None:
    foreign = pod("theirs", owner_kind="StatefulSet", owner="db")
    view = MirrorView(
        llm_deployments=(llm(),),
        deployments=(deployment(),),
        pods=(pod("a"), foreign, pod("b", phase="Succeeded"), pod("c", node_name="")),
    )

    assert claims(view) == (
        Claim("n1", "nvidia.com/gpu", 1, None),
        Claim("n1", "nvidia.com/gpu", 1, "uid-1"),
    )


def test_metrics_queries_name_the_pods_of_the_replicas() -> None:
    foreign = pod("theirs", owner_kind="StatefulSet", owner="db")
    view = MirrorView(
        llm_deployments=(llm(),), deployments=(deployment(),), pods=(pod("b"), foreign, pod("a"))
    )

    assert engine_pod_names(view) == {"uid-1": ("a", "b")}


@pytest.mark.parametrize("status", [None, {}, {"scaling": 7, "placement": "x"}, {"scaling": {"a": 1}}])
def test_any_recorded_scaling_status_is_read(status) -> None:
    recorded = recorded_scaling(MirrorView(llm_deployments=(llm() | {"status": status},)))

    assert set(recorded) == {"uid-1"}


def test_a_foreign_pod_without_gpu_is_not_kept() -> None:
    assert kept_fields.pod({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c"}]}}) is None


def test_a_deployment_that_its_controller_has_not_observed_is_not_settled() -> None:
    assert not workload(deployment(observedGeneration=1, readyReplicas=2), [], 0.0).settled
    assert workload(deployment(observedGeneration=2, readyReplicas=2), [], 0.0).settled


def test_an_unscheduled_pod_has_the_reason_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = pod("a", phase="Pending", node_name="", conditions=[condition])

    assert workload(deployment(), [waiting], 0.0).message == "pod a: Unschedulable: 0/3 nodes"


def test_a_crashing_container_has_its_reason() -> None:
    crashing = {
        "name": "engine",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
    }
    message = workload(deployment(), [pod("a", containerStatuses=[crashing])], 0.0).message

    assert "CrashLoopBackOff" in message
    assert "exit code 3" in message


def test_a_finished_inspection_gives_facts_or_the_reason() -> None:
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
    failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}

    (good,) = fleet_jobs(
        MirrorView(llm_deployments=(llm(),), jobs=(job(complete),), pods=(finished_pod(report()),)), 0
    )
    (bad,) = fleet_jobs(
        MirrorView(
            llm_deployments=(llm(),),
            jobs=(job(failed),),
            pods=(finished_pod(refusal("NotFound", "no dir"), 3),),
        ),
        0,
    )
    (lost,) = fleet_jobs(MirrorView(llm_deployments=(llm(),), jobs=(job(failed),), pods=()), 0)
    (running,) = fleet_jobs(MirrorView(llm_deployments=(llm(),), jobs=(job(),), pods=()), 0)

    assert isinstance(good.result, CheckpointFacts)
    assert isinstance(bad.result, InspectionFailure)
    assert bad.result.reason == "NotFound"
    assert isinstance(lost.result, InspectionFailure)
    assert lost.result.reason == "InspectionFailed"
    assert running.result is None


def test_a_job_that_runs_another_command_is_ignored() -> None:
    forged = job({"type": "Complete", "status": "True"})
    forged["spec"]["template"]["spec"]["containers"][0]["command"] = ["/bin/echo"]
    renamed = job({"type": "Complete", "status": "True"})
    renamed["metadata"]["name"] = "tangram-inspect-0000000000"

    assert fleet_jobs(MirrorView(llm_deployments=(llm(),), jobs=(forged, renamed)), 0) == ()


def test_a_job_whose_image_was_rewritten_to_a_registry_mirror_is_read() -> None:
    rewritten = job()
    rewritten["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror.example/engine:1"

    (inspection,) = fleet_jobs(MirrorView(llm_deployments=(llm(),), jobs=(rewritten,)), 0)

    assert inspection.key == KEY


def test_a_job_reports_facts_for_its_own_namespace_alone() -> None:
    forged = job({"type": "Complete", "status": "True"})
    forged["metadata"]["namespace"] = "tenant"
    tenant_key = FactsKey("tenant", KEY.uri, KEY.engine_image)
    forged["metadata"]["name"] = manifests.inspect_job_name(tenant_key)

    (inspection,) = fleet_jobs(
        MirrorView(llm_deployments=(llm(), llm(namespace="tenant")), jobs=(forged,)), 0
    )

    assert inspection.key == tenant_key


@pytest.mark.parametrize(("surge", "expected"), [(1, False), (0, True), ("0%", True), ("25%", False)])
def test_an_in_place_rollout_is_recognised_by_its_strategy(surge, expected) -> None:
    live = deployment()
    live["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge}}

    assert workload(live, [], 0.0).in_place is expected
    assert not workload(deployment(), [], 0.0).in_place


def test_an_object_not_controlled_by_an_llmdeployment_is_foreign() -> None:
    orphan = deployment()
    orphan["metadata"]["ownerReferences"] = []

    assert (
        fleet_snapshot(
            MirrorView(llm_deployments=(llm(),), deployments=(orphan,)), Settings(engine_image="e"), 0
        ).workloads
        == ()
    )


def test_equal_mirrors_give_equal_snapshots_in_any_order() -> None:
    pods = (pod("a"), pod("b", node_name="n0"))
    deployments = (deployment(), deployment("e-uid", "chat-zzz"))
    first = fleet_snapshot(
        MirrorView(llm_deployments=(llm(),), pods=pods, deployments=deployments),
        Settings(engine_image="e"),
        0,
    )
    other = fleet_snapshot(
        MirrorView(llm_deployments=(llm(),), pods=pods[::-1], deployments=deployments[::-1]),
        Settings(engine_image="e"),
        0,
    )

    assert first == other
    assert json.dumps(str(first)) == json.dumps(str(other))


def test_a_node_with_shared_gpus_offers_none_with_the_reason() -> None:
    raw = gpu_node("n1", 4)
    raw["metadata"]["labels"]["nvidia.com/gpu.sharing-strategy"] = "time-slicing"

    snapshot = fleet_snapshot(
        MirrorView(nodes=(kept_fields.node(raw),)),
        Settings(engine_image="e", engine=EnginePodSettings(tolerations=TOLERATIONS)),
        0,
    ).nodes[0]

    assert snapshot.allocatable == ()
    assert "nvidia.com/gpu.sharing-strategy=time-slicing" in snapshot.left_out[0].message


def test_capacity_above_allocatable_counts_as_unhealthy() -> None:
    raw = gpu_node("n1", 4)
    raw["status"]["allocatable"]["nvidia.com/gpu"] = "3"

    parsed_node = node(kept_fields.node(raw), TOLERATIONS)

    assert (parsed_node.allocatable, parsed_node.unhealthy) == (
        (("nvidia.com/gpu", 3),),
        (("nvidia.com/gpu", 1),),
    )


def gpu_node_object(instances: tuple[str, ...], mode: str = "", **changes: Any) -> Any:
    """The GPUNode of node n1, whose one GPU has these instances (none: it is not cut)."""
    found = [{"profile": profile, "start": start, "usage": "Free"} for start, profile in enumerate(instances)]
    gpu = {
        "id": "GPU-00000000-0000-4000-8000-000000000001",
        "index": 0,
        "product": "NVIDIA H100 80GB HBM3",
        "sku": "H100-80GB-SXM",
        "migMode": mode or ("Enabled" if instances else "Disabled"),
        "usage": "Free",
        "instances": found,
    }
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z", "since": "2026-01-01T00:00:00Z"}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Running",
        "message": "",
        "observedGeneration": 1,
        **since,
    }
    status = {"backend": "NVML", "nodeUID": "node-uid", "gpus": [gpu], "conditions": [ready], **changes}
    return {"metadata": {"name": "n1", "uid": "g", "generation": 1}, "spec": {}, "status": status}


def cut_node(capacity: dict[str, str], allocatable: dict[str, str]) -> Any:
    raw = gpu_node("n1", 1)
    raw["metadata"] |= {"uid": "node-uid"}
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.count": "1"}
    for counts in ("capacity", "allocatable"):
        del raw["status"][counts]["nvidia.com/gpu"]
    raw["status"]["capacity"] |= capacity
    raw["status"]["allocatable"] |= allocatable
    return kept_fields.node(raw)


STALE = {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "2"}


@pytest.mark.parametrize(
    ("partition", "unhealthy", "left_out"),
    [
        (gpu_node_object(("1g.10gb", "1g.10gb")), (("nvidia.com/mig-1g.10gb", 1),), "Unhealthy"),
        # Without one, or with one that does not know, the devices may be there, beside each other.
        (None, (("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 1)), "MixedGPUs"),
        (
            gpu_node_object(("1g.10gb", "1g.10gb"), nodeUID="another"),
            (("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 1)),
            "MixedGPUs",
        ),
        (
            gpu_node_object((), mode="Unknown", backend="MIGManager"),
            (("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 1)),
            "MixedGPUs",
        ),
        (
            gpu_node_object(("1g.10gb", "1g.10gb"), backend="MIGManager"),  # another is wanted, maybe
            (("nvidia.com/mig-1g.10gb", 1),),
            "Unhealthy",
        ),
    ],
    ids=[
        *("known layout", "no GPUNode", "status about another node", "mig-manager at work"),
        "mig-manager not at work yet",
    ],
)
def test_devices_of_a_former_layout_are_not_unhealthy_where_the_layout_is_known(
    partition: Any, unhealthy: Any, left_out: str
) -> None:
    mirrored = cut_node(STALE, {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "1"})
    view = MirrorView(nodes=(mirrored,), gpu_nodes=(partition,) if partition else ())

    (found,) = fleet_snapshot(view, SETTINGS, 0).nodes

    assert found.unhealthy == unhealthy
    assert [note.reason for note in found.left_out] == [left_out]
    assert found.usable == (left_out == "Unhealthy")


def test_the_gpu_of_a_sidecar_is_claimed() -> None:
    sidecar_pod = pod("theirs", owner_kind="StatefulSet", owner="db")
    raw = {
        "metadata": {"name": "s", "namespace": "ns", "uid": "s"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c"}],
            "initContainers": [
                {"name": "i", "restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            ],
        },
        "status": {"phase": "Running"},
    }

    assert (
        claims(MirrorView(pods=(sidecar_pod, kept_fields.pod(raw))))
        == (Claim("n1", "nvidia.com/gpu", 1, None),) * 2
    )
