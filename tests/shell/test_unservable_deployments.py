"""An LLMDeployment that cannot be served reports why, with the nearest feasible change, and uses no GPU."""

import pytest

from tangram.shell.objects.kinds import DEPLOYMENTS
from tests.support.apiserver import World, llm, refusal, report

pytestmark = pytest.mark.apiserver

GB = 10**9
TPOT_1_MS = {"tpot": {"percentile": 90, "milliseconds": 1}}


async def test_a_model_that_fits_nowhere_names_the_nearest_fit(here: World, operator) -> None:
    here.kubelet.reports["image:///models/huge"] = (report(weightBytes=400 * GB, parameters=200 * GB), 0)
    operator()
    await here.apply(llm("huge", here.namespace, model={"uri": "image:///models/huge"}))

    told = await here.until("huge", "Placed", "False", "Infeasible")

    assert "H100-80GB-SXM" in told["message"] or "A100-80GB-SXM" in told["message"], told
    assert "GiB" in told["message"], told
    assert await here.all(DEPLOYMENTS) == []
    await here.until("huge", "Ready", "False", "Infeasible")


async def test_weights_over_bandwidth_above_the_objective_on_every_shape(here: World, operator) -> None:
    here.kubelet.reports["image:///models/slow"] = (report(weightBytes=20 * GB, parameters=10 * GB), 0)
    operator()
    await here.apply(llm("slow", here.namespace, model={"uri": "image:///models/slow"}, objectives=TPOT_1_MS))

    told = await here.until("slow", "Placed", "False", "SLOUnreachable")

    assert "ms" in told["message"], told
    assert await here.all(DEPLOYMENTS) == []


async def test_truncated_weights_are_told_with_the_file(here: World, operator) -> None:
    said = "model.safetensors: the header promises 7610880 bytes, the file holds 4096"
    here.kubelet.reports["image:///models/cut"] = (refusal("InvalidCheckpoint", said), 3)
    operator()
    await here.apply(llm("cut", here.namespace, model={"uri": "image:///models/cut"}))

    told = await here.until("cut", "ModelReady", "False", "InvalidCheckpoint")

    assert "model.safetensors" in told["message"]
    assert await here.all(DEPLOYMENTS) == []


async def test_two_with_one_served_name_the_older_wins_and_the_other_says_so(here: World, operator) -> None:
    operator()
    await here.apply(llm("first", here.namespace, model=_served("chat")))
    await here.until("first", "Ready", "True")
    await here.apply(llm("second", here.namespace, model=_served("chat")))

    told = await here.until("second", "Accepted", "False", "ModelNameCollision")

    assert "first" in told["message"], told
    await here.until("first", "Ready", "True")
    assert len(await here.all(DEPLOYMENTS)) == 1


def _served(name: str) -> dict[str, str]:
    return {"uri": "image:///models/tangram-tiny", "servedName": name}
