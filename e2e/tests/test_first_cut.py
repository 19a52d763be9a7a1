"""The first model comes to an uncut GPU, two more follow while it serves, and Tangram goes in mid-change."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.cluster.local import Local
from e2e.demo import install
from e2e.demo.graph import stderr_line
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.state import SILICON_LATENCIES
from e2e.tests.cut_node import CutNode, cut_node, instant, ready_since
from e2e.tests.support import ask, condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

REQUESTS = int(os.environ.get("FIRST_CUT_REQUESTS", "300"))
CLIENTS, TOKENS = 6, 4
LOAD = "during-the-cut"


def model(name: str, memory: str = "") -> str:
    """An LLMDeployment of the tiny model, as JSON. Host memory comes in proportion to a slice: with 2Gi of
    the 8Gi of a GPU it needs a fourth of it, with 3Gi a half.
    """
    spec: dict[str, Any] = {"model": {"uri": "image:///models/tangram-tiny", "servedName": name}}
    if memory:
        spec["engine"] = {"resources": {"requests": {"cpu": "500m", "memory": memory}}}
    meta = {"name": name, "namespace": "default"}
    return json.dumps(
        {"apiVersion": "tangram.dev/v1alpha1", "kind": "LLMDeployment", "metadata": meta, "spec": spec}
    )


@pytest.fixture(scope="module")
def node(stage: Stage) -> Iterator[CutNode]:
    if not isinstance(stage.provider, Local):
        pytest.skip("only the node of the local provider may be dressed anew")
    with cut_node(stage, stage.provider) as made:
        yield made


@dataclass(frozen=True, slots=True)
class FirstModel:
    """The first model once it serves, and what was seen on the way."""

    waiting: dict[str, Any]  # the condition Placed while it had no slice
    plan: dict[str, Any]  # the FleetPlan that cut the GPU
    pod: dict[str, Any]
    device: str
    place: str  # of its slice


@pytest.fixture(scope="module")
def first(node: CutNode) -> FirstModel:
    assert node.layout() == ["gpu"]
    node.kube.apply(model("first"))
    waiting = wait_until(
        lambda: waits_for_plan(node, "first"), 120, "the first model to wait for a slice", every=0.2
    )
    ready(node.kube, "first")
    plan = wait_until(lambda: node.plan_of_changes("Done"), 60, "the plan to be done")
    pod = node.pod("first")
    device = node.device(pod)
    with Admin(node.nvml) as admin:
        admin.start_process(device)  # from now on the driver itself refuses to destroy the instance
    report(node, "first cut", plan, "first", calls=node.calls())
    (place,) = node.layout()
    return FirstModel(waiting, plan, pod, device, place)


def waits_for_plan(node: CutNode, name: str) -> dict[str, Any]:
    """The condition Placed, once it says that it awaits the slices of a FleetPlan that is carried out."""
    placed, plan = condition(node.kube, "Placed", name), node.plan_of_changes("Executing")
    names_plan = plan and plan["metadata"]["name"] in placed.get("message", "")
    return placed if names_plan and placed["reason"] == "WaitingForSlices" else {}


def ready(kube: Kube, *names: str) -> None:
    models = [f"llmdep/{name}" for name in names]
    kube.kubectl("wait", "--for=condition=Ready", *models, "--timeout=400s", timeout=410)


def report(node: CutNode, what: str, plan: dict[str, Any], *models: str, calls: Counter[str]) -> None:
    """Tell how long it took from the decision to serving, beside the time of the driver's calls alone."""
    applied = min(instant(node.kube.get("llmdep", m)["metadata"]["creationTimestamp"]) for m in models)
    decided = instant(plan["metadata"]["creationTimestamp"])
    serving = max(ready_since(node.pod(name)) for name in models)
    driver = sum(SILICON_LATENCIES[name] * count for name, count in calls.items())
    stderr_line(
        f"{what} ({plan['spec']['changeDisplay']}): {(decided - applied).total_seconds():.0f} s until the "
        f"FleetPlan, {(serving - decided).total_seconds():.0f} s from there until all serve; the driver's "
        f"calls alone take {driver:.1f} s: {', '.join(f'{n} {name}' for name, n in sorted(calls.items()))}"
    )


