"""The first model comes to an uncut GPU, two more follow while it serves, and Tangram goes in mid-change.

Once with the node agent, once with mig-manager. The latter clears a GPU before it cuts it: the two models get
slices of another GPU. It changes MIG modes only on a node where no pod has a GPU: MIG is on from the start.
"""

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
from e2e.kube import Kube, instant, wait_until
from e2e.silicon.mig_manager import DEPLOY, STATE
from e2e.silicon.nvml.connection import Admin
from e2e.silicon.nvml.state import SILICON_LATENCIES, GpuInstance
from e2e.tests.cut_node import MIG_MANAGER, NVML, Backend, CutNode, cut_node, ready_since
from e2e.tests.support import ask, condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

REQUESTS = int(os.environ.get("FIRST_CUT_REQUESTS", "300"))
CLIENTS, TOKENS = 6, 4
LOAD = "during-the-cut"


def model(name: str, memory: str = "") -> dict[str, Any]:
    """An LLMDeployment of the tiny model. Host memory comes in proportion to a slice: with 2Gi of the 8Gi of
    a GPU it needs a fourth of it, with 3Gi a half.
    """
    spec: dict[str, Any] = {"model": {"uri": "image:///models/tangram-tiny", "servedName": name}}
    if memory:
        spec["engine"] = {"resources": {"requests": {"cpu": "500m", "memory": memory}}}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "tangram.dev/v1alpha1", "kind": "LLMDeployment", "metadata": meta, "spec": spec}


def apply(kube: Kube, *models: dict[str, Any]) -> None:
    """Apply LLMDeployments with one command."""
    kube.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": models}))


@pytest.fixture(scope="module", params=[NVML, MIG_MANAGER], ids=lambda backend: backend.name)
def node(stage: Stage, request: pytest.FixtureRequest) -> Iterator[CutNode]:
    if not isinstance(stage.provider, Local):
        pytest.skip("only the node of the local provider may be dressed anew")
    backend: Backend = request.param
    with cut_node(stage, stage.provider, backend) as made:
        yield made


@dataclass(frozen=True, slots=True)
class FirstModel:
    """The first model once it serves, and what was seen on the way."""

    waiting: dict[str, Any]  # the condition Placed while it had no slice
    plan: dict[str, Any]  # the FleetPlan that cut the GPU
    pod: dict[str, Any]
    device: str
    gpu: int  # index of its GPU
    instance: GpuInstance  # with a serial number that no other instance ever has

    @property
    def place(self) -> str:
        """The slice as PROFILE@START."""
        return f"{self.instance.profile}@{self.instance.start}"


@pytest.fixture(scope="module")
def first(node: CutNode) -> FirstModel:
    assert node.layouts() == [[] if node.backend.mig_enabled else ["gpu"]] * node.backend.gpus
    before = node.calls()
    apply(node.kube, model("first"))
    waiting, name = wait_until(
        lambda: waits_for_plan(node, "first"), 120, "the first model to wait for a slice", every=0.2
    )
    ready(node.kube, "first")
    wait_until(node.are_done, 60, "the plan to be done")
    plan = node.kube.get("fleetplan", name)
    pod = node.pod("first")
    device = node.device(pod)
    with Admin(node.nvml) as admin:
        admin.start_process(device)  # from now on the driver itself refuses to destroy the instance
    report(node, "first cut", plan, "first", calls=node.calls() - before)
    return FirstModel(waiting, plan, pod, device, *node.instance(device))


def waits_for_plan(node: CutNode, model: str) -> tuple[dict[str, Any], str] | None:
    """The condition Placed, once a model awaits slices of a FleetPlan that is carried out, and its name."""
    placed = condition(node.kube, "Placed", model)
    for plan in node.plans_of_changes():
        name, state = plan["metadata"]["name"], plan.get("status", {}).get("state")
        if state == "Executing" and name in placed.get("message", ""):
            return (placed, name) if placed["reason"] == "WaitingForSlices" else None
    return None


def leave(node: CutNode, *models: str) -> None:
    node.kube.kubectl("delete", "llmdep", *models, "--wait")
    wait_until(lambda: not any(map(node.pod, models)), 90, "their pods to end")


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


