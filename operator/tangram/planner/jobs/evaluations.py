"""Evaluations of quantised formats: which are worth a Job, which wait, and which have failed.

`precision: Any` uses a quantised format only with a report within tolerance (`evaluation_reports`). A Job
makes the report, one at a time for each LLMDeployment, where such a format would be chosen: nothing else
serves, the others have no room, or it saves `WORTH_A_MOVE`. It takes a unit that the plan leaves free, and
is ended when replicas need that unit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tangram.eligibility.shapes.evaluation_reports import (
    NOT_EVALUATED,
    OUT_OF_TOLERANCE,
    Reports,
    key_of,
)
from tangram.eligibility.shapes.serving_requirements import ANY, AS_STORED
from tangram.fleet import (
    Action,
    DeviceKind,
    Evaluation,
    EvaluationFailure,
    EvaluationKey,
    EvaluationReport,
    FinishEvaluation,
    FleetSnapshot,
    Intent,
    Shape,
    StartEvaluation,
)
from tangram.fleet.times import rfc3339
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.placement.replica_limits import Quotas
from tangram.planner.placement.targets import WORTH_A_MOVE, Case, PlacementTarget
from tangram.planner.rollout.node_selection import steering
from tangram.planner.rollout.pod_replacement import unit
from tangram.planner.shapes.candidates import Candidate, Offers

# Seconds until a format is tried again whose evaluation failed: that takes a GPU, and rarely ends better.
RETRY_AFTER_S = 1800.0


@dataclass(slots=True)
class Evaluations:
    """Jobs to start and to end, and what the message of `Placed` adds about evaluations, by UID."""

    notes: dict[str, str] = field(default_factory=dict)
    starts: list[Action] = field(default_factory=list)
    ends: list[Action] = field(default_factory=list)


def evaluations(
    cases: tuple[Case, ...],
    idle: tuple[Intent, ...],
    goals: Mapping[str, PlacementTarget],
    snapshot: FleetSnapshot,
    known: Reports,
    offered: Offers,
    devices: FreeDevices,
    quotas: Quotas,
    now: float,
) -> Evaluations:
    """Decide for all `cases`, in the order of their turns, once replicas have taken their room.

    `idle`: LLMDeployments for which nothing is done, nor undone. Units of Jobs that start are taken from
    `devices`.
    """
    jobs: dict[EvaluationKey, Evaluation] = {}
    for each in sorted(snapshot.evaluations, key=_usefulness):
        jobs.setdefault(each.key, each)
    short = {
        goal.candidate.shape.device_kind
        for goal in goals.values()
        if goal.candidate is not None and goal.replicas < goal.desired and not (goal.limit or goal.waits)
    }
    refusals = {problem.owner_uid: problem.message for problem in snapshot.evaluation_problems}
    found, kept = Evaluations(), dict[EvaluationKey, str]()
    for case in cases:
        uid = case.intent.uid
        pending = _pending(case, goals[uid])
        chosen = _chosen(case, pending, jobs, short, now)
        if chosen is None:
            found.notes[uid] = _note(case, goals[uid], pending, jobs, known, now)
            continue
        candidate, key, job = chosen
        if job is None and key not in kept:
            start = _start(case, candidate, key, short, offered, devices, quotas)
            if isinstance(start, str):
                found.notes[uid] = f"{_saving(candidate, case, goals[uid])}; {start}"
                continue
            found.starts.append(start)
        kept.setdefault(key, uid)
        found.notes[uid] = _running(candidate, job, refusals.get(uid, ""))
    found.ends += _ends(snapshot, jobs, kept, idle, now)
    return found


def _ends(
    snapshot: FleetSnapshot,
    jobs: Mapping[EvaluationKey, Evaluation],
    kept: Mapping[EvaluationKey, str],
    idle: tuple[Intent, ...],
    now: float,
) -> Iterator[FinishEvaluation]:
    """Return the Jobs that go: recorded, of no use, in the way of replicas, or to be tried again."""
    recorded = {key for key, _ in snapshot.reports}
    left_alone = {(intent.namespace, intent.model_uri) for intent in idle}
    for job in sorted(snapshot.evaluations, key=lambda e: (e.key, e.job_name, e.job_uid)):
        key = job.key
        unrecorded = isinstance(job.result, EvaluationReport)  # until a status holds it
        stays = key in kept or unrecorded or _waits(job, now) or (key.namespace, key.uri) in left_alone
        if key in recorded or not stays or job != jobs[key]:
            yield FinishEvaluation(kept.get(key, ""), key.namespace, job.job_name, job.job_uid)


def _pending(case: Case, target: PlacementTarget) -> tuple[Candidate, ...]:
    """Return the shapes that would be chosen if their format were within tolerance, cheapest first."""
    if case.intent.precision != ANY:
        return ()
    waiting = [c for c in case.judged if c.rejection == NOT_EVALUATED]
    present = target.candidate
    if present is not None and target.replicas >= target.desired:
        most = _cost(case, present) * (1 - WORTH_A_MOVE)
        waiting = [c for c in waiting if _cost(case, c) <= most]
    return tuple(sorted(waiting, key=lambda c: (_cost(case, c), c.shape)))


def _cost(case: Case, candidate: Candidate) -> float:
    return case.replicas(candidate) * candidate.price_per_hour


def _chosen(
    case: Case,
    pending: tuple[Candidate, ...],
    jobs: Mapping[EvaluationKey, Evaluation],
    short: set[DeviceKind],
    now: float,
) -> tuple[Candidate, EvaluationKey, Evaluation | None] | None:
    """Return what to evaluate: what a Job does already, else the cheapest that has not failed lately."""
    keyed = [(each, key_of(case.intent, case.facts, each.shape)) for each in pending]
    for candidate, key in keyed:
        job = jobs.get(key)
        if job is not None and job.result is None and Shape(key.sku, job.profile).device_kind not in short:
            return candidate, key, job
    for candidate, key in keyed:
        job = jobs.get(key)
        if job is None:
            return candidate, key, None
        if not _waits(job, now):  # its Job goes first
            return None
    return None


def _waits(job: Evaluation, now: float) -> bool:
    """Whether a Job failed too lately to be tried again; it stays, as the record of that."""
    return isinstance(job.result, EvaluationFailure) and now < job.result.at + RETRY_AFTER_S


def _start(
    case: Case,
    candidate: Candidate,
    key: EvaluationKey,
    short: set[DeviceKind],
    offered: Offers,
    devices: FreeDevices,
    quotas: Quotas,
) -> StartEvaluation | str:
    """Return the Job, taking its device from `devices`; or what it waits for."""
    intent, shape = case.intent, candidate.shape
    free = [group for group in devices.groups(intent.uid, shape) if devices.free.get(group, 0) > 0]
    if shape.device_kind in short or not free:
        return f"its evaluation waits for a free {unit(shape)} on {shape.sku} that no replica needs"
    more, binding = quotas.more(case, shape)
    if more == 0:
        return f"its evaluation waits for {binding}"
    where = steering(intent.uid, intent.pools, shape, None, 1, offered, devices)
    selectors = offered.selectors(intent.pools)
    if not where or (intent.pools and not selectors):
        return f"its evaluation waits for a node with {shape.sku}"
    devices.free[free[0]] -= 1
    return StartEvaluation(intent.uid, key, shape, where.products, selectors, where.declared)


def _running(candidate: Candidate, job: Evaluation | None, refusal: str) -> str:
    what = f"{candidate.shape.described} is evaluated"
    if job is None and refusal:
        return f"the evaluation of {candidate.shape.described} waits: its Job is refused: {refusal}"
    if job is None:
        return f"{what}: its Job is about to start"
    waits = f", which waits: {job.message}" if job.message else ""
    return f"{what} by Job {job.key.namespace}/{job.job_name}, started {rfc3339(job.started_at)}{waits}"


def _saving(candidate: Candidate, case: Case, target: PlacementTarget) -> str:
    if target.candidate is None or target.replicas < target.desired:
        return f"{candidate.shape.described} would serve"
    less = _cost(case, target.candidate) - _cost(case, candidate)
    return f"{candidate.shape.described} would cost {less:.2f} $/h less"


def _note(
    case: Case,
    target: PlacementTarget,
    pending: tuple[Candidate, ...],
    jobs: Mapping[EvaluationKey, Evaluation],
    known: Reports,
    now: float,
) -> str:
    """Return the note where nothing is evaluated: a failure, the figures of what serves, or of what is
    refused.
    """
    intent, own = case.intent, case.facts.dtype
    for candidate in pending:
        job = jobs.get(key_of(intent, case.facts, candidate.shape))
        if job is not None and isinstance(job.result, EvaluationFailure) and _waits(job, now):
            again = rfc3339(job.result.at + RETRY_AFTER_S)
            failed = f"the evaluation of {candidate.shape.described} failed"
            return f"{failed}: {job.result.message.rstrip('.')}; it is tried again at {again}"
    shape = target.candidate.shape if target.candidate is not None else None
    if shape is not None and shape.precision != own:
        if intent.precision not in (ANY, AS_STORED):
            return f"engine.precision names {shape.precision}: it is served without an evaluation"
        report = known.get(key_of(intent, case.facts, shape))
        return f"{shape.precision} evaluated on {shape.sku}: {report}" if report else ""
    refused = [c for c in case.judged if c.rejection == OUT_OF_TOLERANCE]
    if target.candidate is not None:
        refused = [c for c in refused if _cost(case, c) < _cost(case, target.candidate)]
    return min(refused, key=lambda c: (_cost(case, c), c.shape)).message if refused else ""


def _usefulness(job: Evaluation) -> tuple[int, float, str]:
    rank = {EvaluationReport: 0, type(None): 1}.get(type(job.result), 2)
    return rank, job.started_at, job.job_uid
