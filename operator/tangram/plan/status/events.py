"""Events that follow from a change of status: one per transition, with its reason, never one per tick."""

from collections.abc import Mapping
from typing import Any

from tangram.fleet import EventNote

_NORMAL, _WARNING = "Normal", "Warning"
_BAD_METRICS = ("MetricsMissing", "MetricsStale")


def transitions(old_status: Mapping[str, Any], new_status: Mapping[str, Any]) -> tuple[EventNote, ...]:
    """Return the Events for the change from `old_status` ({} at first) to `new_status`."""
    old, new = _by_type(old_status), _by_type(new_status)
    notes = [
        *_failures(old, new),
        *_placement(old_status, new_status, new),
        *_scaled(old_status, new_status),
        *_metrics(old, new),
        *_turned(old, new, "SLOMet", "SLORecovered", "SLOViolated", unknown_as="True"),
        *_turned(old, new, "Ready", "Ready", "NotReady", unknown_as="False"),
    ]
    return tuple(notes)


Conditions = Mapping[str, Mapping[str, Any]]


def _by_type(status: Mapping[str, Any]) -> Conditions:
    return {condition["type"]: condition for condition in status.get("conditions", ())}


def _state(conditions: Conditions, kind: str) -> tuple[str, str]:
    condition = conditions.get(kind)
    return (condition["status"], condition["reason"]) if condition else ("Unknown", "")


def _failures(old: Conditions, new: Conditions) -> list[EventNote]:
    """A condition that turned False, or is False for another reason; and a checkpoint that was inspected."""
    notes = []
    for kind in ("Accepted", "ModelReady", "Placed", "Available"):
        status, reason = _state(new, kind)
        is_starting = reason in ("ReplicasStarting", "WaitingForPlacement")  # the normal way up is no warning
        if status == "False" and not is_starting and _state(old, kind) != (status, reason):
            notes.append(EventNote(_WARNING, reason, new[kind]["message"]))
    if _state(new, "ModelReady")[0] == "True" and _state(old, "ModelReady")[0] != "True":
        notes.append(EventNote(_NORMAL, "ModelInspected", new["ModelReady"]["message"]))
    return notes


def _placement(
    old_status: Mapping[str, Any], new_status: Mapping[str, Any], new: Conditions
) -> list[EventNote]:
    before = old_status.get("placement", {}).get("variant")
    after = new_status.get("placement", {}).get("variant")
    if after is None or after == before:
        return []
    reason = "PlacementSelected" if before is None else "PlacementChanged"
    return [EventNote(_NORMAL, reason, f"{new_status['placement']['display']}: {new['Placed']['message']}")]


def _scaled(old_status: Mapping[str, Any], new_status: Mapping[str, Any]) -> list[EventNote]:
    scale = new_status.get("lastScale")
    if scale is None or scale == old_status.get("lastScale"):
        return []
    reason = "ScaledUp" if scale["to"] > scale["from"] else "ScaledDown"
    return [EventNote(_NORMAL, reason, f"{scale['from']} -> {scale['to']} replicas: {scale['reason']}")]


def _metrics(old: Conditions, new: Conditions) -> list[EventNote]:
    was_bad = _state(old, "ScalingActive")[1] in _BAD_METRICS
    status, reason = _state(new, "ScalingActive")
    if reason in _BAD_METRICS and not was_bad:
        return [EventNote(_WARNING, "MetricsUnavailable", new["ScalingActive"]["message"])]
    if status == "True" and was_bad:
        return [EventNote(_NORMAL, "MetricsRecovered", new["ScalingActive"]["message"])]
    return []


def _turned(
    old: Conditions, new: Conditions, kind: str, if_true: str, if_false: str, *, unknown_as: str
) -> list[EventNote]:
    """A condition that turned True or False. An unknown one before counts as `unknown_as`."""
    before, after = (_state(conditions, kind)[0] for conditions in (old, new))
    if after in ("Unknown", unknown_as if before == "Unknown" else before):
        return []
    severity, reason = (_NORMAL, if_true) if after == "True" else (_WARNING, if_false)
    return [EventNote(severity, reason, new[kind]["message"])]
