"""Replicas follow a load, and stay where nothing is known or nothing changes. One burst, from its begin to
long after its end, while another LLMDeployment is under a constant load.

The tests of this module run in order: each begins with what the one before left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from e2e.autoscaled import Autoscaled, last, load_ended_at
from e2e.demo import install
from e2e.demo.graph import stderr_line
from e2e.demo.stage import Stage
from e2e.kube import instant, wait_until
from e2e.tests.conftest import clear, pods
from e2e.tests.support import condition

pytestmark = pytest.mark.cluster

STEADY, CHAT = "steady", "chat"
STEADY_LOAD, BURST, MORE = "steady-load", "burst", "more-load"
MOST = 3  # replicas of the chat, until a test allows more
RECOVERED_WITHIN_S = 240  # five times what quiet cores take
STEADY_FOR_S = 600
BLIND_FOR_S = 180
DOWN_AFTER_S = yaml.safe_load(install.VALUES.read_text())["scaling"]["downAfterSeconds"]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a constant load led to."""

    model: Autoscaled
    since: float  # of the monotonic clock
    desired: int
    changes: list[dict[str, Any]]


@pytest.fixture(scope="module")
def models(stage: Stage) -> Iterator[dict[str, Autoscaled]]:
    """One LLMDeployment for the burst and one for the constant load, both Ready."""
    kube = stage.cluster()
    clear(kube)
    made = {
        CHAT: Autoscaled(kube, CHAT, slots=16, most=MOST),
        STEADY: Autoscaled(kube, STEADY, slots=64, most=3),
    }
    kube.apply(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [m.manifest() for m in made.values()]})
    )
    kube.kubectl("wait", "--for=condition=Ready", "llmdep", *made, "--timeout=180s", timeout=190)
    yield made
    clear(kube)


@pytest.fixture(scope="module", autouse=True)
def settled(stage: Stage, models: dict[str, Autoscaled]) -> Settled:
    """The other LLMDeployment after its load of two requests per second has filled a window."""
    model = models[STEADY]
    model.load(stage.references["silicon"], STEADY_LOAD, clients=2, every_s=1, tokens=8)
    wait_until(lambda: model.requests_per_second() > 1.5, 90, "the constant load in Prometheus", every=1)
    return Settled(model, time.monotonic(), model.replicas()[1], model.changes())


@pytest.fixture
def chat(models: dict[str, Autoscaled]) -> Autoscaled:
    return models[CHAT]


def test_a_burst_raises_replicas_until_the_objective_is_met_again(stage: Stage, chat: Autoscaled) -> None:
    begin = time.monotonic()
    chat.load(stage.references["silicon"], BURST, clients=40, tokens=48)

    wait_until(lambda: chat.meets_objective() is False, 60, "a missed objective", every=1)
    wait_until(lambda: chat.replicas()[0] > 1, RECOVERED_WITHIN_S, "a second replica to serve", every=1)
    wait_until(chat.meets_objective, RECOVERED_WITHIN_S, "the objective to be met", every=1)
    recovered_s = time.monotonic() - begin
    stderr_line(f"{chat.replicas()[0]} replicas met the objective {recovered_s:.0f} s after the burst began")
    assert recovered_s <= RECOVERED_WITHIN_S


def test_without_prometheus_no_replica_is_added_or_removed(chat: Autoscaled) -> None:
    kube = chat.kube
    prometheus = ("deploy/prometheus", "-n", "tangram-monitoring")
    silent_since = time.monotonic()
    kube.kubectl("scale", *prometheus, "--replicas=0")
    try:
        wait_until(
            lambda: condition(kube, "ScalingActive", CHAT)["status"] != "True", 120, "ScalingActive to say so"
        )
        before = chat.replicas()[1], chat.changes()
        chat.allow(MOST + 1)
        # Longer than the windows of metrics and of recommendations: a guess of no load would have had effect,
        # and so would the last reading.
        with pytest.raises(TimeoutError):
            wait_until(
                lambda: (chat.replicas()[1], chat.changes()) != before,
                BLIND_FOR_S - (time.monotonic() - silent_since),
                "a change that must not come",
                every=2,
            )
        assert condition(kube, "ScalingActive", CHAT)["reason"] == "MetricsMissing"
        chat.allow(MOST)
    finally:
        kube.kubectl("scale", *prometheus, "--replicas=1")
    wait_until(
        lambda: condition(kube, "ScalingActive", CHAT)["status"] == "True",
        120,
        "metrics to be believed again",
    )
    assert (chat.replicas()[1], chat.changes()) == before


