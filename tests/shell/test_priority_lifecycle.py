"""The life of a PriorityClass under an LLMDeployment, on a real API server, scheduler and quota."""

from typing import Any

import pytest

from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, PODS, PRIORITY_CLASSES, Kind
from tests.support.apiserver import LiveCluster, eventually, llm, priority_class
from tests.support.fault_proxy import FaultProxy, Rule

pytestmark = pytest.mark.apiserver

QUOTAS = Kind("", "v1", "resourcequotas", "ResourceQuota")


async def remove(cluster: LiveCluster, name: str) -> None:
    obj = await cluster.client.get(PRIORITY_CLASSES, "", name)
    await cluster.client.delete(PRIORITY_CLASSES, "", name, uid=obj["metadata"]["uid"], guard=UNGUARDED)


async def engine_pods(cluster: LiveCluster) -> list[dict[str, Any]]:
    pods = [p for p in await cluster.all(PODS) if not p["metadata"].get("deletionTimestamp")]
    return [p for p in pods if p["metadata"]["labels"]["app.kubernetes.io/component"] == "engine"]


async def of_class(cluster: LiveCluster, name: str) -> dict[str, Any]:
    """Return the one engine pod, once it is of this class."""

    async def check() -> dict[str, Any] | None:
        pods = await engine_pods(cluster)
        (deployment,) = await cluster.all(DEPLOYMENTS)
        settled = deployment["status"].get("observedGeneration") == deployment["metadata"]["generation"]
        ready = len(pods) == 1 and pods[0]["spec"].get("priorityClassName", "") == name
        return pods[0] if settled and ready else None

    return await eventually(check, 30, f"one pod of class {name!r}")


async def reason(cluster: LiveCluster, expected: str) -> str:
    """Return the message of Accepted, once that is its reason."""

    async def check() -> str | None:
        condition = await cluster.condition("chat", "Accepted")
        return condition.get("message") if condition.get("reason") == expected else None

    message: str = await eventually(check, 30, f"Accepted with reason {expected}")
    return message


async def test_an_llmdeployment_follows_the_life_of_its_priority_class(
    cluster: LiveCluster, operator: Any
) -> None:
    gold, silver = f"{cluster.namespace}-gold", f"{cluster.namespace}-silver"
    operator()
    await cluster.apply(llm("chat", cluster.namespace, priorityClassName=gold))
    assert "does not exist" in await reason(cluster, "PriorityClassNotFound")
    assert not await cluster.all(DEPLOYMENTS)

    preempting = priority_class(gold, 5, preemptionPolicy="PreemptLowerPriority")
    await cluster.apply(preempting, PRIORITY_CLASSES)
    await reason(cluster, "PriorityClassPreempts")
    await remove(cluster, gold)
    unlabelled = priority_class(gold, 5)
    del unlabelled["metadata"]["labels"]
    await cluster.apply(unlabelled, PRIORITY_CLASSES)
    await reason(cluster, "PriorityClassNotAllowed")

    await cluster.apply(priority_class(gold, 5), PRIORITY_CLASSES)
    await cluster.until("chat", "Ready", "True")
    pod = await of_class(cluster, gold)
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (5, "Never")

    # Another class alone replaces no pod.
    await cluster.apply(priority_class(silver, 7), PRIORITY_CLASSES)
    changed = await cluster.apply(llm("chat", cluster.namespace, priorityClassName=silver))
    generation = changed["metadata"]["generation"]

    async def new_generation_ready() -> bool:
        obj = await cluster.get(LLM_DEPLOYMENTS, "chat")
        ready = next(c for c in obj["status"]["conditions"] if c["type"] == "Ready")
        return bool(ready["observedGeneration"] == generation and ready["status"] == "True")

    await eventually(new_generation_ready, 30, "the new class to be taken in")
    assert (await of_class(cluster, gold))["metadata"]["uid"] == pod["metadata"]["uid"]

    # It comes with the next rollout.
    engine = {"maxRunningRequests": 8}
    await cluster.apply(llm("chat", cluster.namespace, priorityClassName=silver, engine=engine))
    rolled = await of_class(cluster, silver)
    await cluster.until("chat", "Ready", "True")

    # Deleted: what runs stays, and is not accepted; made anew with another value it is.
    await remove(cluster, silver)
    assert "cannot be created again" in await reason(cluster, "PriorityClassNotFound")
    assert (await of_class(cluster, silver))["metadata"]["uid"] == rolled["metadata"]["uid"]
    await cluster.apply(priority_class(silver, 70), PRIORITY_CLASSES)
    await reason(cluster, "Valid")
    assert (await of_class(cluster, silver))["metadata"]["uid"] == rolled["metadata"]["uid"]

    # The class of the live template goes while another one is named: the template is changed.
    await cluster.apply(llm("chat", cluster.namespace, priorityClassName=gold, engine=engine))
    await eventually(lambda: _named(cluster, gold), 30, "the class to be taken in")
    assert (await of_class(cluster, silver))["metadata"]["uid"] == rolled["metadata"]["uid"]
    await remove(cluster, silver)
    await of_class(cluster, gold)
    await cluster.until("chat", "Ready", "True")


