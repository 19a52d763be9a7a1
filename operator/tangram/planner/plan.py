"""The decision about the whole fleet."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.catalog import InputError
from tangram.fleet import (
    Action,
    ApplyService,
    Decision,
    FleetSnapshot,
    Intent,
    InvalidIntent,
    Plan,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    Workload,
)
from tangram.planner.candidates import Offers, candidates, offers
from tangram.planner.inspections import Known, ModelState, inspection_actions, known, model_state
from tangram.planner.joint.engine import lacks
from tangram.planner.judge import architecture, request_of
from tangram.planner.order import Wanted, acceptance, by_age, by_turn
from tangram.planner.place import Placement, place
from tangram.planner.reasons import Reason
from tangram.planner.room import Room, room
from tangram.planner.target import Case, Target, targets

Verdict = tuple[bool, str, str]

_REMOVALS = (RemoveDeployment, ScaleDeployment)  # after everything that is created


def plan(snapshot: FleetSnapshot, intents: tuple[Wanted, ...], now: float) -> Plan:
    """Decide what the fleet should look like, from what is observed and wanted at `now` (epoch seconds).

    Level-triggered: the actions are the whole desired set, and the shell writes the differences. What an
    action does not speak of stays as it is: nothing is emitted for what is paused, refused, infeasible or
    waits for its checkpoint. Equal inputs, in whatever order, give equal plans.
    """
    ordered = by_turn(intents)
    verdicts = acceptance(by_age(intents))
    present = _present(snapshot)
    wishes = dict(snapshot.desired)
    desired = {i.uid: _desired(i, present.get(i.uid, ()), wishes) for i in ordered}
    valid = tuple(intent for intent in ordered if isinstance(intent, Intent))
    active = tuple(i for i in valid if verdicts[i.uid][0] and not i.paused)
    idle = tuple(i for i in valid if not verdicts[i.uid][0] or i.paused)
    about, offered = known(snapshot), offers(snapshot)
    bases = {
        intent.uid: _Base(
            intent.uid, verdicts[intent.uid], _model(intent, verdicts, about), desired[intent.uid]
        )
        for intent in ordered
    }
    counted = dict(snapshot.desired_of)
    judged = {
        i.uid: _case(i, bases[i.uid], offered, present.get(i.uid, ()), counted.get(i.uid)) for i in active
    }
    space = room(snapshot, ordered, desired)
    cases = tuple(case for case in judged.values() if isinstance(case, Case))
    goals = targets(cases, offered, space)
    decisions, actions = [], inspection_actions(about, active, idle, now)
    for intent in ordered:
        decision, todo = _decide(intent, bases[intent.uid], judged.get(intent.uid), goals, offered, space)
        decisions.append(decision)
        actions += todo
    removals = [action for action in actions if isinstance(action, _REMOVALS)]
    rest = [action for action in actions if not isinstance(action, _REMOVALS)]
    return Plan(tuple(decisions), (*rest, *removals))


def _present(snapshot: FleetSnapshot) -> Mapping[str, tuple[Workload, ...]]:
    """Workloads by owner, sorted: what exists, in an order that does not depend on how it was read."""
    found: dict[str, tuple[Workload, ...]] = {}
    for workload in sorted(snapshot.workloads, key=lambda w: (w.owner_uid, w.shape, w.name, w.uid)):
        found[workload.owner_uid] = (*found.get(workload.owner_uid, ()), workload)
    return found


def _desired(intent: Wanted, present: tuple[Workload, ...], wishes: Mapping[str, int]) -> int:
    """Replicas wanted: what the scaling law says or what is there, within the bounds."""
    there = max((workload.replicas for workload in present), default=0)
    if isinstance(intent, InvalidIntent):
        return there
    wanted = wishes.get(intent.uid, there)
    return min(max(wanted, intent.min_replicas), intent.max_replicas)


@dataclass(frozen=True, slots=True)
class _Base:
    """The part of a decision that is there before a placement is tried."""

    uid: str
    verdict: Verdict
    model: ModelState
    desired: int

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


def _model(intent: Wanted, verdicts: Mapping[str, Verdict], about: Known) -> ModelState:
    wanted = isinstance(intent, Intent) and verdicts[intent.uid][0]
    return model_state(intent, about) if wanted and isinstance(intent, Intent) else _UNJUDGED


@dataclass(frozen=True, slots=True)
class _Unfit:
    """Why nothing is looked for: what is asked for cannot be had, or could not be judged."""

    reason: Reason
    message: str


def _case(
    intent: Intent, base: _Base, offered: Offers, present: tuple[Workload, ...], counted: Shape | None
) -> Case | _Unfit | None:
    """Judge every shape for one LLMDeployment. What goes wrong there concerns nobody else."""
    facts = base.model.facts
    if facts is None:
        return None
    try:
        missing = lacks(intent, architecture(facts))
        if missing:
            return _Unfit(Reason.INFEASIBLE, missing)
        request = request_of(intent, facts)
        judged = candidates(intent, facts, request, offered, [workload.shape for workload in present])
        return Case(intent, facts, request, judged, present, base.desired, counted)
    except InputError as error:
        return _Unfit(Reason.INFEASIBLE, f"{error.field} {error.problem}")
    except Exception as error:  # noqa: BLE001 - a bug of ours: told to whom it concerns, the rest is planned
        return _not_judged("its shapes could not be judged", error)


def _not_judged(what: str, error: Exception) -> _Unfit:
    told = f"{type(error).__name__}: {error}"[:_MOST_TOLD]
    return _Unfit(Reason.NOT_JUDGED, f"{what} ({told}); please report this")


_MOST_TOLD = 300


def _decide(
    intent: Wanted,
    base: _Base,
    case: Case | _Unfit | None,
    goals: Mapping[str, Target],
    offered: Offers,
    space: Room,
) -> tuple[Decision, list[Action]]:
    if isinstance(intent, InvalidIntent) or not base.verdict[0]:
        return base.decision(Reason.NOT_ACCEPTED, "waits for Accepted"), []
    if intent.paused:
        return base.decision(Reason.PAUSED, "spec.paused is true: what runs is left as it is"), []
    service: list[Action] = [ApplyService(intent.uid)]
    if case is None:
        return base.decision(Reason.WAITING_FOR_MODEL, "waits for ModelReady"), service
    if isinstance(case, _Unfit):
        return base.decision(case.reason, f"{case.message}; what runs is left as it is"), service
    try:
        placement = place(case, goals[intent.uid], offered, space)
    except Exception as error:  # noqa: BLE001 - a bug of ours: told to whom it concerns, the rest is planned
        unfit = _not_judged("its place could not be told", error)
        return base.decision(unfit.reason, f"{unfit.message}; what runs is left as it is"), service
    decision = base.decision(placement.reason, placement.message)
    return _placed(decision, placement), [*service, *placement.actions]


def _placed(decision: Decision, placement: Placement) -> Decision:
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
