"""A real operator on a real API server writes a FleetPlan; a snapshot gives the very same plan in a file."""

import asyncio
import json

import pytest
import yaml

from e2e.cluster.apiserver import ControlPlane, free_port
from tangram.kube.kinds import FLEET_PLANS, LLM_DEPLOYMENTS, PRIORITY_CLASSES
from tests.support.apiserver import OperatorProcess, eventually, live_cluster, llm, prepare, priority_class
from tests.support.plans import run

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane"), controller_manager=True, scheduler=True) as running:
        asyncio.run(prepare(running.kubeconfig))
        yield running


def settings(namespace):
    election = {"namespace": namespace, "name": "tangram-operator"}
    election |= {"leaseSeconds": 4, "renewSeconds": 3, "retrySeconds": 0.5}
    return {
        "engineImage": "tangram.local/tangram-engine:test",
        "watchNamespaces": [namespace],
        "prices": {"H100-80GB-SXM": 2.0},
        "leaderElection": election,
        "listenHost": "127.0.0.1",
        "probePort": free_port(),
        "metricsPort": free_port(),
        "operator": {"logFormat": "plain"},
    }


async def test_the_plan_of_its_snapshot_has_the_name_of_the_operators_fleetplan(plane, tmp_path):
    async with live_cluster(plane.kubeconfig, tmp_path) as here:
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(settings(here.namespace)))
        operator = OperatorProcess(config, plane.kubeconfig, tmp_path / "operator.log").start()
        access = ("--kubeconfig", plane.kubeconfig, "--config", config)
        try:
            traffic = {"requestsPerSecond": 3, "inputTokens": {"mean": 400}, "outputTokens": {"mean": 100}}
            await here.apply(
                llm("chat", here.namespace, traffic=traffic, scaling={"minReplicas": 1, "maxReplicas": 4})
            )
            await here.apply(priority_class(f"{here.namespace}-draft", 3), PRIORITY_CLASSES)
            await here.apply(llm("draft", here.namespace, priorityClassName=f"{here.namespace}-draft"))
            for name in ("chat", "draft"):
                await here.until(name, "Ready", "True")

            async def same():
                """The fleet is still for the moment that it takes to look at it from both sides."""
                plans = {p["metadata"]["name"]: p for p in (await here.client.list(FLEET_PLANS)).items}
                await asyncio.to_thread(run, "snapshot", "-o", tmp_path / "fleet.yaml", *access)
                _, out, _ = await asyncio.to_thread(run, "plan", "-f", tmp_path / "fleet.yaml", "-o", "json")
                ours = json.loads(out)
                return (ours, plans[ours["inputsHash"]]) if ours["inputsHash"] in plans else None

            ours, theirs = await eventually(same, 60, "a FleetPlan of the hash that the snapshot has")
            assert theirs["spec"]["totalDeployments"] == len(ours["deployments"]) == 2
            assert float(theirs["spec"]["costPerHour"]) == pytest.approx(ours["costPerHour"], abs=0.01)
            assert float(theirs["spec"]["objective"]) == pytest.approx(ours["objective"], abs=0.01)

            operator.kill()
            _, out, _ = await asyncio.to_thread(run, "explain", "llmdep/chat", *access, "-o", "json")
            found = json.loads(out)
            assert found["inputsHash"] == ours["inputsHash"]
            assert found["runsOn"][0]["replicas"] == found["operator"]["desired"]
            obj = await here.client.get(LLM_DEPLOYMENTS, here.namespace, "chat")
            assert found["operator"]["desired"] == obj["status"]["desiredReplicas"]
        finally:
            operator.kill()
            print(operator.logs()[-4000:])  # noqa: T201 - pytest shows it on failure
