"""Inspect Jobs: which to start or to end, the facts of checkpoints, and the condition `ModelReady`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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
from tangram.fleet.priority import spec_in_force
from tangram.fleet.times import rfc3339

# Seconds until a failed inspection is tried again. A volume that is being filled changes soon; an invalid
# checkpoint changes only when a person replaces it.
RETRY_AFTER_S = {
    Reason.NOT_FOUND: 60.0,
    Reason.INSPECTION_FAILED: 60.0,
    Reason.INVALID_CHECKPOINT: 300.0,
    Reason.UNKNOWN_ARCHITECTURE: 300.0,
    Reason.ACCESS_DENIED: 300.0,  # a person changes the Secret, or accepts the terms
    Reason.SOURCE_UNREACHABLE: 60.0,
}
_DEFAULT_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class ModelState:
    """The condition `ModelReady` of one LLMDeployment, and the facts of its checkpoint if they are known."""

    reason: str
    message: str
    facts: CheckpointFacts | None = None


@dataclass(frozen=True, slots=True)
class Inspections:
    """Checkpoint facts and inspect Jobs of the fleet."""

    engine_image: str
    recorded: Mapping[FactsKey, CheckpointFacts]
    best: Mapping[FactsKey, Inspection]  # the most useful Job of each checkpoint
    jobs: tuple[Inspection, ...]  # all, sorted
    pins: Mapping[tuple[str, str], str]  # (namespace, model.uri) -> pinned revision


def observe_inspections(snapshot: FleetSnapshot) -> Inspections:
    """Return the checkpoint facts and inspect Jobs in `snapshot`, whatever order it was read in."""
    recorded = dict(sorted(snapshot.facts, key=lambda item: (item[0], item[1].digest)))
    best: dict[FactsKey, Inspection] = {}
    for inspection in sorted(snapshot.inspections, key=_usefulness):
        best.setdefault(inspection.key, inspection)
    jobs = sorted(snapshot.inspections, key=lambda i: (i.namespace, i.job_name, i.job_uid))
    return Inspections(snapshot.engine_image, recorded, best, tuple(jobs), dict(snapshot.pins))


def key_of(intent: Intent, engine_image: str) -> FactsKey:
    """Return the key of the checkpoint of `intent`, as the current engine image reads it."""
    return FactsKey(intent.namespace, intent.model_uri, engine_image)


def next_key(intent: Intent, engine_image: str) -> FactsKey:
    """Return the key of the checkpoint that the present spec of `intent` names."""
    uri = intent.model_uri if intent.next_model_uri is None else intent.next_model_uri
    return FactsKey(intent.namespace, uri, engine_image)


def model_state(intent: Intent, inspections: Inspections) -> ModelState:
    """Return the state of the checkpoint of `intent`: where another one serves meanwhile, with its facts."""
    if intent.next_model_uri is not None:
        serves = replace(intent, next_model_uri=None)
        awaited = model_state(replace(serves, model_uri=intent.next_model_uri), inspections)
        serving = model_state(serves, inspections)
        message = f"{awaited.message}; {spec_in_force(intent.rendered_generation)}"
        return ModelState(awaited.reason, message, serving.facts)
    key = key_of(intent, inspections.engine_image)
    facts, inspection = inspections.recorded.get(key), inspections.best.get(key)
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
    """Seconds from the end of a failed Job until it is tried again."""
    return next((s for reason, s in RETRY_AFTER_S.items() if reason == failure.reason), _DEFAULT_RETRY_S)


def inspection_actions(
    inspections: Inspections, active: tuple[Intent, ...], idle: tuple[Intent, ...], now: float
) -> list[Action]:
    """Return which inspect Jobs to delete and which to start.

    A repository keeps the revision that it was pinned to: another engine image inspects the same bytes.

    `active` LLMDeployments are accepted and not paused; the `idle` ones are left as they are, with their
    Jobs.
    """
    owners: dict[FactsKey, str] = {}
    secrets: dict[FactsKey, str] = {}
    for intent in active:
        for key, secret in _checkpoints(intent, inspections.engine_image):
            owners.setdefault(key, intent.uid)
            secrets.setdefault(key, secret)
    left_alone = {next_key(intent, inspections.engine_image) for intent in idle} - set(owners)
    actions: list[Action] = []
    for job in inspections.jobs:
        is_best = inspections.best[job.key].job_uid == job.job_uid
        needed = job.key in owners and job.key not in inspections.recorded
        if job.key not in left_alone and not (is_best and needed and not _may_retry(job, now)):
            owner = owners.get(job.key, "")
            actions.append(FinishInspection(owner, job.namespace, job.job_name, job.job_uid))
    uninspected = owners.keys() - inspections.recorded.keys() - inspections.best.keys()
    return actions + [
        StartInspection(uid, key, secrets[key], inspections.pins.get((key.namespace, key.uri), ""))
        for key, uid in owners.items()
        if key in uninspected
    ]


def _checkpoints(intent: Intent, engine_image: str) -> Iterator[tuple[FactsKey, str]]:
    """Yield the checkpoint that is served and the one that the present spec names, each with its Secret."""
    yield key_of(intent, engine_image), intent.model_secret
    if intent.next_model_uri is not None:
        yield next_key(intent, engine_image), intent.next_model_secret


def _may_retry(job: Inspection, now: float) -> bool:
    result = job.result
    return isinstance(result, InspectionFailure) and now >= result.at + retry_after_s(result)


def _usefulness(inspection: Inspection) -> tuple[int, float, str, str]:
    rank = {CheckpointFacts: 0, type(None): 1}.get(type(inspection.result), 2)
    return rank, inspection.started_at, inspection.namespace, inspection.job_uid


def _describe(intent: Intent, facts: CheckpointFacts) -> str:
    weights = facts.weight_bytes
    size = f"{weights / 1e9:.2f} GB" if weights >= 1e9 else f"{weights / 1e6:.1f} MB"
    text = f"{facts.architecture}, {facts.layers} layers, {size} of {facts.dtype}"
    if facts.pin is not None:
        text += f", pinned to {facts.pin.revision}"
    if intent.max_model_len is not None and intent.max_model_len > facts.max_position_embeddings:
        served = f"{model_length(facts, intent.max_model_len)} is served"
        text += f"; engine.maxModelLen {intent.max_model_len} is above what it was made for, {served}"
    return text
