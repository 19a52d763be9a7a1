"""From `spec.priorityClassName` to a number, or to why it is refused."""

from typing import Any

import pytest

from tangram.api import classes_of_files, parse, parse_priority_class, priority_classes
from tangram.fleet import Intent, PriorityClass

GOLD = PriorityClass("gold", 500, is_allowed=True, preempts=False)
STANDARD = PriorityClass("standard", 100, preempts=False)


def raw(name: str = "gold", **changes: Any) -> dict[str, Any]:
    labels = {"tangram.dev/priority-class": "true"}
    return {"metadata": {"name": name, "labels": labels}, "value": 500, "preemptionPolicy": "Never"} | changes


def wanted(name: str | None, *there: PriorityClass, default: str = "", visible: bool = True) -> Intent:
    meta = {"name": "chat", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"model": {"uri": "image:///m"}} | ({"priorityClassName": name} if name else {})
    found = parse({"metadata": meta, "spec": spec}, priority_classes(there if visible else None, default))
    assert isinstance(found, Intent)
    return found


def test_a_labelled_class_that_never_preempts_gives_its_value_and_its_name() -> None:
    assert parse_priority_class(raw()) == GOLD
    found = wanted("gold", GOLD)
    assert (found.priority, found.priority_class_name, found.refusal) == (500, "gold", None)


@pytest.mark.parametrize(
    ("there", "visible", "reason", "told"),
    [
        ((), True, "PriorityClassNotFound", "cannot be created again"),
        ((), False, "PriorityClassUnknown", "give it the right"),
        ((PriorityClass("gold", 5, preempts=False),), True, "PriorityClassNotAllowed", "has no label"),
        (
            (PriorityClass("gold", 5, is_allowed=True),),
            True,
            "PriorityClassPreempts",
            "; create another with",
        ),
    ],
)
def test_any_other_is_refused_with_what_to_do(there, visible, reason, told) -> None:
    found = wanted("gold", *there, default="standard", visible=visible)
    assert found.refusal is not None
    assert found.refusal.reason == reason
    assert found.refusal.message.startswith("spec.priorityClassName: ")
    assert told in found.refusal.message
    assert "running replicas stay unchanged" in found.refusal.message
    assert found.priority == 0


def test_a_refusal_names_the_classes_that_may_be_used() -> None:
    refusal = wanted("glod", GOLD, STANDARD).refusal
    assert refusal is not None
    assert "name one of gold;" in refusal.message


def test_a_class_that_preempts_is_never_said_to_be_deleted_since_others_may_use_it() -> None:
    refusal = wanted("system-critical", PriorityClass("system-critical", 5), GOLD).refusal
    assert refusal is not None
    assert "name one of gold, or create another with the label" in refusal.message
    assert "delete" not in refusal.message


def test_without_the_field_the_operators_default_counts_and_needs_no_label() -> None:
    found = wanted(None, GOLD, STANDARD, default="standard")
    assert (found.priority, found.priority_class_name, found.warnings) == (100, "standard", ())
    assert wanted(None, GOLD).priority_class_name == ""


@pytest.mark.parametrize(
    ("there", "visible", "why"),
    [
        ((), True, "does not exist"),
        ((), False, "is not known"),
        ((PriorityClass("standard", 5, is_allowed=True),), True, "has preemptionPolicy"),
    ],
)
def test_a_default_class_that_cannot_be_used_costs_the_class_and_no_service(there, visible, why) -> None:
    found = wanted(None, *there, default="standard", visible=visible)
    assert (found.priority, found.priority_class_name, found.refusal) == (0, "", None)
    assert [why in warning and "pods carry no PriorityClass" in warning for warning in found.warnings] == [
        True
    ]


def test_files_know_the_charts_classes_by_name_and_those_among_them_first() -> None:
    mine = PriorityClass("tangram-high", 7, is_allowed=True, preempts=False)
    found = classes_of_files([mine])
    assert [found.resolve(n).value for n in ("tangram-low", None, "tangram-high")] == [0, 1000, 7]
    refusal = found.resolve("gold").refusal
    assert refusal is not None
    assert "is not among the files: add it (kubectl get priorityclass gold -o yaml)" in refusal.message


def test_the_policy_that_kubernetes_defaults_to_preempts() -> None:
    obj = raw()
    del obj["preemptionPolicy"]
    assert parse_priority_class(obj).preempts


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"value": "500"}, "value"),
        ({"value": 2**31}, "value"),
        ({"value": True}, "value"),
        ({"preemptionPolicy": "Sometimes"}, "preemptionPolicy"),
        ({"metadata": {}}, "metadata.name"),
    ],
)
def test_what_no_api_server_stores_is_no_priority_class(changes, told) -> None:
    with pytest.raises(ValueError, match=told):
        parse_priority_class(raw() | changes)
