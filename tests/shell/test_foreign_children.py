"""Objects that pose as children of an LLMDeployment, on a real API server."""

import secrets
from typing import Any

import pytest

from tangram.kube.kinds import DEPLOYMENTS, PODS, uid_of
from tests.support.apiserver import MANAGER, NAMESPACES, LiveCluster, eventually, llm
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.apiserver


def posing(like: dict[str, Any], name: str, namespace: str) -> dict[str, Any]:
    """A Deployment with the labels, annotations and owner of `like`, and pods of its own."""
    meta = {key: like["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    pod = {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta | {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def lone_pod(like: dict[str, Any], namespace: str) -> dict[str, Any]:
    """A pod without a ReplicaSet that the Service of `like` selects by its labels."""
    labels = like["spec"]["template"]["metadata"]["labels"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "lone", "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False},
    }


async def test_an_object_that_poses_as_a_child_is_not_counted_scaled_or_deleted(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    tenant = f"t-{secrets.token_hex(4)}"
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant}}, NAMESPACES, MANAGER
    )
    process = operator(watchNamespaces=[cluster.namespace, tenant])
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    (own_deployment,) = await cluster.all(DEPLOYMENTS)

    proxy.trace.clear()
    abroad = await cluster.apply(
        posing(own_deployment, own_deployment["metadata"]["name"], tenant), DEPLOYMENTS
    )
    beside = await cluster.apply(posing(own_deployment, "tiny-by-hand", cluster.namespace), DEPLOYMENTS)
    lone = await cluster.apply(lone_pod(own_deployment, cluster.namespace), PODS)
    await eventually(lambda: _available(cluster, "tiny-by-hand", 2))
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))
    await eventually(lambda: _available(cluster, own_deployment["metadata"]["name"], 2))
    await cluster.until("tiny", "Ready", "True")

    status = await cluster.until("tiny", "Available", "True")
    assert status["message"]
    written = {(r.namespace, r.plural, r.name) for r in proxy.writes()}
    assert not {w for w in written if w[0] == tenant}
    assert not {w for w in written if w[2] in ("tiny-by-hand", "lone")}
    after = await cluster.get(DEPLOYMENTS, "tiny-by-hand")
    assert (uid_of(after), after["spec"]["replicas"]) == (uid_of(beside), 2)
    assert uid_of(await cluster.get(PODS, "lone")) == uid_of(lone)
    assert uid_of(abroad) != uid_of(own_deployment)
    assert process.alive()


async def _available(cluster: LiveCluster, name: str, count: int) -> bool:
    deployment = await cluster.get(DEPLOYMENTS, name)
    return (deployment or {}).get("status", {}).get("availableReplicas") == count
