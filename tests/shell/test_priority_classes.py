"""PriorityClasses in the mirrors, in Accepted, and in pod templates; without an API server."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tangram.fleet import ApplyDeployment, FactsKey, Intent, Shape
from tangram.kube import kinds
from tangram.plan import plan
from tangram.shell.objects import manifests
from tangram.shell.objects.manifest_match import up_to_date
from tangram.shell.settings import EnginePodSettings, Settings
from tangram.shell.snapshot.broken_objects import without_broken_objects
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.mirrors import sources
from tangram.shell.write.pod_priority import keep_live_class
from tests.support.fleet import intent, node, workload
from tests.support.fleet import snapshot as fleet
from tests.support.views import llm_deployment

SETTINGS = Settings(engine_image="e")
SHAPE = Shape("H100-80GB-SXM", "gpu")
ALLOWED = {"tangram.dev/priority-class": "true", "team": "x"}


def priority_class(name: str, value: int = 500, **changes: Any) -> dict[str, Any]:
    """Return one as the mirrors hold it."""
    obj = {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "3", "labels": ALLOWED},
        "value": value,
        "preemptionPolicy": "Never",
        "description": "x" * 1000,
    }
    return kept_fields.priority_class(json.loads(json.dumps(obj | changes)))


def view(*classes: dict[str, Any], name: str | None = "gold") -> MirrorView:
    spec = {"priorityClassName": name} if name else {}
    return MirrorView(llm_deployments=(llm_deployment("chat", **spec),), priority_classes=classes)


def read(mirror_view: MirrorView, default: str = "") -> Intent:
    (parsed,) = parsed_intents(mirror_view, default_class=default)
    assert isinstance(parsed, Intent)
    return parsed


def verdict(parsed: Intent) -> tuple[bool, str]:
    (decision,) = plan(fleet(node("n", gpu=2)), (parsed,), 0.0).decisions
    return decision.accepted, decision.accepted_reason


# --- mirrors and snapshot


def test_priority_classes_are_mirrored_cluster_wide_reduced_and_optional() -> None:
    for namespaces in ((), ("a", "b")):
        (source,) = (s for s in sources(namespaces) if s.kind == kinds.PRIORITY_CLASSES)
        assert (source.namespace, source.optional) == ("", True)
    assert len(json.dumps(priority_class("gold"))) < 250


def test_a_recreated_priority_class_counts_with_its_new_value() -> None:
    assert read(view(priority_class("gold", 5))).priority == 5
    assert read(view(priority_class("gold", 7))).priority == 7


def test_the_snapshot_has_the_priority_classes_and_the_default() -> None:
    snapshot = fleet_snapshot(
        view(priority_class("b"), priority_class("a")),
        Settings(engine_image="e", default_priority_class_name="a"),
        0,
    )
    assert [known_class.name for known_class in snapshot.priority_classes] == ["a", "b"]
    assert snapshot.default_priority_class == "a"


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        ((), "PriorityClassNotFound"),
        ((priority_class("gold", metadata={"name": "gold", "labels": {}}),), "PriorityClassNotAllowed"),
        ((priority_class("gold", preemptionPolicy="PreemptLowerPriority"),), "PriorityClassPreempts"),
    ],
)
def test_an_llmdeployment_with_a_forbidden_priority_class_is_not_accepted(classes, reason) -> None:
    assert verdict(read(view(*classes))) == (False, reason)


def test_without_the_right_to_list_classes_llmdeployments_without_a_class_are_served() -> None:
    unseen = replace(view(), priority_classes=None)
    assert verdict(read(unseen)) == (False, "PriorityClassUnknown")
    unseen = replace(view(name=None), priority_classes=None)
    assert without_broken_objects(unseen, lambda _obj, _error: None) == unseen
    assert read(unseen, "standard").warnings


def test_an_unreadable_priority_class_is_skipped_and_reported() -> None:
    errors = []
    mirror_view = view(priority_class("gold", value="x"))  # type: ignore[arg-type]
    (parsed,) = parsed_intents(mirror_view, lambda obj, error: errors.append(error))
    assert isinstance(parsed, Intent)
    assert parsed.refusal is not None
    assert len(errors) == 1


# --- refused LLMDeployments


def refused(name: str, **changes: Any) -> Intent:
    return replace(intent(name, **changes), refusal=read(view()).refusal)


def test_replicas_of_a_refused_llmdeployment_stay_and_hold_their_devices() -> None:
    chat, other = refused("chat"), intent("other", created_at=0.0)
    running = workload(chat, SHAPE, 1)
    observed = fleet(node("n", gpu=1), workloads=(running,), claims=())
    new_plan = plan(observed, (chat, other), 0.0)
    assert not [a for a in new_plan.actions if a.owner_uid == chat.uid]
    assert not [a for a in new_plan.actions if isinstance(a, ApplyDeployment)]


def test_a_refused_llmdeployment_keeps_its_model_name() -> None:
    old, young = refused("old", served_name="m", created_at=1.0), intent("young", served_name="m")
    new_plan = plan(fleet(node("n", gpu=2)), (old, young), 0.0)
    assert {d.owner_uid: d.accepted_reason for d in new_plan.decisions} == {
        old.uid: "PriorityClassNotFound",
        young.uid: "ModelNameCollision",
    }


# --- pod templates


def rendered(priority_class_name: str = "", settings: Settings = SETTINGS, **changes: Any) -> dict[str, Any]:
    owner = replace(intent("chat", **changes), priority_class_name=priority_class_name)
    action = ApplyDeployment(owner.uid, SHAPE, 1, ("NVIDIA-H100-80GB-HBM3",), 4096)
    return manifests.deployment(owner, action, settings)


def live(obj: dict[str, Any]) -> dict[str, Any]:
    """Return what the API server makes of a manifest."""
    live_object: dict[str, Any] = json.loads(json.dumps(obj))
    live_object["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    return live_object


def priority_class_of(obj: dict[str, Any]) -> str | None:
    name: str | None = obj["spec"]["template"]["spec"].get("priorityClassName")
    return name


def exists(_name: str) -> bool:
    return True


def gone(_name: str) -> bool:
    return False


def test_pods_and_inspections_carry_the_class() -> None:
    assert priority_class_of(rendered("gold")) == "gold"
    assert priority_class_of(rendered()) is None
    owner = manifests.owner_identity(intent("chat"))
    job = manifests.inspect_job(owner, FactsKey("ns", "image:///m", "e"), SETTINGS, "gold")
    assert priority_class_of(job) == "gold"


@pytest.mark.parametrize(("before", "after"), [("gold", "silver"), ("", "gold"), ("gold", "")])
def test_a_change_of_the_class_alone_replaces_no_pod_and_leaves_nothing_to_write(before, after) -> None:
    live_deployment = live(rendered(before))
    to_write = keep_live_class(live_deployment, rendered(after), exists)
    assert up_to_date(live_deployment, to_write)
    assert (priority_class_of(to_write) or "") == before


def test_other_fields_of_a_deployment_are_written_while_the_class_stays() -> None:
    live_deployment = live(rendered("gold"))
    to_write = keep_live_class(live_deployment, rendered("silver", generation=2), exists)
    assert priority_class_of(to_write) == "gold"
    assert not up_to_date(live_deployment, to_write)
    written = live(to_write)
    assert up_to_date(written, keep_live_class(written, rendered("silver", generation=2), exists))


def test_a_new_class_is_written_with_any_other_change_of_the_template() -> None:
    live_deployment = live(rendered("gold"))
    assert (
        priority_class_of(
            keep_live_class(live_deployment, rendered("silver", max_running_requests=8), exists)
        )
        == "silver"
    )


def test_a_new_class_is_written_with_a_removed_field_of_the_template() -> None:
    live_deployment = live(
        rendered("gold", Settings(engine_image="e", engine=EnginePodSettings(runtime_class_name="nvidia")))
    )
    assert priority_class_of(keep_live_class(live_deployment, rendered("silver"), exists)) == "silver"


def test_a_template_whose_class_is_deleted_gets_the_new_class() -> None:
    assert priority_class_of(keep_live_class(live(rendered("gold")), rendered("silver"), gone)) == "silver"


def test_templates_lose_a_deleted_default_class_after_a_pod_is_refused() -> None:
    live_deployment = live(rendered("gold"))
    assert priority_class_of(keep_live_class(live_deployment, rendered(), gone)) == "gold"
    message = 'pods "chat-x" is forbidden: no PriorityClass with name gold was found'
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    live_deployment["status"] = {"conditions": [failure]}
    assert priority_class_of(keep_live_class(live_deployment, rendered(), gone)) is None
    assert priority_class_of(keep_live_class(live_deployment, rendered(), exists)) == "gold"


def test_a_class_written_by_another_client_is_corrected() -> None:
    live_deployment = live(rendered("gold"))
    live_deployment["spec"]["template"]["spec"]["priorityClassName"] = "platinum"
    assert priority_class_of(keep_live_class(live_deployment, rendered("silver"), exists)) == "silver"


def test_a_deployment_without_the_annotation_gets_the_class() -> None:
    live_deployment = live(rendered())
    del live_deployment["metadata"]["annotations"][kinds.TEMPLATE_ANNOTATION]
    assert priority_class_of(keep_live_class(live_deployment, rendered("gold"), exists)) == "gold"
