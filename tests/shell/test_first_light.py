"""An LLMDeployment becomes a Deployment, a Service and a status."""

import asyncio

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import (
    DEPLOYMENTS,
    FLEET_PLANS,
    JOBS,
    LLM_DEPLOYMENTS,
    SERVICES,
    uid_of,
)
from tests.support.apiserver import LiveCluster, eventually, llm, misnote_the_replica_set, refusal
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.apiserver


async def test_an_llmdeployment_becomes_ready_with_deployment_service_and_facts(
    cluster: LiveCluster, operator
) -> None:
    operator()
    owner = await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))

    ready = await cluster.until("tiny", "Ready", "True")

    assert ready["observedGeneration"] == 1
    status = (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]
    assert (status["replicas"], status["replicasDisplay"]) == (2, "2/2")
    assert status["model"]["facts"]["weightBytes"] == 2471645608
    (deployment,) = await cluster.all(DEPLOYMENTS)
    assert deployment["metadata"]["name"] == f"tiny-{status['placement']['variant']}"
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == uid_of(owner)
    assert deployment["spec"]["replicas"] == 2
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:5] == [
        "serve",
        "--model",
        "/models/tangram-tiny",
        "--served-model-name",
        "tiny",
    ]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["automountServiceAccountToken"] is False
    service = await cluster.get(SERVICES, "tiny")
    selector, labels = service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert service["spec"]["ports"][0] | {"port": 80, "targetPort": "http"} == service["spec"]["ports"][0]

    async def no_job() -> bool:
        return await cluster.all(JOBS) == []

    await eventually(no_job, what="the inspect Job is gone")


async def test_a_change_of_the_spec_reaches_the_deployment(cluster: LiveCluster, operator) -> None:
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")

    await cluster.apply(
        llm("tiny", cluster.namespace, scaling={"minReplicas": 3}, engine={"maxModelLen": 1024})
    )

    async def three_of_the_new() -> bool:
        (deployment,) = await cluster.all(DEPLOYMENTS)
        args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return "1024" in args and deployment.get("status", {}).get("readyReplicas") == 3

    await eventually(three_of_the_new, 40)
    ready = await cluster.until("tiny", "Ready", "True")
    assert ready["observedGeneration"] == 2


async def test_an_unservable_checkpoint_is_reported_and_gets_no_deployment(
    cluster: LiveCluster, operator
) -> None:
    cluster.kubelet.reports["image:///models/odd"] = (
        refusal("UnknownArchitecture", "config.json: MambaForCausalLM"),
        3,
    )
    operator()
    await cluster.apply(llm("odd", cluster.namespace, model={"uri": "image:///models/odd"}))

    condition = await cluster.until("odd", "ModelReady", "False", "UnknownArchitecture")

    assert "MambaForCausalLM" in condition["message"]
    assert await cluster.all(DEPLOYMENTS) == []


async def test_an_invalid_inspection_report_is_a_failure_not_a_crash(cluster: LiveCluster, operator) -> None:
    cluster.kubelet.reports["image:///models/liar"] = ('{"schema":1,"facts":{"weightBytes":"many"}}', 0)
    process = operator()
    await cluster.apply(llm("liar", cluster.namespace, model={"uri": "image:///models/liar"}))

    await cluster.until("liar", "ModelReady", "False", "InspectionFailed")

    assert process.alive()


async def test_a_refused_llmdeployment_does_not_stop_the_others(cluster: LiveCluster, operator) -> None:
    await cluster.apply({**_foreign_service("taken", cluster.namespace)}, SERVICES)
    operator()
    await cluster.apply(llm("taken", cluster.namespace))
    await cluster.apply(llm("free", cluster.namespace))

    await cluster.until("free", "Ready", "True")
    await cluster.until("taken", "Ready", "False", "NameTaken")


async def test_a_foreign_service_of_the_same_name_is_left_alone_and_reported(
    cluster: LiveCluster, operator
) -> None:
    before = await cluster.apply(_foreign_service("tiny", cluster.namespace), SERVICES, manager="someone")
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))

    condition = await cluster.until("tiny", "Ready", "False", "NameTaken")

    assert "left alone" in condition["message"]
    after = await cluster.get(SERVICES, "tiny")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    await cluster.delete(SERVICES, "tiny")
    await cluster.until("tiny", "Ready", "True", within_s=60)


