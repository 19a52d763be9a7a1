"""The operator cuts idle GPUs: real API server and scheduler, real operator and agent, simulated NVML."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from e2e.cluster import binaries
from e2e.cluster.apiserver import free_port
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.state import Fault
from tangram.kube.kinds import GPU_POOLS, PODS, Kind
from tests.support.apiserver import CRDS, UNGUARDED, LiveCluster, eventually
from tests.support.fault_proxy import Act, FaultProxy, Rule
from tests.support.mig_manager_node import CLUSTER_POLICY_CRD, DEPLOYED
from tests.support.nvml_driver import nvml_state
from tests.support.partition_plans import PARTITION, ended, model, plans, pool, reported, uncut_node
from tests.support.partitioned_node import OPERANDS, PartitionedNode, partitioned_node

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(160)]


@pytest.fixture
async def node(cluster: LiveCluster) -> AsyncIterator[PartitionedNode]:
    async with uncut_node(cluster) as made:
        yield made


async def test_the_first_model_gets_a_slice_of_an_uncut_gpu(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION)

    await reported(node)
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
    operator(partition=PARTITION | {"deadlineSeconds": 4}, operator={"tickSeconds": 1})
    await cluster.apply(model(cluster, "first"))

    await cluster.until("first", "Ready", "True", within_s=90)

    assert node.layouts() == [["gpu"]]
    await ended(cluster, "Failed")
    placed = await cluster.condition("first", "Placed")
    assert "INSUFFICIENT_RESOURCES" in placed["message"]


async def test_two_more_models_get_slices_beside_the_one_that_serves(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    await cluster.apply(model(cluster, "first"))
    await cluster.until("first", "Ready", "True", within_s=60)
    (before,) = node.layouts()
    pods = {p["metadata"]["uid"] for p in await cluster.all(PODS) if "first-" in p["metadata"]["name"]}

    await cluster.apply(model(cluster, "second"))
    await cluster.apply(model(cluster, "third"))
    for name in ("second", "third"):
        await cluster.until(name, "Ready", "True", within_s=90)

    (after,) = node.layouts()
    assert set(before) < set(after)
    assert len(after) == 3
    live = {p["metadata"]["uid"] for p in await cluster.all(PODS)}
    assert pods <= live
    assert node.errors == []


async def test_a_policy_that_forbids_cuts_in_mid_cut_leaves_a_legal_layout(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    node.stop_agent()
    await cluster.apply(model(cluster, "first"))

    async def is_written() -> bool:
        return bool((await node.gpu_node())["spec"].get("gpus"))

    await eventually(is_written, what="the wanted layout is written")
    await cluster.apply(pool(node.name, "Ignore"), GPU_POOLS)
    node.start_agent()

    await cluster.until("first", "Ready", "True", within_s=60)
    await ended(cluster, "Done")
    assert node.layouts() != [["gpu"]]
    assert node.errors == []


async def test_a_reboot_that_loses_all_slices_is_mended(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name), GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    await cluster.apply(model(cluster, "first"))
    await cluster.until("first", "Ready", "True", within_s=60)
    (before,) = node.layouts()

    await node.reboot()

    async def restored() -> bool:
        return node.layouts() == [before] and bool(node.allocated)

    await eventually(restored, 60, "the slice and its pod are back")
    await cluster.until("first", "Ready", "True", within_s=60)
    assert [p["status"]["state"] for p in await plans(cluster)] == ["Done"]


CUTS = [("patch", "nodes", "", 1), ("apply", "gpunodes", "", 1), ("patch", "nodes", "", 2)]
OTHERS = [
    ("create", "gpunodes", "", 1),
    *(("create", "fleetplans", "", nth) for nth in (1, 2)),
    *(("apply", "fleetplans", "status", nth) for nth in (1, 2, 3, 4, 5)),
]


@pytest.mark.parametrize(
    ("act", "write"),
    [
        *(("kill-after", write) for write in CUTS),
        *(pytest.param("kill-before", write, marks=pytest.mark.faults) for write in CUTS),
        *(
            pytest.param(act, write, marks=pytest.mark.faults)
            for act in ("kill-before", "kill-after")
            for write in OTHERS
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, filter(None, value))),
)
async def test_an_operator_that_dies_at_a_write_is_followed(
    cluster: LiveCluster,
    node: PartitionedNode,
    operator: Callable[..., Any],
    proxy: FaultProxy,
    act: Act,
    write: tuple[str, str, str, int],
) -> None:
    await cluster.apply(pool(node.name), GPU_POOLS)
    verb, plural, subresource, nth = write
    proxy.rules = [Rule(act, verb=verb, plural=plural, subresource=subresource, nth=nth)]
    first = operator(partition=PARTITION)
    proxy.kill = first.kill
    await cluster.apply(model(cluster, "first"))

    async def dead() -> bool:
        return not first.alive()

    await eventually(dead, 40, "the write at which it dies")
    operator("second", partition=PARTITION)

    await cluster.until("first", "Ready", "True", within_s=90)
    await eventually(lambda: is_cut(node), what="the GPU is cut")
    await ended(cluster, "Done")
    assert node.errors == []


async def is_cut(node: PartitionedNode) -> bool:
    return node.layouts() != [["gpu"]]


async def test_a_node_that_arrives_is_held_until_it_is_sliced(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    """A pod that asks for a whole GPU waits for any node: it does not get the one that is to be cut."""
    name = cluster.namespace
    await cluster.apply(pool(name), GPU_POOLS)
    operator(partition=PARTITION)
    requests = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "foreign", "resources": {"limits": requests, "requests": requests}}
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign", "namespace": name}}
    foreign["spec"] = {"containers": [container], "nodeSelector": {"pool": name}}  # type: ignore[assignment]
    await cluster.client.create(PODS, foreign, manager="somebody", guard=UNGUARDED)
    await cluster.apply(model(cluster, "first"))
    taint = {"key": "hold.tangram.dev/gpu", "value": "arriving", "effect": "NoSchedule"}

    async with partitioned_node(
        cluster, name, nvml_state("H100-80GB-SXM", {}), {"pool": name}, [taint]
    ) as node:
        await cluster.until("first", "Ready", "True", within_s=60)

        assert node.layouts() != [["gpu"]]
        waiting = await cluster.get(PODS, "foreign")
        assert waiting is not None
        assert not waiting["spec"].get("nodeName")
        await ended(cluster, "Done")
        await cluster.delete(PODS, "foreign")


MANAGED = PARTITION | {
    "migManager": {"enabled": True, "editClusterPolicy": True, "configSyncSeconds": 2, "deadlineSeconds": 120}
}


@pytest.fixture
def plain_api(plane: Any) -> Iterator[str]:
    """The API server without TLS, for the stand-in of mig-manager."""
    port = free_port()
    command = [
        str(binaries.need("kubectl")),
        "--kubeconfig",
        str(plane.kubeconfig),
        "proxy",
        f"--port={port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


@pytest.mark.parametrize("faults", [{}, pytest.param({"stuck": 1}, marks=pytest.mark.faults)])
async def test_mig_manager_cuts_a_gpu_beside_one_that_serves(
    cluster: LiveCluster, operator: Callable[..., Any], plain_api: str, faults: dict[str, int]
) -> None:
    name = cluster.namespace
    await cluster.client.apply(CRDS, CLUSTER_POLICY_CRD, manager="nvidia", force=True, guard=UNGUARDED)
    kind = Kind("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
    await eventually(lambda: cluster.client.served(kind), what="ClusterPolicies are served")
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    await cluster.client.apply(kind, policy | {"spec": {}}, manager="nvidia", force=True, guard=UNGUARDED)
    labels = {"pool": name, "nvidia.com/mig.config": "all-disabled", "nvidia.com/mig.config.state": "success"}
    labels |= {f"nvidia.com/gpu.deploy.{each}": "true" for each in DEPLOYED}
    managed = pool(name)
    managed["spec"]["backend"] = "MIGManager"

    state = nvml_state("H100-80GB-SXM", {}, {})
    async with partitioned_node(cluster, name, state, labels, managed=True) as node:
        node.start_mig_manager(plain_api, f"{OPERANDS}/tangram-mig-config", **faults)
        await cluster.apply(managed, GPU_POOLS)
        operator(partition=MANAGED)
        await reported(node)
        await cluster.apply(model(cluster, "first"))

        await cluster.until("first", "Ready", "True", within_s=120)

        assert sorted(node.layouts())[0] != ["gpu"]
        await ended(cluster, "Done")
        assert node.errors == []
