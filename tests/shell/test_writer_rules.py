"""The action writer: what it writes, refuses and remembers; without an API server."""

from dataclasses import replace
from typing import Any

import pytest

from tangram.fleet import (
    ApplyDeployment,
    ApplyModelClaim,
    ApplyService,
    EvaluationKey,
    FinishInspection,
    Intent,
    MIGPolicy,
    ModelClaimKey,
    PinnedRevision,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    StartEvaluation,
    WriteProblem,
)
from tangram.kube.client import ApiError, Listing
from tangram.kube.kinds import (
    DEPLOYMENTS,
    JOBS,
    LLM_DEPLOYMENTS,
    MODEL_CLAIMS,
    PRIORITY_CLASSES,
    SERVICES,
    VARIANT_LABEL,
    Identity,
    Kind,
    key_of,
)
from tangram.kube.retry_delays import RetrySchedule
from tangram.kube.store import Store
from tangram.shell.objects import manifests
from tangram.shell.objects.model_claims import model_claim
from tangram.shell.settings import Settings
from tangram.shell.snapshot.workloads import workload
from tangram.shell.watch.expectations import Expectations
from tangram.shell.write.action_writer import ActionWriter

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
OLD, THIRD = (Shape(sku, "gpu").variant for sku in ("A100-80GB-SXM", "L4"))
APPLY = ApplyDeployment("new", Shape("H100-80GB-SXM", "gpu"), 1, ("NVIDIA-H100-80GB-HBM3",), 1024)


class Api:
    """Accepts every write. Serves `existing`, the live objects, whatever the mirrors hold."""

    def __init__(self, *existing: tuple[Kind, dict[str, Any]]) -> None:
        self.objects = list(existing)
        self.deleted: list[str] = []
        self.applied: list[str] = []
        self.merged: list[tuple[str, Any]] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> Any:
        objects = (o for k, o in self.objects if k == kind)
        return next((o for o in objects if key_of(o) == (namespace, name)), None)

    async def list(self, kind: Kind, namespace: str, selector: str) -> Listing:
        assert selector == "app.kubernetes.io/managed-by=tangram,tangram.dev/llmdeployment=chat"
        return Listing([o for k, o in self.objects if k == kind and key_of(o)[0] == namespace], "5")

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


_COPIED = (DEPLOYMENTS, JOBS, MODEL_CLAIMS, SERVICES, LLM_DEPLOYMENTS, PRIORITY_CLASSES)


class Copies:
    """Mirrors that hold the `existing` objects."""

    def __init__(self, *existing: tuple[Kind, dict[str, Any]]) -> None:
        self.stores = {kind: Store(lambda obj: obj) for kind in _COPIED}
        for kind, store in self.stores.items():
            store.replace([obj for k, obj in existing if k == kind], 5)

    def store(self, kind: Kind, _namespace: str) -> Store:
        return self.stores[kind]


CHAT = {
    "metadata": {"name": "chat", "namespace": "ns", "uid": "new", "generation": 1, "resourceVersion": "5"}
}


def action_writer(
    *existing: tuple[Kind, dict[str, Any]], now: list[tuple[Kind, dict[str, Any]]] | None = None
) -> ActionWriter:
    """A writer whose mirrors hold `existing`, while the API server holds `now` (default: the same)."""
    existing = (*existing, (LLM_DEPLOYMENTS, CHAT))
    copies = Copies(*existing)
    return ActionWriter(
        Api(*(existing if now is None else now)),  # type: ignore[arg-type]
        lambda: 10.0,
        copies,  # type: ignore[arg-type]
        Settings(engine_image="e"),
        Expectations(copies.store),
        RetrySchedule(),
        lambda: 0.0,
    )


def child(kind: Kind, name: str, owner: str = "", owner_name: str = "chat", **meta: Any) -> dict[str, Any]:
    reference = manifests._owner_reference(Identity("ns", owner_name, owner))
    references = [reference] if owner else []
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": "5"}
        | {"ownerReferences": references}
        | meta,
        "spec": {},
    }


def serving(variant: str, replicas: int, owner: str = "new", **status: int) -> dict[str, Any]:
    """A Deployment of `chat` whose replicas all serve, unless `status` says otherwise."""
    counts = {f"{name}Replicas": replicas for name in ("ready", "available", "updated")}
    return child(DEPLOYMENTS, f"chat-{variant}", owner, generation=1) | {
        "spec": {"replicas": replicas, "selector": {"matchLabels": {VARIANT_LABEL: variant}}},
        "status": counts | {"replicas": replicas, "observedGeneration": 1} | status,
    }


