"""FleetPlans of changes that a person decides on, and those that move replicas: policies Recommend and Full.

Real API server and scheduler, real operator and agent, simulated NVML.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from e2e.silicon.nvml.connection import Connection
from tangram.cli.approve.consent import give_consent
from tangram.cli.cluster.access import ClusterAccess
from tangram.kube.kinds import FLEET_PLANS, GPU_POOLS, LLM_DEPLOYMENTS, PODS
from tests.support.apiserver import UNGUARDED, LiveCluster, eventually, llm, report
from tests.support.nvml_driver import nvml_state
from tests.support.partition_plans import PARTITION, ended, holds, model, plans, pool, reported, uncut_node
from tests.support.partitioned_node import PartitionedNode, partitioned_node

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


@pytest.fixture
async def node(cluster: LiveCluster) -> AsyncIterator[PartitionedNode]:
    async with uncut_node(cluster) as made:
        yield made


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


async def test_a_move_alone_is_carried_out_once_a_person_consents(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    """A slice came free beside another model: the one on a whole GPU moves there, and its GPU is free."""
    name, halves = cluster.namespace, ["1g.10gb@0", "1g.10gb@4"]
    state = nvml_state("H100-80GB-SXM", {"mig": halves}, {})
    async with partitioned_node(cluster, name, state, {"pool": name}) as node:
        await cluster.apply(pool(name, "Ignore"), GPU_POOLS)
        operator(partition=PARTITION | {"moveDeadlineSeconds": 90})
        await reported(node)
        for model_name in ("first", "second", "third"):
            await cluster.apply(model(cluster, model_name))
            await cluster.until(model_name, "Ready", "True", within_s=60)
        await cluster.delete(LLM_DEPLOYMENTS, "first")
        await cluster.apply(pool(name, "Recommend"), GPU_POOLS)

        async def waits() -> dict[str, Any] | None:
            """The plan once the first model's pod is gone."""
            found = await in_state(cluster, "Recommended")
            display = found["spec"]["changeDisplay"].replace(name, "NS") if found else ""
            return found if display == "NS/third moves" else None

        plan = await eventually(waits, what="a plan waits for approval")
        assert float(plan["status"]["savesPerHour"]) > 1
        availability = Availability(cluster)
        with availability.watched():
            access = ClusterAccess(kubeconfig=str(cluster.kubeconfig))
            await asyncio.to_thread(give_consent, access, plan["metadata"]["name"], approved=True)

            async def is_done() -> bool:
                done = await in_state(cluster, "Done")
                return done is not None and done["metadata"]["name"] == plan["metadata"]["name"]

            await eventually(is_done, 60, "the plan is done")

        assert await on_slices(cluster) == {"second": True, "third": True}
        assert {key: availability.least[key] for key in ("second", "third")} == {"second": 1, "third": 1}
        assert sorted(node.layouts()) == sorted([halves, ["gpu"]])
        assert node.errors == []


async def on_slices(cluster: LiveCluster) -> dict[str, bool]:
    """Whether the pod of each LLMDeployment has a slice; of one that ends, too."""
    labels = [pod["metadata"]["labels"] for pod in await cluster.all(PODS)]
    return {
        own["tangram.dev/llmdeployment"]: own["tangram.dev/profile"] != "gpu"
        for own in labels
        if own.get("tangram.dev/profile")
    }


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


@pytest.mark.timeout(300)
async def test_a_third_model_on_two_whole_gpus_is_served_once_a_person_allows_a_restart(
    cluster: LiveCluster, operator: Callable[..., Any]
) -> None:
    """Neither GPU can be cut while its replica runs: one of them restarts, the other one moves directly."""
    name = cluster.namespace
    async with partitioned_node(cluster, name, nvml_state("H100-80GB-SXM", {}, {}), {"pool": name}) as node:
        await cluster.apply(pool(name, "Ignore"), GPU_POOLS)
        operator(partition=PARTITION | {"moveDeadlineSeconds": 120})
        await reported(node)
        for model_name in ("first", "second"):
            await cluster.apply(model(cluster, model_name))
            await cluster.until(model_name, "Ready", "True", within_s=60)
        availability = Availability(cluster)
        with availability.watched():
            await cluster.apply(pool(name, "Full"), GPU_POOLS)  # no policy consents to a restart
            await cluster.apply(model(cluster, "third"))
            plan = await eventually(lambda: in_state(cluster, "Recommended"), 60, "a plan waits for consent")
            (restarted,) = [d["owner"] for d in plan["spec"]["disturbed"] if d.get("restarts")]
            assert f"replicas of {restarted} would not serve for a while" in plan["status"]["message"]
            assert (availability.least, node.layouts()) == ({"first": 1, "second": 1}, [["gpu"]] * 2)

            approved = {"spec": {"approved": True}}
            await cluster.client.merge(FLEET_PLANS, "", plan["metadata"]["name"], approved, guard=UNGUARDED)
            await cluster.until("third", "Ready", "True", within_s=90)
            await ended(cluster, "Done")

        moved_one = {"first": "second", "second": "first"}[restarted.partition("/")[2]]
        assert availability.least[moved_one] == 1
        for model_name in ("first", "second"):
            await cluster.until(model_name, "Ready", "True", within_s=60)
        assert sorted(map(len, node.layouts()))[-1] >= 3
        assert node.errors == []


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
        with availability.watched():
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
        with availability.watched():
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
        with availability.watched():
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
    """The least number of ready pods of each LLMDeployment while it is watched: no change is left out."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.least: dict[str, int] = {}
        self._namespace, self._pods = cluster.namespace, cluster.kubelet.pods

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self._count()
        self._pods.on_change.append(self._count)
        yield
        self._pods.on_change.remove(self._count)

    def _count(self) -> None:
        ready: Counter[str] = Counter()
        for pod in self._pods.by_uid.values():
            meta = pod["metadata"]
            owner = meta.get("labels", {}).get("tangram.dev/llmdeployment")
            conditions = pod.get("status", {}).get("conditions") or ()
            serves = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
            stays = meta["namespace"] == self._namespace and not meta.get("deletionTimestamp")
            if owner and serves and stays:
                ready[owner] += 1
        for owner in self.least.keys() | ready.keys():
            self.least[owner] = min(self.least.get(owner, 99), ready[owner])


async def moved(cluster: LiveCluster) -> bool:
    live = [p for p in await cluster.all(PODS) if p["metadata"]["labels"].get("tangram.dev/profile")]
    return len(live) == 2 and all(p["metadata"]["labels"]["tangram.dev/profile"] != "gpu" for p in live)
