"""The operator's planner in a simulation: actions for the cluster, computed when something changed."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tangram.fleet import (
    Action,
    BackOff,
    CheckpointFacts,
    Decision,
    Fault,
    FleetSnapshot,
    Intent,
    Plan,
    Pool,
    Workload,
)
from tangram.plan import plan
from tangram.scaling import ScalingParams, SupplyMemory
from tangram.scaling.ordered_replicas import ShapeStart, observe_shapes, start_outcomes
from tangram.simulator.cluster.cluster import SimulatedCluster
from tangram.simulator.cluster.observed_fleet import START_OF_TRACE, DesiredReplicas, observed_fleet

_MOST_CACHED = 4096
NO_STARTS: Mapping[str, tuple[ShapeStart, ...]] = MappingProxyType({})
_PARAMS = ScalingParams(window_s=60.0, scrape_interval_s=15.0, up_after_s=30.0, down_after_s=300.0)


class FleetPlanner:
    """Plans rounds. Plans that do not depend on the time are cached by the snapshot that they are for."""

    def __init__(
        self,
        intents: tuple[Intent, ...],
        facts: Mapping[str, CheckpointFacts],
        prices: Mapping[str, float],
        pools: tuple[Pool, ...] = (),
    ) -> None:
        self.intents, self.facts, self.prices, self.pools = intents, facts, prices, pools
        self.back_offs: tuple[BackOff, ...] = ()
        self.starts: dict[str, tuple[ShapeStart, ...]] = {}  # by UID
        self.faults: set[Fault] = set()
        self.computed = 0  # plans that no cache answered
        self.decisions: tuple[Decision, ...] = ()  # of the last plan
        self.workloads: tuple[Workload, ...] = ()  # that it is based on
        self._cache: dict[FleetSnapshot, Plan] = {}
        self._performed: tuple[int, Mapping[str, DesiredReplicas]] | None = None  # its version of the cluster

    def actions(
        self,
        cluster: SimulatedCluster,
        desired: Mapping[str, DesiredReplicas],
        at: float,
        starts: Mapping[str, tuple[ShapeStart, ...]] = NO_STARTS,
    ) -> tuple[Action, ...]:
        """Return the actions of this round; none where the last plan was for the same cluster at any time.

        `starts` are those that scaling laws have observed, by UID; the others are observed here.
        """
        state, now = (cluster.version, desired), START_OF_TRACE + at
        if state == self._performed:
            self._observe_starts(starts, now)
            return ()
        snapshot = observed_fleet(cluster, self.facts, desired, self.back_offs, self.prices, at, self.pools)
        self.workloads = snapshot.workloads
        self._observe_starts(starts, now)
        snapshot = self._with_start_outcomes(snapshot)
        timeless = not snapshot.back_offs and not any(_depends_on_time(w) for w in snapshot.workloads)
        planned = self._cache.get(snapshot) if timeless else None
        if planned is None:
            planned = plan(snapshot, self.intents, now)
            self.computed += 1
            if timeless:
                self._remember(snapshot, planned)
        self.decisions = planned.decisions
        self.back_offs = tuple(b for decision in planned.decisions for b in decision.back_offs)
        self.faults.update(planned.faults)
        self._performed = state if timeless and not self.back_offs else None
        return planned.actions

    def _observe_starts(self, observed: Mapping[str, tuple[ShapeStart, ...]], now: float) -> None:
        """Take over the starts that laws have observed; observe the others as the operator's law does, under
        the deadline before one was measured.
        """
        for uid in (intent.uid for intent in self.intents):
            own = [workload for workload in self.workloads if workload.owner_uid == uid]
            before = self.starts.get(uid, ())
            self.starts[uid] = (
                observed[uid]
                if uid in observed
                else observe_shapes(before, own, SupplyMemory(), _PARAMS, now)
            )

    def _with_start_outcomes(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        outcomes = [o for uid, starts in sorted(self.starts.items()) for o in start_outcomes(uid, starts)]
        if not self.back_offs and not any(outcome.is_late for outcome in outcomes):
            return snapshot  # what is ready changes no plan then, and no cached one
        return replace(snapshot, start_outcomes=tuple(outcomes))

    def _remember(self, snapshot: FleetSnapshot, planned: Plan) -> None:
        if len(self._cache) >= _MOST_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[snapshot] = planned


def _depends_on_time(workload: Workload) -> bool:
    """Whether plans change with the time alone: pods may be waited for until a deadline."""
    is_starting = workload.replicas > 0 and not workload.ready
    return bool(workload.unscheduled or workload.refused or is_starting)