@pytest.mark.parametrize("asks", ["", "new", "starter"])
async def test_an_inspection_is_deleted_whichever_llmdeployment_started_it(asks: str) -> None:
    writer = action_writer((JOBS, child(JOBS, "tangram-inspect-1", "starter")))

    await writer.perform((FinishInspection(asks, "ns", "tangram-inspect-1", "u-tangram-inspect-1"),), {})

    assert writer.client.deleted == ["jobs/tangram-inspect-1"]


async def test_a_foreign_job_and_a_deployment_of_another_owner_are_left_alone() -> None:
    writer = action_writer((JOBS, child(JOBS, "job")), (DEPLOYMENTS, child(DEPLOYMENTS, "web", "other")))

    await writer.perform(
        (FinishInspection("new", "ns", "job", "u-job"), RemoveDeployment("new", "ns", "web", "u-web")), {}
    )

    assert writer.client.deleted == []


async def test_a_write_problem_ends_when_there_is_nothing_left_to_write() -> None:
    writer = action_writer()
    writer.problems["paused"] = WriteProblem("paused", "Rejected", "no")

    await writer.perform((ApplyService("new"),), {"new": INTENT})

    assert writer.problems == {}


async def test_a_refused_evaluate_job_stops_only_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = action_writer()
    key = EvaluationKey("ns", INTENT.model_uri, "d", "L4", "int4")
    start = StartEvaluation("new", key, Shape("L4", "gpu", 1, "int4"), ("NVIDIA-L4",))
    tries: list[str] = []

    async def create(_self: Api, kind: Kind, obj: Any, **_: Any) -> Any:
        tries.append(kind.plural)
        if kind == JOBS:
            raise ApiError(403, "Forbidden", "exceeded quota: jobs")
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": "9"}}

    monkeypatch.setattr(Api, "create", create)
    for _ in range(2):  # the second time it waits
        await writer.perform((ApplyService("new"), start), {"new": INTENT})

    assert writer.problems == {}
    assert writer.evaluation_problems["new"].message == "exceeded quota: jobs"
    assert tries == ["services", "jobs", "services"]


async def test_a_name_taken_by_a_foreign_object_is_reported() -> None:
    writer = action_writer((SERVICES, child(SERVICES, "chat")))

    await writer.perform((ApplyService("new"),), {"new": INTENT})

    assert writer.problems["new"].reason == "NameTaken"


async def test_the_writer_waits_for_a_terminating_child_of_a_deleted_predecessor() -> None:
    going = child(SERVICES, "chat", "old", deletionTimestamp="2026-01-01T00:00:00Z")
    writer = action_writer((SERVICES, going))

    await writer.perform((ApplyService("new"),), {"new": INTENT})

    assert writer.problems == {}
    assert writer.client.applied == []


async def test_a_terminating_child_of_another_llmdeployment_still_takes_its_name() -> None:
    going = child(SERVICES, "chat", "old", "someone", deletionTimestamp="2026-01-01T00:00:00Z")
    writer = action_writer((SERVICES, going))

    await writer.perform((ApplyService("new"),), {"new": INTENT})

    assert writer.problems["new"].reason == "NameTaken"


async def test_a_manifest_is_rendered_again_only_when_its_inputs_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered: list[int] = []
    render = manifests.deployment

    def counted(intent: Intent, action: ApplyDeployment, settings: Settings) -> Any:
        rendered.append(action.replicas)
        return render(intent, action, settings)

    monkeypatch.setattr(manifests, "deployment", counted)
    writer = action_writer()
    for action in (APPLY, APPLY, replace(APPLY, replicas=2), replace(APPLY, replicas=2)):
        await writer.perform((action,), {"new": INTENT})
    await writer.perform((replace(APPLY, replicas=2),), {"new": replace(INTENT, generation=2)})
    assert rendered == [1, 2, 2]

    writer.forget(set())
    assert writer._rendered == {}


async def test_each_write_updates_the_loop_heartbeat() -> None:
    writer = action_writer((SERVICES, child(SERVICES, "chat")))
    beats: list[int] = []
    writer.written = lambda: beats.append(1)

    await writer.perform((ApplyService("new"),), {"new": INTENT})  # refused
    await writer.perform((APPLY,), {"new": replace(INTENT, uid="new")})

    assert len(beats) == 1  # the second waits: its LLMDeployment has a penalty
    writer.retries.record_success("new")
    await writer.perform((APPLY,), {"new": INTENT})
    assert len(beats) == 2


