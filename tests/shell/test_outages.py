"""The operator during faults of the API server, the network or another operator."""

import asyncio
import time

import aiohttp
import pytest

from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, PODS, SERVICES, uid_of
from tests.support.apiserver import LiveCluster, eventually, llm
from tests.support.fault_proxy import FaultProxy, Rule

pytestmark = pytest.mark.apiserver

QUICK_LEASE = {"leaseSeconds": 3, "renewSeconds": 2, "retrySeconds": 0.5}


# 75 s is longer than a lease and a bookmark: it waits more than it tests, so the campaign does it.
@pytest.mark.parametrize(
    "seconds", [5, pytest.param(75, marks=[pytest.mark.faults, pytest.mark.timeout(400)])]
)
async def test_the_operator_survives_an_unreachable_api_server(
    cluster: LiveCluster, proxy: FaultProxy, operator, seconds: int
) -> None:
    process = operator()
    await cluster.apply(llm("kept", cluster.namespace))
    await cluster.apply(llm("dropped", cluster.namespace))
    await cluster.until("kept", "Ready", "True")
    await cluster.until("dropped", "Ready", "True")

    proxy.down = True
    proxy.cut()
    await cluster.delete(LLM_DEPLOYMENTS, "dropped")
    await cluster.apply(llm("born", cluster.namespace))
    await asyncio.sleep(seconds)
    assert process.alive()
    proxy.down = False

    await cluster.until("born", "Ready", "True", within_s=45)
    await eventually(lambda: _deployments_of(cluster, {"kept", "born"}), 20)
    assert process.alive()


async def test_a_deletion_during_a_disconnection_is_detected(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    (before,) = await cluster.all(DEPLOYMENTS)

    proxy.down = True
    proxy.cut()
    await cluster.delete(DEPLOYMENTS, before["metadata"]["name"])
    await cluster.delete(SERVICES, "tiny")
    await asyncio.sleep(1)
    proxy.down = False

    async def made_again() -> bool:
        deployments = await cluster.all(DEPLOYMENTS)
        return (
            len(deployments) == 1
            and uid_of(deployments[0]) != uid_of(before)
            and await cluster.get(SERVICES, "tiny") is not None
        )

    await eventually(made_again, 30)
    await cluster.until("tiny", "Ready", "True")


async def test_a_watch_that_is_too_old_lists_again(
    cluster: LiveCluster, plane, proxy: FaultProxy, operator
) -> None:
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    (before,) = await cluster.all(DEPLOYMENTS)

    proxy.down = True
    proxy.cut()
    await cluster.delete(DEPLOYMENTS, before["metadata"]["name"])
    await asyncio.to_thread(plane.compact)
    await asyncio.to_thread(plane.restart_apiserver)
    proxy.trace.clear()
    proxy.down = False

    async def made_again() -> bool:
        deployments = await cluster.all(DEPLOYMENTS)
        return len(deployments) == 1 and uid_of(deployments[0]) != uid_of(before)

    await eventually(made_again, 40)
    await cluster.until("tiny", "Ready", "True")


@pytest.mark.parametrize("act", ["watch-error", "watch-close", "watch-double"])
async def test_broken_watches_change_nothing(cluster: LiveCluster, proxy: FaultProxy, operator, act) -> None:
    proxy.rules = [
        Rule(act, verb="watch", plural=plural, nth=nth, code=410)
        for plural in ("llmdeployments", "deployments", "pods", "jobs", "services", "nodes")
        for nth in (1, 2, 3)
    ]
    process = operator()
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))

    await cluster.until("tiny", "Ready", "True", within_s=60)

    assert process.alive()