async def test_a_foreign_deployment_of_the_same_name_is_left_alone(cluster: LiveCluster, operator) -> None:
    process = operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    name = (await cluster.all(DEPLOYMENTS))[0]["metadata"]["name"]
    await process.stop()
    await cluster.delete(LLM_DEPLOYMENTS, "tiny")
    await eventually(lambda: _gone(cluster, name), 30)
    before = await cluster.apply(_foreign_deployment(name, cluster.namespace), DEPLOYMENTS, manager="someone")

    process.start()
    await cluster.apply(llm("tiny", cluster.namespace))

    await cluster.until("tiny", "Ready", "False", "NameTaken")
    after = await cluster.get(DEPLOYMENTS, name)
    assert uid_of(after) == uid_of(before)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")


async def test_foreign_fields_stay_and_edits_of_own_fields_are_corrected(
    cluster: LiveCluster, operator
) -> None:
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    name = (await cluster.all(DEPLOYMENTS))[0]["metadata"]["name"]

    edit = {
        "metadata": {"annotations": {"team": "blue"}},
        "spec": {"replicas": 5, "template": {"metadata": {"annotations": {"sidecar": "yes"}}}},
    }
    await cluster.client.merge(DEPLOYMENTS, cluster.namespace, name, edit, guard=UNGUARDED)

    async def healed() -> bool:
        deployment = await cluster.get(DEPLOYMENTS, name)
        return deployment["spec"]["replicas"] == 1

    await eventually(healed)
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))
    await cluster.until("tiny", "Ready", "True")
    deployment = await cluster.get(DEPLOYMENTS, name)
    assert deployment["metadata"]["annotations"]["team"] == "blue"
    assert deployment["spec"]["template"]["metadata"]["annotations"]["sidecar"] == "yes"


async def test_a_rollout_stalled_in_its_controller_completes(cluster: LiveCluster, operator) -> None:
    """What two changes of the replicas leave behind where they meet a rollout, made by hand: there they would
    have to fall between two steps of kube-controller-manager.
    """
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    await misnote_the_replica_set(cluster)

    await cluster.apply(llm("tiny", cluster.namespace, engine={"maxModelLen": 1024}))

    await cluster.until("tiny", "Ready", "True")
    (deployment,) = await cluster.all(DEPLOYMENTS)
    assert deployment["status"]["updatedReplicas"] == deployment["status"]["replicas"] == 1


async def test_an_llmdeployment_deleted_while_starting_leaves_nothing(cluster: LiveCluster, operator) -> None:
    cluster.kubelet.ready = lambda _pod: False
    operator()
    await cluster.apply(llm("tiny", cluster.namespace))
    await eventually(lambda: cluster.all(DEPLOYMENTS))

    await cluster.delete(LLM_DEPLOYMENTS, "tiny")

    async def nothing() -> bool:
        return not [o for kind in (DEPLOYMENTS, SERVICES, JOBS) for o in await cluster.all(kind)]

    await eventually(nothing, 30)
    await asyncio.sleep(2)
    assert await nothing()


async def test_steady_state_and_a_restart_write_nothing_but_the_lease(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    listed = {"podMetadataKeys": ["team", "example.com/*"]}
    process = operator(operator={"tickSeconds": 0.5}, engine=listed)
    await cluster.apply(llm("one", cluster.namespace, scaling={"minReplicas": 2}))
    reads = {
        "engine": {
            "apiKeySecretRef": {"name": "keys"},
            "resources": {"requests": {"cpu": "1.5", "memory": "4096Mi"}},
        },
        "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/a": "b"}},
    }
    await cluster.apply(llm("two", cluster.namespace, **reads))
    await cluster.until("one", "Ready", "True")
    await cluster.until("two", "Ready", "True")
    await eventually(lambda: _planned(cluster), 60, "a FleetPlan counts")
    await proxy.quiet()  # the Job's deletion and the last statuses settle

    proxy.trace.clear()
    await asyncio.sleep(3)
    assert proxy.writes() == []

    await process.stop()
    logged = len(process.logs())
    process.start(new_interpreter=True)

    async def has_planned() -> bool:
        return ": recommendation " in process.logs()[logged:]

    await eventually(has_planned, 60, "a recommendation of the new operator")
    await asyncio.sleep(2)
    assert proxy.writes() == []


async def _planned(cluster: LiveCluster) -> bool:
    states = [(plan.get("status") or {}).get("state") for plan in await cluster.all(FLEET_PLANS)]
    return "Recommended" in states or "InForce" in states


async def _gone(cluster: LiveCluster, name: str) -> bool:
    return await cluster.get(DEPLOYMENTS, name) is None


def _foreign_service(name: str, namespace: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "theirs"}},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 443, "name": "https"}]},
    }


def _foreign_deployment(name: str, namespace: str) -> dict:
    labels = {"app": "theirs"}
    container = {"name": "web", "image": "nginx"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
