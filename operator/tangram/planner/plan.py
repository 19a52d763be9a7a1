"""The decision about the whole fleet."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.fleet import (
    Action,
    ApplyService,
    Decision,
    FleetSnapshot,
    Intent,
    InvalidIntent,
    Plan,
    RemoveDeployment,
    Workload,
)
from tangram.planner.candidates import Offers, offers
from tangram.planner.inspections import Known, ModelState, inspection_actions, known, model_state
from tangram.planner.order import Wanted, acceptance, by_age
from tangram.planner.place import Placement, place
from tangram.planner.reasons import Reason
from tangram.planner.room import Room, room

Verdict = tuple[bool, str, str]


def plan(snapshot: FleetSnapshot, intents: tuple[Wanted, ...], now: float) -> Plan:
    """Decide what the fleet should look like, from what is observed and wanted at `now` (epoch seconds).

    Level-triggered: the actions are the whole desired set, and the shell writes the differences. What an
    action does not speak of stays as it is: nothing is emitted for what is paused, refused, infeasible or
    waits for its checkpoint. Equal inputs, in whatever order, give equal plans.
    """
    ordered = by_age(intents)
    verdicts = acceptance(ordered)
    present = _present(snapshot)
    wishes = dict(snapshot.desired)
    desired = {i.uid: _desired(i, present.get(i.uid, ()), wishes) for i in ordered}
    space = room(snapshot, ordered, desired)
    valid = tuple(intent for intent in ordered if isinstance(intent, Intent))
    active = tuple(i for i in valid if verdicts[i.uid][0] and not i.paused)
    idle = tuple(i for i in valid if not verdicts[i.uid][0] or i.paused)
    about, offered = known(snapshot), offers(snapshot)
    decisions, actions = [], inspection_actions(about, active, idle, now)
    for intent in ordered:
        own = present.get(intent.uid, ())
        decision, todo = _decide(
            intent, verdicts[intent.uid], about, offered, own, desired[intent.uid], space
        )
        decisions.append(decision)
        actions += todo
    removals = [action for action in actions if isinstance(action, RemoveDeployment)]
    rest = [action for action in actions if not isinstance(action, RemoveDeployment)]
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


def _decide(
    intent: Wanted,
    verdict: Verdict,
    about: Known,
    offered: Offers,
    present: tuple[Workload, ...],
    desired: int,
    space: Room,
) -> tuple[Decision, list[Action]]:
    model = model_state(intent, about) if isinstance(intent, Intent) and verdict[0] else _UNJUDGED
    base = _Base(intent.uid, verdict, model, desired)
    if isinstance(intent, InvalidIntent) or not verdict[0]:
        return base.decision(Reason.NOT_ACCEPTED, "waits for Accepted"), []
    if intent.paused:
        return base.decision(Reason.PAUSED, "spec.paused is true: what runs is left as it is"), []
    service: list[Action] = [ApplyService(intent.uid)]
    if model.facts is None:
        return base.decision(Reason.WAITING_FOR_MODEL, "waits for ModelReady"), service
    placement = place(intent, model.facts, offered, present, desired, space)
    decision = base.decision(placement.reason, placement.message)
    return _placed(decision, placement), [*service, *placement.actions]


def _placed(decision: Decision, placement: Placement) -> Decision:
    return replace(
        decision,
        shape=placement.shape,
        placed=placement.placed,
        price_per_hour=placement.price_per_hour,
        rejected=placement.rejected,
        tpot_bound_ms=placement.tpot_bound_ms,
        rollout_waits=placement.rollout_waits,
    )
