"""A model of a hub on a real API server: inspected, pinned, rolled out; and one that is gated."""

import json

import pytest

from tangram.kube.kinds import DEPLOYMENTS, LLM_DEPLOYMENTS
from tests.support.apiserver import LiveCluster, eventually, llm, refusal

pytestmark = pytest.mark.apiserver

URI = "hf://org/model"
IMAGE = "tangram.local/tangram-fetch:test"


def fetched(commit: str) -> tuple[str, int]:
    return json.dumps({"schema": 1, "source": {"revision": commit, "size": 2_500_000_000, "seconds": 2.5}}), 0


async def arguments(cluster: LiveCluster) -> list[str]:
    """Return what the pods of the only Deployment fetch."""
    (deployment,) = await cluster.all(DEPLOYMENTS)
    (container,) = deployment["spec"]["template"]["spec"]["initContainers"]
    assert container["image"] == IMAGE
    return container["args"]


async def test_a_repository_is_pinned_served_and_rolled_out_at_another_revision(
    cluster: LiveCluster, operator
) -> None:
    first, second = "a" * 40, "b" * 40
    cluster.kubelet.fetches |= {URI: fetched(first), f"{URI}@v2": fetched(second)}
    operator(fetchImage=IMAGE)
    await cluster.apply(llm("hub", cluster.namespace, model={"uri": URI, "secretRef": {"name": "token"}}))

    await cluster.until("hub", "Ready", "True")

    status = (await cluster.get(LLM_DEPLOYMENTS, "hub"))["status"]
    assert status["model"]["revision"] == first
    assert status["model"]["facts"]["pin"] == {"revision": first, "size": 2_500_000_000}
    assert (await arguments(cluster))[:3] == ["fetch", "--uri", f"{URI}@{first}"]

    model = {"uri": URI, "revision": "v2", "secretRef": {"name": "token"}}
    await cluster.apply(llm("hub", cluster.namespace, model=model))

    async def rolled_out() -> bool:
        return f"{URI}@{second}" in await arguments(cluster)

    await eventually(rolled_out, what="the other commit is rolled out")
    await cluster.until("hub", "Ready", "True")


async def test_a_gated_repository_is_a_sentence_after_one_try(cluster: LiveCluster, operator) -> None:
    cluster.kubelet.fetches[URI] = (refusal("AccessDenied", "hf://org/model is gated: accept its terms"), 3)
    operator(fetchImage=IMAGE)
    await cluster.apply(llm("gated", cluster.namespace, model={"uri": URI}))

    condition = await cluster.until("gated", "ModelReady", "False", "AccessDenied")

    assert condition["message"].startswith("hf://org/model is gated: accept its terms; it is looked at again")
    assert await cluster.all(DEPLOYMENTS) == []
