"""Who has still to come and to go, by node and by owner: what a change concerns is found without a search."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry import Placement
from tangram.packing.seats import Seat
from tangram.packing.world import Region, World


@dataclass(slots=True)
class Waiting:
    """Replicas that have to come (`pending`, sorted) and those that have to go (`leaving`)."""

    world: World
    pending: dict[Seat, None]
    leaving: set[Seat]
    fresh: set[Seat] = field(default_factory=set)  # goals whose surroundings changed since somebody looked
    crews: set[str] = field(default_factory=set)  # owners of whom somebody came or went since then
    _goals_at: dict[str, dict[Seat, None]] = field(default_factory=dict)
    _goals_of: dict[str, set[Seat]] = field(default_factory=dict)
    _leaving_of: dict[str, set[Seat]] = field(default_factory=dict)
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
            made._goals_of.setdefault(goal.owner, set()).add(goal)
        for seat in leaving:
            made.goes(seat)
        made.fresh |= made.pending.keys()
        return made

    def goes(self, seat: Seat) -> None:
        """Note a replica that has to go."""
        self.leaving.add(seat)
        self._leaving_of.setdefault(seat.owner, set()).add(seat)
        self.crews.add(seat.owner)

    def came(self, seat: Seat, *, temporary: bool) -> None:
        """Note that a replica is on its place, for good or for a while."""
        if not temporary:
            del self.pending[seat]
            del self._goals_at[self._node(seat)][seat]
            self._goals_of[seat.owner].discard(seat)
        self._touch(seat)

    def gone(self, seat: Seat, *, makes_room: bool) -> None:
        """Note that a replica has left. `makes_room`: its owner may have one more again."""
        self.leaving.discard(seat)
        self._leaving_of.get(seat.owner, set()).discard(seat)
        self._touch(seat)
        if makes_room:
            self.fresh |= self._goals_of.get(seat.owner, set())

    def leaving_of(self, owner: str) -> set[Seat]:
        """Return the replicas of one owner that have to go."""
        return self._leaving_of.get(owner, set())

    def goals_of(self, owner: str) -> set[Seat]:
        """Return where replicas of one owner have to come."""
        return self._goals_of.get(owner, set())

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
        for known in (self._regions, self._blockers, self._owners, self._counts):
            known.pop(node, None)

    def _node(self, seat: Seat) -> str:
        return self.world.gpu(seat.gpus[0]).node
