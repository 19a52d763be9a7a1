"""Objects that pose as children of an LLMDeployment, on a real API server."""

import secrets
from typing import Any

import pytest

from tangram.shell.objects.kinds import DEPLOYMENTS, PODS, uid_of
from tests.support.apiserver import MANAGER, NAMESPACES, World, eventually, llm
from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.apiserver


def posing(like: dict[str, Any], name: str, namespace: str) -> dict[str, Any]:
    """A Deployment with the labels, annotations and owner of `like`, and pods of its own."""
    meta = {key: like["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}
    pod = {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False}
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta | {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def lone_pod(like: dict[str, Any], namespace: str) -> dict[str, Any]:
    """A pod that joins the Service of `like` by its labels, of no ReplicaSet."""
    labels = like["spec"]["template"]["metadata"]["labels"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "lone", "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False},
    }


async def test_nothing_that_poses_as_a_child_is_counted_scaled_or_deleted(
    here: World, proxy: FaultProxy, operator
) -> None:
    tenant = f"t-{secrets.token_hex(4)}"
    await here.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant}}, NAMESPACES, MANAGER
    )
    process = operator(watchNamespaces=[here.namespace, tenant])
    await here.apply(llm("tiny", here.namespace))
    await here.until("tiny", "Ready", "True")
    (ours,) = await here.all(DEPLOYMENTS)

    proxy.trace.clear()
    abroad = await here.apply(posing(ours, ours["metadata"]["name"], tenant), DEPLOYMENTS)
    beside = await here.apply(posing(ours, "tiny-by-hand", here.namespace), DEPLOYMENTS)
    lone = await here.apply(lone_pod(ours, here.namespace), PODS)
    await eventually(lambda: _available(here, "tiny-by-hand", 2))
    await here.apply(llm("tiny", here.namespace, scaling={"minReplicas": 2}))
    await eventually(lambda: _available(here, ours["metadata"]["name"], 2))
    await here.until("tiny", "Ready", "True")

    status = await here.until("tiny", "Available", "True")
    assert status["message"]
    written = {(r.namespace, r.plural, r.name) for r in proxy.writes()}
    assert not {w for w in written if w[0] == tenant}
    assert not {w for w in written if w[2] in ("tiny-by-hand", "lone")}
    after = await here.get(DEPLOYMENTS, "tiny-by-hand")
    assert (uid_of(after), after["spec"]["replicas"]) == (uid_of(beside), 2)
    assert uid_of(await here.get(PODS, "lone")) == uid_of(lone)
    assert uid_of(abroad) != uid_of(ours)
    assert process.alive()


async def _available(here: World, name: str, count: int) -> bool:
    found = await here.get(DEPLOYMENTS, name)
    return (found or {}).get("status", {}).get("availableReplicas") == count
