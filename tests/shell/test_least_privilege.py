"""The operator with exactly the rights that the chart gives it does all of its work on a real API server."""

import subprocess
from typing import Any

import pytest
import yaml

from tangram.kube.kinds import DEPLOYMENTS, JOBS, Kind
from tests.support.apiserver import (
    LiveCluster,
    OperatorProcess,
    eventually,
    llm,
    misnote_the_replica_set,
)
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.apiserver

RBAC = "rbac.authorization.k8s.io"
PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


def roles_of_the_chart(namespace: str, *more: str) -> list[dict[str, Any]]:
    from pathlib import Path

    from e2e.cluster.binaries import need

    values = ["--set", "image.registry=tangram.local", "--set", f"watchNamespaces={{{namespace}}}", *more]
    command = [str(need("helm")), "template", namespace, "charts/tangram", "--namespace", namespace, *values]
    root = Path(__file__).parents[2]
    rendered = subprocess.run(command, check=True, capture_output=True, cwd=root, text=True).stdout
    return [doc for doc in yaml.safe_load_all(rendered) if doc and doc["kind"] in PLURALS]


def lease_of_the_chart(namespace: str) -> str:
    """The name of the Lease that the Role allows to update."""
    rules = [rule for doc in roles_of_the_chart(namespace) if doc["kind"] == "Role" for rule in doc["rules"]]
    return next(rule["resourceNames"][0] for rule in rules if rule.get("resourceNames"))


async def test_the_rights_of_the_chart_suffice_without_any_refusal(
    cluster: LiveCluster, plane: Any, tmp_path: Any, operator_config: Any
) -> None:
    for doc in roles_of_the_chart(cluster.namespace):
        kind = Kind(RBAC, "v1", PLURALS[doc["kind"]], doc["kind"], namespaced="Cluster" not in doc["kind"])
        if "Cluster" not in doc["kind"]:
            doc["metadata"].setdefault("namespace", cluster.namespace)
        await cluster.apply(doc, kind)
    account = next(
        doc["subjects"][0]["name"] for doc in roles_of_the_chart(cluster.namespace) if "subjects" in doc
    )
    kubeconfig = plane.kubeconfig_for(
        f"system:serviceaccount:{cluster.namespace}:{account}", ["system:authenticated"]
    )
    lease = {"namespace": cluster.namespace, "name": lease_of_the_chart(cluster.namespace)}
    config = operator_config("least", leaderElection=lease)
    async with FaultProxy(kubeconfig, tmp_path).serving() as proxy:
        process = OperatorProcess(config, proxy.operator_kubeconfig, tmp_path / "least.log").start()
        try:
            await cluster.apply(llm("tiny", cluster.namespace))
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
    assert [str(request) for request, code in proxy.trace if code in (401, 403)] == []


async def _sku(cluster: LiveCluster) -> str:
    from tangram.kube.kinds import LLM_DEPLOYMENTS

    return (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]["placement"]["sku"]
