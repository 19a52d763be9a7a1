"""Replicas whose pods are rejected, on a real API server with its quota, admission and scheduler."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, NODES, PODS, Kind
from tests.support.apiserver import MANAGER, NAMESPACES, LiveCluster, add_node, eventually, gpu_node, llm
from tests.support.fault_proxy import FaultProxy, Rule

pytestmark = pytest.mark.apiserver

QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")
GPU = "requests.nvidia.com/gpu"
UNITS = 4


@pytest.fixture
async def l4(cluster: LiveCluster) -> AsyncIterator[None]:
    """A node of a SKU that no other test uses."""
    name = f"{cluster.namespace}-l4"
    await add_node(cluster.client, gpu_node(name, UNITS, product="NVIDIA-L4"))
    yield
    await cluster.empty()
    await _remove_node(cluster, name)


@pytest.fixture
async def other(cluster: LiveCluster) -> AsyncIterator[LiveCluster]:
    """A second namespace."""
    namespace = f"t-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await cluster.client.apply(NAMESPACES, body, manager=MANAGER, force=True, guard=UNGUARDED)
    tenant = LiveCluster(cluster.client, cluster.kubeconfig, namespace, cluster.kubelet, cluster.folder)
    account = Kind("", "v1", "serviceaccounts", "ServiceAccount")
    await eventually(lambda: cluster.client.get(account, namespace, "default"))
    yield tenant
    await tenant.empty()


async def _remove_node(cluster: LiveCluster, name: str) -> None:
    node = await cluster.client.get(NODES, "", name)
    await cluster.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)


async def limit(cluster: LiveCluster, **hard: str) -> None:
    """Have the namespace's ResourceQuota enforced."""
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": cluster.namespace},
        "spec": {"hard": hard},
    }
    await cluster.apply(body, QUOTAS)

    async def enforced() -> bool:
        quota = await cluster.get(QUOTAS, "gpus")
        return quota is not None and (quota.get("status") or {}).get("hard") == hard

    await eventually(enforced, 30, "the quota is enforced")


def greedy(cluster: LiveCluster) -> dict[str, Any]:
    return llm("greedy", cluster.namespace, scaling={"minReplicas": 1000}, placement={"allowedSKUs": ["L4"]})


def ordinary(other: LiveCluster) -> dict[str, Any]:
    return llm("plain", other.namespace, scaling={"minReplicas": 2}, placement={"allowedSKUs": ["L4"]})


async def engines(cluster: LiveCluster) -> int:
    return sum(
        pod["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"
        for pod in await cluster.all(PODS)
    )


async def test_a_quota_leaves_gpus_to_another_namespace_and_is_named(
    cluster: LiveCluster, other: LiveCluster, operator, l4
) -> None:
    await limit(cluster, **{GPU: "1"})
    await cluster.apply(greedy(cluster))
    operator(watchNamespaces=[cluster.namespace, other.namespace])
    condition = await cluster.until("greedy", "Placed", "False", "QuotaExceeded", within_s=60)
    await other.apply(ordinary(other))
    await other.until("plain", "Ready", "True", "AllReplicasReady")

    assert f"ResourceQuota gpus of namespace {cluster.namespace}" in condition["message"]
    assert await engines(cluster) == 1
    (deployment,) = await cluster.all(DEPLOYMENTS)
    assert deployment["spec"]["replicas"] == 1

    await limit(cluster, **{GPU: "2"})
    await eventually(lambda: _engines_are(cluster, 2), 30, "what the quota allows now is used")


async def _engines_are(cluster: LiveCluster, count: int) -> bool:
    return await engines(cluster) == count


async def test_without_the_right_to_list_quotas_a_refusal_reports_the_quota(
    cluster: LiveCluster, other: LiveCluster, operator, l4, proxy: FaultProxy
) -> None:
    proxy.rules.append(Rule("status", plural="resourcequotas", nth=0, code=403))
    await limit(cluster, pods="1")
    await cluster.apply(greedy(cluster))
    process = operator(watchNamespaces=[cluster.namespace, other.namespace])
    condition = await cluster.until("greedy", "Placed", "False", "QuotaExceeded", within_s=60)
    await other.apply(ordinary(other))
    await other.until("plain", "Ready", "True", "AllReplicasReady")

    assert "exceeded quota: gpus" in condition["message"]
    assert "resourcequotas" in process.logs()
    status = (await cluster.get(LLM_DEPLOYMENTS, "greedy"))["status"]
    assert [back_off["reason"] for back_off in status["backOffs"]] == ["QuotaExceeded"]


async def test_a_shape_whose_pods_find_no_node_stays_in_back_off_after_a_restart(
    cluster: LiveCluster, operator
) -> None:
    small, large = f"{cluster.namespace}-small", f"{cluster.namespace}-large"
    cramped = gpu_node(small, 2, product="NVIDIA-L4")
    for amounts in (cramped["status"]["allocatable"], cramped["status"]["capacity"]):
        amounts["cpu"] = "12"  # an engine on a whole GPU asks for 8, and another pod has 8
    await add_node(cluster.client, cramped)
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "8"}}}
    other = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "other", "namespace": cluster.namespace},
        "spec": {"nodeName": small, "containers": [container]},
    }
    await cluster.client.create(PODS, other, manager=MANAGER, guard=UNGUARDED)
    await add_node(cluster.client, gpu_node(large, 2, product="NVIDIA-A10"))
    try:
        quick = {"scheduling": {"deadlineSeconds": 5}, "operator": {"tickSeconds": 1}}
        first = operator("first", **quick)
        await cluster.apply(llm("tiny", cluster.namespace, placement={"allowedSKUs": ["L4", "A10"]}))
        await cluster.until("tiny", "Ready", "True", "AllReplicasReady", within_s=60)

        status = (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]
        (back_off,) = status["backOffs"]
        assert (back_off["sku"], back_off["reason"], back_off["attempts"]) == ("L4", "Unschedulable", 1)
        assert "Insufficient cpu" in back_off["message"]
        assert status["placement"]["sku"] == "A10"
        await first.stop()

        await cluster.apply(llm("again", cluster.namespace, placement={"allowedSKUs": ["L4"]}))
        operator("second", **quick)
        await cluster.until("again", "Placed", "False", "Unschedulable", within_s=60)
        after = (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]
        assert after["backOffs"] == [back_off]
        assert after["placement"]["sku"] == "A10"
    finally:
        await cluster.empty()
        await _remove_node(cluster, small)
        await _remove_node(cluster, large)
