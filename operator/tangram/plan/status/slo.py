"""Latency in the status: the condition `SLOMet`, which does not flap, and numbers that are written rarely."""

from collections.abc import Iterable, Mapping
from typing import Any

from tangram.eligibility.reasons import Reason
from tangram.fleet import Intent
from tangram.fleet.times import epoch, rfc3339
from tangram.plan.reasons.conditions import (
    CheckedObjective,
    ObjectivesMet,
    ObjectivesMissed,
    TooFewRequests,
)
from tangram.plan.status.conditions import FALSE, NO_SOURCE, TRUE, UNKNOWN, ConditionInputs, ConditionState
from tangram.plan.words.conditions import sentence
from tangram.scaling import Sample, ScalingDecision, Signal, Window
from tangram.scaling.objective_evidence import narrowest, violations
from tangram.scaling.queries import TPOT_BUCKETS, TTFT_BUCKETS, snap

# The status is written at most this often if only numbers change.
MIN_SECONDS_BETWEEN_WRITES = 60.0
# Smaller changes are not written.
_ATTAINMENT_STEP = 0.01
_RELATIVE_STEP = 0.10
_MILLISECONDS_STEP = 1
_UNMEASURED = (Reason.METRICS_MISSING, Reason.METRICS_STALE, Reason.NO_READY_REPLICAS, Reason.NOT_ACCEPTED)


def slo_met(inputs: ConditionInputs) -> ConditionState:
    """Whether the objectives are met over the window."""
    intent, signal = inputs.intent, inputs.signal
    if not isinstance(intent, Intent) or not inputs.decision.accepted:
        return ConditionState(UNKNOWN, Reason.NOT_ACCEPTED, "waits until condition Accepted is True")
    if intent.ttft is None and intent.tpot is None:
        return ConditionState(UNKNOWN, Reason.NO_OBJECTIVE, "spec.objectives is empty")
    if signal is None:
        return ConditionState(UNKNOWN, Reason.METRICS_MISSING, NO_SOURCE)
    sample = signal.recent_sample
    if sample is None:
        return ConditionState(UNKNOWN, signal.reason, signal.message)
    return _assess(intent, signal, sample, inputs.scale)


def steady(new: ConditionState, old: Mapping[str, Any] | None, generation: int, now: float) -> ConditionState:
    """Return `new`, or `old` if its status began less than a minute ago: a load at the edge must not flap.

    Lost metrics and a condition under other objectives (of a newer generation) replace it at once.
    `generation`: the first one with this spec, spec.replicas aside.
    """
    if old is None or old["status"] == UNKNOWN or old["status"] == new.status or new.reason in _UNMEASURED:
        return new
    if old["observedGeneration"] < generation:
        return new
    if now - epoch(old["lastTransitionTime"]) >= MIN_SECONDS_BETWEEN_WRITES:
        return new
    return ConditionState(old["status"], old["reason"], old["message"])


def slo_block(inputs: ConditionInputs, old: Mapping[str, Any] | None, now: float) -> dict[str, Any] | None:
    """Return the block `status.slo`: the old one unless a number changed enough."""
    signal = inputs.signal
    if signal is None or not isinstance(inputs.intent, Intent):
        return dict(old) if old else None
    sample = signal.recent_sample
    if sample is None:
        return dict(old) if old else None
    new = _numbers(inputs.intent, signal, sample, now)
    if old is None:
        return new
    age = now - epoch(old["time"])
    return dict(old) if 0 <= age < MIN_SECONDS_BETWEEN_WRITES or not _has_changed(old, new) else new


def _assess(intent: Intent, signal: Signal, sample: Sample, scale: ScalingDecision | None) -> ConditionState:
    if sample.requests == 0:
        return ConditionState(UNKNOWN, Reason.NO_TRAFFIC, "no request in the window")
    window = _window(signal, sample)
    objectives = _objectives(intent)
    missed = violations(intent, window, signal.min_samples)
    if missed:
        return _state(FALSE, ObjectivesMissed(tuple(missed), objectives, _unreachable(missed, scale)))
    if (window.requests or 0) < signal.min_samples:
        return _state(UNKNOWN, TooFewRequests(signal.min_samples, window.seconds))
    has_ttft = intent.ttft is None or window.ttft_attainment is not None
    has_tpot = intent.tpot is None or window.tpot_attainment is not None or window.itl_attainment is not None
    if not (has_ttft and has_tpot):
        return ConditionState(UNKNOWN, Reason.INSUFFICIENT_SAMPLES, "no request has ended in the window")
    return _state(TRUE, ObjectivesMet(objectives))


def _unreachable(missed: Iterable[str], scale: ScalingDecision | None) -> tuple[str, ...]:
    """Return why more replicas do not help against what is missed."""
    reasons = {} if scale is None else {"ttft": scale.ttft_unreachable, "tpot": scale.tpot_unreachable}
    return tuple(reasons[name] for name in missed if reasons.get(name))


def _state(status: str, reason: ObjectivesMissed | ObjectivesMet | TooFewRequests) -> ConditionState:
    return ConditionState(status, reason.reason, sentence(reason))


def _window(signal: Signal, sample: Sample) -> Window:
    windows = sample.windows(signal.window_s)
    return narrowest(windows, signal.min_samples) or windows[0]


def _objectives(intent: Intent) -> tuple[CheckedObjective, ...]:
    objectives = (("TTFT", intent.ttft, TTFT_BUCKETS), ("TPOT", intent.tpot, TPOT_BUCKETS))
    return tuple(
        CheckedObjective(name, objective, snap(objective.milliseconds, buckets) * 1000)
        for name, objective, buckets in objectives
        if objective
    )


def _numbers(intent: Intent, signal: Signal, sample: Sample, now: float) -> dict[str, Any]:
    window = _window(signal, sample)
    block: dict[str, Any] = {
        "time": rfc3339(now),
        "windowSeconds": round(window.seconds),
        "samples": round(window.requests or 0),
    }
    if intent.ttft:
        _put(block, "ttft", window.ttft_attainment, sample.ttft_s)
    if intent.tpot:
        attainment = window.tpot_attainment if window.tpot_attainment is not None else window.itl_attainment
        _put(block, "tpot", attainment, sample.tpot_s)
    return block


def _put(block: dict[str, Any], name: str, attainment: float | None, seconds: float | None) -> None:
    if not block["samples"]:
        return  # a ratio over no request is no information
    if attainment is not None:
        block[f"{name}Attainment"] = f"{attainment:.3f}"
    if seconds is not None:
        block[f"{name}Milliseconds"] = round(seconds * 1000)


def _has_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if set(old) != set(new) or old["windowSeconds"] != new["windowSeconds"]:
        return True
    return any(_moved(key, old[key], new[key]) for key in new if key not in ("time", "windowSeconds"))


def _moved(key: str, old: Any, new: Any) -> bool:
    if key.endswith("Attainment"):
        return abs(float(old) - float(new)) >= _ATTAINMENT_STEP
    if (old == 0) != (new == 0):
        return True
    least = _MILLISECONDS_STEP if key.endswith("Milliseconds") else 0
    return bool(abs(old - new) > max(least, _RELATIVE_STEP * old))
