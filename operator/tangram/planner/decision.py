"""The decision about the whole fleet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tangram.catalog import InputError
from tangram.eligibility.acceptance import acceptance, by_age, by_turn
from tangram.eligibility.isolation import UNATTRIBUTED, Still, for_each, isolated
from tangram.eligibility.reasons import OFF, Reason
from tangram.eligibility.shapes.bundled_engine import lacks
from tangram.eligibility.shapes.evaluation_reports import Reports, reports
from tangram.fleet import (
    Action,
    ApplyService,
    Decision,
    Fault,
    FleetSnapshot,
    Intent,
    InvalidIntent,
    ParsedIntent,
    Plan,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    Workload,
)
from tangram.planner.jobs.evaluations import evaluations
from tangram.planner.jobs.inspections import (
    Known,
    ModelState,
    inspection_actions,
    known,
    model_state,
)
from tangram.planner.observe.back_off import Obstacles, obstacles
from tangram.planner.observe.free_capacity import FreeDevices, observe_free_devices, reserve_for_missing_pods
from tangram.planner.placement.replica_limits import Quotas, limits
from tangram.planner.placement.targets import NO_LIMIT, Case, Limit, PlacementTarget, targets
from tangram.planner.rollout.place import DeploymentPlacement, place
from tangram.planner.shapes.candidates import Offers, candidates, offers
from tangram.planner.shapes.judge import architecture, request_of

Verdict = tuple[bool, str, str]

_REMOVALS = (RemoveDeployment, ScaleDeployment)  # after everything that is created


def plan(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float) -> Plan:
    """Decide what the fleet should look like, from what is observed and wanted at `now` (epoch seconds).

    Level-triggered: the actions are the whole desired set, and the shell writes the differences. What an
    action does not speak of stays as it is: nothing is emitted for what is paused, refused, infeasible or
    waits for its checkpoint. Equal inputs, in whatever order, give equal plans. An LLMDeployment for which
    a step raises stands still, and the plan of the others is the one that they get beside one that does.
    """
    wanted = _one_per_uid(intents)
    made, faults = isolated(
        lambda still: _plan(snapshot, wanted, now, still), (i.uid for i in wanted), snapshot.faults
    )
    return replace(made, faults=faults)


def _one_per_uid(intents: tuple[ParsedIntent, ...]) -> tuple[ParsedIntent, ...]:
    """Return the oldest LLMDeployment of each uid. Kubernetes gives none twice; a document may."""
    found: dict[str, ParsedIntent] = {}
    for intent in sorted(intents, key=lambda i: (i.created_at, i.namespace, i.name)):
        found.setdefault(intent.uid, intent)
    return tuple(found.values())


def _plan(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float, still: Still) -> Plan:
    """Plan once. Raises `StepsFailed` for LLMDeployments that should stand still and do not yet."""
    ordered = by_turn(intents)
    verdicts = acceptance(by_age(intents), snapshot.pod_needs)
    present = _present(snapshot)
    wishes = dict(snapshot.desired)
    valid = tuple(intent for intent in ordered if isinstance(intent, Intent))
    active = tuple(i for i in valid if verdicts[i.uid][0] and not i.paused and i.uid not in still)
    acting = {intent.uid for intent in active}
    idle = tuple(intent for intent in valid if intent.uid not in acting)
    about, offered, reported = known(snapshot), offers(snapshot), reports(snapshot)

    def base(intent: ParsedIntent) -> _Base:
        uid, fault = intent.uid, still.get(intent.uid)
        unknown = fault is not None and fault.step in ("model", UNATTRIBUTED)
        model = _unknown_model(fault) if fault and unknown else _model(intent, verdicts, about)
        return _Base(uid, verdicts[uid], model, _desired(intent, present.get(uid, ()), wishes), fault)

    bases = {each.uid: each for each in for_each("model", ordered, _uid, base)}
    counted = dict(snapshot.desired_of)

    def case(intent: Intent) -> Case | _Unfit | None:
        uid = intent.uid
        if intent.is_off:
            return None
        return _case(intent, bases[uid], offered, present.get(uid, ()), counted.get(uid), reported)

    judged = dict(zip(map(_uid, active), for_each("judge", active, _uid, case), strict=True))
    kept = {uid: max(bases[uid].desired, _replicas(present.get(uid, ()))) for uid in bases.keys() & still}
    devices = observe_free_devices(snapshot, ordered)
    growing = tuple(i for i in valid if i.uid not in still and not i.is_off)
    found = obstacles(snapshot, growing, devices, now)
    refused = {problem.owner_uid for problem in snapshot.problems}
    cases = tuple(
        replace(case, is_refused=case.intent.uid in refused)
        for case in judged.values()
        if isinstance(case, Case)
    )
    quotas = Quotas(snapshot)
    limited = limits(cases, snapshot, found, devices, quotas, now)
    cases = tuple(replace(case, limits=limited[case.intent.uid]) for case in cases)
    judged |= {case.intent.uid: case for case in cases}
    wanted = {uid: each.desired for uid, each in bases.items()} | kept
    reserve_for_missing_pods(devices, snapshot, ordered, wanted, _most(limited, found))
    goals = targets(cases, offered, devices)
    decided = for_each(
        "place",
        ordered,
        _uid,
        lambda intent: _decide(
            intent,
            bases[intent.uid],
            judged.get(intent.uid),
            present.get(intent.uid, ()),
            goals,
            offered,
            devices,
            found,
        ),
    )
    others = tuple(intent for intent in valid if intent.uid not in goals)
    measured = evaluations(cases, others, goals, snapshot, reported, offered, devices, quotas, now)
    actions = [*inspection_actions(about, active, idle, now), *measured.ends]
    for _, todo in decided:
        actions += todo
    removals = [action for action in actions if isinstance(action, _REMOVALS)]
    rest = [action for action in actions if not isinstance(action, _REMOVALS)]
    recorded = {uid: tuple(b for b in snapshot.back_offs if b.owner_uid == uid) for uid in still}
    back_offs = recorded | dict(found.back_offs)
    decisions = (
        _noted(replace(d, back_offs=back_offs.get(d.owner_uid, ())), measured.notes) for d, _ in decided
    )
    return Plan(tuple(decisions), (*rest, *removals, *measured.starts))


def _noted(decision: Decision, notes: Mapping[str, str]) -> Decision:
    """Add the note about evaluations to the message of `Placed`."""
    note = notes.get(decision.owner_uid)
    return replace(decision, placed_message=f"{decision.placed_message}; {note}") if note else decision


def _uid(intent: ParsedIntent) -> str:
    return intent.uid


def _most(limited: Mapping[str, Mapping[Shape, Limit]], found: Obstacles) -> Callable[[str, Shape], int]:
    """Return how many replicas of a shape can come to be; of what is left as it is, too (paused, refused)."""
    stuck = {(b.owner_uid, b.shape): b.replicas for mine in found.back_offs.values() for b in mine}

    def most(uid: str, shape: Shape) -> int:
        if uid not in limited:
            return stuck.get((uid, shape), NO_LIMIT)
        limit = limited[uid].get(shape)
        return NO_LIMIT if limit is None else limit.replicas

    return most


def _present(snapshot: FleetSnapshot) -> Mapping[str, tuple[Workload, ...]]:
    """Workloads by owner, sorted: what exists, in an order that does not depend on how it was read."""
    found: dict[str, tuple[Workload, ...]] = {}
    for workload in sorted(snapshot.workloads, key=lambda w: (w.owner_uid, w.shape, w.name, w.uid)):
        found[workload.owner_uid] = (*found.get(workload.owner_uid, ()), workload)
    return found


def _desired(intent: ParsedIntent, present: tuple[Workload, ...], wishes: Mapping[str, int]) -> int:
    """Replicas wanted: what the scaling law says or what is there, within the bounds."""
    there = _replicas(present)
    if isinstance(intent, InvalidIntent):
        return there
    wanted = wishes.get(intent.uid, there)
    return min(max(wanted, intent.min_replicas), intent.max_replicas)


def _replicas(present: tuple[Workload, ...]) -> int:
    return max((workload.replicas for workload in present), default=0)


@dataclass(frozen=True, slots=True)
class _Base:
    """The part of a decision that is there before a placement is tried."""

    uid: str
    verdict: Verdict
    model: ModelState
    desired: int
    fault: Fault | None = None  # why it stands still

    def decision(self, reason: Reason, message: str) -> Decision:
        accepted, accepted_reason, accepted_message = self.verdict
        return Decision(
            owner_uid=self.uid,
            accepted=accepted,
            accepted_reason=accepted_reason,
            accepted_message=accepted_message,
            model_reason=self.model.reason,
            model_message=self.model.message,
            placed_reason=reason,
            placed_message=message,
            desired=self.desired,
            facts=self.model.facts,
        )


_UNJUDGED = ModelState(Reason.NOT_ACCEPTED, "waits for Accepted")


def _model(intent: ParsedIntent, verdicts: Mapping[str, Verdict], about: Known) -> ModelState:
    wanted = isinstance(intent, Intent) and verdicts[intent.uid][0]
    return model_state(intent, about) if wanted and isinstance(intent, Intent) else _UNJUDGED


def _unknown_model(fault: Fault) -> ModelState:
    return ModelState(Reason.NOT_JUDGED, _stands_still(fault))


@dataclass(frozen=True, slots=True)
class _Unfit:
    """Why nothing is looked for: what is asked for cannot be had, or could not be judged."""

    reason: Reason
    message: str


def _case(
    intent: Intent,
    base: _Base,
    offered: Offers,
    present: tuple[Workload, ...],
    counted: Shape | None,
    reported: Reports,
) -> Case | _Unfit | None:
    """Judge every shape for one LLMDeployment."""
    facts = base.model.facts
    if facts is None:
        return None
    try:
        missing = lacks(intent, architecture(facts))
        if missing:
            return _Unfit(Reason.INFEASIBLE, missing)
        request = request_of(intent, facts)
        shapes = [workload.shape for workload in present]
        judged = candidates(intent, facts, request, offered, shapes, reported)
        return Case(intent, facts, request, judged, present, base.desired, counted)
    except InputError as error:
        return _Unfit(Reason.INFEASIBLE, f"{error.field} {error.problem}")


_FAILED = {
    "read": "its objects could not be read",
    "scale": "its replicas could not be counted",
    "model": "its checkpoint could not be judged",
    "judge": "its shapes could not be judged",
    "limit": "its quota could not be counted",
    "place": "its place could not be told",
}


def _stands_still(fault: Fault) -> str:
    failed = _FAILED.get(fault.step, "it could not be planned")
    return f"{failed} ({fault.error}); please report this; what runs is left as it is"


def _decide(
    intent: ParsedIntent,
    base: _Base,
    case: Case | _Unfit | None,
    present: tuple[Workload, ...],
    goals: Mapping[str, PlacementTarget],
    offered: Offers,
    devices: FreeDevices,
    found: Obstacles,
) -> tuple[Decision, list[Action]]:
    resting = _at_rest(intent, base)
    if resting is not None:
        return resting, []
    service: list[Action] = [ApplyService(intent.uid)]
    if isinstance(intent, Intent) and intent.is_off:  # whatever is known of its checkpoint and shapes
        gone = [RemoveDeployment(w.owner_uid, w.namespace, w.name, w.uid) for w in present]
        return base.decision(Reason.SCALED_TO_ZERO, OFF), [*service, *gone]
    if case is None:
        return base.decision(Reason.WAITING_FOR_MODEL, "waits for ModelReady"), service
    if isinstance(case, _Unfit):
        return base.decision(case.reason, f"{case.message}; what runs is left as it is"), service
    placement = place(case, goals[intent.uid], offered, devices, found.pending)
    decision = base.decision(placement.reason, placement.message)
    return _placed(decision, placement), [*service, *placement.actions]


def _at_rest(intent: ParsedIntent, base: _Base) -> Decision | None:
    """Return the decision of one of which nothing is created, changed or removed."""
    if isinstance(intent, InvalidIntent) or not base.verdict[0]:
        return base.decision(Reason.NOT_ACCEPTED, "waits for Accepted")
    if intent.paused:
        return base.decision(Reason.PAUSED, "spec.paused is true: what runs is left as it is")
    if base.fault is not None:
        return base.decision(Reason.NOT_JUDGED, _stands_still(base.fault))
    return None


def _placed(decision: Decision, placement: DeploymentPlacement) -> Decision:
    return replace(
        decision,
        shape=placement.shape,
        desired=placement.desired,
        placed=placement.placed,
        price_per_hour=placement.price_per_hour,
        alternatives=placement.alternatives,
        predicted_tpot_ms=placement.predicted_tpot_ms,
        rollout_waits=placement.rollout_waits,
    )
