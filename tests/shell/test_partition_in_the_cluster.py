"""The operator cuts GPUs: real API server and scheduler, real operator and agent, simulated NVML."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from e2e.cluster import binaries
from e2e.cluster.apiserver import free_port
from e2e.silicon.nvml.connection import Admin, Connection
from e2e.silicon.nvml.state import Fault
from tangram.cli.approve.consent import give_consent
from tangram.cli.cluster.access import ClusterAccess
from tangram.kube.kinds import FLEET_PLANS, GPU_POOLS, NODES, PODS, Kind
from tests.support.apiserver import CRDS, UNGUARDED, LiveCluster, eventually, llm, report
from tests.support.fault_proxy import Act, FaultProxy, Rule
from tests.support.mig_manager_node import CLUSTER_POLICY_CRD, DEPLOYED
from tests.support.nvml_driver import nvml_state
from tests.support.partitioned_node import OPERANDS, PartitionedNode, partitioned_node

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(160)]
MEDIUM = {
    "layers": 54,
    "hiddenSize": 4096,
    "heads": 32,
    "kvHeads": 8,
    "headDim": 128,
    "parameters": 13_200_000_000,
    "weightBytes": 26_400_000_000,
    "digest": "sha256:" + "1" * 64,
}
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
    operator(partition=PARTITION | {"deadlineSeconds": 8})
    await cluster.apply(model(cluster, "first"))

    await cluster.until("first", "Ready", "True", within_s=90)

    assert node.layouts() == [["gpu"]]
    await ended(cluster, "Failed")
    placed = await cluster.condition("first", "Placed")
    assert "INSUFFICIENT_RESOURCES" in placed["message"]


async def reported(node: PartitionedNode) -> None:
    async def check() -> bool:
        return bool((await node.gpu_node()).get("status", {}).get("gpus"))

    await eventually(check, what="the agent reports")


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


async def test_a_recommended_plan_waits_for_approval(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name, "Recommend"), GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    # Nothing but a slice will do: it waits for the capacity, not for the operator.
    placement = {"pools": [node.name], "mig": "Required"}
    await cluster.apply(llm("first", cluster.namespace, placement=placement))

    async def waits() -> dict[str, Any] | None:
        found = await plans(cluster)
        waiting = [p for p in found if (p.get("status") or {}).get("state") == "Recommended"]
        return waiting[0] if waiting else None

    plan = await eventually(waits, what="a plan waits for approval")
    assert node.layouts() == [["gpu"]]
    assert await holds(cluster) == []
    assert plan["status"]["reason"] == "WaitingForApproval"

    kubeconfig = str(cluster.kubeconfig)
    told = await asyncio.to_thread(
        give_consent, ClusterAccess(kubeconfig=kubeconfig), plan["metadata"]["name"], approved=True
    )

    assert "no replica moves" in told
    await cluster.until("first", "Ready", "True", within_s=60)
    await ended(cluster, "Done")


async def test_a_rejected_plan_is_not_proposed_again(
    cluster: LiveCluster, node: PartitionedNode, operator: Callable[..., Any]
) -> None:
    await cluster.apply(pool(node.name, "Recommend"), GPU_POOLS)
    operator(partition=PARTITION)
    await reported(node)
    placement = {"pools": [node.name], "mig": "Required"}
    await cluster.apply(llm("first", cluster.namespace, placement=placement))

    async def proposed() -> dict[str, Any] | None:
        found = await plans(cluster)
        return found[0] if found and found[0].get("status") else None

    plan = await eventually(proposed, what="a plan is proposed")
    name = plan["metadata"]["name"]
    await cluster.client.merge(FLEET_PLANS, "", name, {"spec": {"approved": False}}, guard=UNGUARDED)
    await ended(cluster, "Rejected")
    await cluster.apply(model(cluster, "other"))  # the fleet is planned again
    await cluster.until("other", "Ready", "True", within_s=60)

    assert [p["metadata"]["name"] for p in await plans(cluster)].count(name) == 1
    assert all(p["status"]["state"] != "Executing" for p in await plans(cluster))
    assert node.layouts() == [["gpu"]]


async def in_state(cluster: LiveCluster, state: str) -> dict[str, Any] | None:
    """The newest plan of this node that is in a state."""
    listed = sorted(await plans(cluster), key=lambda plan: plan["metadata"]["creationTimestamp"])
    return next((p for p in reversed(listed) if (p.get("status") or {}).get("state") == state), None)


def cut_by_hand(node: PartitionedNode, profile: str) -> None:
    """Create an instance on the first GPU, as a person does with nvidia-smi."""
    person = Connection(node.nvml)
    _, gpu = person.request(verb="call", name="nvmlDeviceGetHandleByIndex", arguments=[0])
    number = node.board.board.profiles[profile].profile_id
    code, instance = person.request(verb="call", name="nvmlDeviceCreateGpuInstance", arguments=[gpu, number])
    assert code.name == "SUCCESS"
    person.request(verb="call", name="nvmlGpuInstanceCreateComputeInstance", arguments=[instance, 0])
    person.close()


async def test_a_plan_that_a_change_by_hand_overtakes_is_not_carried_out_although_approved(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    name, uri = cluster.namespace, "image:///models/medium"
    cluster.kubelet.reports[uri] = report(**MEDIUM), 0
    state = nvml_state("H100-80GB-SXM", {"mig": ["1g.10gb@0"]})
    async with partitioned_node(cluster, name, state, {"pool": name}) as node:
        await cluster.apply(pool(name, "Recommend"), GPU_POOLS)
        operator(partition=PARTITION)
        await reported(node)
        await cluster.apply(model(cluster, "first", model={"uri": uri}))
        plan = await eventually(lambda: in_state(cluster, "Recommended"), what="a plan waits for approval")
        overtaken = plan["metadata"]["name"]

        cut_by_hand(node, "2g.20gb")
        (cut,) = node.layouts()
        assert len(cut) == 2

        async def is_told() -> bool:
            gpus = (await node.gpu_node())["status"]["gpus"]
            return len(gpus[0].get("instances", ())) == 2

        await eventually(is_told, what="the agent reports the change")
        await cluster.client.merge(FLEET_PLANS, "", overtaken, {"spec": {"approved": True}}, guard=UNGUARDED)

        async def next_plan() -> str:
            waiting = await in_state(cluster, "Recommended")
            name = waiting["metadata"]["name"] if waiting is not None else ""
            return name if name != overtaken else ""

        following = await eventually(next_plan, what="another plan waits for approval")
        states = {p["metadata"]["name"]: p["status"]["state"] for p in await plans(cluster)}
        assert states[overtaken] in ("Superseded", "Blocked")
        assert node.layouts() == [cut]

        await cluster.client.merge(FLEET_PLANS, "", following, {"spec": {"approved": True}}, guard=UNGUARDED)
        await cluster.until("first", "Ready", "True", within_s=60)
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


async def test_full_moves_a_replica_make_before_break(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    """Two models run on whole GPUs; then the policy allows moves: a third GPU is cut, and both move there."""
    name = cluster.namespace
    state = nvml_state("H100-80GB-SXM", {}, {}, {})
    async with partitioned_node(cluster, name, state, {"pool": name}) as node:
        await cluster.apply(pool(name, "Ignore"), GPU_POOLS)
        operator(partition=PARTITION | {"moveDeadlineSeconds": 90})
        await reported(node)
        for model_name in ("first", "second"):
            await cluster.apply(model(cluster, model_name))
            await cluster.until(model_name, "Ready", "True", within_s=60)
        assert node.layouts() == [["gpu"]] * 3
        availability = Availability(cluster)
        await cluster.apply(pool(name, "Full"), GPU_POOLS)
        async with availability.watched():
            await eventually(lambda: moved(cluster), 90, "both models run on slices")

        assert availability.least == {"first": 1, "second": 1}
        await ended(cluster, "Done")
        assert node.errors == []


async def test_a_replica_makes_room_on_the_only_gpu(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    """Slices at 0 and 4 leave no room for a 3g.40gb: one of their replicas moves to a slice beside it."""
    name = cluster.namespace
    uri = "image:///models/medium"
    cluster.kubelet.reports[uri] = report(**MEDIUM), 0
    state = nvml_state("H100-80GB-SXM", {"mig": ["1g.10gb@0", "1g.10gb@4"]})
    async with partitioned_node(cluster, name, state, {"pool": name}) as node:
        await cluster.apply(pool(name, "Ignore"), GPU_POOLS)
        operator(partition=PARTITION | {"moveDeadlineSeconds": 120})
        await reported(node)
        for model_name in ("first", "second"):
            await cluster.apply(model(cluster, model_name))
            await cluster.until(model_name, "Ready", "True", within_s=60)
        availability = Availability(cluster)
        async with availability.watched():
            await cluster.apply(pool(name, "Full"), GPU_POOLS)
            await cluster.apply(model(cluster, "third", model={"uri": uri}))
            await cluster.until("third", "Ready", "True", within_s=120)

        assert {key: availability.least[key] for key in ("first", "second")} == {"first": 1, "second": 1}
        (layout,) = node.layouts()
        assert any(part.startswith("3g.40gb@") for part in layout)
        assert sum(part.startswith("1g.10gb@") for part in layout) == 2
        await ended(cluster, "Done")
        assert node.errors == []


async def test_two_models_change_places_without_a_spare_gpu(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    """Each of two GPUs serves one model, and each model is to run on the other's: slices are made beside."""
    names = [f"{cluster.namespace}-{end}" for end in "xy"]
    states = [nvml_state("H100-80GB-SXM", {"mig": ["1g.10gb@0"]}) for _ in names]
    async with contextlib.AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(partitioned_node(cluster, name, state, {"pool": name}))
            for name, state in zip(names, states, strict=True)
        ]
        for name in names:
            await cluster.apply(pool(name, "Ignore"), GPU_POOLS)
        operator(partition=PARTITION | {"moveDeadlineSeconds": 120})
        for node in nodes:
            await reported(node)
        for model_name, at in zip(("first", "second"), names, strict=True):
            await cluster.apply(llm(model_name, cluster.namespace, placement={"pools": [at]}))
            await cluster.until(model_name, "Ready", "True", within_s=60)
        availability = Availability(cluster)
        async with availability.watched():
            for name in names:
                await cluster.apply(pool(name, "Full"), GPU_POOLS)
            for model_name, at in zip(("second", "first"), names, strict=True):
                await cluster.apply(llm(model_name, cluster.namespace, placement={"pools": [at]}))
            await eventually(lambda: run_on(cluster, second=names[0], first=names[1]), 100, "they swap")

        assert availability.least == {"first": 1, "second": 1}
        assert [node.errors for node in nodes] == [[], []]


