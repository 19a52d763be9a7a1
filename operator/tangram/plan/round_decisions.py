"""What a round decides about each LLMDeployment, and the actions in the order of their execution."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from tangram.eligibility.isolation import RoundStep, for_each
from tangram.eligibility.reasons import OFF, Reason
from tangram.fleet import (
    Action,
    ApplyDeployment,
    ApplyService,
    Decision,
    Intent,
    ModelClaimKey,
    ParsedIntent,
    Plan,
    RemoveDeployment,
    ReplicaMove,
    ScaleDeployment,
)
from tangram.plan.decision_draft import DecisionDraft
from tangram.plan.fleet_input.fleet import Fleet
from tangram.plan.fleet_input.running_replicas import RunningByShape, observe_running_replicas
from tangram.plan.jobs.evaluations import EvaluationPlan, plan_evaluations
from tangram.plan.jobs.inspections import inspection_actions
from tangram.plan.jobs.model_claims import ClaimUse, model_claim_actions
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import moved_shape
from tangram.plan.planning_round import (
    Assessment,
    RoundObservation,
    RoundPlacement,
    uid_of,
)
from tangram.plan.reasons.placement import CannotMove, WaitsForConsent, WaitsForPlan
from tangram.plan.rollout.deployment_placement import deployment_placement
from tangram.plan.words.placement import sentence

# Why replicas have no device though a FleetPlan of changes may give them one.
_SERVED_BY_CHANGES = (Reason.INFEASIBLE, Reason.INSUFFICIENT_CAPACITY, Reason.SLO_UNREACHABLE)
_REMOVALS = (RemoveDeployment, ScaleDeployment)  # performed after everything that is created


def decided_plan(observation: RoundObservation, placement: RoundPlacement) -> Plan:
    """Return the plan of a round. Raises `StepsFailed` for LLMDeployments for which a step raises."""
    running = observe_running_replicas(observation.fleet)

    def decide(intent: ParsedIntent) -> tuple[Decision, list[Action]]:
        return _decide(intent, observation, placement, running.get(intent.uid, {}))

    decided = for_each(RoundStep.PLACE, observation.intents, uid_of, decide)
    evaluations = _evaluations(observation, placement)
    decisions = [decision for decision, _ in decided]
    claims = _model_claims(observation, decided)
    actions = chain(_inspections(observation), evaluations.ends, claims, *(own for _, own in decided))
    return Plan(
        _with_round(decisions, observation, placement, running, evaluations.notes),
        (*sorted(actions, key=_is_removal), *evaluations.starts),
        immovable=_immovable(observation.moves, observation.draft_of, placement.assessed),
    )


def _is_removal(action: Action) -> bool:
    return isinstance(action, _REMOVALS)


def _inspections(observation: RoundObservation) -> list[Action]:
    active, idle = observation.active, observation.idle
    return inspection_actions(observation.inspections, active, idle, observation.now)


def _model_claims(
    observation: RoundObservation, decided: list[tuple[Decision, list[Action]]]
) -> list[Action]:
    secrets = {intent.uid: intent.model_secret for intent in observation.valid}
    uses: dict[ModelClaimKey, ClaimUse] = {}
    for action in chain.from_iterable(own for _, own in decided):
        if isinstance(action, ApplyDeployment) and action.model_claim is not None:
            uses.setdefault(action.model_claim, ClaimUse(action.owner_uid, secrets[action.owner_uid]))
    return model_claim_actions(observation.snapshot.model_claims, uses, observation.intents, observation.now)


def _evaluations(observation: RoundObservation, placement: RoundPlacement) -> EvaluationPlan:
    targets = placement.targets
    others = tuple(intent for intent in observation.valid if intent.uid not in targets)
    return plan_evaluations(
        placement.demands,
        others,
        targets,
        observation.snapshot,
        observation.reports,
        observation.node_offers,
        placement.devices,
        placement.quotas,
        observation.now,
    )


def _with_round(
    decisions: list[Decision],
    observation: RoundObservation,
    placement: RoundPlacement,
    running: Mapping[str, RunningByShape],
    evaluation_notes: Mapping[str, str],
) -> tuple[Decision, ...]:
    """Return decisions with what the round knows of them: running replicas, notes, back-offs, a FleetPlan."""
    snapshot, faulted = observation.snapshot, observation.faulted
    back_offs = {uid: tuple(b for b in snapshot.back_offs if b.owner_uid == uid) for uid in faulted}
    back_offs |= placement.obstacles.back_offs
    waiting = dict(reversed(snapshot.partition.waiting))
    names = {intent.uid: f"{intent.namespace}/{intent.name}" for intent in observation.intents}

    def with_round(decision: Decision) -> Decision:
        uid = decision.owner_uid
        message = "; ".join(filter(None, (decision.placed_message, evaluation_notes.get(uid))))
        counted = _with_running(decision, observation.fleet, running.get(uid, {}))
        noted = replace(counted, back_offs=back_offs.get(uid, ()), placed_message=message)
        return _waiting_for_consent(noted, waiting.get(names[uid], ""))

    return tuple(map(with_round, decisions))


def _waiting_for_consent(decision: Decision, plan: str) -> Decision:
    """Return the decision with the FleetPlan that would serve the LLMDeployment and waits for a person."""
    if not plan or decision.placed_reason not in _SERVED_BY_CHANGES:
        return decision
    waits = WaitsForConsent(plan, decision.placed_message)
    return replace(decision, placed_reason=waits.reason, placed_message=sentence(waits), consent=plan)


def _immovable(
    moves: Mapping[str, ReplicaMove],
    draft_of: Mapping[str, DecisionDraft],
    assessed: Mapping[str, PlacementDemand | str | None],
) -> tuple[tuple[str, str], ...]:
    """Return why replicas that are to move to a shape do not, by uid. What is off has none to move."""
    reasons: dict[str, str] = {}
    for uid, move in moves.items():
        draft, demand = draft_of.get(uid), assessed.get(uid)
        resting = None if draft is None else draft.decision_without_actions()
        if resting is not None:
            reasons[uid] = resting.placed_message
        elif isinstance(demand, str):
            reasons[uid] = demand
        elif demand is not None and moved_shape(demand) is None:
            reasons[uid] = sentence(CannotMove(move.shape))
    return tuple(sorted(reasons.items()))


def _with_running(decision: Decision, fleet: Fleet, own: RunningByShape) -> Decision:
    """Return a decision that counts, with their price, the replicas that run beside those that are placed."""
    cost: float | None = decision.price_per_hour
    for shape, running in own.items():
        more = running.replicas - (decision.placed if shape == decision.shape else 0)
        price = fleet.running_replica_hour(decision.owner_uid, shape) if more > 0 else 0.0
        cost = None if cost is None or price is None else cost + max(0, more) * price
    counts = tuple(sorted((shape, running.replicas) for shape, running in own.items() if running.replicas))
    return replace(decision, running=counts, cost_per_hour=cost)


def _waiting_for_plan(draft: DecisionDraft, until: float) -> tuple[Decision, list[Action]]:
    waits = WaitsForPlan(until)
    return draft.decision(waits.reason, sentence(waits)), [ApplyService(draft.intent.uid)]


def _decide(
    intent: ParsedIntent, observation: RoundObservation, placement: RoundPlacement, running: RunningByShape
) -> tuple[Decision, list[Action]]:
    draft, demand = observation.draft_of[intent.uid], placement.assessed.get(intent.uid)
    if isinstance(demand, PlacementDemand) and demand.uid not in placement.targets:
        return _waiting_for_plan(draft, observation.unplanned_until[intent.uid])
    resting = draft.decision_without_actions()
    if resting is not None:
        return resting, []
    if isinstance(demand, PlacementDemand) and not _is_off(draft):
        undecided, target = draft.decision(Reason.PLACED, ""), placement.targets[demand.uid]
        decision, actions = deployment_placement(
            demand,
            undecided,
            target,
            running,
            observation.node_offers,
            placement.devices,
            placement.obstacles,
        )
        return decision, [ApplyService(intent.uid), *actions]
    return _without_demand(draft, demand)


def _is_off(draft: DecisionDraft) -> bool:
    return isinstance(draft.intent, Intent) and draft.intent.is_off


def _without_demand(draft: DecisionDraft, demand: Assessment) -> tuple[Decision, list[Action]]:
    """Decide for an LLMDeployment that gets no devices: it is off, unknown, or no shape serves it."""
    service: list[Action] = [ApplyService(draft.intent.uid)]
    if _is_off(draft):  # even while its checkpoint is unknown
        removals = [RemoveDeployment(w.owner_uid, w.namespace, w.name, w.uid) for w in draft.workloads]
        return draft.decision(Reason.SCALED_TO_ZERO, OFF), [*service, *removals]
    if demand is None:
        return draft.decision(Reason.WAITING_FOR_MODEL, "waits until condition ModelReady is True"), service
    return draft.decision(Reason.INFEASIBLE, f"{demand}; running replicas stay unchanged"), service
