"""An upgrade of the engine where every GPU is in use, carried out by the real Deployment controller."""

import asyncio
import contextlib

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, NODES, PODS
from tests.support.apiserver import LiveCluster, add_node, eventually, gpu_node, llm

pytestmark = pytest.mark.apiserver

UNITS = 3


@pytest.fixture
async def full_pool(cluster: LiveCluster):
    """A node of a SKU that no other test uses, with as many GPUs as the test requests."""
    name = f"{cluster.namespace}-l4"
    await add_node(cluster.client, gpu_node(name, UNITS, product="NVIDIA-L4"))
    yield
    await cluster.empty()
    node = await cluster.client.get(NODES, "", name)
    await cluster.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)


def filling(cluster: LiveCluster, minimum: int) -> dict:
    """An LLMDeployment that requests every GPU of the pool; `minimum` is its least number of replicas."""
    scaling = {"minReplicas": minimum, "maxReplicas": UNITS}
    return llm("tiny", cluster.namespace, scaling=scaling, placement={"allowedSKUs": ["L4"]})


async def serving_images(cluster: LiveCluster) -> list[str]:
    return sorted(
        pod["spec"]["containers"][0]["image"]
        for pod in await cluster.all(PODS)
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
        and not pod["metadata"].get("deletionTimestamp")
        and pod["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"
    )


async def strategy(cluster: LiveCluster) -> dict:
    (deployment,) = await cluster.all(DEPLOYMENTS)
    return deployment["spec"]["strategy"]["rollingUpdate"]


async def test_an_upgrade_completes_though_no_gpu_is_free(cluster: LiveCluster, operator, full_pool) -> None:
    first = operator()
    await cluster.apply(filling(cluster, UNITS))
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")
    await cluster.apply(filling(cluster, 1))
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")
    await first.stop()

    fewest = UNITS
    operator("second", engineImage="engine:next")

    async def upgraded() -> bool:
        nonlocal fewest
        images = await serving_images(cluster)
        fewest = min(fewest, len(images))
        return images == ["engine:next"] * UNITS

    await eventually(upgraded, 60)
    assert fewest >= UNITS - 1

    async def usual_again() -> bool:
        return await strategy(cluster) == {"maxUnavailable": 0, "maxSurge": 1}

    await eventually(usual_again, 20)
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")


async def test_an_upgrade_at_the_minimum_waits_and_names_the_missing_gpu(
    cluster: LiveCluster, operator, full_pool
) -> None:
    first = operator()
    await cluster.apply(filling(cluster, UNITS))
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")
    await first.stop()

    operator("second", engineImage="engine:next")

    async def message_names_free_gpu() -> bool:
        condition = await cluster.condition("tiny", "Ready")
        return "the rollout waits for one free gpu on L4" in condition.get("message", "")

    await eventually(message_names_free_gpu, 30)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            while True:
                assert len(await serving_images(cluster)) == UNITS
                await asyncio.sleep(0.1)

    await cluster.apply(filling(cluster, UNITS - 1))
    await eventually(lambda: _all(cluster, "engine:next"), 60)


async def _all(cluster: LiveCluster, image: str) -> bool:
    return await serving_images(cluster) == [image] * UNITS