async def test_a_lost_watch_event_is_found_by_the_periodic_list(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    proxy.rules = [Rule("watch-drop", verb="watch", plural="deployments", nth=1)]
    process = operator(operator={"relistSeconds": 2})
    await cluster.apply(llm("tiny", cluster.namespace))

    await cluster.until("tiny", "Ready", "True", within_s=60)

    assert (
        await _metric(process, "tangram_expectations_overdue_total")
        + await _metric(process, 'tangram_mirror_drift_total{kind="deployments"}')
        >= 1
    )


async def test_the_second_operator_takes_over_when_the_leader_is_killed(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    first = operator("first")
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    second = operator("second")
    await eventually(lambda: _ready(second), 30)
    await asyncio.sleep(2)

    first.kill()
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))

    async def scaled() -> bool:
        (deployment,) = await cluster.all(DEPLOYMENTS)
        return deployment["spec"]["replicas"] == 2

    await eventually(scaled, 25)
    assert second.alive()


async def test_a_leader_that_stops_hands_over_at_once(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    lease = {"namespace": cluster.namespace, "name": "l", "leaseSeconds": 90, "renewSeconds": 60}
    first = operator("first", leaderElection=lease)
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    second = operator("second", leaderElection=lease | {"retrySeconds": 0.5})
    await eventually(lambda: _ready(second), 30)

    assert await first.stop() == 0
    stopped = time.monotonic()
    await eventually(lambda: _leads(second), 10)
    assert time.monotonic() - stopped < 45  # nowhere near the lease that the first gave back


async def test_an_operator_that_cannot_renew_stops_writing(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    process = operator(
        leaderElection={"namespace": cluster.namespace, "name": "l"} | QUICK_LEASE,
        operator={"tickSeconds": 1},
    )
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")

    proxy.rules = [Rule("status", verb="update", plural="leases", nth=0, code=500)]
    await asyncio.sleep(3)
    proxy.trace.clear()
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))
    await asyncio.sleep(3)
    assert proxy.writes() == []

    proxy.rules = []
    await cluster.until("tiny", "Ready", "True", within_s=30)
    assert (await cluster.all(DEPLOYMENTS))[0]["spec"]["replicas"] == 2
    assert process.alive()


async def test_without_the_crd_the_operator_reports_it_and_exits(
    plane, tmp_path, cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    proxy.rules = [
        Rule("status", verb="get", plural="", subresource="/apis/tangram.dev/v1alpha1", nth=0, code=404)
    ]
    process = operator()
    assert await asyncio.to_thread(process.process.wait, 30) == 3
    assert "install the CRD" in process.logs()


async def _deployments_of(cluster: LiveCluster, owners: set[str]) -> bool:
    owners_with_deployments = {
        d["metadata"]["labels"]["tangram.dev/llmdeployment"] for d in await cluster.all(DEPLOYMENTS)
    }
    pods = {p["metadata"]["labels"].get("tangram.dev/llmdeployment") for p in await cluster.all(PODS)}
    return owners_with_deployments == owners and pods == owners


def _port(process, which: str) -> int:
    import yaml

    return int(yaml.safe_load(process.config.read_text())[which])


async def _fetch(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def _ready(process) -> bool:
    return (await _fetch(f"http://127.0.0.1:{_port(process, 'probePort')}/readyz"))[0] == 200


async def _metric(process, name: str) -> float:
    _, text = await _fetch(f"http://127.0.0.1:{_port(process, 'metricsPort')}/metrics")
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


async def _leads(process) -> bool:
    return await _metric(process, "tangram_lease_held") == 1


async def test_an_error_inside_a_watch_is_survived(cluster: LiveCluster, proxy: FaultProxy, operator) -> None:
    proxy.rules = [
        Rule("watch-error", verb="watch", plural=plural, nth=nth, code=500)
        for plural in ("llmdeployments", "deployments", "pods")
        for nth in (1, 2, 3, 4, 5)
    ]
    process = operator()
    await cluster.apply(llm("tiny", cluster.namespace))

    await cluster.until("tiny", "Ready", "True", within_s=60)

    assert process.alive()
    assert await _metric(process, "tangram_intake_restarts_total") >= 1
