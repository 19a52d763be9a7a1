"""The operator with exactly the rights that the chart gives it does all of its work on a real API server."""

import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from tangram.kube.client import UNGUARDED, ApiClient, ApiError
from tangram.kube.kinds import DEPLOYMENTS, JOBS, NODES, PODS, Kind
from tangram.kube.kubeconfig import load_kubeconfig
from tests.support.apiserver import (
    NAMESPACES,
    LiveCluster,
    OperatorProcess,
    eventually,
    llm,
    misnote_the_replica_set,
)
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.apiserver

RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
RIGHTS = {
    kind: Kind(group, "v1", plural, kind, namespaced)
    for group, plural, kind, namespaced in (
        (RBAC, "clusterroles", "ClusterRole", False),
        (RBAC, "clusterrolebindings", "ClusterRoleBinding", False),
        (RBAC, "roles", "Role", True),
        (RBAC, "rolebindings", "RoleBinding", True),
        (ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False),
        (ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False),
    )
}


def rights_of_the_chart(namespace: str, *more: str) -> list[dict[str, Any]]:
    """Return the roles of the chart, their bindings, and the policies that narrow them."""
    from pathlib import Path

    from e2e.cluster.binaries import need

    values = ["--set", "image.registry=tangram.local", "--set", f"watchNamespaces={{{namespace}}}", *more]
    command = [str(need("helm")), "template", namespace, "charts/tangram", "--namespace", namespace, *values]
    root = Path(__file__).parents[2]
    rendered = subprocess.run(command, check=True, capture_output=True, cwd=root, text=True).stdout
    return [doc for doc in yaml.safe_load_all(rendered) if doc and doc["kind"] in RIGHTS]


def lease_of_the_chart(namespace: str) -> str:
    """The name of the Lease that the Role allows to update."""
    rules = [rule for doc in rights_of_the_chart(namespace) if doc["kind"] == "Role" for rule in doc["rules"]]
    return next(rule["resourceNames"][0] for rule in rules if rule.get("resourceNames"))


async def grant(cluster: LiveCluster, *values: str) -> None:
    """Give the operator's account the rights of the chart."""
    for doc in rights_of_the_chart(cluster.namespace, *values):
        kind = RIGHTS[doc["kind"]]
        if kind.namespaced:
            doc["metadata"].setdefault("namespace", cluster.namespace)
        await cluster.apply(doc, kind)


def account_of_the_chart(namespace: str) -> str:
    """The operator's username."""
    docs = rights_of_the_chart(namespace)
    account = next(doc["subjects"][0]["name"] for doc in docs if "subjects" in doc)
    return f"system:serviceaccount:{namespace}:{account}"


async def in_force(cluster: LiveCluster, client: ApiClient) -> None:
    """Wait until the operator's client may not create a foreign Deployment."""
    labels = {"app": "foreign"}
    pod = {"containers": [{"name": "c", "image": "i"}]}
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "foreign", "namespace": cluster.namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }

    async def refused() -> bool:
        try:
            await client.create(DEPLOYMENTS, foreign, manager="test", guard=UNGUARDED)
        except ApiError as error:
            return "must name an LLMDeployment as controller" in error.message
        await cluster.delete(DEPLOYMENTS, "foreign")
        return False

    await eventually(refused, 30, "the policies are in force")


async def test_the_rights_of_the_chart_suffice_without_any_refusal(
    cluster: LiveCluster, plane: Any, tmp_path: Any, operator_config: Any
) -> None:
    await grant(cluster)
    kubeconfig = plane.kubeconfig_for(account_of_the_chart(cluster.namespace), ["system:authenticated"])
    client = ApiClient(load_kubeconfig(str(kubeconfig)))
    await in_force(cluster, client)
    await client.close()
    lease = {"namespace": cluster.namespace, "name": lease_of_the_chart(cluster.namespace)}
    config = operator_config("least", leaderElection=lease)
    async with FaultProxy(kubeconfig, tmp_path).serving() as proxy:
        process = OperatorProcess(config, proxy.operator_kubeconfig, tmp_path / "least.log").start()
        try:
            async with gpus_taken_in_another_namespace(cluster):
                await cluster.apply(llm("tiny", cluster.namespace))
                await cluster.until("tiny", "Placed", "False", "InsufficientCapacity", within_s=60)
                assert await cluster.all(DEPLOYMENTS) == []  # no pod waits for GPUs that others have
            await cluster.until("tiny", "Ready", "True", within_s=60)
            await misnote_the_replica_set(cluster)
            await cluster.apply(llm("tiny", cluster.namespace, engine={"maxModelLen": 1024}))
            await cluster.until("tiny", "Ready", "True", within_s=60)
            await cluster.apply(
                llm(
                    "tiny",
                    cluster.namespace,
                    placement={"deniedSKUs": [await _sku(cluster)]},
                    scaling={"minReplicas": 2},
                )
            )
            await cluster.until("tiny", "Ready", "True", within_s=60)

            async def moved() -> bool:
                return len(await cluster.all(DEPLOYMENTS)) == 1 and not await cluster.all(JOBS)

            await eventually(moved, 30)
            assert await process.stop() == 0
        finally:
            process.kill()
    assert [str(request) for request, code in proxy.trace if code in (401, 403, 422)] == []
    everywhere = {r.plural for r, _ in proxy.trace if r.verb in ("list", "watch") and not r.namespace}
    assert everywhere == {"nodes", "pods", "priorityclasses", "gpupools", "fleetplans", "engineruntimes"}


@asynccontextmanager
async def gpus_taken_in_another_namespace(cluster: LiveCluster) -> AsyncIterator[None]:
    """Hold all GPUs of all nodes by pods that are none of the operator's namespaces."""
    tenant = f"t-{secrets.token_hex(4)}"
    await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant}}, NAMESPACES)
    held = []
    for node in (await cluster.client.list(NODES)).items:
        name = node["metadata"]["name"]
        gpus = {"nvidia.com/gpu": node["status"]["allocatable"]["nvidia.com/gpu"]}
        container = {"name": "c", "image": "x", "resources": {"limits": gpus}}
        spec = {"nodeName": name, "containers": [container], "automountServiceAccountToken": False}
        meta = {"name": name, "namespace": tenant}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        held.append(await cluster.apply(body, PODS))
    try:
        yield
    finally:
        for pod in held:
            await cluster.client.delete(
                PODS, tenant, pod["metadata"]["name"], uid=pod["metadata"]["uid"], guard=UNGUARDED
            )


async def _sku(cluster: LiveCluster) -> str:
    from tangram.kube.kinds import LLM_DEPLOYMENTS

    return (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]["placement"]["sku"]
