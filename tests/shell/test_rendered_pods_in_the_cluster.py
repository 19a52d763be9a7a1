"""Rendered pods on a real API server and scheduler: whether they are admitted, and on which nodes."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node as read_node
from tangram.fleet import ApplyDeployment, FactsKey, PinnedRevision, SecretKey, Shape, Spread
from tangram.kube.client import UNGUARDED, ApiError
from tangram.kube.kinds import DEPLOYMENTS, NODES, PODS
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.settings import Settings
from tests.shell.test_manifests import intent
from tests.support.apiserver import NAMESPACES, LiveCluster, add_node, eventually, gpu_node

pytestmark = pytest.mark.apiserver

SKU, PRODUCT = "H200-141GB-SXM", "NVIDIA-H200"  # that no other test uses
WHOLE, SMALL, LARGE = "gpu", "1g.18gb", "3g.71gb"
OFFERED = {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.18gb": "2", "nvidia.com/mig-3g.71gb": "1"}
SETTINGS = Settings.model_validate({"engineImage": "registry/engine:1", "fetchImage": "registry/fetch:1"})
AKS = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
HOLD = {"key": "hold.tangram.dev/mig-1g.18gb", "effect": "NoSchedule"}


async def taint(cluster: LiveCluster, name: str, *taints: dict[str, str]) -> dict[str, Any]:
    return await cluster.client.merge(NODES, "", name, {"spec": {"taints": list(taints)}}, guard=UNGUARDED)


@pytest.fixture
async def node(cluster: LiveCluster) -> AsyncIterator[str]:
    name = f"{cluster.namespace}-h200"
    gpu_node_manifest = gpu_node(name, product=PRODUCT)
    for part in ("allocatable", "capacity"):
        gpu_node_manifest["status"][part] |= OFFERED
    await add_node(cluster.client, gpu_node_manifest)
    yield name
    await cluster.empty()
    live_node = await cluster.client.get(NODES, "", name)
    await cluster.client.delete(NODES, "", name, uid=live_node["metadata"]["uid"], guard=UNGUARDED)


def pod(cluster: LiveCluster, profile: str) -> dict[str, Any]:
    action = ApplyDeployment("uid-1", Shape(SKU, profile), 1, (PRODUCT,), 4096)
    template = manifests.deployment(intent(), action, SETTINGS)["spec"]["template"]
    meta = template["metadata"] | {"name": profile.replace(".", "-"), "namespace": cluster.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


async def placed(cluster: LiveCluster, profile: str) -> str:
    """Return the node of a pod, or the reason of the scheduler why it has none."""

    async def judged() -> str:
        live_pod = await cluster.get(PODS, profile.replace(".", "-"))
        conditions = (live_pod or {}).get("status", {}).get("conditions") or []
        reasons = [c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"]
        return (live_pod or {"spec": {}})["spec"].get("nodeName") or (reasons[0] if reasons else "")

    return await eventually(judged, what=f"{profile} was scheduled or refused")


async def test_a_held_resource_takes_no_new_pods_and_the_others_of_the_node_do(cluster, node) -> None:
    live = await taint(cluster, node, AKS, HOLD)

    for profile in (WHOLE, SMALL, LARGE):
        await cluster.apply(pod(cluster, profile), PODS)

    assert [await placed(cluster, profile) for profile in (WHOLE, LARGE)] == [node, node]
    assert "1 node(s) had untolerated taint(s)" in await placed(cluster, SMALL)
    status = live["status"]
    gpu_node = read_node(
        NodeFacts(
            node,
            live["metadata"]["labels"],
            {r: status["allocatable"][r] for r in OFFERED},
            {r: status["capacity"][r] for r in OFFERED},
            tuple(live["spec"]["taints"]),
        )
    )
    assert dict(gpu_node.allocatable) == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-3g.71gb": 1,
    }  # as the planner sees it

    await taint(cluster, node, AKS)

    async def pod_on_node() -> bool:
        return (await cluster.get(PODS, SMALL.replace(".", "-")) or {})["spec"].get("nodeName") == node

    await eventually(pod_on_node, what="the pod goes to the node that is no longer held")


RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
EVERY_OPTION = Settings.model_validate(
    {
        "engineImage": "registry/engine:1",
        "fetchImage": "registry/fetch:1",
        "engine": {
            "serviceAccountName": "default",
            "imagePullSecrets": ["pull"],
            "tolerations": [{"operator": "Exists"}],
            "tmpSizeLimit": "3000Mi",
            "shmSizeLimit": 2048000000,
            "runAsUser": None,
            "nodeRemoval": "Block",
        },
    }
)


def rendered(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return Deployments and inspect Jobs that use all that an LLMDeployment may name."""
    owner = replace(
        intent("pvc://weights/llama"),
        api_keys=SecretKey("keys", "api-keys"),
        pod_labels=(("team", "ml"),),
        pod_annotations=(("example.com/owner", "ml"),),
    )
    action = ApplyDeployment("uid-1", Shape(SKU, SMALL), 0, (PRODUCT,), 4096, spread=Spread(0.5, 0.5))
    key = FactsKey("ns", "pvc://weights/llama", "registry/engine:1")
    identity, of_hub = manifests.owner_identity(owner), replace(key, uri="hf://org/model")
    fetching = replace(owner, name="hub", model_uri=of_hub.uri, model_secret="token")
    pinned = replace(action, pin=PinnedRevision("c" * 40, 16_000_000_000))
    return {
        "engine": manifests.deployment(owner, action, settings),
        "inspect": manifests.inspect_job(identity, key, settings),
        "engine-of-a-hub": manifests.deployment(fetching, pinned, settings),
        "inspect-of-a-hub": manifests.inspect_job(identity, of_hub, settings, secret="token"),
    }


async def make(cluster: LiveCluster, name: str, template: dict[str, Any]) -> None:
    meta = template["metadata"] | {"name": name, "namespace": cluster.namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
    await cluster.apply(pod, PODS)


async def test_a_restricted_namespace_admits_engines_and_inspections(cluster) -> None:
    namespace = {"name": cluster.namespace, "labels": RESTRICTED}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}
    await cluster.apply(body, NAMESPACES, manager="admin")

    for number, settings in enumerate((SETTINGS, EVERY_OPTION)):
        for name, template in rendered(settings).items():
            await make(cluster, f"{name}-{number}", template["spec"]["template"])

    lax = rendered(SETTINGS)["engine"]["spec"]["template"]
    lax["spec"]["securityContext"] = {}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        await make(cluster, "lax", lax)


@pytest.mark.parametrize("name", ["engine", "engine-of-a-hub"])
@pytest.mark.parametrize("settings", [SETTINGS, EVERY_OPTION])
async def test_the_api_server_stores_a_manifest_as_rendered(cluster, settings, name) -> None:
    template = rendered(settings)[name]
    template["metadata"]["namespace"] = cluster.namespace

    assert up_to_date(await cluster.apply(template, DEPLOYMENTS), template)
