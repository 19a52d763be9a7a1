"""Who has still to come and to go, by node and by owner: what a change concerns is found without a search."""

from bisect import bisect, bisect_left
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry import Placement
from tangram.packing.seats import Seat
from tangram.packing.world import Region, Shape, World


@dataclass(slots=True)
class Leaving:
    """Replicas of one owner that have to go, by how many others wait for each."""

    seats: set[Seat] = field(default_factory=set)
    stale: set[Seat] = field(default_factory=set)  # counted anew before anybody asks again
    counts: dict[Seat, int] = field(default_factory=dict)
    ranked: list[tuple[int, Seat]] = field(default_factory=list)  # a heap, with entries that hold no more


@dataclass(slots=True)
class Waiting:
    """Replicas that have to come (`pending`, sorted) and those that have to go (`leaving`)."""

    world: World
    pending: dict[Seat, None]
    leaving: set[Seat]
    fresh: set[Seat] = field(default_factory=set)  # goals whose surroundings changed since somebody looked
    crews: set[str] = field(default_factory=set)  # owners of whom somebody came or went since then
    _goals_at: dict[str, dict[Seat, None]] = field(default_factory=dict)
    _parked: dict[str, list[Seat]] = field(default_factory=dict)  # goals of owners with no one more, sorted
    _shapes_of: dict[str, Counter[Shape]] = field(default_factory=dict)  # goals of an owner
    _examples: dict[Shape, Seat] = field(default_factory=dict)
    _leaving_of: dict[str, Leaving] = field(default_factory=dict)
    _leaving_at: dict[str, set[Seat]] = field(default_factory=dict)
    # Until something changes on a node: what its goals need, who is in their way, of how many others.
    _regions: dict[str, list[Region]] = field(default_factory=dict)
    _blockers: dict[str, dict[Seat, list[Seat]]] = field(default_factory=dict)
    _counts: dict[str, dict[Seat, int]] = field(default_factory=dict)
    _owners: dict[str, dict[Seat, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World, pending: Iterable[Seat], leaving: Iterable[Seat]) -> "Waiting":
        """Return all that is to be done in `world`."""
        made = cls(world, dict.fromkeys(sorted(pending)), set())
        for goal in made.pending:
            made._goals_at.setdefault(made._node(goal), {})[goal] = None
            shape = world.shape(goal)
            made._shapes_of.setdefault(goal.owner, Counter())[shape] += 1
            made._examples.setdefault(shape, goal)
        for seat in leaving:
            made.goes(seat)
        made.fresh |= made.pending.keys()
        return made

    def goes(self, seat: Seat) -> None:
        """Note a replica that has to go."""
        self.leaving.add(seat)
        self._leaving_at.setdefault(self._node(seat), set()).add(seat)
        mine = self._leaving_of.setdefault(seat.owner, Leaving())
        mine.seats.add(seat)
        mine.stale.add(seat)
        self.crews.add(seat.owner)

    def came(self, seat: Seat, *, temporary: bool) -> None:
        """Note that a replica is on its place, for good or for a while."""
        if not temporary:
            del self.pending[seat]
            del self._goals_at[self._node(seat)][seat]
            self._shapes_of[seat.owner] -= Counter([self.world.shape(seat)])
            self._unpark(seat)
        self._touch(seat)

    def gone(self, seat: Seat) -> None:
        """Note that a replica has left."""
        self.leaving.discard(seat)
        self._leaving_at.get(self._node(seat), set()).discard(seat)
        if seat.owner in self._leaving_of:
            self._leaving_of[seat.owner].seats.discard(seat)
        self._touch(seat)

    def park(self, seat: Seat) -> None:
        """Note a goal that is free, of an owner that may not have one more until somebody of theirs goes."""
        parked = self._parked.setdefault(seat.owner, [])
        at = bisect_left(parked, seat)
        if at == len(parked) or parked[at] != seat:
            parked.insert(at, seat)

    def next_parked(self, owner: str, after: Seat | None) -> Seat | None:
        """Take the first such goal behind another, or the first of all. None: there is none."""
        parked = self._parked.get(owner)
        if not parked:
            return None
        at = bisect(parked, after) if after is not None else 0
        return parked.pop(at if at < len(parked) else 0)

    def _unpark(self, seat: Seat) -> None:
        parked = self._parked.get(seat.owner, [])
        at = bisect_left(parked, seat)
        if at < len(parked) and parked[at] == seat:
            del parked[at]

    def leaving_of(self, owner: str) -> Collection[Seat]:
        """Return the replicas of one owner that have to go."""
        return self._leaving_of[owner].seats if owner in self._leaving_of else ()

    def most_wanted(self, owner: str) -> Seat:
        """Return the one of them that most others wait for."""
        mine = self._leaving_of[owner]
        for seat in mine.stale & mine.seats:
            mine.counts[seat] = count = self.wanting(seat)
            heappush(mine.ranked, (-count, seat))
        mine.stale.clear()
        while True:
            count, seat = mine.ranked[0]
            if seat in mine.seats and mine.counts[seat] == -count:
                return seat
            heappop(mine.ranked)

    def shapes_of(self, owner: str) -> dict[Shape, Seat]:
        """Return the shapes in which replicas of one owner have to come, each with an example."""
        return {shape: self._examples[shape] for shape in self._shapes_of.get(owner, ())}

    def blockers(self, goal: Seat) -> list[Seat]:
        """Return who has to leave before a wanted replica may come, sorted."""
        known = self._blockers.setdefault(self._node(goal), {})
        if goal not in known:
            known[goal] = self.world.blockers(goal)
        return known[goal]

    def owners(self, goal: Seat) -> tuple[str, ...]:
        """Return whose replicas have to leave before a wanted one may come; none: nobody's, or one stays."""
        known = self._owners.setdefault(self._node(goal), {})
        if goal not in known:
            there = self.blockers(goal)
            known[goal] = tuple(s.owner for s in there) if self.leaving.issuperset(there) else ()
        return known[goal]

    def wanting(self, seat: Seat) -> int:
        """Return how many wait for what a replica takes up. What they need never lies on another node."""
        node = self._node(seat)
        known = self._counts.setdefault(node, {})
        if seat not in known:
            if node not in self._regions:
                self._regions[node] = [self.world.region(goal) for goal in self._goals_at.get(node, ())]
            masks = [(gpu, self.mask(seat, gpu)) for gpu in seat.gpus]
            known[seat] = sum(
                any(mask & region.get(gpu, 0) for gpu, mask in masks) for region in self._regions[node]
            )
        return known[seat]

    def mask(self, seat: Seat, gpu: str) -> int:
        """Return the memory slices that a replica takes up of a GPU."""
        if seat.profile == WHOLE_GPU:
            return -1
        return self.world.mask(gpu, Placement(seat.start, seat.profile))

    def _touch(self, seat: Seat) -> None:
        node = self._node(seat)
        self.crews.add(seat.owner)
        self.fresh |= self._goals_at.get(node, {}).keys()
        for there in self._leaving_at.get(node, ()):
            self._leaving_of[there.owner].stale.add(there)
        for known in (self._regions, self._blockers, self._owners, self._counts):
            known.pop(node, None)

    def _node(self, seat: Seat) -> str:
        return self.world.gpu(seat.gpus[0]).node
