"""A shape of which no replica became ready, as an operator that has just begun to lead reads it."""

import time

import pytest

from tangram.api import back_off_block
from tangram.fleet import BackOff, Shape
from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, NODES
from tests.support.apiserver import LiveCluster, add_node, gpu_node, llm

pytestmark = pytest.mark.apiserver


async def test_a_new_leader_uses_another_shape_until_the_recorded_back_off_is_over(
    cluster: LiveCluster, operator
) -> None:
    names = {"NVIDIA-L4": f"{cluster.namespace}-l4", "NVIDIA-A10": f"{cluster.namespace}-a10"}
    for product, name in names.items():
        await add_node(cluster.client, gpu_node(name, 2, product=product))
    try:
        created = await cluster.apply(
            llm("tiny", cluster.namespace, placement={"allowedSKUs": ["L4", "A10"]})
        )
        now = float(int(time.time()))
        shape, uid = Shape("L4", "gpu"), created["metadata"]["uid"]
        block = back_off_block(
            BackOff(
                uid, 1, shape, "ReplicasNotStarting", "CrashLoopBackOff", 0, now, now + 600, 1,
                started_elsewhere=True,
            )
        )  # fmt: skip
        identity = {key: created[key] for key in ("apiVersion", "kind")}
        metadata = {"name": "tiny", "namespace": cluster.namespace}
        await cluster.client.apply(
            LLM_DEPLOYMENTS,
            identity | {"metadata": metadata, "status": {"backOffs": [block]}},
            manager="tangram-operator",
            force=True,
            subresource="status",
            guard=UNGUARDED,
        )

        operator()

        await cluster.until("tiny", "Ready", "True", "AllReplicasReady", within_s=60)
        status = (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]
        assert status["placement"]["sku"] == "A10"
        assert status["backOffs"] == [block]
        placed = await cluster.condition("tiny", "Placed")
        assert "no replica on L4 became ready in time (attempt 1, since" in placed["message"]
        (deployment,) = await cluster.all(DEPLOYMENTS)
        assert deployment["status"]["readyReplicas"] == 1
    finally:
        await cluster.empty()
        for name in names.values():
            node = await cluster.client.get(NODES, "", name)
            await cluster.client.delete(NODES, "", name, uid=node["metadata"]["uid"], guard=UNGUARDED)