async def run_on(cluster: LiveCluster, **expected: str) -> bool:
    """Whether each LLMDeployment has one pod, on this node."""
    live = [p for p in await cluster.all(PODS) if p["metadata"]["labels"].get("tangram.dev/profile")]
    owners = [pod["metadata"]["labels"]["tangram.dev/llmdeployment"] for pod in live]
    places = [pod["spec"].get("nodeName", "") for pod in live]
    return sorted(zip(owners, places, strict=True)) == sorted(expected.items())


class Availability:
    """The least number of ready pods of each LLMDeployment while it is watched."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.cluster = cluster
        self.least: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        over = asyncio.Event()
        task = asyncio.create_task(self._watch(over))
        try:
            yield
        finally:
            over.set()
            await task

    async def _watch(self, over: asyncio.Event) -> None:
        while not over.is_set():
            ready: dict[str, int] = {}
            for pod in await self.cluster.all(PODS):
                owner = pod["metadata"]["labels"].get("tangram.dev/llmdeployment")
                conditions = pod.get("status", {}).get("conditions") or ()
                serves = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
                if owner and serves and not pod["metadata"].get("deletionTimestamp"):
                    ready[owner] = ready.get(owner, 0) + 1
            for owner in self.least.keys() | ready.keys():
                self.least[owner] = min(self.least.get(owner, 99), ready.get(owner, 0))
            await asyncio.sleep(0.05)


async def moved(cluster: LiveCluster) -> bool:
    live = [p for p in await cluster.all(PODS) if p["metadata"]["labels"].get("tangram.dev/profile")]
    return len(live) == 2 and all(p["metadata"]["labels"]["tangram.dev/profile"] != "gpu" for p in live)


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