async def _named(cluster: LiveCluster, name: str) -> bool:
    obj = await cluster.get(LLM_DEPLOYMENTS, "chat")
    ready = next(c for c in obj["status"]["conditions"] if c["type"] == "Ready")
    generation: int = obj["metadata"]["generation"]
    named: bool = obj["spec"]["priorityClassName"] == name
    return named and bool(ready["observedGeneration"] == generation)


@pytest.mark.parametrize("change", [{"value": 6}, {"preemptionPolicy": "PreemptLowerPriority"}])
async def test_kubernetes_refuses_changes_of_value_and_policy_of_a_class(
    cluster: LiveCluster, change
) -> None:
    name = f"{cluster.namespace}-fixed"
    await cluster.apply(priority_class(name, 5), PRIORITY_CLASSES)
    with pytest.raises(Exception, match=r"422|immutable|may not be changed"):
        await cluster.apply(priority_class(name, 5) | change, PRIORITY_CLASSES)


async def test_without_the_right_to_list_classes_llmdeployments_without_a_class_are_served(
    cluster: LiveCluster, operator: Any, proxy: FaultProxy
) -> None:
    proxy.rules.append(Rule("status", plural="priorityclasses", nth=0, code=403))
    gold = f"{cluster.namespace}-gold"
    await cluster.apply(priority_class(gold, 5), PRIORITY_CLASSES)
    await cluster.apply(llm("chat", cluster.namespace, priorityClassName=gold))
    await cluster.apply(llm("plain", cluster.namespace))
    process = operator(defaultPriorityClassName=gold)
    await cluster.until("plain", "Ready", "True")
    assert "give it the right to list" in await reason(cluster, "PriorityClassUnknown")
    condition = await cluster.condition("plain", "Accepted")
    assert "the operator may not list them: pods carry no PriorityClass" in condition["message"]
    assert "mirror of priorityclasses: unavailable, continuing without it" in process.logs()
    assert f"defaultPriorityClassName {gold} is not known" in process.logs()


async def test_a_quota_of_one_priority_class_bounds_only_its_replicas(
    cluster: LiveCluster, operator: Any
) -> None:
    gold, plain = f"{cluster.namespace}-gold", f"{cluster.namespace}-plain"
    for value, name in enumerate((plain, gold)):
        await cluster.apply(priority_class(name, value), PRIORITY_CLASSES)
    selected = {"scopeName": "PriorityClass", "operator": "In", "values": [gold]}
    spec = {"hard": {"pods": "2"}, "scopeSelector": {"matchExpressions": [selected]}}
    meta = {"name": "gold", "namespace": cluster.namespace}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}
    await cluster.apply(quota, QUOTAS)

    async def counted() -> bool:
        quota = await cluster.get(QUOTAS, "gold")
        return bool(quota and (quota.get("status") or {}).get("hard"))

    await eventually(counted, 30, "the quota is enforced")
    bounds = {"scaling": {"minReplicas": 3}}
    operator(defaultPriorityClassName=plain)
    await cluster.apply(llm("other", cluster.namespace, **bounds))
    await cluster.until("other", "Ready", "True", "AllReplicasReady")
    await cluster.apply(llm("chat", cluster.namespace, priorityClassName=gold, **bounds))
    condition = await cluster.until("chat", "Placed", "False", "QuotaExceeded")
    assert "ResourceQuota gold" in condition["message"]

    async def all_made() -> bool:  # the status may be written before the ReplicaSet's second pod
        pods = [pod["spec"].get("priorityClassName") for pod in await engine_pods(cluster)]
        return sorted(pods) == [gold, gold, plain, plain, plain]

    await eventually(all_made, 30, "two replicas of gold, three of plain")