@pytest.mark.parametrize(
    ("owner", "uid", "has", "expected"),
    [
        ("new", f"u-chat-{OLD}", 8, [5]),
        ("new", f"u-chat-{OLD}", 5, []),
        ("new", "u-other", 8, []),
        ("other", f"u-chat-{OLD}", 8, []),
    ],
    ids=["larger", "small enough already", "another of that name", "another's"],
)
async def test_a_move_scales_down_only_the_old_deployment(owner, uid, has, expected) -> None:
    live = serving(OLD, has, owner)
    writer = action_writer((DEPLOYMENTS, live))

    decided = [workload(live, [], 0.0)] if owner == "new" else []
    await writer.perform((ScaleDeployment("new", "ns", f"chat-{OLD}", uid, 5),), {"new": INTENT}, decided)

    assert [patch["spec"]["replicas"] for _, patch in writer.client.merged] == expected
    for _, patch in writer.client.merged:
        assert patch == {
            "metadata": {"uid": f"u-chat-{OLD}", "resourceVersion": "5"},
            "spec": {"replicas": 5},
        }


def crowd(namespace: str, count: int) -> dict[str, Intent]:
    names = (f"{namespace}-{i}" for i in range(count))
    return {uid: replace(INTENT, uid=uid, namespace=namespace, name=uid) for uid in names}


async def test_a_namespace_with_hundreds_of_llmdeployments_does_not_delay_another() -> None:
    intents = crowd("many", 300) | crowd("few", 2)
    writer = action_writer()

    await writer.perform(tuple(ApplyService(uid) for uid in intents), intents)

    assert writer.client.applied[:5] == ["many-0", "few-0", "many-1", "few-1", "many-2"]
    assert len(writer.client.applied) == 302


async def test_a_round_writes_for_a_bounded_time_and_the_next_continues() -> None:
    intents, seconds = crowd("many", 300), [0.0]
    writer = action_writer()
    writer.clock = lambda: seconds[0]
    apply = writer.client.apply

    async def slow(kind: Kind, obj: Any, **more: Any) -> Any:
        seconds[0] += 0.1
        written = await apply(kind, obj, **more)
        writer.mirrors.store(kind, "").upsert(
            written | {"metadata": written["metadata"] | {"resourceVersion": ""}}
        )
        return written

    writer.client.create = slow  # type: ignore[method-assign]
    rounds = 0
    while len(set(writer.client.applied)) < 300:
        await writer.perform(tuple(ApplyService(uid) for uid in intents), intents)
        rounds += 1
        assert writer.unfinished == (len(writer.client.applied) < 300)

    assert rounds == 3
    assert len(writer.client.applied) == 300


REMOVE = RemoveDeployment("new", "ns", f"chat-{OLD}", f"u-chat-{OLD}")
SCALE = ScaleDeployment("new", "ns", f"chat-{OLD}", f"u-chat-{OLD}", 1)
LOWER = replace(APPLY, replicas=0)


def old_and_new(**status: int) -> list[tuple[Kind, dict[str, Any]]]:
    """An old Deployment and its replacement, both serving; `status` changes that of the replacement."""
    return [(DEPLOYMENTS, serving(OLD, 2)), (DEPLOYMENTS, serving(APPLY.shape.variant, 2, **status))]


def edited(obj: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], **meta}}


def chat(**meta: Any) -> tuple[Kind, dict[str, Any]]:
    return LLM_DEPLOYMENTS, edited(CHAT, **meta)


CHANGED = {
    "the LLMDeployment is gone": old_and_new(),
    "it is another of the same name": [chat(uid="newer"), *old_and_new()],
    "it is being deleted": [chat(deletionTimestamp="2026-01-01T00:00:00Z"), *old_and_new()],
    "it was edited": [chat(generation=2), *old_and_new()],
    "the replacement serves no more": [chat(), *old_and_new(availableReplicas=0)],
    "the replacement is gone": [chat(), old_and_new()[0]],
    "the replacement is another": [
        chat(),
        old_and_new()[0],
        (DEPLOYMENTS, edited(old_and_new()[1][1], uid="other")),
    ],
    "the replacement is going": [
        chat(),
        old_and_new()[0],
        (DEPLOYMENTS, edited(old_and_new()[1][1], deletionTimestamp="2026-01-01T00:00:00Z")),
    ],
    "there is a third": [chat(), *old_and_new(), (DEPLOYMENTS, serving(THIRD, 1))],
    "what is to go serves more": [chat(), (DEPLOYMENTS, serving(OLD, 3)), old_and_new()[1]],
}


def decided_upon() -> list[Any]:
    """The workloads of the round, the basis of its plan: both serve."""
    old, new = (workload(obj, [], 0.0) for _, obj in old_and_new())
    return [old, replace(new, shape=APPLY.shape)]


