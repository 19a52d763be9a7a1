"""Whatever one object contains, the plan of the other LLMDeployments stays, and no round fails."""

import copy
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tangram.api import PriorityClasses
from tangram.fleet import Fault
from tangram.kube.kinds import Identity
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.measure.scaler import Scaler
from tangram.shell.objects import manifests
from tangram.shell.snapshot import intents, workloads
from tangram.shell.snapshot.broken_objects import without_broken_objects
from tangram.shell.watch import kept_fields
from tests.support.views import SETTINGS, Fleet, Object, node, one_round, running

BAD, GOOD = "uid-bad", ("uid-a", "uid-z")
TEXTS: tuple[Any, ...] = (
    "", "x", "٣", "²", "1k", "1e3", "9" * 5000, "-5", "NaN", "é\u0000\U0001f4a9", "a" * 100_000, "[" * 50_000,
    "2026-13-45T99:99:99Z", "0001-01-01T00:00:00Z", "True", "0x10", " 1 ",
)  # fmt: skip
NASTY: tuple[Any, ...] = (
    10**18, -1, 0, 2**63, float("nan"), float("inf"), -1e308, 1e308, 1.5, True, None, [], {}, [None],
    {"": None}, [[]], *TEXTS,
)  # fmt: skip
IDENTITY = {("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid"), ("kind",)}
DELETED = object()


