"""Bad days in mid-cut: a GPUNode deleted by hand, a Node made anew, a driver that hangs, two backends.

Real API server and scheduler, real operator and agent, simulated NVML. Each ends with the model served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.state import Fault
from tangram.kube.kinds import GPU_NODES, GPU_POOLS, NODES
from tests.support.apiserver import UNGUARDED, LiveCluster, add_node, eventually, gpu_node
from tests.support.partition_plans import PARTITION, holds, model, plans, pool, reported, uncut_node
from tests.support.partitioned_node import PartitionedNode

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(330)]
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture
async def node(cluster: LiveCluster) -> AsyncIterator[PartitionedNode]:
    async with uncut_node(cluster) as made:
        yield made


async def being_cut(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any], **settings: Any
) -> None:
    """Begin to cut the GPU for a model; return while its agent creates the first instance, for seconds."""
    with Admin(node.nvml) as admin:
        admin.add_fault(Fault(CREATE, delay_s=4.0, times=1))
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION | settings)
    await reported(node)
    await cluster.apply(model(cluster, "first"))

    async def is_creating() -> bool:
        with Admin(node.nvml) as admin:
            return any(call["name"] == CREATE for call in admin.calls())

    await eventually(is_creating, 60, "the agent creates an instance")


async def is_at_rest(cluster: LiveCluster, node: PartitionedNode) -> bool:
    """Whether no plan is carried out, nothing is held, and the node offers what its GPUs have."""
    states = {(plan.get("status") or {}).get("state") for plan in await plans(cluster)}
    devices = {resource: len(ids) for resource, ids in node.devices().items()}
    offered = {resource: len(ids) for resource, ids in node.offered.items()}
    return "Executing" not in states and not await holds(cluster) and devices == offered


async def test_a_gpu_node_deleted_in_mid_cut_costs_no_model(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await being_cut(cluster, node, operator)

    live = await node.gpu_node()
    await cluster.client.delete(GPU_NODES, "", node.name, uid=live["metadata"]["uid"], guard=UNGUARDED)

    await cluster.until("first", "Ready", "True", within_s=90)
    await eventually(lambda: is_at_rest(cluster, node), 60, "all is at rest")
    assert node.errors == []


async def test_a_node_that_vanishes_in_mid_cut_and_comes_back_as_another_one_costs_no_model(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    # Until its deadline the plan waits for the node as it was.
    await being_cut(cluster, node, operator, deadlineSeconds=15)

    live = await cluster.client.get(NODES, "", node.name) or {}
    await cluster.client.delete(NODES, "", node.name, uid=live["metadata"]["uid"], guard=UNGUARDED)
    anew = gpu_node(node.name, gpus=0)  # a kubelet offers no device before the plugin has come
    anew["metadata"]["labels"] |= {"nvidia.com/gpu.count": "1", "pool": node.name}
    await add_node(cluster.client, anew, 1)  # it may be held already: it arrives
    await node.restart_plugin()

    # Where the plan was blocked meanwhile, the model waits 65 s for another one, then takes the whole GPU.
    await cluster.until("first", "Ready", "True", within_s=180)
    await eventually(lambda: is_at_rest(cluster, node), 60, "all is at rest")

    async def is_known() -> bool:
        return (await node.gpu_node())["status"]["nodeUID"] != live["metadata"]["uid"]

    await eventually(is_known, what="the agent reports the node that there is now")
    assert node.errors == []


@pytest.mark.faults
async def test_a_driver_that_hangs_in_mid_cut_has_its_condition_and_costs_no_model(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    node.stop_agent()
    agent = node.start_agent("--driver-deadline-s", "2")
    with Admin(node.nvml) as admin:
        admin.add_fault(Fault(CREATE, hangs=True, times=1))
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    await cluster.apply(model(cluster, "first"))

    assert await asyncio.to_thread(agent.wait, 120) == 4
    ready = {c["type"]: c for c in (await node.gpu_node())["status"]["conditions"]}["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "DriverHangs")
    await eventually(lambda: pool_says(cluster, "DriverHangs"), 40, "the GPUPool says it")
    node.start_agent()  # as the kubelet does

    await cluster.until("first", "Ready", "True", within_s=90)
    await eventually(lambda: is_at_rest(cluster, node), 60, "all is at rest")
    assert node.layouts() != [["gpu"]]
    assert node.errors == []


@pytest.mark.faults
async def test_an_agent_on_a_node_of_a_mig_manager_pool_cuts_nothing_and_the_gpu_serves(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    managed = pool(node.name)
    managed["spec"]["backend"] = "MIGManager"
    await cluster.apply(managed, GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    await cluster.apply(model(cluster, "first"))

    await cluster.until("first", "Ready", "True", within_s=120)

    assert node.layouts() == [["gpu"]]
    await eventually(lambda: pool_says(cluster, "BackendConflict"), 40, "the GPUPool says it")
    assert await holds(cluster) == []


async def pool_says(cluster: LiveCluster, reason: str) -> bool:
    live = await cluster.client.get(GPU_POOLS, "", cluster.namespace) or {}
    conditions = {c["type"]: c for c in (live.get("status") or {}).get("conditions", ())}
    return reason in conditions.get("Ready", {}).get("message", "")
