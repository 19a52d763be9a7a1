"""Build what one round plans on: parsed LLMDeployments, the replicas that each needs, and the fleet snapshot.

Objects that cannot be read are left out. The LLMDeployment that such an object belongs to has a fault, and
the planner leaves it as it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tangram.fleet import (
    BackOff,
    CheckpointFacts,
    FleetSnapshot,
    Intent,
    MIGPolicy,
    ParsedIntent,
    PoolPolicy,
    WriteProblem,
    claiming_pools,
)
from tangram.kube.kinds import Object
from tangram.plan.fleet_input.fleet import may_use
from tangram.plan.jobs.inspections import key_of
from tangram.shell.measure.fault_log import FaultLog, display_name
from tangram.shell.measure.predicted_capacities import CapacityInputs
from tangram.shell.measure.scaler import Scaler, ScalingResult, provisioned_loads
from tangram.shell.settings import Settings
from tangram.shell.snapshot.broken_objects import without_broken_objects
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import DuplicateUID, parsed_intents, unreadable_intents
from tangram.shell.snapshot.offered_devices import OfferedDevices
from tangram.shell.snapshot.ownership import llm_deployment_uid
from tangram.shell.snapshot.recorded_status import (
    recorded_back_offs,
    recorded_replicas,
    recorded_scaling,
    recorded_variants,
)
from tangram.shell.snapshot.start_times import start_times
from tangram.shell.snapshot.workloads import engine_pod_names
from tangram.shell.watch.mirror_view import MirrorView

NO_WARNINGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Observation:
    """What one round plans on."""

    now: float  # seconds since the epoch
    view: MirrorView  # without objects that cannot be read
    parsed: tuple[ParsedIntent, ...]  # all LLMDeployments
    intents: tuple[Intent, ...]  # those with a spec in force
    pod_names: Mapping[str, tuple[str, ...]]  # of their engines, by UID
    scaling: Mapping[str, ScalingResult]  # by UID
    snapshot: FleetSnapshot


@dataclass(slots=True)
class Observer:
    """Makes the observation of each round. Scaler and offered devices remember earlier rounds."""

    settings: Settings
    scaler: Scaler
    faults: FaultLog
    devices: OfferedDevices = field(default_factory=OfferedDevices)

    def observe(
        self,
        view: MirrorView,
        now: float,
        problems: Iterable[WriteProblem] = (),
        evaluation_problems: Iterable[WriteProblem] = (),
        back_offs: dict[str, tuple[BackOff, ...]] | None = None,
        warnings: Mapping[str, str] = NO_WARNINGS,
    ) -> Observation:
        """Return what the mirrors show. `back_offs`, by UID, are newer than those in statuses. `warnings`, by
        UID, are added to those about specs.
        """
        view = without_broken_objects(view, self.record_unreadable)
        observed = fleet_snapshot(view, self.settings, now, self.record_unreadable)
        parsed = self._parsed(view, observed, warnings)
        intents = tuple(intent for intent in parsed if isinstance(intent, Intent))
        scaling = self._scaling(view, observed, intents, now)
        back_offs_by_uid = recorded_back_offs(view, self.record_unreadable) | (back_offs or {})
        of_intents = (back_off for intent in intents for back_off in back_offs_by_uid.get(intent.uid, ()))
        snapshot = replace(
            self._with_memory(observed, scaling, now),
            problems=_sorted(problems),
            evaluation_problems=_sorted(evaluation_problems),
            back_offs=tuple(sorted(of_intents)),
            faults=self.faults.faults,
        )
        return Observation(now, view, parsed, intents, engine_pod_names(view), scaling, snapshot)

    def _parsed(
        self, view: MirrorView, observed: FleetSnapshot, warnings: Mapping[str, str]
    ) -> tuple[ParsedIntent, ...]:
        settings = self.settings
        readable = parsed_intents(
            view,
            self.record_unreadable,
            settings.default_priority_class_name,
            settings.engine.pod_metadata_keys,
            settings.pod_needs,
            observed,
        )
        readable = tuple(_warned(intent, warnings) for intent in readable)
        return *readable, *unreadable_intents(view, readable, self.faults.faults)

    def _scaling(
        self, view: MirrorView, observed: FleetSnapshot, intents: tuple[Intent, ...], now: float
    ) -> Mapping[str, ScalingResult]:
        runtimes = {runtime.name: runtime for runtime in observed.runtimes}
        return self.scaler.decide(
            intents,
            observed.workloads,
            recorded_replicas(view),
            now,
            recorded_variants(view),
            self.faults,
            recorded_scaling(view),
            CapacityInputs(_facts_of(intents, observed), start_times(view), runtimes),
        )

    def _with_memory(
        self, observed: FleetSnapshot, scaling: Mapping[str, ScalingResult], now: float
    ) -> FleetSnapshot:
        """Return the snapshot with what the scaler and the offered devices know from earlier rounds."""
        return replace(
            observed,
            nodes=self.devices.remember(observed.nodes, now, observed.partition.nodes),
            desired=tuple(sorted((uid, result.decision.replicas) for uid, result in scaling.items())),
            desired_of=self.scaler.counted_shapes(),
            provisioned=provisioned_loads(scaling),
            start_outcomes=self.scaler.start_outcomes(),
        )

    def record_unreadable(self, obj: Object, error: Exception) -> None:
        """Record an object that cannot be read as a fault of the LLMDeployment that it belongs to."""
        uid = "" if isinstance(error, DuplicateUID) else llm_deployment_uid(obj)
        self.faults.record("read", display_name(obj), uid, error)


def _warned(intent: ParsedIntent, warnings: Mapping[str, str]) -> ParsedIntent:
    if not isinstance(intent, Intent) or intent.uid not in warnings:
        return intent
    return replace(intent, warnings=(*intent.warnings, warnings[intent.uid]))


def _facts_of(intents: Iterable[Intent], snapshot: FleetSnapshot) -> dict[str, CheckpointFacts]:
    """Return the facts of their checkpoints, by UID, as far as they are known."""
    facts = snapshot.known_facts
    keys = {intent.uid: key_of(intent, snapshot.engine_image) for intent in intents}
    return {uid: facts[key] for uid, key in keys.items() if key in facts}


def with_unplanned(observed: Observation, unplanned: tuple[tuple[str, float], ...]) -> Observation:
    """Return the observation with the LLMDeployments that wait for a plan of the fleet: those among
    `unplanned`, by UID, that may run on GPUs which plans may cut.
    """
    snapshot = observed.snapshot
    cuttable = places_to_cut(snapshot)
    may_wait = {
        intent.uid
        for intent in observed.intents
        if intent.mig is not MIGPolicy.FORBIDDEN and any(may_use(intent.pools, place) for place in cuttable)
    }
    waiting = tuple((uid, until) for uid, until in unplanned if uid in may_wait)
    return replace(
        observed, snapshot=replace(snapshot, partition=replace(snapshot.partition, unplanned=waiting))
    )


def places_to_cut(snapshot: FleetSnapshot) -> frozenset[tuple[str, ...]]:
    """Return the GPUPools that select nodes with a GPU which plans may cut, at once or with consent."""
    policies, partitions = {pool.name: pool.policy for pool in snapshot.pools}, snapshot.partition.by_node
    places = set()
    for node in snapshot.nodes:
        partition, place = partitions.get(node.name), claiming_pools(node, snapshot.pools)
        if place and node.name in snapshot.partition.arriving:
            places.add(place)
        if partition is None or partition.problem or not place or not node.usable:
            continue
        if policies[place[0]] is not PoolPolicy.IGNORE and any(gpu.is_cuttable for gpu in partition.gpus):
            places.add(place)
    return frozenset(places)


def _sorted(problems: Iterable[WriteProblem]) -> tuple[WriteProblem, ...]:
    return tuple(sorted(problems, key=lambda problem: problem.owner_uid))
