"""The upgrade of docs/upgrading.md, run as it is written there, from stored objects of the old form."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import ControlPlane
from e2e.cluster.binaries import need
from tangram.shell.objects.kinds import DEPLOYMENTS, GPU_POOLS, LLM_DEPLOYMENTS
from tests.shell.conftest import operator_settings
from tests.support.apiserver import LiveCluster, OperatorProcess, add_node, gpu_node, live_cluster

ROOT = Path(__file__).parents[2]
OLD_CRDS = ROOT / "tests" / "support" / "old_crds"
SYSTEM = "tangram-system"
pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(600)]


def steps() -> list[str]:
    """The commands of the cluster's upgrade, a text for each block."""
    section = (ROOT / "docs" / "upgrading.md").read_text().partition("## A cluster")[2]
    return [
        re.sub("^   ", "", block, flags=re.MULTILINE)
        for block in re.findall(r"```\n(.*?)```", section, re.DOTALL)
    ]


class AdminShell:
    """A shell in a folder that has the chart, with kubectl, helm and tangram on its path."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        for name in ("kubectl", "helm"):
            (programs / name).symlink_to(need(name))
        (programs / "tangram").symlink_to(Path(sys.executable).parent / "tangram")
        (folder / "charts").symlink_to(ROOT / "charts")
        path = f"{programs}:{os.environ['PATH']}"
        self.env = {"PATH": path, "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}

    async def run(self, script: str, *, stdin: Any = None) -> str:
        return await asyncio.to_thread(self._run, script, None if stdin is None else json.dumps(stdin))

    def _run(self, script: str, stdin: str | None) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            input=stdin,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout


def old_form(name: str, namespace: str) -> dict[str, Any]:
    """An LLMDeployment as it was written before, with each field of the old form."""
    return {
        "apiVersion": LLM_DEPLOYMENTS.api_version,
        "kind": LLM_DEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": "image:///models/tangram-tiny"},
            "scaling": {"min": 3, "max": 5},
            "priority": 10,
            "traffic": {"requestsPerSecond": 0.5, "inputTokens": 100, "outputTokens": 50},
            "placement": {"spread": {"node": 0.75}, "budgetPerHour": 950.5},
        },
    }


def new_form(name: str, namespace: str) -> dict[str, Any]:
    """The same as it is written now."""
    spec = {
        "model": {"uri": "image:///models/tangram-tiny"},
        "scaling": {"minReplicas": 3, "maxReplicas": 5},
        "priorityClassName": "tangram-priority-10",
        "traffic": {
            "requestsPerSecond": "0.5",
            "inputTokens": {"mean": 100},
            "outputTokens": {"mean": 50},
        },
        "placement": {"spread": {"node": "0.75"}, "budgetPerHour": "950.5"},
    }
    return old_form(name, namespace) | {"spec": spec}


POOL = {
    "apiVersion": GPU_POOLS.api_version,
    "kind": GPU_POOLS.kind,
    "metadata": {"name": "spare"},
    "spec": {
        "nodeSelector": {"pool": "spare"},
        "pricePerGPUHour": 2.5,
        "nodes": {"max": 4, "sku": "H100-80GB-SXM"},
    },
}
NEW_POOL = POOL | {
    "spec": {
        "nodeSelector": {"pool": "spare"},
        "pricePerGPUHour": "2.5",
        "sku": "H100-80GB-SXM",
        "nodes": {"max": 4},
    }
}
CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "tangram-priority-10", "labels": {"tangram.dev/priority-class": "true"}},
    "value": 1010,
    "preemptionPolicy": "Never",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LiveCluster]:
    """A control plane of its own: definitions are the whole cluster's."""
    with ControlPlane(tmp_path / "plane", controller_manager=True, scheduler=True) as plane:
        async with live_cluster(plane.kubeconfig, tmp_path) as this:
            await add_node(this.client, gpu_node("gpu-1"))
            await add_node(this.client, gpu_node("gpu-2"))
            yield this


async def deployments(cluster: LiveCluster) -> dict[str, Any]:
    """Which objects the children are, and their specs, by name."""
    return {
        deployment["metadata"]["name"]: (deployment["metadata"]["uid"], deployment["spec"])
        for deployment in await cluster.all(DEPLOYMENTS)
    }


