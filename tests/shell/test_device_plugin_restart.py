"""A device plugin restarts under running replicas, with a real API server, scheduler and controllers."""

import asyncio

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, NODES, PODS
from tests.support.apiserver import LiveCluster, add_node, eventually, gpu_node, llm

pytestmark = pytest.mark.apiserver

UNITS, AWAY_S = 3, 6.0


@pytest.fixture
async def two_kinds(cluster: LiveCluster):
    """A node that is filled, and one with free GPUs of another kind: a second Deployment would find room."""
    nodes = {"A10": f"{cluster.namespace}-a10", "L4": f"{cluster.namespace}-l4"}
    for sku, name in nodes.items():
        await add_node(cluster.client, gpu_node(name, UNITS, product=f"NVIDIA-{sku}"))
    yield nodes
    await cluster.empty()
    for name in nodes.values():
        node = await cluster.client.get(NODES, "", name)
        await cluster.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)


async def engine_pods(cluster: LiveCluster) -> list[dict]:
    label = "app.kubernetes.io/component"
    return [pod for pod in await cluster.all(PODS) if pod["metadata"]["labels"].get(label) == "engine"]


async def test_a_device_plugin_restart_starts_stops_and_scales_nothing(
    cluster: LiveCluster, operator, two_kinds
) -> None:
    operator()
    deployment_spec = llm(
        "tiny", cluster.namespace, scaling={"minReplicas": UNITS}, placement={"allowedSKUs": ["A10", "L4"]}
    )
    await cluster.apply(deployment_spec)
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")
    (before,) = await cluster.all(DEPLOYMENTS)
    pods = await engine_pods(cluster)
    (name,) = {pod["spec"]["nodeName"] for pod in pods}
    (sku,) = [sku for sku, node in two_kinds.items() if node == name]

    async def offers(count: int) -> None:
        status = gpu_node(name, count, product=f"NVIDIA-{sku}")
        await cluster.client.apply(
            NODES, status, manager="kubelet", force=True, subresource="status", guard=UNGUARDED
        )

    await offers(0)
    # A pod is evicted meanwhile: the one that replaces it finds no GPU of its kind.
    gone = pods[0]["metadata"]
    await cluster.client.delete(PODS, gone["namespace"], gone["name"], uid=gone["uid"], guard=UNGUARDED)
    observed_replicas = set()
    for _ in range(int(AWAY_S / 0.5)):
        await asyncio.sleep(0.5)
        observed_replicas |= {
            (d["metadata"]["uid"], d["spec"]["replicas"]) for d in await cluster.all(DEPLOYMENTS)
        }
    pods_before = {pod["metadata"]["uid"] for pod in await engine_pods(cluster)}
    placed = await cluster.condition("tiny", "Placed")
    await offers(UNITS)
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")

    assert observed_replicas == {(before["metadata"]["uid"], UNITS)}
    assert {pod["metadata"]["uid"] for pod in pods[1:]} <= pods_before
    assert placed["status"] == "True"

    async def scheduled() -> bool:
        return {pod["spec"].get("nodeName") for pod in await engine_pods(cluster)} == {name}

    await eventually(scheduled)
