"""The fleet between two steps: slices, the replicas on them, what blocks a place, where there is room."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.board import Board
from tangram.packing.geometry.gangs import gangs_that_fit
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.packing.problem.statement import GPUState, Problem
from tangram.packing.transition.end_states import EndStates, ReplicaPlacement

Region = Mapping[str, int]  # GPU -> memory slices as a mask
Noted = TypeVar("Noted", str, ReplicaPlacement)
PlaceShape = tuple[str, str, int]  # SKU, profile, GPUs
MOST_EFFORT = 10_000_000  # of one search
_GEOMETRY = 8  # effort of one check of a layout


@dataclass(slots=True)
class Effort:
    """Search effort that is left, in GPUs and replicas looked at: a count, so that equal inputs end equal."""

    left: int = MOST_EFFORT
    late: Callable[[], bool] | None = None  # whether a time limit is over, whatever is left of the count

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or self.out_of_time

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit is over."""
        return self.late is not None and self.late()


@dataclass(slots=True)
class Openings:
    """Where slices of one profile of one SKU are free or can be made: only changes are looked at again."""

    stale: set[str]  # GPUs to look at
    existing: list[str] = field(default_factory=list)  # GPUs with such a free slice, sorted
    creatable: list[str] = field(default_factory=list)  # GPUs where one can be made, sorted


