"""Evaluation Jobs of quantised formats: which to start, which to end, which wait, and which have failed.

With `precision: Any` a quantised format needs a report within tolerance (`evaluation_reports`). A Job makes
the report, one at a time for each LLMDeployment, where the format would be chosen: no other serves, no other
has devices, or it saves `WORTH_A_MOVE`. A Job takes a device that the plan leaves free, and ends when
replicas need that device.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tangram.capacity.sizing import Constraint, Rejection
from tangram.eligibility.shapes.evaluation_reports import Reports, report_key
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
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.offers.node_offers import NodeOffers
from tangram.plan.place.now.placement_demand import WORTH_A_MOVE, PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.place.now.quotas import Quotas
from tangram.plan.rollout.node_selection import node_selection
from tangram.plan.words.placement import device_name, sentence

# Seconds until a failed evaluation is tried again: it takes a GPU, and the result rarely changes.
RETRY_AFTER_S = 1800.0


@dataclass(slots=True)
class EvaluationPlan:
    """Jobs to start and to end, and the note in the message of `Placed`, by uid."""

    notes: dict[str, str] = field(default_factory=dict)
    starts: list[Action] = field(default_factory=list)
    ends: list[Action] = field(default_factory=list)


def plan_evaluations(
    demands: tuple[PlacementDemand, ...],
    idle: tuple[Intent, ...],
    targets: Mapping[str, PlacementTarget],
    snapshot: FleetSnapshot,
    reports: Reports,
    node_offers: NodeOffers,
    devices: FreeDevices,
    quotas: Quotas,
    now: float,
) -> EvaluationPlan:
    """Decide for all `demands`, in order of priority, after replicas have taken their devices.

    `idle`: LLMDeployments that are left as they are. Jobs that start take their devices from `devices`.
    """
    jobs, short = _jobs_by_key(snapshot), _short_kinds(targets)
    refusals = {problem.owner_uid: problem.message for problem in snapshot.evaluation_problems}
    evaluations, kept_jobs = EvaluationPlan(), dict[EvaluationKey, str]()
    for demand in demands:
        uid, target = demand.uid, targets[demand.uid]
        pending = _pending(demand, target)
        choice = _next_evaluation(demand, pending, jobs, short, now)
        if choice is None:
            evaluations.notes[uid] = _idle_note(demand, target, pending, jobs, reports, now)
            continue
        candidate, key, job = choice
        if job is None and key not in kept_jobs:
            start = _start(demand, candidate, key, short, node_offers, devices, quotas)
            if isinstance(start, str):
                evaluations.notes[uid] = f"{_saving(demand, candidate, target)}; {start}"
                continue
            evaluations.starts.append(start)
        kept_jobs.setdefault(key, uid)
        evaluations.notes[uid] = _running(candidate, job, refusals.get(uid, ""))
    evaluations.ends += _ends(snapshot, jobs, kept_jobs, idle, now)
    return evaluations


def _jobs_by_key(snapshot: FleetSnapshot) -> dict[EvaluationKey, Evaluation]:
    """Return the most useful Job of each evaluation."""
    jobs: dict[EvaluationKey, Evaluation] = {}
    for evaluation in sorted(snapshot.evaluations, key=_usefulness):
        jobs.setdefault(evaluation.key, evaluation)
    return jobs


def _short_kinds(targets: Mapping[str, PlacementTarget]) -> set[DeviceKind]:
    """Return the kinds of devices that replicas lack: no evaluation takes one of those."""
    return {
        target.candidate.shape.device_kind
        for target in targets.values()
        if target.candidate is not None
        and target.replicas < target.desired
        and not (target.limit or target.over_budget)
    }


def _ends(
    snapshot: FleetSnapshot,
    jobs: Mapping[EvaluationKey, Evaluation],
    kept_jobs: Mapping[EvaluationKey, str],
    idle: tuple[Intent, ...],
    now: float,
) -> Iterator[FinishEvaluation]:
    """End Jobs that are recorded, of no use, on a device that replicas need, or to be tried again."""
    recorded = {key for key, _ in snapshot.reports}
    left_alone = {(intent.namespace, intent.model_uri) for intent in idle}
    for job in sorted(snapshot.evaluations, key=lambda e: (e.key, e.job_name, e.job_uid)):
        key = job.key
        unrecorded = isinstance(job.result, EvaluationReport)  # until a status holds it
        is_idle = (key.namespace, key.uri) in left_alone
        stays = key in kept_jobs or unrecorded or is_idle or _is_backing_off(job, now)
        if key in recorded or not stays or job != jobs[key]:
            yield FinishEvaluation(kept_jobs.get(key, ""), key.namespace, job.job_name, job.job_uid)


def _pending(demand: PlacementDemand, target: PlacementTarget) -> tuple[Rejection, ...]:
    """Return the candidates that would be chosen if their format were within tolerance, cheapest first."""
    if demand.intent.precision != ANY:
        return ()
    pending = [r for r in demand.shapes.rejected if r.constraint is Constraint.EVALUATION]
    current = target.candidate
    if current is not None and target.replicas >= target.desired:
        most = demand.cost(current) * (1 - WORTH_A_MOVE)
        pending = [c for c in pending if demand.cost(c) <= most]
    return tuple(sorted(pending, key=lambda c: (demand.cost(c), c.shape)))


def _next_evaluation(
    demand: PlacementDemand,
    pending: tuple[Rejection, ...],
    jobs: Mapping[EvaluationKey, Evaluation],
    short: set[DeviceKind],
    now: float,
) -> tuple[Rejection, EvaluationKey, Evaluation | None] | None:
    """Return what to evaluate: what a Job evaluates already, else the cheapest that has not failed lately."""
    keyed = [
        (candidate, report_key(demand.intent, demand.facts.digest, candidate.shape)) for candidate in pending
    ]
    for candidate, key in keyed:
        job = jobs.get(key)
        if job is not None and job.result is None and Shape(key.sku, job.profile).device_kind not in short:
            return candidate, key, job
    for candidate, key in keyed:
        job = jobs.get(key)
        if job is None:
            return candidate, key, None
        if not _is_backing_off(job, now):  # its Job ends first
            return None
    return None


def _is_backing_off(job: Evaluation, now: float) -> bool:
    """Whether a Job failed too lately to be tried again; it stays, as the record of the failure."""
    return isinstance(job.result, EvaluationFailure) and now < job.result.at + RETRY_AFTER_S


def _start(
    demand: PlacementDemand,
    candidate: Rejection,
    key: EvaluationKey,
    short: set[DeviceKind],
    node_offers: NodeOffers,
    devices: FreeDevices,
    quotas: Quotas,
) -> StartEvaluation | str:
    """Return the Job, taking its device from `devices`; or what it waits for."""
    uid, pools, shape = demand.uid, demand.intent.pools, candidate.shape
    free = [group for group in devices.groups(uid, shape) if devices.fitting(group, shape.gpus)]
    if shape.device_kind in short or not free:
        return f"its evaluation waits for a free {device_name(shape)} on {shape.sku} that no replica needs"
    room = quotas.max_new_pods(demand, shape)
    if room is not None and room[0] == 0:
        return f"its evaluation waits for {sentence(room[1])}"
    nodes = node_selection(uid, pools, shape, None, 1, node_offers, devices)
    if not nodes:
        return f"its evaluation waits for a node with {shape.sku}"
    devices.free[free[0]] = devices.free[free[0]].without(shape.gpus, 1)
    pin = demand.facts.pin
    return StartEvaluation(uid, key, shape, nodes.products, nodes.selectors, nodes.declared, pin)


def _running(candidate: Rejection, job: Evaluation | None, refusal: str) -> str:
    what = f"{candidate.shape.described} is evaluated"
    if job is None:
        refused = f"the evaluation of {candidate.shape.described} waits: its Job is refused: {refusal}"
        return refused if refusal else f"{what}: its Job is about to start"
    waits = f", which waits: {job.message}" if job.message else ""
    return f"{what} by Job {job.key.namespace}/{job.job_name}, started {rfc3339(job.started_at)}{waits}"


def _saving(demand: PlacementDemand, candidate: Rejection, target: PlacementTarget) -> str:
    if target.candidate is None or target.replicas < target.desired:
        return f"{candidate.shape.described} would serve"
    less = demand.cost(target.candidate) - demand.cost(candidate)
    return f"{candidate.shape.described} would cost {less:.2f} $/h less"


def _idle_note(
    demand: PlacementDemand,
    target: PlacementTarget,
    pending: tuple[Rejection, ...],
    jobs: Mapping[EvaluationKey, Evaluation],
    reports: Reports,
    now: float,
) -> str:
    """Return the note while nothing is evaluated: a failure, or the report on what serves or is refused."""
    return _failure_note(demand, pending, jobs, now) or _report_note(demand, target, reports)


def _failure_note(
    demand: PlacementDemand,
    pending: tuple[Rejection, ...],
    jobs: Mapping[EvaluationKey, Evaluation],
    now: float,
) -> str:
    for candidate in pending:
        job = jobs.get(report_key(demand.intent, demand.facts.digest, candidate.shape))
        if job is not None and isinstance(job.result, EvaluationFailure) and _is_backing_off(job, now):
            again = rfc3339(job.result.at + RETRY_AFTER_S)
            failed = f"the evaluation of {candidate.shape.described} failed"
            return f"{failed}: {job.result.message.rstrip('.')}; it is tried again at {again}"
    return ""


def _report_note(demand: PlacementDemand, target: PlacementTarget, reports: Reports) -> str:
    intent, facts, chosen = demand.intent, demand.facts, target.candidate
    if chosen is not None and chosen.shape.precision != facts.dtype:
        precision = chosen.shape.precision
        if intent.precision not in (ANY, AS_STORED):
            return f"engine.precision names {precision}: it is served without an evaluation"
        report = reports.get(report_key(intent, facts.digest, chosen.shape))
        return f"{precision} evaluated on {chosen.shape.sku}: {report}" if report else ""
    refused = [r for r in demand.shapes.rejected if r.constraint is Constraint.TOLERANCE]
    if chosen is not None:
        refused = [c for c in refused if demand.cost(c) < demand.cost(chosen)]
    return min(refused, key=lambda c: (demand.cost(c), c.shape)).message if refused else ""


def _usefulness(job: Evaluation) -> tuple[int, float, str]:
    rank = {EvaluationReport: 0, type(None): 1}.get(type(job.result), 2)
    return rank, job.started_at, job.job_uid