def test_the_first_model_waits_for_a_slice_that_is_cut_for_it_and_answers(
    node: CutNode, first: FirstModel
) -> None:
    assert first.waiting["status"] == "False"
    assert first.plan["metadata"]["name"] in first.waiting["message"]
    profile = first.place.partition("@")[0]
    assert first.pod["metadata"]["labels"]["tangram.dev/profile"] == profile
    assert first.pod["spec"]["containers"][0]["resources"]["limits"][f"nvidia.com/mig-{profile}"] == "1"
    assert re.fullmatch(r"MIG-[0-9a-f-]{36}", first.device)
    assert install.gpu_resources(node.kube) == {f"nvidia.com/mig-{profile}": 1}
    assert node.holds() == []
    assert ask(node.kube, "first") == "length"


def test_the_rest_of_the_gpu_is_cut_while_the_first_model_serves_every_request(
    stage: Stage, node: CutNode, first: FirstModel
) -> None:
    before = node.calls()
    install.load(
        node.kube,
        stage.references["silicon"],
        seconds=3000,
        concurrency=CLIENTS,
        tokens=TOKENS,
        name=LOAD,
        model="first",
        requests=REQUESTS,
    )
    node.kube.kubectl("wait", "--for=condition=Ready", "pod", "-l", f"job-name={LOAD}", "--timeout=60s")
    node.kube.apply(model("second", memory="2Gi"))
    node.kube.apply(model("third", memory="2Gi"))
    ready(node.kube, "second", "third")

    assert node.kube.get("job", LOAD)["status"].get("active") == 1  # all of it happened under load
    plan = wait_until(lambda: node.plan_of_changes("Done"), 60, "the plan to be done")
    calls = node.calls() - before
    report(node, "cut beside a running model", plan, "second", "third", calls=calls)
    install.end_load(node.kube, name=LOAD, within_s=2400)
    told = node.kube.kubectl("logs", f"job/{LOAD}").strip()
    stderr_line(f"requests to the first model meanwhile: {told}")
    served, refused, cut = map(int, re.findall(r"(\d+) (?:served|refused|cut)", told))
    assert (refused, cut) == (0, 0)
    assert served >= REQUESTS

    assert len(node.layout()) == 3
    assert first.place in node.layout()
    assert not {name for name in calls if "Destroy" in name or "SetMigMode" in name}
    pod = node.pod("first")
    assert pod["metadata"]["uid"] == first.pod["metadata"]["uid"]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert len({node.device(node.pod(name)) for name in ("first", "second", "third")}) == 3
    for name in ("second", "third"):
        assert ask(node.kube, name) == "length"


def test_an_uninstall_in_mid_change_leaves_slices_and_pods_and_opens_the_node(
    node: CutNode, first: FirstModel
) -> None:
    kube = node.kube
    kube.kubectl("delete", "llmdep", "second", "third", "--wait")
    wait_until(lambda: not node.pod("second") and not node.pod("third"), 90, "their pods to end")
    with Admin(node.nvml) as admin:
        admin.set_latencies(SILICON_LATENCIES | {"nvmlGpuInstanceDestroy": 15.0})
    kube.apply(model("fourth", memory="3Gi"))
    wait_until(node.holds, 120, "the node to be held")
    wait_until(
        lambda: kube.get("gpunode", node.name)["spec"].get("planHash"), 60, "the new layout to be wanted"
    )

    kube.helm("uninstall", install.RELEASE, "--namespace", install.SYSTEM, "--wait")

    assert node.holds() == []
    assert ask(kube, "first") == "length"
    pod = node.pod("first")
    assert pod["metadata"]["uid"] == first.pod["metadata"]["uid"]
    assert node.device(pod) == first.device
    assert first.place in node.layout()
    left = ("sa,job,clusterrole,clusterrolebinding,validatingadmissionpolicy", "-A", "-o", "name")
    assert "lift-holds" not in kube.kubectl("get", *left)
