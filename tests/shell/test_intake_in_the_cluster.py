"""kopf as the intake on a real API server: many objects at once, and deletions while it is down."""

import asyncio

import pytest

from tangram.kube.kinds import LLM_DEPLOYMENTS
from tangram.kube.kubeconfig import load_kubeconfig
from tangram.kube.mirror import MirrorSource
from tangram.shell.intake.mirror import IntakeMirror
from tangram.shell.intake.supervision import KopfSupervisor, intake_of
from tangram.shell.watch import kept_fields
from tests.support.apiserver import LiveCluster, llm

pytestmark = pytest.mark.apiserver


async def test_kopf_delivers_many_objects_at_once_and_a_list_what_it_loses(
    cluster: LiveCluster,
) -> None:
    clock, restarts = asyncio.get_running_loop().time, list[None]()
    source = MirrorSource(LLM_DEPLOYMENTS, kept_fields.custom_resource, cluster.namespace)
    mirror = IntakeMirror(cluster.client, source, changed=lambda: None, clock=clock, relist_s=3600.0)
    supervisor = KopfSupervisor(
        intake_of(load_kubeconfig(str(cluster.kubeconfig)), [mirror]),
        [mirror],
        check_s=1.0,
        clock=clock,
        restarted=lambda: restarts.append(None),
    )
    tasks = [asyncio.create_task(work) for work in (mirror.run(), supervisor.run())]
    names = [f"m{number}" for number in range(500)]
    for first in range(0, len(names), 50):
        batch = names[first : first + 50]
        await asyncio.gather(*(cluster.apply(llm(name, cluster.namespace)) for name in batch))
    assert await mirror.wait_for(lambda store: len(store) == len(names), 60.0)
    assert (mirror.lists, restarts) == (1, [])

    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    await supervisor.end()
    await cluster.delete(LLM_DEPLOYMENTS, names[0])
    await cluster.apply(llm(names[1], cluster.namespace, paused=True))
    await mirror._compare()
    assert mirror.store.get((cluster.namespace, names[0])) is None
    changed = mirror.store.get((cluster.namespace, names[1]))
    assert changed is not None
    assert changed["spec"]["paused"] is True

    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
