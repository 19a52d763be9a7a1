"""spec.replicas through the real `kubectl scale` and the real HorizontalPodAutoscaler controller."""

import asyncio
from typing import Any

import pytest

from e2e.cluster.binaries import need
from tangram.cli.main import main
from tangram.kube.kinds import DEPLOYMENTS, EVENTS, LLM_DEPLOYMENTS, PODS, SERVICES, Kind
from tests.support.apiserver import LiveCluster, eventually, llm
from tests.support.external_metrics import METRIC, ExternalMetrics

pytestmark = pytest.mark.apiserver

HPAS = Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")


async def kubectl(cluster: LiveCluster, *arguments: str) -> tuple[int, str]:
    """Run kubectl in the namespace of the test; return its exit code and what it prints."""
    process = await asyncio.create_subprocess_exec(
        str(need("kubectl")),
        f"--kubeconfig={cluster.kubeconfig}",
        f"--namespace={cluster.namespace}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, output.decode()


async def status_of(cluster: LiveCluster, name: str) -> dict[str, Any]:
    obj = await cluster.get(LLM_DEPLOYMENTS, name)
    return ((obj or {}).get("status")) or {}


async def engines(cluster: LiveCluster) -> list[dict[str, Any]]:
    """Engine pods that are not on their way out."""
    pods = await cluster.all(PODS)
    label = "app.kubernetes.io/component"
    return [
        pod
        for pod in pods
        if pod["metadata"]["labels"].get(label) == "engine" and not pod["metadata"].get("deletionTimestamp")
    ]


async def until_running(cluster: LiveCluster, count: int, within_s: float = 30.0) -> None:
    async def running() -> bool:
        return (await status_of(cluster, "tiny")).get("readyReplicas") == count == len(await engines(cluster))

    await eventually(running, within_s, f"{count} engines")


async def tangram(
    cluster: LiveCluster, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Run the command line with admin rights; return its exit status and what it prints."""
    capfd.readouterr()
    where = ("--kubeconfig", str(cluster.kubeconfig))
    code = await asyncio.to_thread(main, [*arguments, *where])
    shown = capfd.readouterr()
    return code, shown.out + shown.err


async def test_kubectl_scales_to_three_to_none_and_back(cluster: LiveCluster, operator, capfd) -> None:
    operator()
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 1, "maxReplicas": 2}))
    await cluster.until("tiny", "Ready", "True")
    code, unset = await kubectl(cluster, "get", "--raw", scale_path(cluster))
    assert code != 0
    assert "spec replicas field" in unset

    code, output = await kubectl(cluster, "scale", "llmdep/tiny", "--replicas=3")
    assert (code, output) == (0, "llmdeployment.tangram.dev/tiny scaled\n")
    await until_running(cluster, 3)
    status = await status_of(cluster, "tiny")
    assert (status["replicas"], status["replicasDisplay"]) == (3, "3/3")
    active = await cluster.until("tiny", "ScalingActive", "False", "ReplicasSet")
    assert "spec.replicas is 3 (set by a client that is not recorded)" in active["message"]

    code, listed = await kubectl(cluster, "get", "pods", "-l", status["selector"], "-o", "name")
    assert sorted(listed.split()) == sorted(f"pod/{p['metadata']['name']}" for p in await engines(cluster))

    assert (await kubectl(cluster, "scale", "llmdep/tiny", "--replicas=0"))[0] == 0
    ready = await cluster.until("tiny", "Ready", "True", "ScaledToZero")
    assert "no replica runs" in ready["message"]
    await until_running(cluster, 0)
    status = await status_of(cluster, "tiny")
    assert (status["replicas"], status["replicasDisplay"]) == (0, "0/0")
    assert (await cluster.condition("tiny", "Placed"))["reason"] == "ScaledToZero"
    assert await cluster.all(DEPLOYMENTS) == []
    assert await cluster.get(SERVICES, "tiny")

    code, output = await tangram(cluster, capfd, "scale", "tiny", "-n", cluster.namespace, "--replicas", "1")
    assert (code, output.partition(";")[0]) == (
        0,
        f"{cluster.namespace}/tiny: spec.replicas is 1 now (it was 0)",
    )
    await until_running(cluster, 1)
    assert (await status_of(cluster, "tiny"))["replicasSetBy"]["manager"] == "tangram"
    assert (await kubectl(cluster, "scale", "llmdep/tiny", "--replicas=2"))[0] == 0
    await cluster.until("tiny", "Ready", "True", "AllReplicasReady")
    await until_running(cluster, 2)
    by = (await status_of(cluster, "tiny"))["replicasSetBy"]
    assert (by["manager"], by["subresource"]) == ("kubectl", "scale")
    active = await cluster.until("tiny", "ScalingActive", "False", "ReplicasSet")
    assert "spec.replicas is 2, set by kubectl (scale);" in active["message"]

    code, output = await tangram(cluster, capfd, "scale", "tiny", "-n", cluster.namespace, "--auto")
    assert (code, output) == (0, f"{cluster.namespace}/tiny: Tangram scales it now, from 1 to 2 replicas\n")
    await cluster.until("tiny", "ScalingActive", "False", "MetricsMissing")
    assert "replicas" not in (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["spec"]
    assert "replicasSetBy" not in await status_of(cluster, "tiny")


def scale_path(cluster: LiveCluster) -> str:
    return f"{LLM_DEPLOYMENTS.path(cluster.namespace, 'tiny')}/scale"


async def test_a_horizontal_pod_autoscaler_scales_up_and_down(
    cluster: LiveCluster, operator, plane, capfd
) -> None:
    operator()
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 1, "maxReplicas": 8}))
    await cluster.until("tiny", "Ready", "True")
    metrics = ExternalMetrics(value=4)
    pki = plane.authority
    async with metrics.serving(
        cluster.client, cluster.namespace, pki.cert("apiserver"), pki.key("apiserver")
    ):
        await cluster.apply(autoscaler(cluster), HPAS)

        async def refused() -> str:
            hpa = await cluster.get(HPAS, "tiny")
            conditions = (hpa.get("status") or {}).get("conditions") or []
            return next((c["message"] for c in conditions if c["reason"] == "FailedGetScale"), "")

        assert "spec replicas field" in await eventually(refused, 60, "the autoscaler cannot begin")
        assert (await tangram(cluster, capfd, "scale", "tiny", "-n", cluster.namespace, "--replicas", "1"))[
            0
        ] == 0

        await until_running(cluster, 4, 60)
        by = (await status_of(cluster, "tiny"))["replicasSetBy"]
        assert (by["manager"], by["subresource"]) == ("kube-controller-manager", "scale")
        metrics.value = 2
        await until_running(cluster, 2, 60)
        message = (await cluster.condition("tiny", "ScalingActive"))["message"]
        assert "spec.replicas is 2, set by kube-controller-manager (scale)" in message

        async def autoscaler_updated() -> bool:
            return (await cluster.get(HPAS, "tiny"))["status"]["currentReplicas"] == 2

        await eventually(autoscaler_updated, what="the autoscaler reads status.replicas")
        assert "NotReady" not in {event["reason"] for event in await cluster.all(EVENTS)}


def autoscaler(cluster: LiveCluster) -> dict[str, Any]:
    target = {"type": "AverageValue", "averageValue": "1"}
    return {
        "apiVersion": HPAS.api_version,
        "kind": HPAS.kind,
        "metadata": {"name": "tiny", "namespace": cluster.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "tangram.dev/v1alpha1", "kind": "LLMDeployment", "name": "tiny"},
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [{"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }
