"""A new engine image rolls out: never fewer replicas than the minimum, no accepted request cut."""

import os

import pytest

from e2e.cluster import images
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import Kube, wait_until
from e2e.tests.support import condition

pytestmark = pytest.mark.cluster


def test_an_engine_upgrade_cuts_nothing_and_never_leaves_the_model_without_a_replica(
    stage: Stage, model: Kube
) -> None:
    builder = images.choose_builder(stage.provider.name)
    environ = {**images.FEW_KERNELS, **os.environ}
    upgraded = images.build_image(
        "engine", builder=builder, registry=stage.registry, tag="upgraded", environ=environ
    )
    stage.provider.load_image(upgraded, print)
    install.load(model, stage.references["silicon"], seconds=60, concurrency=2, tokens=32)
    wait_until(
        lambda: "1" in model.kubectl("get", "job/load", "-o", "jsonpath={.status.ready}"), 60, "the load"
    )
    fewest: list[int] = []

    stage.install_tangram(engine=upgraded)
    try:
        wait_until(lambda: _watch(model, fewest) == {upgraded}, 150, "every pod to run the new image")
        model.kubectl("wait", "--for=condition=complete", "job/load", "--timeout=120s")
        said = model.kubectl("logs", "job/load", "--tail=1")
    finally:
        stage.install_tangram()

    assert min(fewest) >= 1
    assert ", 0 cut" in said, said
    assert condition(model, "Ready")["status"] == "True"


def _watch(kube: Kube, fewest: list[int]) -> set[str]:
    """Note how many replicas are available; return the images of the pods that are there."""
    deployments = kube.get("deploy", "-l", f"tangram.dev/llmdeployment={install.NAME}")["items"]
    fewest.append(sum(d["status"].get("availableReplicas", 0) for d in deployments))
    pods = kube.get("pods", "-l", "app.kubernetes.io/component=engine")["items"]
    return {p["spec"]["containers"][0]["image"] for p in pods}
