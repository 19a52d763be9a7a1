"""What goes into a fresh cluster, piece by piece, as a person would do it with kubectl and helm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.kube import Kube, wait_until

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "tangram-system"
RELEASE = "tangram"
VALUES = ROOT / "e2e/demo/values.yaml"
EXAMPLE = ROOT / "examples" / "llmdeployment.yaml"
CRDS = [f"{plural}.tangram.dev" for plural in ("llmdeployments", "gpupools", "fleetplans", "gpunodes")]
NAME = "tiny-chat"  # the LLMDeployment of the example
# Twice the requests that its one replica computes at a time (engine.maxRunningRequests): half of them wait,
# and the replicas rise, however fast the cores of this machine are.
CLIENTS = 128


def silicon(kube: Kube, image: str) -> str:
    """Dress the node as a GPU node; returns what it offers afterwards."""
    manifest = (ROOT / "e2e/silicon/manifests/silicon.yaml").read_text()
    kube.apply(manifest.replace("tangram.local/tangram-silicon:dev", image))
    kube.kubectl("rollout", "status", "-n", "tangram-silicon", "daemonset/silicon", "--timeout=90s")
    offered = wait_until(lambda: gpu_resources(kube), 60, "the node to offer GPU slices")
    return ", ".join(
        f"{count} x {name.removeprefix('nvidia.com/')}" for name, count in sorted(offered.items())
    )


def gpu_resources(kube: Kube) -> dict[str, int]:
    """NVIDIA's extended resources over all nodes, as the scheduler sees them."""
    total: dict[str, int] = {}
    for node in kube.get("nodes")["items"]:
        for name, count in node["status"].get("allocatable", {}).items():
            if name.startswith("nvidia.com/") and int(count):
                total[name] = total.get(name, 0) + int(count)
    return total


def prometheus(kube: Kube, image: str, helper_image: str) -> str:
    """A real Prometheus that scrapes annotated pods every few seconds."""
    manifest = (ROOT / "e2e/prometheus/prometheus.yaml").read_text()
    manifest = manifest.replace("tangram.local/prometheus:dev", image)
    kube.apply(manifest.replace("tangram.local/tangram-silicon:dev", helper_image))
    kube.apply(
        script(kube, "prometheus-discovery", ROOT / "e2e/prometheus/discovery.py", "tangram-monitoring")
    )
    kube.kubectl("rollout", "status", "-n", "tangram-monitoring", "deployment/prometheus", "--timeout=90s")
    return "http://prometheus.tangram-monitoring.svc:9090"


def script(kube: Kube, name: str, source: Path, namespace: str) -> str:
    """The manifest of a ConfigMap that holds one file."""
    create = ("create", "configmap", name, "-n", namespace, f"--from-file={source}")
    return kube.kubectl(*create, "--dry-run=client", "-o", "yaml")


def tangram(kube: Kube, images: Mapping[str, str], *, values: Sequence[Path] = (VALUES,)) -> str:
    """`helm install`, or upgrade when it is there; waits until the operator is available."""
    named = [
        component for component in ("operator", "engine", "fetch", "gateway", "agent") if component in images
    ]
    settings = [pair for one in named for pair in image_values(one, images[one]).items()]
    sets = [f"--set-string={key}={value}" for key, value in settings]
    files = [f"--values={file}" for file in values]
    kube.helm(
        *("upgrade", "--install", RELEASE, str(ROOT / "charts/tangram"), "--namespace", SYSTEM),
        *("--create-namespace", *files, *sets, "--wait", "--timeout", "2m"),
    )
    return f"helm release {RELEASE} in {SYSTEM}"


def image_values(component: str, reference: str) -> dict[str, str]:
    """Split `registry/repository:tag` into the chart's values.

    >>> image_values("engine", "tangram.local/tangram-engine:abc")["image.engine.tag"]
    'abc'
    """
    registry, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    return {
        "image.registry": registry,
        f"image.{component}.repository": repository,
        f"image.{component}.tag": tag,
    }


