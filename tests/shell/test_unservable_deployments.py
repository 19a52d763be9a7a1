"""An LLMDeployment that cannot be served reports why, with the nearest feasible change, and uses no GPU."""

import pytest

from tangram.kube.kinds import DEPLOYMENTS
from tests.support.apiserver import LiveCluster, llm, refusal, report

pytestmark = pytest.mark.apiserver

GB = 10**9
TPOT_1_MS = {"tpot": {"percentile": 90, "milliseconds": 1}}


async def test_a_model_that_fits_nowhere_names_the_nearest_fit(cluster: LiveCluster, operator) -> None:
    cluster.kubelet.reports["image:///models/huge"] = (report(weightBytes=400 * GB, parameters=200 * GB), 0)
    operator()
    await cluster.apply(llm("huge", cluster.namespace, model={"uri": "image:///models/huge"}))

    condition = await cluster.until("huge", "Placed", "False", "Infeasible")

    assert "H100-80GB-SXM" in condition["message"] or "A100-80GB-SXM" in condition["message"], condition
    assert "GiB" in condition["message"], condition
    assert await cluster.all(DEPLOYMENTS) == []
    await cluster.until("huge", "Ready", "False", "Infeasible")


async def test_weights_too_large_for_the_objective_on_every_shape_are_reported(
    cluster: LiveCluster, operator
) -> None:
    cluster.kubelet.reports["image:///models/slow"] = (report(weightBytes=20 * GB, parameters=10 * GB), 0)
    operator()
    await cluster.apply(
        llm("slow", cluster.namespace, model={"uri": "image:///models/slow"}, objectives=TPOT_1_MS)
    )

    condition = await cluster.until("slow", "Placed", "False", "SLOUnreachable")

    assert "ms" in condition["message"], condition
    assert await cluster.all(DEPLOYMENTS) == []


async def test_truncated_weights_are_reported_with_the_file(cluster: LiveCluster, operator) -> None:
    expected = "model.safetensors: the header promises 7610880 bytes, the file holds 4096"
    cluster.kubelet.reports["image:///models/cut"] = (refusal("InvalidCheckpoint", expected), 3)
    operator()
    await cluster.apply(llm("cut", cluster.namespace, model={"uri": "image:///models/cut"}))

    condition = await cluster.until("cut", "ModelReady", "False", "InvalidCheckpoint")

    assert "model.safetensors" in condition["message"]
    assert await cluster.all(DEPLOYMENTS) == []


async def test_the_older_of_two_llmdeployments_with_one_served_name_is_served(
    cluster: LiveCluster, operator
) -> None:
    operator()
    await cluster.apply(llm("first", cluster.namespace, model=_served("chat")))
    await cluster.until("first", "Ready", "True")
    await cluster.apply(llm("second", cluster.namespace, model=_served("chat")))

    condition = await cluster.until("second", "Accepted", "False", "ModelNameCollision")

    assert "first" in condition["message"], condition
    await cluster.until("first", "Ready", "True")
    assert len(await cluster.all(DEPLOYMENTS)) == 1


def _served(name: str) -> dict[str, str]:
    return {"uri": "image:///models/tangram-tiny", "servedName": name}