def test_a_number_that_kubectl_scale_sets_stays_under_load(chat: Autoscaled) -> None:
    kube = chat.kube
    kube.kubectl("scale", f"llmdep/{CHAT}", "--replicas=1")
    wait_until(lambda: chat.replicas() == (1, 1), 60, "one replica")
    exported = f'tangram_recommended_replicas{{llmdeployment="{CHAT}"}}'
    # Longer than a window and a queue: with one replica, the law would have added some by now.
    with pytest.raises(TimeoutError):
        wait_until(lambda: chat.replicas()[1] != 1, 35, "another number, which must not come", every=1)
    wait_until(lambda: chat.status()["scaling"].get("recommendedReplicas", 0) > 1, 60, "a recommendation")
    wait_until(lambda: (last(kube, exported) or 0) > 1, 20, "the recommendation in Prometheus")
    assert condition(kube, "ScalingActive", CHAT)["reason"] == "ReplicasSet"

    kube.kubectl("patch", "llmdep", CHAT, "--type=json", "-p", '[{"op":"remove","path":"/spec/replicas"}]')
    wait_until(lambda: chat.replicas()[1] > 1 and chat.complete(), 120, "what the load needs", every=1)


def test_a_replica_that_crashes_for_ever_does_not_stop_growth(stage: Stage, chat: Autoscaled) -> None:
    kube, before = chat.kube, chat.replicas()[1]
    chat.allow(before)
    broken = pods(kube, f"tangram.dev/llmdeployment={CHAT}")[0]
    kube.kubectl("set", "image", broken, f"engine={stage.references['silicon']}")  # it has no `serve`
    wait_until(lambda: chat.replicas() == (before - 1, before), 90, "the status to say that one is missing")
    wait_until(lambda: chat.status()["scaling"].get("lateReplicas") == 1, 240, "the late replica", every=1)

    chat.allow(before + 1)
    chat.load(stage.references["silicon"], MORE, clients=16, tokens=48)
    wait_until(
        lambda: chat.replicas() == (before, before + 1), 150, "a replica beside the broken one", every=1
    )
    assert chat.status()["scaling"]["lateReplicas"] == 1
    assert condition(kube, "ScalingActive", CHAT)["status"] == "True"
    restarts = ("-o", "jsonpath={.status.containerStatuses[0].restartCount}")
    assert int(kube.kubectl("get", broken, *restarts)) > 1

    kube.kubectl("delete", broken)
    wait_until(chat.complete, 120, "its successor", every=1)
    wait_until(lambda: "lateReplicas" not in chat.status()["scaling"], 30, "the status to say so")


def test_replicas_fall_late_after_the_load_and_no_request_was_cut(chat: Autoscaled) -> None:
    kube = chat.kube
    high = chat.replicas()[1]
    assert high > 1
    for name in (BURST, MORE):
        install.end_load(kube, name=name)
    ended = min(load_ended_at(kube, name) for name in (BURST, MORE))
    assert chat.replicas()[1] == high

    wait_until(lambda: chat.replicas() == (1, 1), 300, "one replica again", every=1)
    falls = [change for change in chat.changes() if instant(change["time"]) > ended]
    assert falls
    assert {change["reason"] for change in falls} == {"LoadFell"}
    waited = [(instant(change["time"]) - ended).total_seconds() for change in falls]
    assert min(waited) >= DOWN_AFTER_S, falls
    for name in (BURST, MORE):
        said = kube.kubectl("logs", f"job/{name}", "--tail=1")
        assert ", 0 cut" in said, said


def test_the_load_of_the_demo_adds_a_replica(stage: Stage, chat: Autoscaled) -> None:
    kube = chat.kube
    install.model(kube)
    install.load(kube, stage.references["silicon"], seconds=300)

    wait_until(lambda: install.replicas(kube)[0] > 1, 120, "a second replica to serve", every=1)
    install.end_load(kube)
    said = kube.kubectl("logs", "job/load", "--tail=1")
    assert ", 0 cut" in said, said


def test_a_constant_load_keeps_its_number_of_replicas_for_ten_minutes(settled: Settled) -> None:
    model, remaining = settled.model, STEADY_FOR_S - (time.monotonic() - settled.since)
    if remaining > 0:
        with pytest.raises(TimeoutError):
            wait_until(lambda: model.changes() != settled.changes, remaining, "a change of replicas", every=5)

    assert model.changes() == settled.changes
    assert model.replicas() == (settled.desired, settled.desired)
    assert model.requests_per_second() > 1.5  # the load is still there
    install.end_load(model.kube, name=STEADY_LOAD)
    said = model.kube.kubectl("logs", f"job/{STEADY_LOAD}", "--tail=1")
    assert ", 0 refused, 0 cut" in said, said
