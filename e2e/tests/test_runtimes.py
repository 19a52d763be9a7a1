"""LLMDeployments on vLLM, SGLang and NIM: ready, under a burst, replaced and ended without a cut stream.

Their programs are stand-ins (`e2e.runtimes`) in the pods that Tangram renders for the EngineRuntimes.
The tests run in order: each begins with what the one before left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from openai import OpenAI

from e2e.cluster import images, oci
from e2e.cluster.local import Local
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.tests.conftest import clear, pods
from e2e.tests.support import condition

pytestmark = pytest.mark.cluster

RUNTIMES = ("vllm", "sglang", "nim")
SCALED = ("vllm", "sglang")  # the two dialects of metrics; a NIM has vLLM's
CLAIM, MODEL = "weights", "tangram-tiny"
SLOTS = 8

# One node has the folder of the volume. Only root may write into it.
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: tangram-e2e-weights}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  claimRef: {name: weights, namespace: default}
  hostPath: {path: /tmp/tangram-e2e-weights, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: weights, namespace: default}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: tangram-e2e-weights
  resources: {requests: {storage: 1Gi}}
"""
FILL = """
apiVersion: batch/v1
kind: Job
metadata: {{name: fill-weights, namespace: default}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      containers:
        - name: fill
          image: {image}
          imagePullPolicy: IfNotPresent
          command: [cp, -r, /models/tangram-tiny, /weights/]
          securityContext: {{runAsUser: 0}}
          volumeMounts: [{{name: weights, mountPath: /weights}}]
      volumes:
        - name: weights
          persistentVolumeClaim: {{claimName: weights}}
"""


def manifest(runtime: str) -> dict[str, Any]:
    """An LLMDeployment on a runtime."""
    return {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name_of(runtime), "namespace": "default"},
        "spec": {
            "model": {"uri": f"pvc://{CLAIM}/{MODEL}"},
            "runtime": {"name": runtime},
            "engine": {"maxRunningRequests": SLOTS},
            "objectives": {"ttft": {"percentile": 90, "milliseconds": 2500}},
            "placement": {"mig": "Required"},
            "scaling": {"minReplicas": 1, "maxReplicas": 2 if runtime in SCALED else 1},
        },
    }


def name_of(runtime: str) -> str:
    return f"on-{runtime}"


@pytest.fixture(scope="module")
def line(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """The cluster with one LLMDeployment on each runtime, all Ready."""
    if not isinstance(stage.provider, Local):
        pytest.skip("only the local provider names an image by its digest without a registry")
    kube = stage.cluster()
    clear(kube)
    image = by_digest(stage.provider, stage.add_image("runtime-stand-in"))
    kube.apply(VOLUME)
    kube.apply(FILL.format(image=stage.references["engine"]))
    kube.kubectl("wait", "--for=condition=complete", "job/fill-weights", "--timeout=60s")
    values = tmp_path_factory.mktemp("values") / "runtimes.json"
    values.write_text(json.dumps({"runtimes": {runtime: {"image": image} for runtime in RUNTIMES}}))
    install.tangram(kube, stage.references, values=(*stage.values, values))
    kube.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [manifest(r) for r in RUNTIMES]}))
    names = [name_of(runtime) for runtime in RUNTIMES]
    try:
        kube.kubectl("wait", "--for=condition=Ready", "llmdep", *names, "--timeout=180s", timeout=190)
        yield kube
    finally:
        clear(kube)
        stage.install_tangram()
        kube.kubectl(
            "delete", "--ignore-not-found", "job/fill-weights", f"pvc/{CLAIM}", "pv/tangram-e2e-weights"
        )


def has_replicas(kube: Kube, name: str, count: int) -> bool:
    return install.replicas(kube, name) == (count, count)


def by_digest(provider: Local, reference: str) -> str:
    """Return the name by digest of an image that the node has, and give it to the node."""
    found = oci.digest_in_layout(images.oci_layout(), reference)
    name = f"{oci.repository(reference)}@{found}"
    provider.ctr("images", "tag", "--force", reference, name)
    return name


def test_each_runtime_serves_and_its_status_says_so(line: Kube) -> None:
    for runtime in RUNTIMES:
        name = name_of(runtime)
        with line.port_forward(f"svc/{name}", 80) as port:
            client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60)
            said = client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Hello"}], max_tokens=3, stream=True
            )
            assert [chunk.choices[0].delta.content for chunk in said] == ["token "] * 3
        assert line.get("llmdep", name)["status"]["placement"]["runtime"] == runtime


def test_a_burst_adds_a_replica_by_the_metrics_of_either_dialect(stage: Stage, line: Kube) -> None:
    for runtime in SCALED:
        install.load(
            line,
            stage.references["silicon"],
            name=f"load-{runtime}",
            model=name_of(runtime),
            concurrency=2 * SLOTS,
            tokens=48,
            seconds=3000,
        )
    for runtime in SCALED:
        wait_until(
            partial(has_replicas, line, name_of(runtime), 2),
            150,
            f"a second replica of {runtime} to serve",
            every=1,
        )
        assert condition(line, "ScalingActive", name_of(runtime))["status"] == "True"


def test_replicas_are_replaced_and_removed_under_load_without_a_cut_stream(line: Kube) -> None:
    replaced = pods(line, f"tangram.dev/llmdeployment={name_of('vllm')}")
    variables = [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]
    patch = json.dumps({"spec": {"runtime": {"name": "vllm", "variables": variables}}})
    line.kubectl("patch", "llmdep", name_of("vllm"), "--type=merge", "-p", patch)
    line.kubectl("scale", f"llmdep/{name_of('sglang')}", "--replicas=1")

    wait_until(
        lambda: not set(replaced) & set(pods(line, f"tangram.dev/llmdeployment={name_of('vllm')}")),
        180,
        "new replicas of vLLM",
        every=1,
    )
    wait_until(partial(has_replicas, line, name_of("sglang"), 1), 60, "one replica of SGLang")
    wait_until(
        lambda: len(pods(line, f"tangram.dev/llmdeployment={name_of('sglang')}")) == 1, 60, "its end", every=1
    )
    for runtime in SCALED:
        install.end_load(line, name=f"load-{runtime}")
        said = line.kubectl("logs", f"job/load-{runtime}", "--tail=1")
        assert ", 0 cut" in said, said
