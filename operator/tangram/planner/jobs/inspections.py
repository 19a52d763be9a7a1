"""Checkpoint facts: known, being found out, or not to be had. Retries follow from the failed Job."""

from collections.abc import Mapping
from dataclasses import dataclass

from tangram.capacity.memory.budget import model_length
from tangram.eligibility.reasons import Reason
from tangram.fleet import (
    Action,
    CheckpointFacts,
    FactsKey,
    FinishInspection,
    FleetSnapshot,
    Inspection,
    InspectionFailure,
    Intent,
    StartInspection,
)
from tangram.fleet.times import rfc3339

# Seconds until a failed checkpoint is looked at again. A claim that is being filled changes soon; a
# checkpoint that is wrong changes only when a person does something.
RETRY_AFTER_S = {
    Reason.NOT_FOUND: 60.0,
    Reason.INSPECTION_FAILED: 60.0,
    Reason.INVALID_CHECKPOINT: 300.0,
    Reason.UNKNOWN_ARCHITECTURE: 300.0,
}
_DEFAULT_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is known about the checkpoint that an intent wants."""

    reason: str
    message: str
    facts: CheckpointFacts | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """All that is known about checkpoints, read out of a snapshot once."""

    engine_image: str
    recorded: Mapping[FactsKey, CheckpointFacts]
    inspections: Mapping[FactsKey, Inspection]  # the most useful one per checkpoint
    jobs: tuple[Inspection, ...]  # all of them, sorted


def known(snapshot: FleetSnapshot) -> Known:
    """Read what `snapshot` tells about checkpoints, whatever order it was read in."""
    recorded = dict(sorted(snapshot.facts, key=lambda item: (item[0], item[1].digest)))
    best: dict[FactsKey, Inspection] = {}
    for inspection in sorted(snapshot.inspections, key=_usefulness):
        best.setdefault(inspection.key, inspection)
    jobs = sorted(snapshot.inspections, key=lambda i: (i.namespace, i.job_name, i.job_uid))
    return Known(snapshot.engine_image, recorded, best, tuple(jobs))


def key_of(intent: Intent, engine_image: str) -> FactsKey:
    """Return which checkpoint, read by which engine, `intent` wants."""
    return FactsKey(intent.namespace, intent.model_uri, engine_image)


def model_state(intent: Intent, about: Known) -> ModelState:
    """Return what is known about the checkpoint of `intent`."""
    key = key_of(intent, about.engine_image)
    facts, inspection = about.recorded.get(key), about.inspections.get(key)
    if facts is None and inspection is not None and isinstance(inspection.result, CheckpointFacts):
        facts = inspection.result
    if facts is not None:
        return ModelState(Reason.INSPECTED, _describe(intent, facts), facts)
    if inspection is None:
        return ModelState(Reason.INSPECTING, "the checkpoint is about to be inspected")
    if isinstance(inspection.result, InspectionFailure):
        failure = inspection.result
        again = f"it is looked at again every {retry_after_s(failure):.0f} s"
        return ModelState(failure.reason, f"{failure.message.rstrip('.')}; {again}")
    job = f"Job {inspection.namespace}/{inspection.job_name}"
    waits = f", which waits: {inspection.message}" if inspection.message else ""
    return ModelState(Reason.INSPECTING, f"waits for {job}, started {rfc3339(inspection.started_at)}{waits}")


def retry_after_s(failure: InspectionFailure) -> float:
    """Seconds after the failed Job's end until it may be tried again."""
    return next((s for reason, s in RETRY_AFTER_S.items() if reason == failure.reason), _DEFAULT_RETRY_S)


def inspection_actions(
    about: Known, active: tuple[Intent, ...], idle: tuple[Intent, ...], now: float
) -> list[Action]:
    """Return which inspect Jobs to delete and which to start.

    `active` are accepted and not paused, in order of age; `idle` are the others: nothing is done for them,
    nor undone.
    """
    wanted: dict[FactsKey, str] = {}
    for intent in active:
        wanted.setdefault(key_of(intent, about.engine_image), intent.uid)
    left_alone = {key_of(intent, about.engine_image) for intent in idle} - set(wanted)
    actions: list[Action] = []
    for inspection in about.jobs:
        key = inspection.key
        is_first = about.inspections[key].job_uid == inspection.job_uid
        if key not in left_alone and (
            not is_first or _is_done(inspection, key in wanted, key in about.recorded, now)
        ):
            owner = wanted.get(key, "")
            actions.append(
                FinishInspection(owner, inspection.namespace, inspection.job_name, inspection.job_uid)
            )
    actions += [
        StartInspection(uid, key)
        for key, uid in wanted.items()
        if key not in about.recorded and key not in about.inspections
    ]
    return actions


def _is_done(inspection: Inspection, is_wanted: bool, is_recorded: bool, now: float) -> bool:
    if not is_wanted or is_recorded:
        return True
    result = inspection.result
    return isinstance(result, InspectionFailure) and now >= result.at + retry_after_s(result)


def _usefulness(inspection: Inspection) -> tuple[int, float, str, str]:
    rank = {CheckpointFacts: 0, type(None): 1}.get(type(inspection.result), 2)
    return rank, inspection.started_at, inspection.namespace, inspection.job_uid


def _describe(intent: Intent, facts: CheckpointFacts) -> str:
    size = (
        f"{facts.weight_bytes / 1e9:.2f} GB"
        if facts.weight_bytes >= 1e9
        else f"{facts.weight_bytes / 1e6:.1f} MB"
    )
    text = f"{facts.architecture}, {facts.layers} layers, {size} of {facts.dtype}"
    if intent.max_model_len is not None and intent.max_model_len > facts.max_position_embeddings:
        served = model_length(facts, intent.max_model_len)
        text += (
            f"; engine.maxModelLen {intent.max_model_len} is above what it was made for, {served} is served"
        )
    return text
