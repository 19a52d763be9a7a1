"""What the writer performs, refuses, remembers and forgets, without an API server."""

from dataclasses import replace
from typing import Any

import pytest

from tangram.fleet import (
    ApplyDeployment,
    ApplyService,
    FinishInspection,
    Intent,
    MIGPolicy,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    WriteProblem,
)
from tangram.shell import manifests, reduce
from tangram.shell.backoff import Penalties
from tangram.shell.expect import Expectations
from tangram.shell.kinds import DEPLOYMENTS, JOBS, SERVICES, Kind
from tangram.shell.settings import Settings
from tangram.shell.store import Store
from tangram.shell.writer import Writer

INTENT = Intent(
    uid="new",
    namespace="ns",
    name="chat",
    generation=1,
    created_at=0.0,
    model_uri="image:///m",
    served_name="chat",
    max_model_len=None,
    max_running_requests=64,
    ttft=None,
    tpot=None,
    allowed_skus=(),
    denied_skus=(),
    mig=MIGPolicy.ALLOWED,
    min_replicas=1,
    max_replicas=4,
    paused=False,
)
APPLY = ApplyDeployment("new", Shape("H100-80GB-SXM", "gpu"), 1, ("NVIDIA-H100-80GB-HBM3",), 1024)


class Api:
    """Takes every write."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.applied: list[str] = []
        self.merged: list[tuple[str, Any]] = []

    async def delete(self, kind: Kind, namespace: str, name: str, **_: Any) -> bool:
        self.deleted.append(f"{kind.plural}/{name}")
        return True

    async def apply(self, _kind: Kind, obj: Any, **_: Any) -> Any:
        self.applied.append(obj["metadata"]["name"])
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": "9"}}

    create = apply

    async def merge(self, _kind: Kind, _namespace: str, name: str, patch: Any, **_: Any) -> Any:
        self.merged.append((name, patch))
        return {"metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": "9"}}


class Copies:
    """Mirrors of what the test says is there."""

    def __init__(self, *there: tuple[Kind, dict[str, Any]]) -> None:
        self.stores = {kind: Store(reduce.whole) for kind in (DEPLOYMENTS, JOBS, SERVICES)}
        for kind, store in self.stores.items():
            store.replace([obj for k, obj in there if k == kind], 5)

    def store(self, kind: Kind, _namespace: str) -> Store:
        return self.stores[kind]


def writer(*there: tuple[Kind, dict[str, Any]]) -> Writer:
    copies = Copies(*there)
    return Writer(
        Api(),  # type: ignore[arg-type]
        lambda: 10.0,
        copies,  # type: ignore[arg-type]
        Settings(engine_image="e"),
        Expectations(copies.store),
        Penalties(),
        lambda: 0.0,
    )


def child(kind: Kind, name: str, owner: str = "", owner_name: str = "chat", **meta: Any) -> dict[str, Any]:
    reference = manifests._owner_reference(manifests.Owner(owner, "ns", owner_name, 1))
    references = [reference] if owner else []
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": "5"}
        | {"ownerReferences": references}
        | meta,
        "spec": {},
    }


@pytest.mark.parametrize("asks", ["", "new", "starter"])
async def test_an_inspection_ends_whoever_asked_for_it(asks: str) -> None:
    one = writer((JOBS, child(JOBS, "tangram-inspect-1", "starter")))

    await one.perform((FinishInspection(asks, "ns", "tangram-inspect-1", "u-tangram-inspect-1"),), {})

    assert one.client.deleted == ["jobs/tangram-inspect-1"]


async def test_a_foreign_job_and_anothers_deployment_are_left_alone() -> None:
    one = writer((JOBS, child(JOBS, "job")), (DEPLOYMENTS, child(DEPLOYMENTS, "web", "other")))

    await one.perform(
        (FinishInspection("new", "ns", "job", "u-job"), RemoveDeployment("new", "ns", "web", "u-web")), {}
    )

    assert one.client.deleted == []


async def test_a_problem_ends_when_nothing_is_to_be_written_any_more() -> None:
    one = writer()
    one.problems["paused"] = WriteProblem("paused", "Rejected", "no")

    await one.perform((ApplyService("new"),), {"new": INTENT})

    assert one.problems == {}


async def test_a_name_held_by_a_foreign_object_is_told() -> None:
    one = writer((SERVICES, child(SERVICES, "chat")))

    await one.perform((ApplyService("new"),), {"new": INTENT})

    assert one.problems["new"].reason == "NameTaken"


async def test_a_child_of_a_deleted_predecessor_that_is_going_is_waited_for() -> None:
    going = child(SERVICES, "chat", "old", deletionTimestamp="2026-01-01T00:00:00Z")
    one = writer((SERVICES, going))

    await one.perform((ApplyService("new"),), {"new": INTENT})

    assert one.problems == {}
    assert one.client.applied == []


async def test_a_child_of_another_llmdeployment_is_taken_even_while_it_goes() -> None:
    going = child(SERVICES, "chat", "old", "someone", deletionTimestamp="2026-01-01T00:00:00Z")
    one = writer((SERVICES, going))

    await one.perform((ApplyService("new"),), {"new": INTENT})

    assert one.problems["new"].reason == "NameTaken"


async def test_a_manifest_is_rendered_once_until_what_it_says_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered: list[int] = []
    render = manifests.deployment

    def counted(intent: Intent, action: ApplyDeployment, settings: Settings) -> Any:
        rendered.append(action.replicas)
        return render(intent, action, settings)

    monkeypatch.setattr(manifests, "deployment", counted)
    one = writer()
    for action in (APPLY, APPLY, replace(APPLY, replicas=2), replace(APPLY, replicas=2)):
        await one.perform((action,), {"new": INTENT})
    await one.perform((replace(APPLY, replicas=2),), {"new": replace(INTENT, generation=2)})
    assert rendered == [1, 2, 2]

    one.forget(set())
    assert one._rendered == {}


async def test_the_heart_beats_with_each_write() -> None:
    one = writer((SERVICES, child(SERVICES, "chat")))
    beats: list[int] = []
    one.written = lambda: beats.append(1)

    await one.perform((ApplyService("new"),), {"new": INTENT})  # refused
    await one.perform((APPLY,), {"new": replace(INTENT, uid="new")})

    assert len(beats) == 1  # the second waits: its LLMDeployment has a penalty
    one.penalties.succeed("new")
    await one.perform((APPLY,), {"new": INTENT})
    assert len(beats) == 2


@pytest.mark.parametrize(
    ("owner", "uid", "has", "expected"),
    [("new", "u-old", 8, [5]), ("new", "u-old", 5, []), ("new", "u-other", 8, []), ("other", "u-old", 8, [])],
    ids=["larger", "small enough already", "another of that name", "another's"],
)
async def test_what_a_move_leaves_is_scaled_down_and_nothing_else(owner, uid, has, expected) -> None:
    live = child(DEPLOYMENTS, "old", owner) | {"spec": {"replicas": has}}
    one = writer((DEPLOYMENTS, live))

    await one.perform((ScaleDeployment("new", "ns", "old", uid, 5),), {})

    assert [patch["spec"]["replicas"] for _, patch in one.client.merged] == expected
    for _, patch in one.client.merged:
        assert patch == {"metadata": {"uid": "u-old", "resourceVersion": "5"}, "spec": {"replicas": 5}}


async def test_a_write_that_brings_out_a_bug_costs_one_llmdeployment(monkeypatch: pytest.MonkeyPatch) -> None:
    real, other = manifests.deployment, replace(INTENT, uid="other", name="other")

    def render(intent: Intent, *rest: Any) -> Any:
        if intent.uid == INTENT.uid:
            raise ZeroDivisionError("division by zero")
        return real(intent, *rest)

    monkeypatch.setattr(manifests, "deployment", render)
    one, met = writer(), []
    one.failed = lambda *fault: met.append(fault[:3])
    await one.perform((APPLY, replace(APPLY, owner_uid="other")), {"new": INTENT, "other": other})

    assert one.client.applied == [f"other-{APPLY.shape.variant}"]  # type: ignore[attr-defined]
    assert met == [("write", "ns/chat", "new")]
    problem = one.problems["new"]
    assert problem.reason == "NotJudged"
    assert "ZeroDivisionError: division by zero" in problem.message
    assert one.penalties.blocked("new", 0.0)
