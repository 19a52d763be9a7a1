"""What tests of plans of changes share: pools, models and FleetPlans of a node that is partitioned."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tangram.kube.kinds import FLEET_PLANS, GPU_POOLS, NODES
from tests.support.apiserver import LiveCluster, eventually, llm
from tests.support.nvml_driver import nvml_state
from tests.support.partitioned_node import PartitionedNode, partitioned_node

PARTITION = {"enabled": True, "settleSeconds": 1, "deadlineSeconds": 60}


def pool(name: str, policy: str = "IdleOnly") -> dict[str, Any]:
    """A GPUPool of the nodes with its name as a label."""
    return {
        "apiVersion": GPU_POOLS.api_version,
        "kind": GPU_POOLS.kind,
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"pool": name}, "migPolicy": policy, "backend": "NVML"},
    }


@contextlib.asynccontextmanager
async def uncut_node(cluster: LiveCluster) -> AsyncIterator[PartitionedNode]:
    """A node with one uncut H100; it and its pool have the name of the test's namespace."""
    name = cluster.namespace
    async with partitioned_node(cluster, name, nvml_state("H100-80GB-SXM", {}), {"pool": name}) as node:
        yield node


async def plans(cluster: LiveCluster) -> list[dict[str, Any]]:
    """The FleetPlans of changes of this test's node."""
    found = (await cluster.client.list(FLEET_PLANS)).items
    return [
        plan
        for plan in found
        if any(change["node"] == cluster.namespace for change in plan["spec"].get("changes", ()))
    ]


async def holds(cluster: LiveCluster) -> list[str]:
    """The keys of the holds on this test's node."""
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
    """An LLMDeployment in the pool of this test."""
    return llm(name, cluster.namespace, placement={"pools": [cluster.namespace]}, **spec)


async def reported(node: PartitionedNode) -> None:
    """Wait until the agent has reported the GPUs of the node."""

    async def check() -> bool:
        return bool((await node.gpu_node()).get("status", {}).get("gpus"))

    await eventually(check, what="the agent reports")
