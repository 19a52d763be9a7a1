"""What tools have applied is as they wrote it, and stays so: applied again it changes nothing.

kubectl, Argo CD's way of server-side apply, Helm and the Python client each apply an object with all kinds of
values: decimals as text and as whole numbers, lists that are sets, empty sections, sections with defaults.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kubernetes
import pytest
import yaml

from e2e.cluster.binaries import need
from tangram.kube.kinds import LLM_DEPLOYMENTS
from tests.shell.conftest import OperatorFactory
from tests.support.apiserver import LiveCluster, llm

pytestmark = pytest.mark.apiserver
KIND = (LLM_DEPLOYMENTS.group, LLM_DEPLOYMENTS.version)
SPEC: dict[str, Any] = {
    "engine": {},
    "objectives": {"ttft": {"milliseconds": 60_000}},
    "traffic": {"requestsPerSecond": "0.10"},
    "placement": {
        "allowedSKUs": ["H100-80GB-SXM", "A100-80GB-SXM"],  # a set, in no order
        "spread": {"node": "1.0", "zone": 1},
        "budgetPerHour": 1000,
    },
    "scaling": {"minReplicas": 2},
    "paused": False,
}


@dataclass
class ToolUser:
    """A tool that applies one object to one namespace."""

    cluster: LiveCluster
    name: str
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> dict[str, Any]:
        return llm(self.name, self.cluster.namespace, **SPEC, **self.more)

    async def run(self, program: str, *args: str, stdin: str | None = None) -> str:
        done = await asyncio.to_thread(self._run, program, *args, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _run(self, program: str, *args: str, stdin: str | None) -> subprocess.CompletedProcess[str]:
        folder = str(self.cluster.folder)
        env = {"PATH": os.environ["PATH"], "HOME": folder, "KUBECONFIG": str(self.cluster.kubeconfig)}
        return subprocess.run(
            [str(need(program)), *args],
            input=stdin,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    async def live(self) -> dict[str, Any]:
        live_object = await self.cluster.get(LLM_DEPLOYMENTS, self.name)
        assert live_object is not None
        return live_object

    async def apply(self) -> None:
        raise NotImplementedError

    async def compare(self) -> None:
        """Fail where the tool's own comparison finds a difference."""
        raise NotImplementedError


class KubectlUser(ToolUser):
    async def apply(self) -> None:
        await self.run("kubectl", "apply", "-f", "-", stdin=json.dumps(self.manifest))

    async def compare(self) -> None:
        await self.run("kubectl", "diff", "-f", "-", stdin=json.dumps(self.manifest))


class ArgoUser(ToolUser):
    """Server-side apply as Argo CD does it; in sync means that a dry run gives what is there."""

    ignored: tuple[str, ...] = ()

    async def _apply(self, *args: str) -> str:
        return await self.run(
            *("kubectl", "apply", "--server-side", "--field-manager=argocd-controller", "--force-conflicts"),
            *("-o", "json", "-f", "-", *args),
            stdin=json.dumps(self.manifest),
        )

    async def apply(self) -> None:
        await self._apply()

    async def compare(self) -> None:
        before, would = await self.live(), json.loads(await self._apply("--dry-run=server"))
        assert self.normal(would) == self.normal(before)

    def normal(self, obj: dict[str, Any]) -> dict[str, Any]:
        """As Argo CD compares it: without status and managed fields, and without what is to be ignored."""
        volatile = ("managedFields", "resourceVersion", "generation")
        meta = {key: value for key, value in obj["metadata"].items() if key not in volatile}
        return {"metadata": meta, "spec": {k: v for k, v in obj["spec"].items() if k not in self.ignored}}


