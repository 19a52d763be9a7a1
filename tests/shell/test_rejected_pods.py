"""Replicas whose pods are rejected, on a real API server with its quota, admission and scheduler."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tangram.shell.api_server.client import UNGUARDED
from tangram.shell.objects.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, NODES, PODS, Kind
from tests.support.apiserver import MANAGER, NAMESPACES, World, add_node, eventually, gpu_node, llm
from tests.support.fault_proxy import FaultProxy, Rule

pytestmark = pytest.mark.apiserver

QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")
GPU = "requests.nvidia.com/gpu"
UNITS = 4


@pytest.fixture
async def l4(here: World) -> AsyncIterator[None]:
    """A node of a SKU that no other test uses."""
    name = f"{here.namespace}-l4"
    await add_node(here.client, gpu_node(name, UNITS, product="NVIDIA-L4"))
    yield
    await here.empty()
    await _remove_node(here, name)


@pytest.fixture
async def other(here: World) -> AsyncIterator[World]:
    """A second namespace."""
    namespace = f"t-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await here.client.apply(NAMESPACES, body, manager=MANAGER, force=True, guard=UNGUARDED)
    there = World(here.client, here.kubeconfig, namespace, here.kubelet, here.folder)
    account = Kind("", "v1", "serviceaccounts", "ServiceAccount")
    await eventually(lambda: here.client.get(account, namespace, "default"))
    yield there
    await there.empty()


async def _remove_node(here: World, name: str) -> None:
    node = await here.client.get(NODES, "", name)
    await here.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)


async def limit(here: World, **hard: str) -> None:
    """Have the namespace's ResourceQuota enforced."""
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": here.namespace},
        "spec": {"hard": hard},
    }
    await here.apply(body, QUOTAS)

    async def enforced() -> bool:
        found = await here.get(QUOTAS, "gpus")
        return found is not None and (found.get("status") or {}).get("hard") == hard

    await eventually(enforced, 30, "the quota is enforced")


def greedy(here: World) -> dict[str, Any]:
    return llm("greedy", here.namespace, scaling={"minReplicas": 1000}, placement={"allowedSKUs": ["L4"]})


def ordinary(other: World) -> dict[str, Any]:
    return llm("plain", other.namespace, scaling={"minReplicas": 2}, placement={"allowedSKUs": ["L4"]})


async def engines(here: World) -> int:
    return sum(
        pod["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"
        for pod in await here.all(PODS)
    )


async def test_a_quota_leaves_the_gpus_to_another_namespace_and_is_named(
    here: World, other: World, operator, l4
) -> None:
    await limit(here, **{GPU: "1"})
    await here.apply(greedy(here))
    operator(watchNamespaces=[here.namespace, other.namespace])
    told = await here.until("greedy", "Placed", "False", "QuotaExceeded", within_s=60)
    await other.apply(ordinary(other))
    await other.until("plain", "Ready", "True", "AllReplicasReady")

    assert f"ResourceQuota gpus of namespace {here.namespace}" in told["message"]
    assert await engines(here) == 1
    (deployment,) = await here.all(DEPLOYMENTS)
    assert deployment["spec"]["replicas"] == 1

    await limit(here, **{GPU: "2"})
    await eventually(lambda: _engines_are(here, 2), 30, "what the quota allows now is used")


async def _engines_are(here: World, count: int) -> bool:
    return await engines(here) == count


async def test_without_the_right_to_see_quotas_a_refusal_is_what_tells(
    here: World, other: World, operator, l4, proxy: FaultProxy
) -> None:
    proxy.rules.append(Rule("status", plural="resourcequotas", nth=0, code=403))
    await limit(here, pods="1")
    await here.apply(greedy(here))
    process = operator(watchNamespaces=[here.namespace, other.namespace])
    told = await here.until("greedy", "Placed", "False", "QuotaExceeded", within_s=60)
    await other.apply(ordinary(other))
    await other.until("plain", "Ready", "True", "AllReplicasReady")

    assert "exceeded quota: gpus" in told["message"]
    assert "resourcequotas" in process.logs()
    status = (await here.get(LLM_DEPLOYMENTS, "greedy"))["status"]
    assert [each["reason"] for each in status["backOffs"]] == ["QuotaExceeded"]


async def test_a_shape_whose_pods_find_no_node_is_given_up_and_a_restart_remembers(
    here: World, operator
) -> None:
    small, large = f"{here.namespace}-small", f"{here.namespace}-large"
    cramped = gpu_node(small, 2, product="NVIDIA-L4")
    for amounts in (cramped["status"]["allocatable"], cramped["status"]["capacity"]):
        amounts["cpu"] = "2"  # an engine on a whole GPU asks for 8
    await add_node(here.client, cramped)
    await add_node(here.client, gpu_node(large, 2, product="NVIDIA-A10"))
    try:
        quick = {"scheduling": {"deadlineSeconds": 12}, "tickSeconds": 2}
        first = operator("first", **quick)
        await here.apply(llm("tiny", here.namespace, placement={"allowedSKUs": ["L4", "A10"]}))
        told = await here.until("tiny", "Placed", "False", "Unschedulable", within_s=60)
        assert "Insufficient cpu" in told["message"]
        await here.until("tiny", "Ready", "True", "AllReplicasReady", within_s=60)

        status = (await here.get(LLM_DEPLOYMENTS, "tiny"))["status"]
        (back_off,) = status["backOffs"]
        assert (back_off["sku"], back_off["reason"], back_off["attempts"]) == ("L4", "Unschedulable", 1)
        assert status["placement"]["sku"] == "A10"
        await first.stop()

        await here.apply(llm("again", here.namespace, placement={"allowedSKUs": ["L4"]}))
        operator("second", **quick)
        await here.until("again", "Placed", "False", "Unschedulable", within_s=60)
        after = (await here.get(LLM_DEPLOYMENTS, "tiny"))["status"]
        assert after["backOffs"] == [back_off]
        assert after["placement"]["sku"] == "A10"
    finally:
        await here.empty()
        await _remove_node(here, small)
        await _remove_node(here, large)
