"""Which objects count as children of an LLMDeployment: by namespace, name and UID, not by their labels."""

from copy import deepcopy
from typing import Any

import pytest

from tangram.fleet import Claim, FactsKey, Shape
from tangram.kube.kinds import VARIANT_LABEL, Identity, owner_of
from tangram.shell.objects import manifests
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.jobs import fleet_jobs
from tangram.shell.snapshot.workloads import claims
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.apiserver import llm

OWNER = Identity("ns", "chat", "uid-1")
SHAPE = Shape("H100-80GB-SXM", "gpu")
NAME = f"chat-{SHAPE.variant}"


def llm_deployment(uid: str = "uid-1", name: str = "chat", namespace: str = "ns") -> dict[str, Any]:
    obj = llm(name, namespace)
    obj["metadata"] |= {"uid": uid, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return obj


def deployment(called: str = NAME, namespace: str = "ns", **reference: Any) -> dict[str, Any]:
    """A Deployment as the operator writes it; `reference` changes its owner reference."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": called,
            "namespace": namespace,
            "uid": f"uid of {namespace}/{called}",
            "annotations": {"tangram.dev/shape": manifests.shape_annotation(SHAPE)},
            "ownerReferences": [manifests._owner_reference(OWNER) | reference],
        },
        "spec": {"replicas": 3, "selector": {"matchLabels": {VARIANT_LABEL: SHAPE.variant}}},
        "status": {"availableReplicas": 3},
    }


def pod(namespace: str = "ns", **changes: Any) -> dict[str, Any]:
    labels = {"pod-template-hash": "77f", VARIANT_LABEL: SHAPE.variant}
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{NAME}-77f", "uid": "rs"}
    meta = {
        "name": "p",
        "namespace": namespace,
        "uid": "pod",
        "labels": labels | {"app.kubernetes.io/managed-by": "tangram"},
        "ownerReferences": [reference | {"controller": True}],
    }
    containers = [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    raw = {
        "metadata": meta | changes,
        "spec": {"nodeName": "n1", "containers": containers},
        "status": {"phase": "Running"},
    }
    reduced = kept_fields.pod(raw)
    assert reduced is not None
    return reduced


def workloads(*deployments: dict[str, Any], living: tuple[dict[str, Any], ...] = ()) -> list[tuple[str, str]]:
    view = MirrorView(llm_deployments=living or (llm_deployment(),), deployments=deployments)
    snapshot = fleet_snapshot(view, Settings(engine_image="e"), 0)
    return [(workload.namespace, workload.owner_uid) for workload in snapshot.workloads]


FOREIGN = {
    "another namespace": deployment(namespace="tenant"),
    "another UID": deployment(uid="uid-2"),
    "another name": deployment(name="talk"),
    "no controller": deployment(controller=False),
    "a string for controller": deployment(controller="true"),
    "another kind": deployment(kind="GPUPool"),
    "another group": deployment(apiVersion="tangram.dev.evil.example/v1"),
    "another group with a like prefix": deployment(apiVersion="tangram.development/v1"),
    "a name that the operator would not give": deployment("chat-by-hand"),
}


def test_a_deployment_written_by_the_operator_counts() -> None:
    assert workloads(deployment()) == [("ns", "uid-1")]


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_deployment_that_only_resembles_a_child_does_not_count(foreign: dict[str, Any]) -> None:
    assert workloads(foreign) == []
    assert workloads(foreign, deployment()) == [("ns", "uid-1")]


def test_a_child_with_two_owners_counts_for_its_controller_alone() -> None:
    child = deployment()
    other = manifests._owner_reference(Identity("ns", "other", "uid-2")) | {"controller": False}
    child["metadata"]["ownerReferences"].insert(0, other)
    living = (llm_deployment(), llm_deployment("uid-2", "other"))

    assert workloads(child, living=living) == [("ns", "uid-1")]

    child["metadata"]["ownerReferences"][0]["controller"] = True
    assert owner_of(child) is None
    assert workloads(child, living=living) == []


def test_children_of_a_deleted_llmdeployment_do_not_count_for_one_of_the_same_name() -> None:
    assert workloads(deployment(), living=(llm_deployment("uid-9"),)) == []


def test_colliding_uids_of_two_namespaces_are_reported_and_kept_apart() -> None:
    living = (llm_deployment(), llm_deployment(namespace="tenant"))
    messages: list[str] = []
    view = MirrorView(
        llm_deployments=living[::-1], deployments=(deployment(), deployment(namespace="tenant"))
    )

    intents = parsed_intents(view, lambda _obj, error: messages.append(str(error)))
    holds = claims(
        MirrorView(deployments=view.deployments, pods=(pod(), pod("tenant")), llm_deployments=living)
    )

    assert [(intent.namespace, intent.name) for intent in intents] == [("ns", "chat")]
    assert messages == ["UID uid-1 is that of another LLMDeployment"]
    assert len(holds) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ownerReferences": []},
        {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{NAME}-77f"}]},
        {"ownerReferences": [{"apiVersion": "x/v1", "kind": "ReplicaSet", "name": f"{NAME}-77f"}]},
        {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": f"{NAME}-77f"}]},
    ],
    ids=["another namespace", "labels alone", "no controller", "another group", "another kind"],
)
def test_a_pod_with_own_labels_but_another_owner_is_foreign(changes: dict[str, Any]) -> None:
    changes = deepcopy(changes)
    for reference in changes.get("ownerReferences", []):
        reference["controller"] = reference["apiVersion"] != "apps/v1" or reference["kind"] != "ReplicaSet"
    intruder = pod("ns" if changes else "tenant", **changes)
    view = MirrorView(llm_deployments=(llm_deployment(),), deployments=(deployment(),), pods=(intruder,))

    assert claims(view) == (Claim("n1", "nvidia.com/gpu", 1, None),)
    assert claims(MirrorView(view.llm_deployments, pods=(pod(),), deployments=(deployment(),)))[0].owner_uid


def test_a_service_of_another_name_or_namespace_is_foreign() -> None:
    def service(name: str, namespace: str) -> dict[str, Any]:
        return manifests.service(OWNER) | {
            "metadata": manifests.service(OWNER)["metadata"] | {"name": name, "namespace": namespace}
        }

    services = (service("chat", "ns"), service("other", "ns"), service("chat", "tenant"))
    snapshot = fleet_snapshot(
        MirrorView((llm_deployment(),), services=services), Settings(engine_image="e"), 0
    )

    assert snapshot.services == (("ns", "chat"),)


def test_a_report_from_a_pod_of_another_namespace_is_ignored() -> None:
    job = manifests.inspect_job(OWNER, FactsKey("ns", "image:///m", "e"), Settings(engine_image="e"))
    job["metadata"] |= {"uid": "job"}
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": "job"}
    liar = pod("tenant", ownerReferences=[reference | {"controller": True}])
    liar["containers"] = [{"terminated": {"message": '{"schema":1}'}, "name": "x"}]

    (inspection,) = fleet_jobs(MirrorView((llm_deployment(),), pods=(liar,), jobs=(job,)), 0)

    assert "left no report" in inspection.result.message  # type: ignore[union-attr]


def test_an_identity_is_namespace_name_and_uid() -> None:
    assert owner_of(deployment()) == Identity("ns", "chat", "uid-1")
    assert owner_of(deployment(uid="")) is None
    assert owner_of({"metadata": {"namespace": "ns", "name": "x"}}) is None
