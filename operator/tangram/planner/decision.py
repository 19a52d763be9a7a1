"""The plan for the whole fleet: observe, assess shapes, place replicas, and collect decisions and actions."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from tangram.eligibility.acceptance import by_priority
from tangram.eligibility.isolation import Faulted, RoundStep, for_each, isolated
from tangram.eligibility.reasons import OFF, Reason
from tangram.eligibility.shapes.evaluation_reports import CheckpointReports, reports, reports_by_checkpoint
from tangram.fleet import (
    Action,
    ApplyService,
    Decision,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    Plan,
    RemoveDeployment,
    ReplicaMove,
    ScaleDeployment,
    Shape,
)
from tangram.fleet.times import rfc3339
from tangram.planner.decision_draft import DecisionDraft, drafts
from tangram.planner.jobs.evaluations import plan_evaluations
from tangram.planner.jobs.inspections import inspection_actions, observe_inspections
from tangram.planner.observe.back_off import Obstacles, observe_obstacles
from tangram.planner.observe.free_capacity import FreeDevices, observe_free_devices, reserve_for_missing_pods
from tangram.planner.observe.node_offers import NodeOffers, offers, running_replica_hour
from tangram.planner.observe.running_replicas import RunningByShape, observe_running_replicas
from tangram.planner.placement.assessment import assessment
from tangram.planner.placement.avoided_shapes import avoided_shapes
from tangram.planner.placement.placement_demand import PlacementDemand, ReplicaLimit
from tangram.planner.placement.placement_targets import PlacementTarget, moved_shape, placement_targets
from tangram.planner.placement.quotas import Quotas
from tangram.planner.placement.replica_limits import replica_limits
from tangram.planner.rollout.deployment_placement import deployment_placement

_uid = attrgetter("uid")
# Why replicas have no device though a FleetPlan of changes may give them one.
_SERVED_BY_CHANGES = (Reason.INFEASIBLE, Reason.INSUFFICIENT_CAPACITY, Reason.SLO_UNREACHABLE)
_REMOVALS = (RemoveDeployment, ScaleDeployment)  # performed after everything that is created


def plan(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float) -> Plan:
    """Return the plan for the fleet as observed in `snapshot` at `now` (epoch seconds).

    Level-triggered: the actions are the whole desired set, and the shell writes the differences. What no
    action names stays as it is: there is no action for what is paused, refused, infeasible, or waits for its
    checkpoint. Equal inputs, in any order, give equal plans. An LLMDeployment for which a step raises is left
    as it is, and the others get the plan that they would get beside a paused one.
    """
    unique = _oldest_per_uid(intents)
    uids = (intent.uid for intent in unique)
    result, faults = isolated(lambda faulted: _plan(snapshot, unique, now, faulted), uids, snapshot.faults)
    return replace(result, faults=faults)


def _oldest_per_uid(intents: tuple[ParsedIntent, ...]) -> tuple[ParsedIntent, ...]:
    """Return the oldest LLMDeployment of each uid. Kubernetes never has two; a document may."""
    oldest: dict[str, ParsedIntent] = {}
    for intent in sorted(intents, key=lambda i: (i.created_at, i.namespace, i.name)):
        oldest.setdefault(intent.uid, intent)
    return tuple(oldest.values())


def _plan(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float, faulted: Faulted) -> Plan:
    """Plan once. Raises `StepsFailed` for LLMDeployments that are not `faulted` yet and whose steps raise."""
    intents = by_priority(intents)
    inspections, node_offers = observe_inspections(snapshot), offers(snapshot)
    known_reports = reports(snapshot)
    by_checkpoint = reports_by_checkpoint(known_reports)
    draft_of = drafts(snapshot, intents, inspections, faulted)
    valid = tuple(intent for intent in intents if isinstance(intent, Intent))
    active = tuple(intent for intent in valid if draft_of[intent.uid].is_active)
    idle = tuple(intent for intent in valid if not draft_of[intent.uid].is_active)

    def demand(intent: Intent) -> PlacementDemand | str | None:
        return _demand(intent, draft_of[intent.uid], node_offers, by_checkpoint)

    assessed = dict(zip(map(_uid, active), for_each(RoundStep.ASSESSMENT, active, _uid, demand), strict=True))
    unplanned = dict(snapshot.partition.unplanned)
    demands = tuple(
        d
        for d in assessed.values()
        if isinstance(d, PlacementDemand) and not _waits_for_plan(d, unplanned, now)
    )
    devices = observe_free_devices(snapshot, intents)
    growing = tuple(intent for intent in valid if intent.uid not in faulted and not intent.is_off)
    obstacles = observe_obstacles(snapshot, growing, devices, now)
    moves = {move.owner_uid: move for move in snapshot.partition.moves}
    demands = tuple(replace(d, move=moves.get(d.uid)) for d in demands)
    quotas = Quotas(snapshot)
    limits = replica_limits(demands, snapshot, obstacles, devices, quotas, now)
    demands = tuple(replace(d, limits=limits[d.uid]) for d in demands)
    assessed |= {d.uid: d for d in demands}
    expected = {uid: draft.expected_replicas for uid, draft in draft_of.items()}
    reserve_for_missing_pods(devices, snapshot, intents, expected, _max_replicas(limits, obstacles))
    avoided = avoided_shapes(demands, obstacles.back_offs, devices, now)
    demands = tuple(replace(d, avoided=avoided[d.uid]) for d in demands)
    assessed |= {d.uid: d for d in demands}
    targets = placement_targets(demands, node_offers, devices)
    running = observe_running_replicas(snapshot)

    def decide(intent: ParsedIntent) -> tuple[Decision, list[Action]]:
        demand = assessed.get(intent.uid)
        if isinstance(demand, PlacementDemand) and demand.uid not in targets:
            return _waiting_for_plan(draft_of[intent.uid], unplanned[intent.uid])
        own = running.get(intent.uid, {})
        return _decide(draft_of[intent.uid], demand, targets, own, node_offers, devices, obstacles)

    decided = for_each(RoundStep.PLACE, intents, _uid, decide)
    others = tuple(intent for intent in valid if intent.uid not in targets)
    evaluations = plan_evaluations(
        demands, others, targets, snapshot, known_reports, node_offers, devices, quotas, now
    )
    actions = [*inspection_actions(inspections, active, idle, now), *evaluations.ends]
    for _, own in decided:
        actions += own
    actions.sort(key=lambda action: isinstance(action, _REMOVALS))  # stable
    back_offs = {uid: tuple(b for b in snapshot.back_offs if b.owner_uid == uid) for uid in faulted}
    back_offs |= obstacles.back_offs

    def completed(decision: Decision) -> Decision:
        uid = decision.owner_uid
        message = "; ".join(filter(None, (decision.placed_message, evaluations.notes.get(uid))))
        counted = _with_running(decision, snapshot, running.get(uid, {}))
        return replace(counted, back_offs=back_offs.get(uid, ()), placed_message=message)

    immovable = _immovable(moves, draft_of, assessed)
    waiting = dict(reversed(snapshot.partition.waiting))
    names = {intent.uid: f"{intent.namespace}/{intent.name}" for intent in intents}
    return Plan(
        tuple(
            _waiting_for_consent(completed(decision), waiting.get(names[decision.owner_uid], ""))
            for decision, _ in decided
        ),
        (*actions, *evaluations.starts),
        immovable=immovable,
    )


def _waiting_for_consent(decision: Decision, plan: str) -> Decision:
    """Return the decision with the FleetPlan that would serve the LLMDeployment and waits for a person."""
    if not plan or decision.placed_reason not in _SERVED_BY_CHANGES:
        return decision
    text = f"FleetPlan {plan} serves it and waits for consent: tangram approve {plan}"
    message = f"{text}; without it: {decision.placed_message}"
    return replace(decision, placed_reason=Reason.WAITING_FOR_CONSENT, placed_message=message, consent=plan)


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
            reasons[uid] = f"{move.shape} does not serve it any more, or its placement excludes it"
    return tuple(sorted(reasons.items()))


def _with_running(decision: Decision, snapshot: FleetSnapshot, own: RunningByShape) -> Decision:
    """Return a decision that counts, with their price, the replicas that run beside those that are placed."""
    cost: float | None = decision.price_per_hour
    for shape, running in own.items():
        more = running.replicas - (decision.placed if shape == decision.shape else 0)
        price = running_replica_hour(snapshot, decision.owner_uid, shape) if more > 0 else 0.0
        cost = None if cost is None or price is None else cost + max(0, more) * price
    counts = tuple(sorted((shape, running.replicas) for shape, running in own.items() if running.replicas))
    return replace(decision, running=counts, cost_per_hour=cost)


def _waits_for_plan(demand: PlacementDemand, unplanned: Mapping[str, float], now: float) -> bool:
    """Whether it takes no device before the plan of the fleet says whether GPUs are cut for it."""
    return not demand.workloads and now < unplanned.get(demand.uid, 0.0)


def _waiting_for_plan(draft: DecisionDraft, until: float) -> tuple[Decision, list[Action]]:
    text = f"waits for the plan of the fleet, which may cut GPUs for it, until {rfc3339(until)}"
    return draft.decision(Reason.WAITING_FOR_SLICES, text), [ApplyService(draft.intent.uid)]


def _max_replicas(
    limits: Mapping[str, Mapping[Shape, ReplicaLimit]], obstacles: Obstacles
) -> Mapping[tuple[str, Shape], int]:
    """Return the most replicas by uid and shape: by limits, or by back-off of what is paused or refused."""
    others = (b for uid, back_offs in obstacles.back_offs.items() if uid not in limits for b in back_offs)
    return {(b.owner_uid, b.shape): b.replicas for b in others} | {
        (uid, shape): limit.replicas for uid, own in limits.items() for shape, limit in own.items()
    }


def _demand(
    intent: Intent, draft: DecisionDraft, node_offers: NodeOffers, by_checkpoint: CheckpointReports
) -> PlacementDemand | str | None:
    """Assess every shape for one LLMDeployment, or return why none could serve what its spec asks for.

    None: it is off, or its checkpoint is not known yet.
    """
    facts = draft.model.facts
    if intent.is_off or facts is None:
        return None
    present = [workload.shape for workload in draft.workloads]
    shapes = assessment(intent, facts, node_offers, by_checkpoint, present)
    if isinstance(shapes, str):
        return shapes
    return PlacementDemand(
        intent,
        facts,
        shapes,
        draft.workloads,
        draft.desired,
        draft.desired_shape,
        draft.is_refused,
        load=draft.load,
    )


def _decide(
    draft: DecisionDraft,
    demand: PlacementDemand | str | None,
    targets: Mapping[str, PlacementTarget],
    running: RunningByShape,
    node_offers: NodeOffers,
    devices: FreeDevices,
    obstacles: Obstacles,
) -> tuple[Decision, list[Action]]:
    resting = draft.decision_without_actions()
    if resting is not None:
        return resting, []
    intent = draft.intent
    service: list[Action] = [ApplyService(intent.uid)]
    if isinstance(intent, Intent) and intent.is_off:  # even while its checkpoint is unknown
        removals = [RemoveDeployment(w.owner_uid, w.namespace, w.name, w.uid) for w in draft.workloads]
        return draft.decision(Reason.SCALED_TO_ZERO, OFF), [*service, *removals]
    if demand is None:
        return draft.decision(Reason.WAITING_FOR_MODEL, "waits until condition ModelReady is True"), service
    if isinstance(demand, str):
        return draft.decision(Reason.INFEASIBLE, f"{demand}; running replicas stay unchanged"), service
    undecided, target = draft.decision(Reason.PLACED, ""), targets[demand.uid]
    decision, actions = deployment_placement(
        demand, undecided, target, running, node_offers, devices, obstacles
    )
    return decision, [*service, *actions]
