"""A node without GPU feature discovery in a GPUPool with a SKU: the real scheduler binds pods there."""

from collections.abc import AsyncIterator

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, GPU_POOLS, NODES, PODS
from tests.support.apiserver import LiveCluster, add_node, eventually, gpu_node, llm

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

H100 = "H100-80GB-SXM"


@pytest.fixture
async def bare(cluster: LiveCluster) -> AsyncIterator[str]:
    """A node that offers GPUs and has no NVIDIA label, only one of its own."""
    name = f"{cluster.namespace}-bare"
    bare_node = gpu_node(name, gpus=2)
    bare_node["metadata"]["labels"] = {"kubernetes.io/hostname": name, "rack": cluster.namespace}
    await add_node(cluster.client, bare_node)
    yield name
    await cluster.empty()
    live_node = await cluster.client.get(NODES, "", name)
    await cluster.client.delete(NODES, "", name, uid=live_node["metadata"]["uid"], guard=UNGUARDED)


async def test_an_unlabelled_node_of_a_pool_with_sku_serves_without_a_rollout_elsewhere(
    cluster: LiveCluster, operator, bare: str
) -> None:
    operator(operator={"tickSeconds": 1})
    await cluster.apply(llm("labelled", cluster.namespace, placement={"allowedSKUs": [H100]}))
    await cluster.until("labelled", "Ready", "True")
    (before,) = await cluster.all(DEPLOYMENTS)

    pool = {
        "apiVersion": GPU_POOLS.api_version,
        "kind": GPU_POOLS.kind,
        "metadata": {"name": "bare"},
        "spec": {"nodeSelector": {"rack": cluster.namespace}, "sku": H100},
    }
    await cluster.apply(pool, GPU_POOLS)
    placement = {"pools": ["bare"], "allowedSKUs": [H100]}
    await cluster.apply(llm("declared", cluster.namespace, placement=placement))
    await cluster.until("declared", "Ready", "True")

    nodes = {pod["metadata"]["labels"]["tangram.dev/llmdeployment"]: pod for pod in await cluster.all(PODS)}
    assert nodes["declared"]["spec"]["nodeName"] == bare
    assert nodes["labelled"]["spec"]["nodeName"] == "gpu-1"
    after = await cluster.get(DEPLOYMENTS, before["metadata"]["name"])
    assert after["metadata"]["generation"] == before["metadata"]["generation"]

    async def counted() -> bool:
        status = (await cluster.get(GPU_POOLS, "bare")).get("status") or {}
        return (status.get("nodes"), status.get("gpus"), status.get("free")) == (1, 2, {"nvidia.com/gpu": 1})

    await eventually(counted, 60, "the pool's node and what is free of it")
