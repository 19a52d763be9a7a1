"""The operator cuts GPUs: real API server and scheduler, real operator and agent, simulated NVML."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.state import Fault
from tangram.shell.objects.kinds import FLEET_PLANS, GPU_POOLS, NODES, PODS
from tests.support.apiserver import NAMESPACES, UNGUARDED, LiveCluster, eventually, llm
from tests.support.nvml_driver import nvml_state
from tests.support.partitioned_node import OPERANDS, PartitionedNode, partitioned_node

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]
PARTITION = {"enabled": True, "settleSeconds": 1, "deadlineSeconds": 60}


def pool(name: str, policy: str = "IdleOnly") -> dict[str, Any]:
    return {
        "apiVersion": GPU_POOLS.api_version,
        "kind": GPU_POOLS.kind,
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"pool": name}, "migPolicy": policy, "backend": "NVML"},
    }


@pytest.fixture
async def node(cluster: LiveCluster) -> AsyncIterator[PartitionedNode]:
    """A node with one uncut H100 in an IdleOnly pool; both have the name of the test's namespace."""
    name = cluster.namespace
    with contextlib.suppress(Exception):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERANDS}}
        await cluster.client.create(NAMESPACES, body, manager="test", guard=UNGUARDED)
    state = nvml_state("H100-80GB-SXM", {})
    async with partitioned_node(cluster, name, state, {"pool": name}) as made:
        yield made


async def plans(cluster: LiveCluster) -> list[dict[str, Any]]:
    """The FleetPlans of changes of this test's node."""
    found = (await cluster.client.list(FLEET_PLANS)).items
    return [
        plan
        for plan in found
        if any(change["node"] == cluster.namespace for change in plan["spec"].get("changes", ()))
    ]


async def holds(cluster: LiveCluster) -> list[str]:
    live = await cluster.client.get(NODES, "", cluster.namespace)
    taints = (live or {}).get("spec", {}).get("taints") or ()
    return [taint["key"] for taint in taints if taint["key"].startswith("hold.tangram.dev/")]


async def ended(cluster: LiveCluster, *states: str) -> None:
    """Wait until these are the states of all FleetPlans of changes, the oldest first, and nothing is held."""

    async def check() -> bool:
        found = sorted(await plans(cluster), key=lambda plan: plan["metadata"]["creationTimestamp"])
        return [(p.get("status") or {}).get("state") for p in found] == [*states] and not await holds(cluster)

    await eventually(check, what=f"the plans are {states}")


def model(cluster: LiveCluster, name: str, **spec: Any) -> dict[str, Any]:
    return llm(name, cluster.namespace, placement={"pools": [cluster.namespace]}, **spec)


async def test_the_first_model_gets_a_slice_of_an_uncut_gpu(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION)

    async def reported() -> bool:
        return bool((await node.gpu_node()).get("status", {}).get("gpus"))

    await eventually(reported, what="the agent reports")
    await cluster.apply(model(cluster, "first"))

    waiting = await cluster.until("first", "Placed", "False", "WaitingForSlices")
    assert "until" in waiting["message"]
    await cluster.until("first", "Ready", "True", within_s=60)

    (layout,) = node.layouts()
    assert layout != ["gpu"]
    (pod,) = [p for p in await cluster.all(PODS) if p["metadata"]["labels"].get("tangram.dev/profile")]
    assert pod["metadata"]["labels"]["tangram.dev/profile"] == layout[0].partition("@")[0]
    await ended(cluster, "Done")
    assert node.errors == []


async def test_where_cutting_fails_the_whole_gpu_serves(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    with Admin(node.nvml) as admin:
        admin.add_fault(
            Fault(call="nvmlDeviceCreateGpuInstanceWithPlacement", code="INSUFFICIENT_RESOURCES", times=0)
        )
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION | {"deadlineSeconds": 12})
    await cluster.apply(model(cluster, "first"))

    await cluster.until("first", "Ready", "True", within_s=90)

    assert node.layouts() == [["gpu"]]
    await ended(cluster, "Failed")
    placed = await cluster.condition("first", "Placed")
    assert "INSUFFICIENT_RESOURCES" in placed["message"]
