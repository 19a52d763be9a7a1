"""An operator with stale mirrors, on a real API server: it removes nothing that has changed meanwhile."""

from functools import partial
from typing import Any

import pytest

from tangram.fleet import ApplyDeployment, Intent, RemoveDeployment, ScaleDeployment, Shape, Workload
from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, PODS, Object, uid_of
from tangram.kube.mirror import Mirror
from tangram.kube.retry_delays import RetrySchedule
from tangram.shell.objects import manifests
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.action_writer import ActionWriter
from tests.support.apiserver import LiveCluster, eventually, llm

pytestmark = pytest.mark.apiserver

SETTINGS = Settings(engine_image="tangram.local/engine:test")
OLD, NEW = Shape("A100-80GB-SXM", "gpu"), Shape("H100-80GB-SXM", "gpu")
PRODUCTS = {OLD: ("NVIDIA-A100-SXM4-80GB",), NEW: ("NVIDIA-H100-80GB-HBM3",)}


class Frozen:
    """An operator's mirrors and writer; the mirrors hold the objects of their last refresh."""

    def __init__(self, cluster: LiveCluster) -> None:
        new_mirror = partial(Mirror, cluster.client, changed=lambda: None, clock=lambda: 0.0)
        self.mirrors = Mirrors((cluster.namespace,), new_mirror)
        self.cluster = cluster
        self.writer = ActionWriter(
            cluster.client,
            lambda: 10.0,
            self.mirrors,
            SETTINGS,
            Expectations(self.mirrors.store),
            RetrySchedule(),
            lambda: 0.0,
        )

    async def look(self) -> tuple[Intent, tuple[Workload, ...]]:
        """Refresh the mirrors; return what they show."""
        await self.mirrors.refresh(float("inf"))
        self.writer.expectations.clear()
        view = self.mirrors.view()
        (intent,) = parsed_intents(view)
        assert isinstance(intent, Intent)
        return intent, fleet_snapshot(view, Settings(engine_image="e"), 0).workloads


def apply(intent: Intent, shape: Shape, replicas: int) -> ApplyDeployment:
    return ApplyDeployment(intent.uid, shape, replicas, PRODUCTS[shape], 1024)


async def a_move(cluster: LiveCluster) -> tuple[Frozen, Intent, tuple[Workload, ...]]:
    """An LLMDeployment whose Deployments of an old and a new shape both serve with two replicas."""
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))
    operator = Frozen(cluster)
    intent, _ = await operator.look()
    await operator.writer.perform((apply(intent, OLD, 2), apply(intent, NEW, 2)), {intent.uid: intent})

    async def serve() -> bool:
        _, workloads = await operator.look()
        return [(w.available, w.total, w.settled) for w in workloads] == [(2, 2, True)] * 2

    await eventually(serve, 40)
    return operator, *(await operator.look())


def leave(intent: Intent, workloads: tuple[Workload, ...]) -> tuple[RemoveDeployment, ScaleDeployment]:
    (old,) = (w for w in workloads if w.shape == OLD)
    identity = (intent.uid, old.namespace, old.name, old.uid)
    return RemoveDeployment(*identity), ScaleDeployment(*identity, 1)


async def state(cluster: LiveCluster) -> list[tuple[str, int]]:
    return sorted((uid_of(obj), obj["spec"]["replicas"]) for obj in await cluster.all(DEPLOYMENTS))


async def test_a_stale_mirror_removes_no_deployment_and_a_fresh_one_does(cluster: LiveCluster) -> None:
    operator, intent, workloads = await a_move(cluster)
    remove, scale = leave(intent, workloads)
    lower = apply(intent, NEW, 0)
    before = await state(cluster)

    async def nothing_goes() -> None:
        await operator.writer.perform((remove, scale, lower), {intent.uid: intent}, workloads)
        assert await state(cluster) == before
        assert operator.writer.expectations.open()
        operator.writer.expectations.clear()

    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 3}))
    await nothing_goes()  # the LLMDeployment was edited

    intent, workloads = await operator.look()
    new = manifests.deployment_name("tiny", NEW)
    cluster.kubelet.ready = lambda _pod: False
    for pod in await cluster.all(PODS):
        if pod["metadata"]["name"].startswith(new):
            await cluster.delete(PODS, pod["metadata"]["name"])
    await eventually(lambda: _available(cluster, new, 0), 30)
    await nothing_goes()  # the replacement has died

    cluster.kubelet.ready = lambda _pod: True
    await eventually(lambda: _available(cluster, new, 2), 30)
    intent, workloads = await operator.look()
    await operator.writer.perform((scale,), {intent.uid: intent}, workloads)
    assert [replicas for _, replicas in await state(cluster)].count(1) == 1
    intent, workloads = await operator.look()
    await eventually(lambda: _available(cluster, manifests.deployment_name("tiny", OLD), 1), 30)
    intent, workloads = await operator.look()
    await operator.writer.perform((remove,), {intent.uid: intent}, workloads)
    assert remove.uid not in {uid_of(o) for o in await cluster.all(DEPLOYMENTS) if not _going(o)}


async def test_a_recreated_llmdeployment_loses_no_deployment(cluster: LiveCluster) -> None:
    operator, intent, workloads = await a_move(cluster)
    actions = leave(intent, workloads)
    await cluster.delete(LLM_DEPLOYMENTS, "tiny")
    again = await cluster.apply(llm("tiny", cluster.namespace))
    assert uid_of(again) != intent.uid

    async def collected() -> bool:
        return not await cluster.all(DEPLOYMENTS)

    await eventually(collected, 40)
    newer = Frozen(cluster)
    successor, _ = await newer.look()
    await newer.writer.perform((apply(successor, OLD, 2),), {successor.uid: successor})
    before = await state(cluster)

    await operator.writer.perform((*actions, apply(intent, OLD, 0)), {intent.uid: intent}, workloads)

    assert await state(cluster) == before
    assert operator.writer.problems == {}


async def _available(cluster: LiveCluster, name: str, count: int) -> bool:
    deployment = await cluster.get(DEPLOYMENTS, name)
    return (deployment or {}).get("status", {}).get("availableReplicas", 0) == count


def _going(obj: Object) -> Any:
    return obj["metadata"].get("deletionTimestamp")