def slices(node: CutNode) -> Counter[str]:
    """The slices that the driver has, by resource."""
    places = [place for layout in node.layouts() for place in layout]
    return Counter(f"nvidia.com/mig-{place.partition('@')[0]}" for place in places)


def test_the_first_model_waits_for_a_slice_that_is_cut_for_it_and_answers(
    node: CutNode, first: FirstModel
) -> None:
    assert first.waiting["status"] == "False"
    assert first.plan["metadata"]["name"] in first.waiting["message"]
    profile = first.place.partition("@")[0]
    assert first.pod["metadata"]["labels"]["tangram.dev/profile"] == profile
    assert first.pod["spec"]["containers"][0]["resources"]["limits"][f"nvidia.com/mig-{profile}"] == "1"
    assert re.fullmatch(r"MIG-[0-9a-f-]{36}", first.device)
    assert first.place in node.layouts()[first.gpu]
    if node.backend is NVML:
        assert node.layouts() == [[first.place]]
    assert install.gpu_resources(node.kube) == slices(node)
    assert node.holds() == []
    assert ask(node.kube, "first") == "length"


def test_two_more_models_get_slices_while_the_first_model_serves_every_request(
    stage: Stage, node: CutNode, first: FirstModel
) -> None:
    before, layouts = node.calls(), node.layouts()
    plans = {plan["metadata"]["name"] for plan in node.plans_of_changes()}
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
    apply(node.kube, model("second", memory="2Gi"), model("third", memory="2Gi"))
    ready(node.kube, "second", "third")

    assert node.kube.get("job", LOAD)["status"].get("active") == 1  # all of it happened under load
    wait_until(node.are_done, 60, "the plan to be done")
    (plan,) = [plan for plan in node.plans_of_changes() if plan["metadata"]["name"] not in plans]
    calls = node.calls() - before
    report(node, "cut beside a running model", plan, "second", "third", calls=calls)
    install.end_load(node.kube, name=LOAD, within_s=2400)
    told = node.kube.kubectl("logs", f"job/{LOAD}").strip()
    stderr_line(f"requests to the first model meanwhile: {told}")
    served, refused, cut = map(int, re.findall(r"(\d+) (?:served|refused|cut)", told))
    assert (refused, cut) == (0, 0)
    assert served >= REQUESTS

    assert node.instance(first.device) == (first.gpu, first.instance)
    assert not node.backend.never_calls & calls.keys()
    if node.backend is NVML:
        assert len(node.layouts()[first.gpu]) == 3
    else:
        assert node.layouts()[first.gpu] == layouts[first.gpu]
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
    leave(node, "second", "third")
    with Admin(node.nvml) as admin:
        admin.set_latencies(SILICON_LATENCIES | {"nvmlGpuInstanceDestroy": 15.0})
    apply(kube, model("fourth", memory="3Gi"))
    wait_until(node.holds, 120, "the node to be held")
    wait_until(
        lambda: kube.get("gpunode", node.name)["spec"].get("planHash"), 60, "the new layout to be wanted"
    )
    if node.backend is MIG_MANAGER:
        wait_until(lambda: node.labels()[STATE] == "pending", 60, "mig-manager to be at work")

    kube.helm("uninstall", install.RELEASE, "--namespace", install.SYSTEM, "--wait")

    assert node.holds() == []
    assert ask(kube, "first") == "length"
    pod = node.pod("first")
    assert pod["metadata"]["uid"] == first.pod["metadata"]["uid"]
    assert node.device(pod) == first.device
    assert node.instance(first.device) == (first.gpu, first.instance)
    if node.backend is MIG_MANAGER:  # it is not Tangram's, and ends what it has begun
        wait_until(lambda: node.labels()[STATE] == "success", 120, "mig-manager to be done")
        wait_until(lambda: node.labels()[f"{DEPLOY}device-plugin"] == "true", 5, "the device plugin to run")
    left = ("sa,job,clusterrole,clusterrolebinding,validatingadmissionpolicy", "-A", "-o", "name")
    assert "lift-holds" not in kube.kubectl("get", *left)