@pytest.mark.parametrize("now", CHANGED.values(), ids=CHANGED.keys())
async def test_no_removal_happens_if_its_basis_has_changed(now) -> None:
    writer = action_writer(*old_and_new(), now=now)

    await writer.perform((ApplyService("new"), REMOVE, SCALE, LOWER), {"new": INTENT}, decided_upon())

    assert (writer.client.deleted, writer.client.merged) == ([], [])
    assert writer.client.applied == ["chat"]  # the Service: only what takes away waits
    assert writer.expectations.open()  # decided again when the mirrors show what has changed


async def test_a_removal_applies_to_the_version_that_was_read() -> None:
    now = [chat(), *((kind, edited(obj, resourceVersion="7")) for kind, obj in old_and_new())]
    writer = action_writer(*old_and_new(), now=now)
    versions: list[Any] = []

    async def delete(_kind: Kind, _namespace: str, _name: str, **preconditions: Any) -> bool:
        versions.append((preconditions["uid"], preconditions["resource_version"]))
        return True

    async def apply(_kind: Kind, obj: Any, **_: Any) -> Any:
        versions.append((obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]))
        return obj

    writer.client.delete, writer.client.apply = delete, apply  # type: ignore[method-assign,assignment]
    await writer.perform((REMOVE, LOWER), {"new": INTENT}, decided_upon())

    assert versions == [(f"u-chat-{OLD}", "7"), (f"u-chat-{APPLY.shape.variant}", "7")]


@pytest.mark.parametrize("live", [{"uid": "newer"}, {"generation": 2}])
async def test_an_inspection_is_not_ended_for_an_llmdeployment_that_has_changed(live) -> None:
    job = child(JOBS, "job", "new")
    writer = action_writer((JOBS, job), now=[(JOBS, job), chat(resourceVersion="6", **live)])

    await writer.perform((FinishInspection("new", "ns", "job", "u-job"),), {})

    assert writer.client.deleted == []
    assert writer.expectations.open()


async def test_a_bug_in_a_write_affects_one_llmdeployment(monkeypatch: pytest.MonkeyPatch) -> None:
    real, other = manifests.deployment, replace(INTENT, uid="other", name="other")

    def render(intent: Intent, *rest: Any) -> Any:
        if intent.uid == INTENT.uid:
            raise ZeroDivisionError("division by zero")
        return real(intent, *rest)

    monkeypatch.setattr(manifests, "deployment", render)
    writer, met = action_writer(), []
    writer.failed = lambda *fault: met.append(fault[:3])
    await writer.perform((APPLY, replace(APPLY, owner_uid="other")), {"new": INTENT, "other": other})

    assert writer.client.applied == [f"other-{APPLY.shape.variant}"]  # type: ignore[attr-defined]
    assert met == [("write", "ns/chat", "new")]
    problem = writer.problems["new"]
    assert problem.reason == "NotJudged"
    assert "ZeroDivisionError: division by zero" in problem.message
    assert writer.retries.blocked("new", 0.0)


@pytest.mark.parametrize(("exists", "writes"), [(True, []), (False, ["chat-" + APPLY.shape.variant])])
async def test_a_change_of_the_priority_class_alone_is_written_only_if_the_old_class_is_gone(
    exists, writes
) -> None:
    before, after = (replace(INTENT, priority_class_name=name) for name in ("gold", "silver"))
    live_deployment = manifests.deployment(before, APPLY, Settings(engine_image="e"))
    live_deployment["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    gold = {"metadata": {"name": "gold"}, "value": 5, "preemptionPolicy": "Never"}
    classes = [(PRIORITY_CLASSES, gold)] if exists else []
    writer = action_writer((DEPLOYMENTS, live_deployment), *classes)
    await writer.perform((APPLY,), {"new": after})
    assert writer.client.applied == writes


async def test_a_foreign_claim_is_named_and_a_changed_one_is_left_to_the_next_round() -> None:
    key = ModelClaimKey("ns", "hf://org/model", PinnedRevision("c" * 40, 1), "nfs")
    live = model_claim(key, is_filled=False, unused_since=None)
    live["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    action = ApplyModelClaim("new", key, is_filled=True)

    async def conflict(*_: Any, **__: Any) -> Any:
        raise ApiError(409, "Conflict", "changed")

    foreign, changed = action_writer(), action_writer((MODEL_CLAIMS, live))
    foreign.client.create = changed.client.merge = conflict
    for writer in (foreign, changed):
        await writer.perform((action,), {})

    assert foreign.problems["new"].reason == "NameTaken"
    assert changed.problems == {}
    assert not changed.retries.blocked("new", 0.0)
