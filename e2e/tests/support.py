"""What several of these tests do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from e2e.cluster.base import run
from e2e.demo import install
from e2e.kube import Kube

# Images of the product have no program but Python.
PRINT_DEVICES = ("/opt/venv/bin/python", "-c", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])")


def ask(kube: Kube, name: str = install.NAME) -> str:
    """One short answer of a model."""
    with kube.port_forward(f"svc/{name}", 80) as port:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60)
        reply = client.completions.create(
            model=name, prompt="import os\n", max_tokens=4, extra_body={"ignore_eos": True}
        )
    return str(reply.choices[0].finish_reason)


def condition(kube: Kube, kind: str, name: str = install.NAME) -> dict[str, Any]:
    """One condition of an LLMDeployment; empty while it is not there."""
    conditions = kube.get("llmdep", name).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


@contextmanager
def operator_scaled_to(kube: Kube, replicas: int) -> Iterator[None]:
    """Run with another number of operator pods, then with one again."""
    deployment = ("deploy/tangram", "-n", install.SYSTEM)
    kube.kubectl("scale", *deployment, f"--replicas={replicas}")
    kube.kubectl("rollout", "status", *deployment, "--timeout=90s")
    if not replicas:
        gone = ("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=tangram")
        kube.kubectl(*gone, "-n", install.SYSTEM, "--timeout=60s")
    try:
        yield
    finally:
        kube.kubectl("scale", *deployment, "--replicas=1")
        kube.kubectl("rollout", "status", *deployment, "--timeout=90s")


def dry_run(kube: Kube, manifest: str) -> list[str]:
    """The warnings that `kubectl apply --dry-run=server` prints for a manifest that is admitted."""
    command = [kube.kubectl_path, "apply", "--dry-run=server", "-n", "default", "-f", "-"]
    return run(command, stdin=manifest, env=kube.env, timeout_s=30).stderr.splitlines()


def tangram(kube: Kube, *arguments: str) -> str:
    """What the command line prints about this cluster."""
    return run([sys.executable, "-m", "tangram.cli.main", *arguments], env=kube.env, timeout_s=120).stdout


def deployment(name: str, uri: str, *, served: str | None = None) -> str:
    """An LLMDeployment as JSON."""
    spec: dict[str, object] = {"model": {"uri": uri, **({"servedName": served} if served else {})}}
    return json.dumps(
        {
            "apiVersion": "tangram.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": name},
            "spec": spec,
        }
    )


def newest_plan(kube: Kube, state: str) -> dict[str, Any]:
    """The newest FleetPlan, if it is in this state."""
    plans = kube.get("fleetplans")["items"]
    found: list[dict[str, Any]] = [p for p in plans if p.get("status", {}).get("state") == state]
    return max(found, key=lambda p: p["metadata"]["creationTimestamp"], default={})