async def test_the_documented_upgrade_loses_nothing_and_touches_no_replica(cluster: LiveCluster) -> None:
    shell = AdminShell(cluster.folder, cluster.kubeconfig)
    install = (
        f"helm upgrade --install tangram {{chart}} -n {SYSTEM} --create-namespace"
        " --set image.registry=registry.example.com/team --set replicas=1"
    )
    await shell.run(install.format(chart="charts/tangram"))
    config = cluster.folder / "operator.yaml"
    config.write_text(yaml.safe_dump(operator_settings(cluster.namespace)))
    operator = OperatorProcess(config, cluster.kubeconfig, cluster.folder / "operator.log")
    names = ("client-side", "server-side", "replaced")
    try:
        for manifest in (CLASS, NEW_POOL):
            await shell.run("kubectl create -f -", stdin=manifest)
        for name in names:
            await shell.run("kubectl create -f -", stdin=new_form(name, cluster.namespace))
        operator.start()
        for name in names:
            await cluster.until(name, "Ready", "True")
        await operator.stop()
        serving = await deployments(cluster)
        assert {spec["replicas"] for _, spec in serving.values()} == {3}
        await downgrade(shell, cluster, install, names)

        export, stop, clear, define, write, start = steps()
        for step in (export, stop, clear, define):
            await shell.run(step)
        pruned = await cluster.get(LLM_DEPLOYMENTS, "replaced")
        assert pruned is not None
        assert pruned["spec"]["scaling"] == {"minReplicas": 1}  # why the operator must be stopped
        await shell.run(write)
        again = await shell.run(write)
        assert await deployments(cluster) == serving
        await shell.run(start)
        operator.start()
        for name in names:
            await cluster.until(name, "Ready", "True")

        assert {line.rpartition(" ")[2] for line in again.splitlines()} == {"unchanged"}
        await shell.run("kubectl diff -f after.yaml")
        assert await deployments(cluster) == serving
        for name in names:
            live = await cluster.get(LLM_DEPLOYMENTS, name)
            assert live is not None
            expected_spec = new_form(name, cluster.namespace)["spec"]
            assert {
                key: live["spec"][key] for key in ("model", "scaling", "traffic", "priorityClassName")
            } == {key: expected_spec[key] for key in ("model", "scaling", "traffic", "priorityClassName")}
            assert live["spec"]["placement"] == {
                "mig": "Allowed",
                "spread": {"node": "0.75", "zone": 1},
                "budgetPerHour": "950.5",
            }
            assert live["status"]["replicas"] == 3
        pool = await cluster.client.get(GPU_POOLS, "", "spare")
        assert pool is not None
        assert pool["spec"]["sku"] == "H100-80GB-SXM"
        assert pool["spec"]["pricePerGPUHour"] == "2.5"
    finally:
        operator.kill()
        print(operator.logs()[-6000:])  # noqa: T201 - pytest shows it on failure


async def downgrade(shell: AdminShell, cluster: LiveCluster, install: str, names: tuple[str, ...]) -> None:
    """Leave the cluster as an operator of the old form left it: its definitions, objects and statuses."""
    chart = cluster.folder / "old-chart"
    shutil.copytree(ROOT / "charts" / "tangram", chart)
    shutil.rmtree(chart / "files" / "crds")
    shutil.copytree(OLD_CRDS, chart / "files" / "crds")
    await shell.run(install.format(chart=chart))
    await shell.run("kubectl delete priorityclass tangram-priority-10")
    for name in names:
        await shell.run("kubectl replace -f -", stdin=old_form(name, cluster.namespace))
        patch = f"kubectl patch llmdep {name} -n {cluster.namespace} --subresource=status --type=merge"
        await shell.run(f'{patch} -p \'{{"status":{{"replicas":"3/3"}}}}\'')
    await shell.run("kubectl apply -f -", stdin=old_form("client-side", cluster.namespace))
    await shell.run("kubectl replace -f -", stdin=POOL)
    await shell.run(
        "kubectl apply --server-side --force-conflicts --field-manager argocd-controller -f -",
        stdin=old_form("server-side", cluster.namespace),
    )
