"""PrometheusRules of LLMDeployments on a real API server, whose CustomResourceDefinition comes and goes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tangram.kube.client import ApiError
from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS, PROMETHEUS_RULES
from tests.shell.test_least_privilege import grant, lease_of_the_chart
from tests.support.apiserver import CRDS, LiveCluster, OperatorProcess, eventually, llm
from tests.support.fault_proxy import FaultProxy

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]

SETTINGS = {"perLLMDeployment": True, "labels": {"release": "kps"}}
RELIST = {"relistSeconds": 2}  # a kind that was not served, or forbidden, is listed again after this time
OBJECTIVES = {"ttft": {"percentile": 99, "milliseconds": 1000}}
NAME = f"{PROMETHEUS_RULES.plural}.{PROMETHEUS_RULES.group}"
# The parts of the Prometheus Operator's own that matter here: groups are merged by name.
GROUPS = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}},
        "x-kubernetes-preserve-unknown-fields": True,
    },
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": NAME},
    "spec": {
        "group": PROMETHEUS_RULES.group,
        "scope": "Namespaced",
        "names": {"plural": PROMETHEUS_RULES.plural, "singular": "prometheusrule", "kind": "PrometheusRule"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"groups": GROUPS}}},
                    }
                },
            }
        ],
    },
}


async def install(cluster: LiveCluster) -> None:
    await cluster.apply(CRD, CRDS)
    await eventually(lambda: cluster.client.served(PROMETHEUS_RULES), what="PrometheusRules served")


async def uninstall(cluster: LiveCluster) -> None:
    live = await cluster.client.get(CRDS, "", NAME)
    if live is not None:
        await cluster.client.delete(CRDS, "", NAME, uid=live["metadata"]["uid"], guard=lambda: 30.0)

    async def gone() -> bool:
        return await cluster.client.get(CRDS, "", NAME) is None

    await eventually(gone, what="PrometheusRules not served")


@pytest.fixture(autouse=True)
async def not_installed(cluster: LiveCluster) -> AsyncIterator[None]:
    await uninstall(cluster)
    yield
    await uninstall(cluster)


async def rules(cluster: LiveCluster) -> list[dict[str, Any]]:
    try:
        return await cluster.all(PROMETHEUS_RULES)
    except ApiError as error:
        if error.status == 404:
            return []
        raise


async def has_rule(cluster: LiveCluster, text: str = "") -> bool:
    found = await rules(cluster)
    return len(found) == 1 and text in str(found[0]["spec"])


async def has_no_rule(cluster: LiveCluster) -> bool:
    return await rules(cluster) == []


async def test_the_rule_follows_its_llm_deployment_and_the_crd(cluster: LiveCluster, operator: Any) -> None:
    process = operator(prometheusRule=SETTINGS, operator=RELIST)
    await cluster.apply(llm("tiny", cluster.namespace, objectives=OBJECTIVES))
    await cluster.until("tiny", "Ready", "True")

    await install(cluster)
    await eventually(lambda: has_rule(cluster, "> 0.144 and"), 60, "a rule once the kind is served")
    (rule,) = await rules(cluster)
    owner = await cluster.get(LLM_DEPLOYMENTS, "tiny")
    assert rule["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    assert rule["metadata"]["labels"]["release"] == "kps"

    edited = {key: rule[key] for key in ("apiVersion", "kind")} | {
        "metadata": {
            "name": "tiny",
            "namespace": cluster.namespace,
            "labels": {"release": "mine", "team": "a"},
        },
        "spec": {"groups": [{"name": "mine"}, {**rule["spec"]["groups"][0], "rules": []}]},
    }
    await cluster.apply(edited, PROMETHEUS_RULES, manager="person")
    await eventually(lambda: has_rule(cluster, "> 0.144 and"), 20, "an edit is set back")
    (rule,) = await rules(cluster)
    assert rule["metadata"]["labels"] | {"release": "kps", "team": "a"} == rule["metadata"]["labels"]
    assert "mine" in {group["name"] for group in rule["spec"]["groups"]}
    await asyncio.sleep(3)
    (later,) = await rules(cluster)
    assert later["metadata"]["resourceVersion"] == rule["metadata"]["resourceVersion"]  # no write for ever

    await cluster.apply(llm("tiny", cluster.namespace))
    await eventually(lambda: has_no_rule(cluster), 20, "no rule without objectives")
    await cluster.apply(llm("tiny", cluster.namespace, objectives=OBJECTIVES))
    await eventually(lambda: has_rule(cluster), 20, "a rule with objectives")

    await uninstall(cluster)
    await cluster.apply(llm("tiny", cluster.namespace, objectives=OBJECTIVES, scaling={"minReplicas": 2}))
    await cluster.until("tiny", "Ready", "True")
    (deployment,) = await cluster.all(DEPLOYMENTS)
    assert deployment["spec"]["replicas"] == 2

    await install(cluster)
    await eventually(lambda: has_rule(cluster), 60, "a rule once the kind is served again")
    await cluster.delete(LLM_DEPLOYMENTS, "tiny")
    await eventually(lambda: has_no_rule(cluster), 60, "the garbage collector deletes the rule")
    assert process.logs().count("unavailable, continuing without it") <= 2  # once each time that it was gone
    assert "Traceback" not in process.logs()


async def test_without_rights_all_is_served_and_one_warning_says_what_is_missing(
    cluster: LiveCluster, plane: Any, tmp_path: Path, operator_config: Callable[..., Path]
) -> None:
    await install(cluster)
    await grant(cluster)
    account = f"system:serviceaccount:{cluster.namespace}:{cluster.namespace}-tangram"
    kubeconfig = plane.kubeconfig_for(account, ["system:authenticated"])
    lease = {"namespace": cluster.namespace, "name": lease_of_the_chart(cluster.namespace)}
    settings = {"prometheusRule": SETTINGS, "operator": RELIST}
    config = operator_config("unprivileged", leaderElection=lease, **settings)
    async with FaultProxy(kubeconfig, tmp_path).serving() as proxy:
        process = OperatorProcess(config, proxy.operator_kubeconfig, tmp_path / "operator.log").start()
        try:
            await cluster.apply(llm("tiny", cluster.namespace, objectives=OBJECTIVES))
            await cluster.until("tiny", "Ready", "True", within_s=60)

            async def warned() -> bool:
                return "it has no alert rules" in (await cluster.condition("tiny", "Accepted"))["message"]

            await eventually(warned, 20)
            assert (await cluster.condition("tiny", "Accepted"))["status"] == "True"
            assert await rules(cluster) == []

            await grant(cluster, "--set", "prometheusRule.perLLMDeployment=true")
            await eventually(lambda: has_rule(cluster), 60, "a rule once the operator may write it")

            async def not_warned() -> bool:
                return not await warned()

            await eventually(not_warned, 20)
            assert process.logs().count("it has no alert rules") == 2  # when it begins, and when it ends
            refused = len([None for _, code in proxy.trace if code == 403])
            await cluster.apply(llm("tiny", cluster.namespace))
            await eventually(lambda: has_no_rule(cluster), 20)
            assert len([None for _, code in proxy.trace if code == 403]) == refused
        finally:
            process.kill()