@dataclass(slots=True)
class FleetState:
    """State between two steps, with indexes of what is looked up often."""

    problem: Problem
    ends: EndStates
    kept: frozenset[ReplicaPlacement]  # serve on undisturbed
    mig_on: dict[str, bool] = field(default_factory=dict)
    slices: dict[str, set[Placement]] = field(default_factory=dict)
    holders: dict[str, dict[int, ReplicaPlacement]] = field(default_factory=dict)  # GPU -> start -> replica
    uncleared: set[str] = field(default_factory=set)  # mig-manager has yet to clear these
    by_node: dict[str, list[str]] = field(default_factory=dict)
    by_sku: dict[str, list[str]] = field(default_factory=dict)
    nodes: dict[str, dict[str, None]] = field(default_factory=dict)  # SKU -> nodes
    # What is looked up again and again: geometry by SKU, and free places by SKU and profile.
    _boards: dict[str, Board | None] = field(default_factory=dict)
    _masks: dict[tuple[str, Placement], int] = field(default_factory=dict)
    _fitting: dict[tuple[str, frozenset[Placement]], bool] = field(default_factory=dict)
    _openings: dict[str, dict[str, Openings]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start from the present end."""
        self.uncleared |= self.ends.cleared
        for name, gpu in self.ends.gpus.items():
            cut = (Placement(i.start, i.profile) for i in gpu.instances) if gpu.mig_enabled else ()
            self.slices[name], self.mig_on[name], self.holders[name] = set(cut), gpu.mig_enabled, {}
            self.by_node.setdefault(gpu.node, []).append(name)
            self.by_sku.setdefault(gpu.sku, []).append(name)
            self.nodes.setdefault(gpu.sku, {})[gpu.node] = None
        for replica in self.ends.now:
            self.place(replica)

    def gpu(self, name: str) -> GPUState:
        """Return what never changes about a GPU."""
        return self.ends.gpus[name]

    def board(self, name: str) -> Board | None:
        """Return the geometry of a GPU."""
        sku = self.gpu(name).sku
        if sku not in self._boards:
            self._boards[sku] = self.problem.board(sku)
        return self._boards[sku]

    def shape(self, replica: ReplicaPlacement) -> PlaceShape:
        """Return the shape under a replica."""
        return self.gpu(replica.gpus[0]).sku, replica.profile, len(replica.gpus)

    def awaiting_mode(self, node: str) -> list[str]:
        """Return the GPUs whose MIG mode has to change, which mig-manager does only on an empty node."""
        return [
            name
            for name in self.by_node[node]
            if self.gpu(name).backend == "mig-manager"
            and self.mig_on[name] != self.ends.mig_on[name]
            and name not in self.ends.impossible
        ]

    def place(self, replica: ReplicaPlacement) -> None:
        """Put a replica on its place."""
        for gpu, start in replica.sites:
            self.holders[gpu][start] = replica
            self._changed(gpu)

    def remove(self, replica: ReplicaPlacement) -> None:
        """Take a replica from its place."""
        for gpu, start in replica.sites:
            del self.holders[gpu][start]
            self._changed(gpu)

    def create_slice(self, gpu: str, placement: Placement) -> None:
        """Create a slice."""
        self.slices[gpu].add(placement)
        self._changed(gpu)

    def destroy_slice(self, gpu: str, placement: Placement) -> None:
        """Destroy a slice."""
        self.slices[gpu].discard(placement)
        self._changed(gpu)

    def clear(self, gpu: str, layout: Iterable[Placement] = ()) -> None:
        """Replace all slices of a GPU."""
        self.slices[gpu] = set(layout)
        self._changed(gpu)

    def _changed(self, gpu: str) -> None:
        """Note that other places of a GPU may be free now."""
        for openings in self._openings.get(self.gpu(gpu).sku, {}).values():
            openings.stale.add(gpu)

    def mask(self, gpu: str, placement: Placement) -> int:
        """Return the memory slices of a placement; all of them for one that the board does not list."""
        key = self.gpu(gpu).sku, placement
        if key not in self._masks:
            board = self.board(gpu)
            option = board.option(placement.profile, placement.start) if board is not None else None
            self._masks[key] = option.mask if option is not None else -1
        return self._masks[key]

    def region(self, replica: ReplicaPlacement) -> Region:
        """Return what has to be empty before a replica may start."""
        return dict(self._needs(replica))

    def _needs(self, replica: ReplicaPlacement) -> Iterator[tuple[str, int]]:
        for name in replica.gpus:
            gpu = self.gpu(name)
            toggles = self.mig_on[name] != (replica.profile != WHOLE_GPU)
            if toggles and gpu.backend == "mig-manager":  # resets the node's GPUs
                yield from ((other, -1) for other in self.by_node[gpu.node])
            elif toggles or replica.profile == WHOLE_GPU or name in self.uncleared:
                yield name, -1
            else:
                yield name, self.mask(name, Placement(replica.start, replica.profile))

    def blockers(self, replica: ReplicaPlacement) -> list[ReplicaPlacement]:
        """Return the replicas that have to leave before a wanted one may start, sorted."""
        replicas: set[ReplicaPlacement] = set()
        for gpu, mask in self.region(replica).items():
            for held in self.holders[gpu].values():
                if held.profile == WHOLE_GPU or mask & self.mask(gpu, Placement(held.start, held.profile)):
                    replicas.add(held)
        gpu = replica.gpus[0]
        if replica.profile != WHOLE_GPU and self.mig_on[gpu] and gpu not in self.uncleared:
            stay = {Placement(h.start, h.profile) for h in self.holders[gpu].values() if h not in replicas}
            if not self.fits(gpu, stay | {Placement(replica.start, replica.profile)}):  # engines, compute
                replicas |= {h for h in self.holders[gpu].values() if h not in self.kept}
        return sorted(replicas)

    def fits(self, gpu: str, layout: Iterable[Placement]) -> bool:
        """Whether a GPU can hold these slices together."""
        key = self.gpu(gpu).sku, frozenset(layout)
        if key not in self._fitting:
            board = self.board(gpu)
            self._fitting[key] = board is not None and is_legal(board, key[1])
        return self._fitting[key]

    def obstructing(self, gpu: str, placement: Placement) -> list[Placement] | None:
        """Return the free slices to destroy so that `placement` can be created. None: it cannot be.

        Those that overlap it; where engines or compute run short, those too that the end does not have.
        """
        state = self.gpu(gpu)
        if not state.cuttable or state.backend == "mig-manager" or not self.mig_on[gpu]:
            return None
        held = {Placement(s.start, s.profile) for s in self.holders[gpu].values()}
        mask = self.mask(gpu, placement)
        gone = {p for p in self.slices[gpu] if mask & self.mask(gpu, p)}
        extra = sorted(self.slices[gpu] - held - gone, key=lambda p: (p in self.ends.slices[gpu], p))
        while not gone & held:
            if self.fits(gpu, (self.slices[gpu] - gone) | {placement}):
                return sorted(gone)
            if not extra:
                return None
            gone.add(extra.pop(0))
        return None

    def exists(self, replica: ReplicaPlacement) -> bool:
        """Whether a replica could start on its slice as the GPU is cut now."""
        gpu, place = replica.gpus[0], Placement(replica.start, replica.profile)
        return place in self.slices[gpu] and replica.start not in self.holders[gpu]

    def places(
        self, replica: ReplicaPlacement, used: Mapping[str, int], effort: Effort
    ) -> Iterator[ReplicaPlacement]:
        """Yield where else a replica could stand right now: slices that exist first. `used`: not there."""
        if replica.profile == WHOLE_GPU:
            yield from self._whole(replica, used, effort)
            return
        openings = self._open(replica, effort)
        for name in openings.existing:
            effort.left -= 1
            for place in self._free(name, replica.profile):
                if not self.mask(name, place) & used.get(name, 0):
                    yield ReplicaPlacement(replica.owner, replica.profile, (name,), place.start)
        for name in openings.creatable:
            effort.left -= 1
            for place in self._creatable(name, replica.profile, effort):
                if not self.mask(name, place) & used.get(name, 0):
                    yield ReplicaPlacement(replica.owner, replica.profile, (name,), place.start)

    def has_place(self, replica: ReplicaPlacement, effort: Effort) -> bool:
        """Whether there is another place where a replica could stand right now."""
        if replica.profile == WHOLE_GPU:
            return any(True for _ in self._whole(replica, {}, effort))
        openings = self._open(replica, effort)
        return bool(openings.existing or openings.creatable)

    def _open(self, replica: ReplicaPlacement, effort: Effort) -> Openings:
        """Return the GPUs with other places for slices like this one."""
        sku = self.gpu(replica.gpus[0]).sku
        by_profile = self._openings.setdefault(sku, {})
        openings = by_profile.setdefault(replica.profile, Openings(set(self.by_sku[sku])))
        effort.left -= 1 + len(openings.stale)
        for name in sorted(openings.stale):
            note(openings.existing, name, listed=any(True for _ in self._free(name, replica.profile)))
            creatable = self._creatable(name, replica.profile, effort)
            note(openings.creatable, name, listed=any(True for _ in creatable))
        openings.stale.clear()
        return openings

    def _places(self, name: str, profile: str) -> Iterator[Placement]:
        """Yield where slices of a profile may lie on a GPU that is in use as MIG has it, the last first."""
        board = self.board(name)
        if board is None or not self.mig_on[name] or not self.ends.mig_on[name]:
            return
        for option in reversed(board.options):
            if option.profile == profile:
                yield Placement(option.start, profile)

    def _free(self, name: str, profile: str) -> Iterator[Placement]:
        slices, holders = self.slices[name], self.holders[name]
        return (p for p in self._places(name, profile) if p in slices and p.start not in holders)

    def _creatable(self, name: str, profile: str, effort: Effort) -> Iterator[Placement]:
        state = self.gpu(name)
        if not state.cuttable or state.backend == "mig-manager":
            return
        for place in self._places(name, profile):
            if place not in self.slices[name]:
                effort.left -= _GEOMETRY
                if self.obstructing(name, place) is not None:
                    yield place

    def _whole(
        self, replica: ReplicaPlacement, used: Mapping[str, int], effort: Effort
    ) -> Iterator[ReplicaPlacement]:
        size = len(replica.gpus)
        for node in self.nodes[self.gpu(replica.gpus[0]).sku]:
            members = self.by_node[node]
            effort.left -= len(members)
            free = [
                name
                for name in members
                if not (self.mig_on[name] or self.ends.mig_on[name] or self.holders[name] or used.get(name))
            ]
            linked = min((self.gpu(name).nvlink_gpus for name in free), default=1)
            if gangs_that_fit(size, free=len(free), node_gpus=len(members), nvlink_gpus=linked):
                yield ReplicaPlacement(replica.owner, WHOLE_GPU, tuple(free[:size]))


def note(items: list[Noted], item: Noted, *, listed: bool) -> None:
    """Keep a sorted list: this item is in it, or it is not."""
    at = bisect_left(items, item)
    if at < len(items) and items[at] == item:
        if not listed:
            del items[at]
    elif listed:
        items.insert(at, item)
