"""helm and promtool, found or named: a missing tool is a failure that says how to get it, not a skip; and a
control plane with the chart on it.
"""

import json
import os
import ssl
import subprocess
from functools import cached_property
from pathlib import Path

import httpx
import pytest
import yaml

from e2e.cluster import binaries, packages
from e2e.cluster.apiserver import ControlPlane
from e2e.cluster.base import ClusterError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tangram"


def _tool(need, name):
    try:
        return need(name)
    except ClusterError as missing:
        pytest.fail(f"the chart's tests need {name}: {missing}", pytrace=False)


class Helm:
    """helm on our chart, without a cluster and without the user's own configuration.

    A chart's text depends on nothing but its values: what was rendered once is not rendered again, and tests
    share the objects.
    """

    def __init__(self, program: Path, home: Path) -> None:
        self.program = program
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "HELM_CACHE_HOME": str(home)}
        self._rendered: dict[str, Rendered] = {}

    def run(self, *args: str, values: dict | None = None) -> subprocess.CompletedProcess:
        stdin = None if values is None else json.dumps(values)
        extra = [] if values is None else ["--values", "-"]
        return subprocess.run(
            [str(self.program), *args, *extra],
            input=stdin,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def objects(
        self, values: dict | None = None, *, release: str = "tangram", namespace: str = "tangram-system"
    ):
        """Render the chart with `values` over a registry; returns the objects."""
        merged = merge({"image": {"registry": "registry.example.com/team"}}, values or {})
        key = json.dumps([merged, release, namespace])
        if key not in self._rendered:
            done = self.run("template", release, str(CHART), "--namespace", namespace, values=merged)
            assert done.returncode == 0, done.stderr
            documents = yaml.load_all(done.stdout, yaml.CSafeLoader)
            self._rendered[key] = Rendered([one for one in documents if one])
        return self._rendered[key]


class Rendered(list):
    """Rendered objects, to be found by kind and name."""

    def of(self, kind: str) -> list[dict]:
        return [one for one in self if one["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> dict:
        found = [one for one in self.of(kind) if name is None or one["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} objects {kind} {name or ''}"
        return found[0]


def merge(base: dict, over: dict) -> dict:
    both = {**base, **over}
    for key in base.keys() & over.keys():
        if isinstance(base[key], dict) and isinstance(over[key], dict):
            both[key] = merge(base[key], over[key])
    return both


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    return Helm(_tool(binaries.need, "helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def promtool():
    program = _tool(packages.need, "promtool")

    env = {**os.environ, **packages.environment()}  # where its libraries are, if it was only unpacked

    def run(*args: str) -> subprocess.CompletedProcess:
        command = [str(program), *args]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    return run


# The GPU Operator makes it.
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


class Cluster:
    """kubectl and helm on one control plane."""

    first_with_pools: subprocess.CompletedProcess  # a first installation, with GPUPools among its values

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        self.plane = plane
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(plane.kubeconfig)}

    def run(self, program: str, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(binaries.need(program)), *args],
            input=stdin,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def ok(self, program: str, *args: str, stdin: str | None = None) -> str:
        done = self.run(program, *args, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @cached_property
    def admin(self) -> httpx.Client:
        """Requests of the administrator, without a process for each."""
        tls = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        tls.load_cert_chain(self.plane.authority.cert("admin"), self.plane.authority.key("admin"))
        return httpx.Client(base_url=self.plane.url, verify=tls)

    def helm(self, verb: str, *args: str, chart: Path = CHART) -> str:
        # No operator runs here: each apply of an LLMDeployment would wait for its webhook.
        values = ("--set", "image.registry=registry.example.com/team", "--set", "admission.enabled=false")
        source = () if verb == "uninstall" else (str(chart), *values)
        return self.ok("helm", verb, "tangram", *source, "--namespace", "tangram-system", *args)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plane")
    with ControlPlane(folder) as plane:
        made = Cluster(plane, folder)
        made.ok("kubectl", "create", "namespace", "tangram-system")
        made.ok("kubectl", "create", "-f", "-", stdin=yaml.safe_dump(RUNTIME_CLASS))
        made.first_with_pools = made.run(
            *("helm", "install", "tangram", str(CHART), "--namespace", "tangram-system"),
            *("--set", "image.registry=registry.example.com/team", "--set", "gpuPools.h100.nodeSelector.a=b"),
        )
        made.ok(
            *("kubectl", "label", "namespace", "tangram-system"),
            "pod-security.kubernetes.io/enforce=restricted",
        )
        made.helm("install", "--set", "replicas=2")
        yield made
        made.admin.close()
