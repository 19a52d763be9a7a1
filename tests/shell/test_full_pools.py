"""An upgrade of the engine where every GPU is in use, carried out by the real Deployment controller."""

import asyncio
import contextlib

import pytest

from tangram.shell.api_server.client import UNGUARDED
from tangram.shell.objects.kinds import DEPLOYMENTS, NODES, PODS
from tests.support.apiserver import World, add_node, eventually, gpu_node, llm

pytestmark = pytest.mark.apiserver

UNITS = 3


@pytest.fixture
async def full_pool(here: World):
    """A node of a SKU that no other test uses, with as many GPUs as will be asked for."""
    name = f"{here.namespace}-l4"
    await add_node(here.client, gpu_node(name, UNITS, product="NVIDIA-L4"))
    yield
    await here.empty()
    node = await here.client.get(NODES, "", name)
    await here.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)


def filling(here: World, minimum: int) -> dict:
    """It asks for every GPU of the pool: at first its minimum is that many."""
    scaling = {"minReplicas": minimum, "maxReplicas": UNITS}
    return llm("tiny", here.namespace, scaling=scaling, placement={"allowedSKUs": ["L4"]})


async def serving_images(here: World) -> list[str]:
    return sorted(
        pod["spec"]["containers"][0]["image"]
        for pod in await here.all(PODS)
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
        and not pod["metadata"].get("deletionTimestamp")
        and pod["metadata"]["labels"].get("app.kubernetes.io/component") == "engine"
    )


async def strategy(here: World) -> dict:
    (deployment,) = await here.all(DEPLOYMENTS)
    return deployment["spec"]["strategy"]["rollingUpdate"]


async def test_an_upgrade_ends_though_no_gpu_is_free(here: World, operator, full_pool) -> None:
    first = operator()
    await here.apply(filling(here, UNITS))
    await here.until("tiny", "Ready", "True", "AllReplicasReady")
    await here.apply(filling(here, 1))
    await here.until("tiny", "Ready", "True", "AllReplicasReady")
    await first.stop()

    fewest = UNITS
    operator("second", engineImage="engine:next")

    async def upgraded() -> bool:
        nonlocal fewest
        images = await serving_images(here)
        fewest = min(fewest, len(images))
        return images == ["engine:next"] * UNITS

    await eventually(upgraded, 60)
    assert fewest >= UNITS - 1

    async def usual_again() -> bool:
        return await strategy(here) == {"maxUnavailable": 0, "maxSurge": 1}

    await eventually(usual_again, 20)
    await here.until("tiny", "Ready", "True", "AllReplicasReady")


async def test_at_the_minimum_the_upgrade_waits_and_says_for_what(here: World, operator, full_pool) -> None:
    first = operator()
    await here.apply(filling(here, UNITS))
    await here.until("tiny", "Ready", "True", "AllReplicasReady")
    await first.stop()

    operator("second", engineImage="engine:next")

    async def told() -> bool:
        condition = await here.condition("tiny", "Ready")
        return "the rollout waits for one free gpu on L4" in condition.get("message", "")

    await eventually(told, 30)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            while True:
                assert len(await serving_images(here)) == UNITS
                await asyncio.sleep(0.1)

    await here.apply(filling(here, UNITS - 1))
    await eventually(lambda: _all(here, "engine:next"), 60)


async def _all(here: World, image: str) -> bool:
    return await serving_images(here) == [image] * UNITS
