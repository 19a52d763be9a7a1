"""Index, by node and owner, of the replicas to start and to stop in a transition: a step updates little."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement
from tangram.packing.transition.end_states import ReplicaPlacement
from tangram.packing.transition.fleet_state import FleetState, PlaceShape, Region, note

_NO_GOAL = 1 << 30  # more blockers than there are
Rank = tuple[int, int]  # fewest blockers of a goal that waits for the replica, goals that wait less others


@dataclass(slots=True)
class LeavingReplicas:
    """Replicas of one owner that have to leave, by which of them is drained first."""

    replicas: set[ReplicaPlacement] = field(default_factory=set)
    stale: set[ReplicaPlacement] = field(default_factory=set)  # counted anew before the next query
    ranks: dict[ReplicaPlacement, Rank] = field(default_factory=dict)
    ranked: list[tuple[Rank, ReplicaPlacement]] = field(default_factory=list)  # a heap with outdated entries


@dataclass(slots=True)
class Backlog:
    """Places on which replicas have to arrive (`pending`, sorted), replicas that leave (`leaving`)."""

    fleet: FleetState
    by_goals: bool  # replicas for which most goals wait are drained first, however many others are in the way
    pending: dict[ReplicaPlacement, None]
    leaving: set[ReplicaPlacement]
    fresh: set[ReplicaPlacement] = field(default_factory=set)  # goals whose node changed since the last look
    changed_owners: set[str] = field(default_factory=set)  # whose replicas changed since then
    _goals_at: dict[str, dict[ReplicaPlacement, None]] = field(default_factory=dict)
    _parked: dict[str, list[ReplicaPlacement]] = field(default_factory=dict)  # goals at a surge limit
    _shapes_of: dict[str, Counter[PlaceShape]] = field(default_factory=dict)  # goals of an owner
    _examples: dict[PlaceShape, ReplicaPlacement] = field(default_factory=dict)
    _leaving_of: dict[str, LeavingReplicas] = field(default_factory=dict)
    _leaving_at: dict[str, set[ReplicaPlacement]] = field(default_factory=dict)
    # Valid until something changes on a node: what its goals need, and which replicas block them.
    _regions: dict[str, list[Region]] = field(default_factory=dict)
    _blockers: dict[str, dict[ReplicaPlacement, list[ReplicaPlacement]]] = field(default_factory=dict)
    _counts: dict[str, dict[ReplicaPlacement, int]] = field(default_factory=dict)
    _owners: dict[str, dict[ReplicaPlacement, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fleet: FleetState,
        pending: Iterable[ReplicaPlacement],
        leaving: Iterable[ReplicaPlacement],
        *,
        by_goals: bool,
    ) -> "Backlog":
        """Return what is to be done in `fleet`."""
        backlog = cls(fleet, by_goals, dict.fromkeys(sorted(pending)), set())
        for goal in backlog.pending:
            backlog._goals_at.setdefault(backlog._node(goal), {})[goal] = None
            shape = fleet.shape(goal)
            backlog._shapes_of.setdefault(goal.owner, Counter())[shape] += 1
            backlog._examples.setdefault(shape, goal)
        for replica in leaving:
            backlog.add_leaving(replica)
        backlog.fresh |= backlog.pending.keys()
        return backlog

    def add_leaving(self, replica: ReplicaPlacement) -> None:
        """Note a replica that has to leave."""
        self.leaving.add(replica)
        self._leaving_at.setdefault(self._node(replica), set()).add(replica)
        leaving = self._leaving_of.setdefault(replica.owner, LeavingReplicas())
        leaving.replicas.add(replica)
        leaving.stale.add(replica)
        self.changed_owners.add(replica.owner)

    def arrived(self, replica: ReplicaPlacement, *, temporary: bool) -> None:
        """Note that a replica is on its place, for good or on a detour."""
        if not temporary:
            del self.pending[replica]
            del self._goals_at[self._node(replica)][replica]
            self._shapes_of[replica.owner] -= Counter([self.fleet.shape(replica)])
            note(self._parked.get(replica.owner, []), replica, listed=False)
        self._touch(replica)

    def left(self, replica: ReplicaPlacement) -> None:
        """Note that a replica has left."""
        self.leaving.discard(replica)
        self._leaving_at.get(self._node(replica), set()).discard(replica)
        if replica.owner in self._leaving_of:
            self._leaving_of[replica.owner].replicas.discard(replica)
        self._touch(replica)

    def park(self, replica: ReplicaPlacement) -> None:
        """Note a free goal whose owner is at its surge limit."""
        note(self._parked.setdefault(replica.owner, []), replica, listed=True)

    def next_parked(self, owner: str) -> ReplicaPlacement | None:
        """Take the first such goal. None: there is none."""
        parked = self._parked.get(owner)
        return parked.pop(0) if parked else None

    def leaving_of(self, owner: str) -> Collection[ReplicaPlacement]:
        """Return the replicas of one owner that have to leave."""
        return self._leaving_of[owner].replicas if owner in self._leaving_of else ()

    def most_wanted(self, owner: str) -> ReplicaPlacement:
        """Return the one of them that stands with the fewest others in the way of a goal, then of most goals.

        So the replica that a detour replaces goes before the one on the detour, also where only the fleet is
        known and not which replica made the detour.
        """
        leaving = self._leaving_of[owner]
        for replica in leaving.stale & leaving.replicas:
            leaving.ranks[replica] = rank = self._rank(replica)
            heappush(leaving.ranked, (rank, replica))
        leaving.stale.clear()
        while True:
            rank, replica = leaving.ranked[0]
            if replica in leaving.replicas and leaving.ranks[replica] == rank:
                return replica
            heappop(leaving.ranked)

    def _rank(self, replica: ReplicaPlacement) -> Rank:
        if self.by_goals:
            return 0, -self.wanting(replica)
        goals = self._goals_at.get(self._node(replica), ())
        others = (len(blockers) for blockers in map(self.blockers, goals) if replica in blockers)
        return min(others, default=_NO_GOAL), -self.wanting(replica)

    def shapes_of(self, owner: str) -> dict[PlaceShape, ReplicaPlacement]:
        """Return the shapes on which replicas of one owner have to arrive, each with an example."""
        return {shape: self._examples[shape] for shape in self._shapes_of.get(owner, ())}

    def blockers(self, goal: ReplicaPlacement) -> list[ReplicaPlacement]:
        """Return the replicas that have to leave before a wanted one may start, sorted."""
        cached = self._blockers.setdefault(self._node(goal), {})
        if goal not in cached:
            cached[goal] = self.fleet.blockers(goal)
        return cached[goal]

    def owners(self, goal: ReplicaPlacement) -> tuple[str, ...]:
        """Return the owners of the blockers of a goal; none where one of the blockers stays."""
        cached = self._owners.setdefault(self._node(goal), {})
        if goal not in cached:
            blockers = self.blockers(goal)
            cached[goal] = tuple(s.owner for s in blockers) if self.leaving.issuperset(blockers) else ()
        return cached[goal]

    def wanting(self, replica: ReplicaPlacement) -> int:
        """Return how many goals wait for what a replica takes up. What they need lies on one node."""
        node = self._node(replica)
        cached = self._counts.setdefault(node, {})
        if replica not in cached:
            if node not in self._regions:
                self._regions[node] = [self.fleet.region(goal) for goal in self._goals_at.get(node, ())]
            masks = [(gpu, self.mask(replica, gpu)) for gpu in replica.gpus]
            cached[replica] = sum(
                any(mask & region.get(gpu, 0) for gpu, mask in masks) for region in self._regions[node]
            )
        return cached[replica]

    def mask(self, replica: ReplicaPlacement, gpu: str) -> int:
        """Return the memory slices that a replica takes up of a GPU."""
        if replica.profile == WHOLE_GPU:
            return -1
        return self.fleet.mask(gpu, Placement(replica.start, replica.profile))

    def _touch(self, replica: ReplicaPlacement) -> None:
        node = self._node(replica)
        self.changed_owners.add(replica.owner)
        self.fresh |= self._goals_at.get(node, {}).keys()
        for leaving in self._leaving_at.get(node, ()):
            self._leaving_of[leaving.owner].stale.add(leaving)
        for cache in (self._regions, self._blockers, self._owners, self._counts):
            cache.pop(node, None)

    def _node(self, replica: ReplicaPlacement) -> str:
        return self.fleet.gpu(replica.gpus[0]).node
