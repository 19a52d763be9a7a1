"""One round of planning up to its targets: what it reads, and which shape and devices each demand gets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from tangram.eligibility.acceptance import by_priority
from tangram.eligibility.isolation import Faulted, RoundStep, for_each
from tangram.eligibility.shapes.evaluation_reports import (
    CheckpointReports,
    Reports,
    reports,
    reports_by_checkpoint,
)
from tangram.fleet import EngineRuntime, FleetSnapshot, Intent, ParsedIntent, ReplicaMove, Shape
from tangram.plan.decision_draft import DecisionDraft, drafts
from tangram.plan.fleet_input.fleet import Fleet, read_fleet
from tangram.plan.fleet_input.free_capacity import FreeDevices, observe_free_devices, reserve_for_missing_pods
from tangram.plan.jobs.inspections import Inspections, observe_inspections
from tangram.plan.offers.assessment import assessment
from tangram.plan.offers.node_offers import NodeOffers, offers
from tangram.plan.place.now.avoided_shapes import avoided_shapes
from tangram.plan.place.now.back_off import Obstacles, observe_obstacles
from tangram.plan.place.now.placement_demand import PlacementDemand, ReplicaLimit
from tangram.plan.place.now.placement_targets import PlacementTarget, placement_targets
from tangram.plan.place.now.quotas import Quotas
from tangram.plan.place.now.replica_limits import replica_limits

uid_of = attrgetter("uid")
# A demand; why no shape serves it; None: it is off, or its checkpoint is not known yet.
Assessment = PlacementDemand | str | None


@dataclass(frozen=True, slots=True)
class RoundObservation:
    """What a round reads: the snapshot, and what follows from it before anything is decided."""

    fleet: Fleet
    intents: tuple[ParsedIntent, ...]  # by priority
    now: float  # epoch seconds
    faulted: Faulted
    inspections: Inspections
    node_offers: NodeOffers
    reports: Reports
    draft_of: Mapping[str, DecisionDraft]  # by uid
    unplanned_until: Mapping[str, float]  # when LLMDeployments stop to wait for a FleetPlan, by uid

    @property
    def snapshot(self) -> FleetSnapshot:
        """The snapshot of the fleet."""
        return self.fleet.snapshot

    @property
    def valid(self) -> tuple[Intent, ...]:
        """The LLMDeployments whose spec could be parsed."""
        return tuple(intent for intent in self.intents if isinstance(intent, Intent))

    @property
    def active(self) -> tuple[Intent, ...]:
        """The valid LLMDeployments that are planned."""
        return tuple(intent for intent in self.valid if self.draft_of[intent.uid].is_active)

    @property
    def idle(self) -> tuple[Intent, ...]:
        """The valid LLMDeployments that are left as they are."""
        return tuple(intent for intent in self.valid if not self.draft_of[intent.uid].is_active)

    @property
    def growing(self) -> tuple[Intent, ...]:
        """The valid LLMDeployments whose pods are to start."""
        return tuple(i for i in self.valid if i.uid not in self.faulted and not i.is_off)

    @property
    def moves(self) -> Mapping[str, ReplicaMove]:
        """The moves that the plan of the fleet has, by uid."""
        return {move.owner_uid: move for move in self.snapshot.partition.moves}


@dataclass(frozen=True, slots=True)
class RoundPlacement:
    """Which shape and devices the demands of a round get, and what limits them."""

    demands: tuple[PlacementDemand, ...]  # those that take devices
    assessed: Mapping[str, Assessment]  # of all active LLMDeployments, by uid
    targets: Mapping[str, PlacementTarget]  # of the demands, by uid
    devices: FreeDevices
    obstacles: Obstacles
    quotas: Quotas


def observe_round(
    snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float, faulted: Faulted
) -> RoundObservation:
    """Return what a round reads. Raises `StepsFailed` for LLMDeployments whose draft raises."""
    intents = by_priority(intents)
    fleet, inspections = read_fleet(snapshot), observe_inspections(snapshot)
    known_reports = reports(snapshot)
    draft_of = drafts(fleet, intents, inspections, faulted)
    return RoundObservation(
        fleet,
        intents,
        now,
        faulted,
        inspections,
        offers(fleet),
        known_reports,
        draft_of,
        unplanned_until=dict(snapshot.partition.unplanned),
    )


def place_round(observation: RoundObservation) -> RoundPlacement:
    """Return what each demand gets. Raises `StepsFailed` for those that cannot be assessed or placed."""
    snapshot, now = observation.snapshot, observation.now
    assessed = _assessed(observation)
    demands = _demands(observation, assessed)
    devices = observe_free_devices(observation.fleet, observation.intents)
    obstacles = observe_obstacles(snapshot, observation.growing, devices, now)
    quotas = Quotas(snapshot)
    demands = _limited(observation, demands, devices, obstacles, quotas)
    avoided = avoided_shapes(demands, obstacles.back_offs, devices, now)
    demands = tuple(replace(demand, avoided=avoided[demand.uid]) for demand in demands)
    targets = placement_targets(demands, observation.node_offers, devices)
    placed = {demand.uid: demand for demand in demands}
    return RoundPlacement(demands, {**assessed, **placed}, targets, devices, obstacles, quotas)


def _assessed(observation: RoundObservation) -> Mapping[str, Assessment]:
    by_checkpoint, active = reports_by_checkpoint(observation.reports), observation.active

    def assess(intent: Intent) -> Assessment:
        draft = observation.draft_of[intent.uid]
        return _assess(intent, draft, observation.node_offers, by_checkpoint, observation.snapshot.runtimes)

    assessments = for_each(RoundStep.ASSESSMENT, active, uid_of, assess)
    return dict(zip(map(uid_of, active), assessments, strict=True))


def _assess(
    intent: Intent,
    draft: DecisionDraft,
    node_offers: NodeOffers,
    by_checkpoint: CheckpointReports,
    runtimes: tuple[EngineRuntime, ...],
) -> Assessment:
    """Assess every shape for one LLMDeployment, or return why none could serve what its spec asks for.

    None: it is off, or its checkpoint is not known yet.
    """
    facts = draft.model.facts
    if intent.is_off or facts is None:
        return None
    present = [workload.shape for workload in draft.workloads]
    shapes = assessment(intent, facts, node_offers, by_checkpoint, present, runtimes)
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


def _demands(
    observation: RoundObservation, assessed: Mapping[str, Assessment]
) -> tuple[PlacementDemand, ...]:
    """Return the demands that take devices now, with the moves that the plan of the fleet has for them."""
    moves, until = observation.moves, observation.unplanned_until
    return tuple(
        replace(demand, move=moves.get(demand.uid))
        for demand in assessed.values()
        if isinstance(demand, PlacementDemand) and not _waits_for_plan(demand, until, observation.now)
    )


def _waits_for_plan(demand: PlacementDemand, unplanned_until: Mapping[str, float], now: float) -> bool:
    """Whether it takes no device before the plan of the fleet says whether GPUs are cut for it."""
    return not demand.workloads and now < unplanned_until.get(demand.uid, 0.0)


def _limited(
    observation: RoundObservation,
    demands: tuple[PlacementDemand, ...],
    devices: FreeDevices,
    obstacles: Obstacles,
    quotas: Quotas,
) -> tuple[PlacementDemand, ...]:
    """Return the demands with their limits, once pods that are still missing have their devices."""
    snapshot = observation.snapshot
    limits = replica_limits(demands, snapshot, obstacles, devices, quotas, observation.now)
    expected = {uid: draft.expected_replicas for uid, draft in observation.draft_of.items()}
    max_replicas = _max_replicas(limits, obstacles)
    reserve_for_missing_pods(devices, snapshot, observation.intents, expected, max_replicas)
    return tuple(replace(demand, limits=limits[demand.uid]) for demand in demands)


def _max_replicas(
    limits: Mapping[str, Mapping[Shape, ReplicaLimit]], obstacles: Obstacles
) -> Mapping[tuple[str, Shape], int]:
    """Return the most replicas by uid and shape: by limits, or by back-off of what is paused or refused."""
    others = (b for uid, back_offs in obstacles.back_offs.items() if uid not in limits for b in back_offs)
    return {(b.owner_uid, b.shape): b.replicas for b in others} | {
        (uid, shape): limit.replicas for uid, own in limits.items() for shape, limit in own.items()
    }
