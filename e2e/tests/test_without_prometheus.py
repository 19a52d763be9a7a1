"""Without a Prometheus the operator reads the engines itself, and replicas follow the load by what they show.

The tests of this module run in order: each begins with what the one before left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.autoscaled import Autoscaled, load_ended_at
from e2e.demo import install
from e2e.demo.stage import Stage
from e2e.kube import instant, wait_until
from e2e.tests.conftest import clear
from e2e.tests.silent_engines import silent_engines
from e2e.tests.support import condition

pytestmark = pytest.mark.cluster

SCRAPED = Path(__file__).with_name("values-scraped.yaml")
CHAT, BURST = "scraped-chat", "scraped-burst"
MOST = 2  # replicas, until a test allows more
HELD_FOR_S = 45  # the law adds a replica for a queue, and removes one where there is no load, in less
DOWN_AFTER_S = yaml.safe_load(SCRAPED.read_text())["scaling"]["downAfterSeconds"]


@pytest.fixture(scope="module")
def chat(stage: Stage) -> Iterator[Autoscaled]:
    """An LLMDeployment under an operator that knows no Prometheus, Ready."""
    kube = stage.cluster()
    clear(kube)
    model = Autoscaled(kube, CHAT, slots=16, most=MOST)
    kube.apply(json.dumps(model.manifest()))
    install.tangram(kube, stage.references, values=(*stage.values, SCRAPED))
    try:
        kube.kubectl("wait", "--for=condition=Ready", f"llmdep/{CHAT}", "--timeout=180s", timeout=190)
        yield model
    finally:
        clear(kube)
        stage.install_tangram()


def scaling_active(model: Autoscaled) -> dict[str, Any]:
    return condition(model.kube, "ScalingActive", model.name)


def reads(model: Autoscaled, pods: int) -> bool:
    """Tell whether the status says that the numbers come from all these pods."""
    says = scaling_active(model)
    return says["status"] == "True" and f"read from {pods} of {pods} pods" in says["message"]


def test_a_load_raises_replicas_by_what_the_engines_themselves_show(stage: Stage, chat: Autoscaled) -> None:
    wait_until(lambda: reads(chat, 1), 60, "the status to say where the numbers come from", every=1)

    chat.load(stage.references["silicon"], BURST, clients=40, tokens=48)

    wait_until(lambda: chat.replicas() == (MOST, MOST), 150, "a second replica to serve", every=1)
    assert scaling_active(chat)["status"] == "True"


def test_engines_whose_metrics_are_silent_are_not_idle_and_nothing_changes(
    stage: Stage, chat: Autoscaled
) -> None:
    kube = chat.kube
    with silent_engines(kube, stage.references["silicon"], f"tangram.dev/llmdeployment={CHAT}"):
        wait_until(lambda: scaling_active(chat)["status"] != "True", 60, "ScalingActive to say so", every=1)
        says, before = scaling_active(chat), (chat.replicas(), chat.changes())
        assert says["reason"] == "MetricsMissing"
        assert f"metrics were read from 0 of {MOST} pods" in says["message"]
        chat.allow(MOST + 1)  # by the last reading, the load needs one more
        with pytest.raises(TimeoutError):
            wait_until(
                lambda: (chat.replicas(), chat.changes()) != before,
                HELD_FOR_S,
                "a change that must not come",
                every=2,
            )
        assert scaling_active(chat)["reason"] == "MetricsMissing"
        install.end_load(kube, name=BURST)
        chat.allow(MOST)
    wait_until(lambda: reads(chat, MOST), 60, "the metrics to be read again", every=1)
    assert (chat.replicas(), chat.changes()) == before


def test_replicas_fall_after_the_load_and_no_request_was_cut(chat: Autoscaled) -> None:
    kube, ended = chat.kube, load_ended_at(chat.kube, BURST)

    wait_until(lambda: chat.replicas() == (1, 1), 240, "one replica again", every=1)

    falls = [change for change in chat.changes() if instant(change["time"]) > ended]
    assert {change["reason"] for change in falls} == {"LoadFell"}
    assert min((instant(change["time"]) - ended).total_seconds() for change in falls) >= DOWN_AFTER_S
    wait_until(lambda: reads(chat, 1), 30, "the one pod to be read", every=1)
    said = kube.kubectl("logs", f"job/{BURST}", "--tail=1")
    assert ", 0 cut" in said, said