class HelmUser(ToolUser):
    """A chart with the object in it."""

    async def apply(self) -> None:
        chart = self.cluster.folder / f"chart-{self.name}"
        (chart / "templates").mkdir(parents=True, exist_ok=True)
        (chart / "Chart.yaml").write_text("apiVersion: v2\nname: models\nversion: 0.1.0\n")
        # Helm's templates print numbers through floats; text stays text.
        values = {"requests": SPEC["traffic"]["requestsPerSecond"], "budget": 1000}
        (chart / "values.yaml").write_text(yaml.safe_dump(values))
        text = yaml.safe_dump(self.manifest)
        text = text.replace("'0.10'", "{{ .Values.requests | quote }}")
        text = text.replace("budgetPerHour: 1000", "budgetPerHour: {{ .Values.budget }}")
        assert text.count("{{") == 2
        (chart / "templates" / "model.yaml").write_text(text)
        await self.run("helm", "upgrade", "--install", self.name, str(chart), "-n", self.cluster.namespace)

    async def compare(self) -> None:
        text = await self.run("helm", "get", "manifest", self.name, "-n", self.cluster.namespace)
        await self.run("kubectl", "diff", "--server-side=false", "-f", "-", stdin=text)


class PythonClientUser(ToolUser):
    """The Python client, which creates, and then replaces what it got with its own spec."""

    async def apply(self) -> None:
        await asyncio.to_thread(self._apply)

    def _apply(self) -> None:
        api = kubernetes.config.new_client_from_config(str(self.cluster.kubeconfig))
        place = (*KIND, self.cluster.namespace, LLM_DEPLOYMENTS.plural)
        with api:
            objects = kubernetes.client.CustomObjectsApi(api)
            items = objects.list_namespaced_custom_object(*place)["items"]
            existing = next((item for item in items if item["metadata"]["name"] == self.name), None)
            if existing is None:
                objects.create_namespaced_custom_object(*place, self.manifest)
            else:
                body = existing | {"spec": self.manifest["spec"]}
                objects.replace_namespaced_custom_object(*place, self.name, body)

    async def compare(self) -> None:
        assert contained(self.manifest["spec"], (await self.live())["spec"])


def contained(written: Any, live: Any) -> bool:
    """Whether all that was written is there as it was written; what the server filled in may be more."""
    if isinstance(written, dict):
        return isinstance(live, dict) and all(k in live and contained(v, live[k]) for k, v in written.items())
    return type(written) is type(live) and written == live


TOOLS: tuple[type[ToolUser], ...] = (KubectlUser, ArgoUser, HelmUser, PythonClientUser)


@pytest.mark.parametrize("tool", TOOLS)
async def test_an_object_applied_twice_is_written_once(
    cluster: LiveCluster, tool: Callable[..., ToolUser]
) -> None:
    user = tool(cluster, "chat")
    await user.apply()
    before = await user.live()
    assert contained(user.manifest["spec"], before["spec"])

    await user.apply()

    assert await user.live() == before
    await user.compare()


async def test_no_tool_sees_a_difference_while_the_operator_runs(
    cluster: LiveCluster, operator: OperatorFactory
) -> None:
    users = [tool(cluster, tool.__name__.lower()) for tool in TOOLS]
    await asyncio.gather(*(user.apply() for user in users))
    operator()
    for user in users:
        await cluster.until(user.name, "Ready", "True")
    before = [await user.live() for user in users]

    for user in users:
        await user.compare()
        await user.apply()
        await user.compare()

    for user, was in zip(users, before, strict=True):
        now = await user.live()
        assert now["metadata"]["generation"] == was["metadata"]["generation"]
        assert now["spec"] == was["spec"]


@pytest.mark.parametrize("tool", [KubectlUser, ArgoUser, HelmUser])
async def test_replicas_set_by_another_client_are_no_difference(
    cluster: LiveCluster, tool: Callable[..., ToolUser]
) -> None:
    user = tool(cluster, "chat")
    await user.apply()
    await user.run("kubectl", "scale", "llmdep", "chat", "-n", cluster.namespace, "--replicas=3")
    before = await user.live()

    await user.compare()
    await user.apply()

    assert before["spec"]["replicas"] == 3
    assert await user.live() == before


async def test_argo_can_ignore_replicas_of_its_manifest_that_another_client_sets(
    cluster: LiveCluster,
) -> None:
    user = ArgoUser(cluster, "chat")
    user.ignored = ("replicas",)  # ignoreDifferences with jsonPointers: [/spec/replicas]
    await user.apply()
    await user.run("kubectl", "scale", "llmdep", "chat", "-n", cluster.namespace, "--replicas=3")

    user.more = {"replicas": 2}

    await user.compare()