def model(kube: Kube, *, timeout_s: int = 180) -> str:
    """Apply the example and wait until it is Ready."""
    kube.apply(EXAMPLE, namespace="default")
    kube.kubectl(
        "wait", "--for=condition=Ready", f"llmdep/{NAME}", f"--timeout={timeout_s}s", timeout=timeout_s + 10
    )
    return str(kube.get("llmdep", NAME)["status"]["placement"]["display"])


def load(
    kube: Kube,
    image: str,
    *,
    seconds: int,
    concurrency: int = CLIENTS,
    tokens: int = 64,
    name: str = "load",
    model: str = NAME,
    requests: int = 0,
    every_s: float = 0,
) -> None:
    """Start a bounded load as a Job inside the cluster, so that it spreads over the replicas.

    It ends after `seconds` or with `end_load`, and not before it has made so many `requests`. A client sends
    one request every `every_s` seconds, or as soon as the last one ends.
    """
    kube.kubectl("delete", "job", name, "--ignore-not-found", "--wait")
    kube.apply(script(kube, f"{name}-script", ROOT / "e2e/demo/load.py", "default"))
    arguments = (
        f"--seconds={seconds}",
        f"--concurrency={concurrency}",
        f"--tokens={tokens}",
        f"--requests={requests}",
        f"--every={every_s}",
    )
    kube.apply(client_job(name, image, "load", model, arguments, config_map=f"{name}-script"))


def end_load(kube: Kube, *, after_s: int = 0, name: str = "load", within_s: int = 60) -> None:
    """Let a load come to its end before its time: requests that have begun are served."""
    end = f"import os, signal, time; time.sleep({after_s}); os.kill(1, signal.SIGTERM)"
    kube.kubectl("exec", f"job/{name}", "--", "/opt/venv/bin/python", "-c", end)
    kube.kubectl(
        "wait", "--for=condition=complete", f"job/{name}", f"--timeout={within_s}s", timeout=within_s + 10
    )


_CLIENT_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      containers:
        - name: {script}
          image: {image}
          imagePullPolicy: IfNotPresent
          command: [/opt/venv/bin/python, /{script}/{script}.py, --url=http://{model}, --model={model}]
          args: [{arguments}]
          resources: {{requests: {{cpu: 20m}}, limits: {{memory: {memory}}}}}
          volumeMounts: [{{name: script, mountPath: /{script}}}]
      volumes:
        - name: script
          configMap: {{name: {config_map}}}
"""


def client_job(
    name: str,
    image: str,
    script: str,
    model: str,
    arguments: Sequence[str],
    *,
    config_map: str,
    memory: str = "128Mi",
) -> str:
    """Return a Job that runs `script`.py of a ConfigMap against the Service of a model."""
    return _CLIENT_JOB.format(
        name=name,
        image=image,
        script=script,
        model=model,
        arguments=", ".join(arguments),
        config_map=config_map,
        memory=memory,
    )


def remove(kube: Kube) -> None:
    """Take the demo's pieces out of a cluster that goes on."""
    kube.kubectl("delete", "--ignore-not-found", "-n", "default", "-f", str(EXAMPLE))
    kube.kubectl("delete", "--ignore-not-found", "job/load", "configmap/load-script")
    kube.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--ignore-not-found", "--wait")
    for manifest in ("e2e/silicon/manifests/silicon.yaml", "e2e/prometheus/prometheus.yaml"):
        kube.kubectl("delete", "--ignore-not-found", "-f", str(ROOT / manifest))
    kube.kubectl("delete", "--ignore-not-found", "namespace", SYSTEM)
    # Its CRD takes every LLMDeployment with it: they only go when there is none left.
    if not kube.kubectl("get", "llmdep", "--all-namespaces", "-o", "name").strip():
        kube.kubectl("delete", "crd", *CRDS, "--ignore-not-found")


def replicas(kube: Kube, name: str = NAME) -> tuple[int, int]:
    """Return (ready, desired) replicas, of the example unless another LLMDeployment is named."""
    status = kube.get("llmdep", name).get("status", {})
    return int(status.get("readyReplicas", 0)), int(status.get("desiredReplicas", 0))
