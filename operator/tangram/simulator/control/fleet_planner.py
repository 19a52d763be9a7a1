"""The operator's planner in a simulation: actions for the cluster, computed when something changed."""

from collections.abc import Mapping

from tangram.fleet import Action, BackOff, CheckpointFacts, Fault, FleetSnapshot, Intent, Plan, Pool
from tangram.planner import plan
from tangram.simulator.cluster.cluster import SimulatedCluster
from tangram.simulator.cluster.observed_fleet import START_OF_TRACE, observed_fleet

_MOST_CACHED = 4096


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
        self.faults: set[Fault] = set()
        self.computed = 0  # plans that no cache answered
        self._cache: dict[FleetSnapshot, Plan] = {}
        self._performed: tuple[int, tuple[tuple[str, int], ...]] | None = None  # version and desired replicas

    def actions(self, cluster: SimulatedCluster, desired: Mapping[str, int], at: float) -> tuple[Action, ...]:
        """Return the actions of this round; none where the last plan was for the same cluster at any time."""
        state = cluster.version, tuple(sorted(desired.items()))
        if state == self._performed:
            return ()
        snapshot = observed_fleet(cluster, self.facts, desired, self.back_offs, self.prices, at, self.pools)
        timeless = not snapshot.back_offs and not any(w.unscheduled or w.refused for w in snapshot.workloads)
        planned = self._cache.get(snapshot) if timeless else None
        if planned is None:
            planned = plan(snapshot, self.intents, START_OF_TRACE + at)
            self.computed += 1
            if timeless:
                self._remember(snapshot, planned)
        self.back_offs = tuple(b for decision in planned.decisions for b in decision.back_offs)
        self.faults.update(planned.faults)
        self._performed = state if timeless and not self.back_offs else None
        return planned.actions

    def _remember(self, snapshot: FleetSnapshot, planned: Plan) -> None:
        if len(self._cache) >= _MOST_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[snapshot] = planned