def fleet() -> Fleet:
    running_fleet = running("a", "bad", "z")
    bad = running_fleet.llm_deployments[1]
    owner = Identity("ns", "bad", BAD)
    job = manifests.inspect_job(owner, manifests.FactsKey("ns", "image:///bad", "engine:1"), SETTINGS)
    job["metadata"] |= {"uid": "job-bad", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    bad["status"] = one_round(running_fleet.view()).statuses[BAD] | {"slo": {"time": "2026-01-01T00:00:00Z"}}
    bad["spec"] |= {
        "traffic": {"requestsPerSecond": "1.0", "inputTokens": {"mean": 100}, "outputTokens": {"mean": 10}},
        "placement": {"budgetPerHour": "50.00", "spread": {"node": 1, "zone": 1}, "tensorParallel": [1]},
        "objectives": {"tpot": {"percentile": 90, "milliseconds": 500}},
        "priority": 0,
    }
    pool = {
        "kind": "GPUPool",
        "metadata": {"name": "pool", "uid": "uid-pool", "generation": 1},
        "spec": {"nodeSelector": {"nowhere": "x"}, "pricePerGPUHour": "1.00"},
    }
    pods, reduced = (running_fleet.pods[0], running_fleet.pods[2]), kept_fields.pod(running_fleet.pods[1])
    assert reduced is not None
    return replace(
        running_fleet,
        nodes=(*running_fleet.nodes, node("n2", 1)),
        jobs=(job,),
        gpu_pools=(pool,),
        pods=pods,
        reduced=(reduced,),
    )


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a document, leaves and branches."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from paths(inner, (*at, key))


def edited(obj: Object, path: tuple[Any, ...], value: Any) -> Object:
    copied = copy.deepcopy(obj)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    if value is not DELETED:
        inner[path[-1]] = copy.deepcopy(value)
    elif isinstance(inner, list):
        inner.pop(path[-1])
    else:
        del inner[path[-1]]
    return copied


def with_object(original: Fleet, kind: str, number: int, obj: Object) -> Fleet:
    objects = list(getattr(original, kind))
    objects[number] = obj
    return replace(original, **{kind: tuple(objects)})


RUNNING_FLEET = fleet()
# Which objects are one tenant's or one node's to break; the node that the others stand on is not among them.
TARGETS = [
    ("llm_deployments", 1),
    ("deployments", 1),
    ("reduced", 0),
    ("services", 1),
    ("jobs", 0),
    ("gpu_pools", 0),
]
RAW = [("nodes", 1), ("pods", 2)]  # the API server keeps their types: only texts are edited
QUIET = FaultLog(OperatorMetrics())
EXPECTED = one_round(RUNNING_FLEET.view())


def places(kind: str, number: int) -> list[tuple[Any, ...]]:
    object_paths = paths(getattr(RUNNING_FLEET, kind)[number])
    return [path for path in object_paths if path not in IDENTITY and path != ("metadata",)]


def check(changed: Fleet, what: object) -> Any:
    result = one_round(changed.view(), faults=QUIET)
    for uid in GOOD:
        assert result.of(uid) == EXPECTED.of(uid), what
        assert result.statuses[uid] == EXPECTED.statuses[uid], what
    return result


@pytest.mark.parametrize(("kind", "number"), TARGETS, ids=[kind for kind, _ in TARGETS])
def test_an_arbitrary_object_changes_no_plan_of_the_others(kind: str, number: int) -> None:
    """Each path of each object once, with a few hostile values drawn with a fixed seed."""
    chance = random.Random(f"{kind} 7")
    obj = getattr(RUNNING_FLEET, kind)[number]
    places_here = places(kind, number)
    for path in chance.sample(places_here, min(len(places_here), 40)):
        for value in (DELETED, chance.choice(NASTY)):
            check(with_object(RUNNING_FLEET, kind, number, edited(obj, path, value)), (kind, path, value))


@pytest.mark.parametrize(("kind", "number"), RAW, ids=[kind for kind, _ in RAW])
def test_arbitrary_texts_of_a_pod_or_node_change_no_plan_of_the_others(kind: str, number: int) -> None:
    changed = replace(RUNNING_FLEET, pods=(*RUNNING_FLEET.pods, raw_pod()), reduced=())
    obj = getattr(changed, kind)[number]
    chance = random.Random(f"{kind} 7")
    for path in places_of_texts(obj):
        for value in (DELETED, *chance.sample(TEXTS, 2)):
            check(with_object(changed, kind, number, edited(obj, path, value)), (kind, path, value))


def raw_pod() -> Object:
    return running("a", "bad", "z").pods[1]


def places_of_texts(obj: Object) -> list[tuple[Any, ...]]:
    def is_text(path: tuple[Any, ...]) -> bool:
        value: Any = obj
        for key in path:
            value = value[key]
        return isinstance(value, str)

    what = ("labels", "allocatable", "capacity", "limits", "requests", "phase", "nodeName", "taints")
    text_paths = (path for path in paths(obj) if set(path) & set(what) and is_text(path))
    return [path for path in text_paths if path not in IDENTITY]


# --- the faulted LLMDeployment


def counted(log: FaultLog, step: str) -> float:
    return log.metrics.registry.get_sample_value("tangram_loop_errors_total", {"where": step}) or 0.0


def ready(result: Any, uid: str = BAD) -> tuple[str, str]:
    condition = result.statuses[uid]["conditions"][0]
    assert condition["type"] == "Ready"
    return condition["status"], condition["reason"]


def test_an_llmdeployment_with_an_unreadable_deployment_is_left_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = edited(RUNNING_FLEET.deployments[1], ("spec", "replicas"), "many")
    view, log = with_object(RUNNING_FLEET, "deployments", 1, broken).view(), FaultLog(OperatorMetrics())
    with caplog.at_level(logging.ERROR):
        result = one_round(view, faults=log)
        one_round(view, faults=log)

    assert ready(result) == ("False", "NotJudged")
    assert "'many' is not a count of replicas" in result.statuses[BAD]["conditions"][0]["message"]
    assert result.of(BAD)[1] == []
    assert counted(log, "read") == 2
    (line,) = [r for r in caplog.records if "ns/bad-" in r.getMessage()]
    assert line.exc_info is not None


def test_a_fault_that_returns_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    broken = with_object(
        RUNNING_FLEET, "deployments", 1, edited(RUNNING_FLEET.deployments[1], ("spec", "replicas"), -1)
    ).view()
    log = FaultLog(OperatorMetrics())
    with caplog.at_level(logging.ERROR):
        for view in (broken, RUNNING_FLEET.view(), broken):
            one_round(view, faults=log)

    assert len([r for r in caplog.records if r.exc_info]) == 2


def test_an_unreadable_status_is_written_anew() -> None:
    """Another version of the operator wrote it, or an author with the right to."""
    bad = edited(RUNNING_FLEET.llm_deployments[1], ("status", "conditions"), [{"kind": "Ready"}])
    result = one_round(
        with_object(RUNNING_FLEET, "llm_deployments", 1, bad).view(),
        faults=(log := FaultLog(OperatorMetrics())),
    )

    assert counted(log, "status") == 1
    assert [c["type"] for c in result.statuses[BAD]["conditions"]] == [
        c["type"] for c in EXPECTED.statuses[BAD]["conditions"]
    ]


def test_an_llmdeployment_whose_spec_raises_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = intents.parse

    def parse(obj: Object, classes: PriorityClasses, keys: Any) -> Any:
        if obj["metadata"]["uid"] == BAD:
            raise ZeroDivisionError("division by zero")
        return real(obj, classes, keys)

    monkeypatch.setattr(intents, "parse", parse)
    result = check(RUNNING_FLEET, "parse")

    assert ready(result) == ("False", "InvalidSpec")
    assert "ZeroDivisionError: division by zero" in result.statuses[BAD]["conditions"][0]["message"]
    assert result.of(BAD)[1] == []


def test_an_llmdeployment_whose_scaling_raises_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Scaler._decide_one

    def decide(self: Scaler, intent: Any, *rest: Any) -> Any:
        if intent.uid == BAD:
            raise OverflowError("too large")
        return real(self, intent, *rest)

    monkeypatch.setattr(Scaler, "_decide_one", decide)
    result = check(RUNNING_FLEET, "scale")

    assert ready(result) == ("False", "NotJudged")
    assert [fault.step for fault in result.plan.faults] == ["scale"]
    assert result.of(BAD)[1] == []


def test_a_second_llmdeployment_with_the_same_uid_does_not_stop_the_first() -> None:
    twin = edited(RUNNING_FLEET.llm_deployments[0], ("metadata", "name"), "twin")
    result = check(replace(RUNNING_FLEET, llm_deployments=(*RUNNING_FLEET.llm_deployments, twin)), "twin")
    assert not result.plan.faults


def test_an_unreadable_pod_keeps_its_devices() -> None:
    """Its slice is not free for another."""
    pod = edited(RUNNING_FLEET.reduced[0], ("metadata", "labels"), 7)
    view = without_broken_objects(replace(RUNNING_FLEET, reduced=(pod,)).view(), lambda _obj, _error: None)
    held = [claim.count for claim in workloads.claims(view) if claim.owner_uid is None]
    assert held == [1]


def test_a_fault_of_the_planner_is_logged_once_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    log = FaultLog(OperatorMetrics())
    met = (
        Fault(BAD, "place", "KeyError: 'x'", "Traceback (most recent call last): ..."),
        Fault("u", "read", "told"),
    )
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            log.begin()
            log.record_planned(met, {BAD: "ns/bad"})

    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("ns/bad: step place failed: KeyError: 'x'\nTraceback")
    assert (counted(log, "place"), counted(log, "read")) == (3, 0)
