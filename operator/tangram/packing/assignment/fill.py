"""Give free sites to replicas that do not run yet; demands with spread limits choose first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.fleet.intent import cap
from tangram.packing.assignment.counts import SolutionCounts
from tangram.packing.assignment.sites import (
    AssignmentState,
    VacantSite,
    gang_of,
    give,
    pinned_at,
    room_by_place,
    shapes_at,
    spot_of,
)
from tangram.packing.geometry.layouts import Placement
from tangram.packing.model.targets import Target
from tangram.packing.problem.prepared import PreparedDemand


def urgency(
    demand: PreparedDemand, counts: SolutionCounts, vacated: frozenset[str]
) -> tuple[float, int, bool, str]:
    """Return a sort key: demands of named pools first, then the tightest spread, then the most replicas, then
    those with replicas that have to leave GPUs `vacated`.
    """
    replicas = sum(counts.taken.get(demand.id, {}).values())
    share = 0.0 if demand.pools else min(demand.spread.node, demand.spread.zone)
    stays = vacated.isdisjoint(gpu for held in demand.held for gpu in held.gpus)
    return share, -replicas if demand.spread.node < 1 else 0, stays, demand.id


def fill(work: AssignmentState, demand: PreparedDemand, counts: SolutionCounts) -> None:
    """Give a demand the replicas that it has not got yet, as far as there is room."""
    planned = counts.taken.get(demand.id, {})
    total = sum(planned.values())
    limit = cap(demand.spread.node, total) if demand.spread.node < 1 else total
    fixed = pinned_at(work, demand, "node")
    for shape, n in sorted(planned.items()):
        room = _SpreadRoom(limit, fixed, room_by_place(work, demand, shape))
        for spot in work.sites.get(demand.id, ()):
            room.take(spot, counted=spot.shape == shape)
        placed = sum(spot.shape == shape for spot in work.sites.get(demand.id, ()))
        missing = _take(work, demand, shape, n - placed, room)
        if missing and demand.spread.node < 1:
            _open(work, shape, missing, room, idle_gpus(work))
            missing = _take(work, demand, shape, missing, room)
        if missing:
            work.short[demand.id, shape] += missing
    if any(owner == demand.id for owner, _ in work.short):
        _thin_out(work, demand)


def idle_gpus(work: AssignmentState, *, recut: bool = False) -> dict[str, list[str]]:
    """Return the GPUs by SKU that hold no replica and may be cut; GPUs that offer no slices come first.

    `recut`: also GPUs whose slices no replica took, and free GPUs of nodes for gangs.
    """
    used, kinds = {gpu for gpu, _ in work.owner}, {"idle", "cut"} if recut else {"idle"}
    idle_ids = [
        (to.kind != "idle", gpu)
        for gpu, to in work.targets.items()
        if to.kind in kinds and work.gpus[gpu].cuttable and gpu not in used
    ]
    if recut:
        free = (gpu for unit in work.units for gpu in unit.free)
        idle_ids += [(True, gpu) for gpu in free if work.gpus[gpu].convertible and gpu not in used]
    idle: dict[str, list[str]] = {}
    for _, gpu in sorted(idle_ids):
        idle.setdefault(work.gpus[gpu].sku, []).append(gpu)
    return idle


def mend(work: AssignmentState, demand: PreparedDemand, idle: dict[str, list[str]]) -> None:
    """Give a demand that goes short more replicas, where free slices and idle GPUs allow them.

    One after the other, always the one that leaves least unmet, the cheapest of equals: as the model would
    have, had it known the nodes. `idle`: GPUs by SKU; those that are taken leave it.
    """
    limits, added = demand.limits, True
    while limits is not None and added:
        counts = shapes_at(work.sites.get(demand.id, ()))
        before = limits.unmet(counts)
        more = (
            (limits.unmet(counts + Counter([item.shape])), item.price, item.shape)
            for item in limits.items
            if item.serves and limits.allows(counts + Counter([item.shape]), demand.running)
        )
        added = any(_add(work, demand, shape, idle) for unmet, _, shape in sorted(more) if unmet < before)


def has_room(work: AssignmentState, shape: ShapeKey, idle: Mapping[str, Sequence[str]]) -> bool:
    """Whether a free site, an idle GPU or a free whole GPU is left for a replica of a shape."""
    whole = shape.profile == WHOLE_GPU
    units = (unit for unit in work.units if whole and unit.free and unit.kind.sku == shape.sku)
    return bool(work.free.get(shape) or idle.get(shape.sku)) or any(units)


def _add(work: AssignmentState, demand: PreparedDemand, shape: ShapeKey, idle: dict[str, list[str]]) -> bool:
    """Give a demand one more replica, if there is room for it."""
    if not has_room(work, shape, idle):
        return False
    sites = work.sites.get(demand.id, [])
    room = _SpreadRoom(cap(demand.spread.node, len(sites) + 1), pinned_at(work, demand, "node"), None)
    for spot in sites:
        room.take(spot)
    zones, fixed = Counter(spot.zone for spot in sites), pinned_at(work, demand, "zone")
    most = cap(demand.spread.zone, len(sites) + 1)
    if demand.pools or demand.spread.zone < 1:
        room.closed = frozenset(
            gpu.id
            for gpu in work.gpus.values()
            if (demand.pools and gpu.pool not in demand.pools)
            or zones[gpu.zone] >= max(most, fixed[gpu.zone])
        )
    if not any(room.has(spot) for spot in work.free.get(shape, ())):
        _open(work, shape, 1, room, idle)
    if _take(work, demand, shape, 1, room):
        return False
    used = work.sites[demand.id][-1].gpus
    idle[shape.sku] = [gpu for gpu in idle.get(shape.sku, ()) if gpu not in used]
    return True


def _thin_out(work: AssignmentState, demand: PreparedDemand) -> None:
    """Drop replicas that exceed a spread limit, which is a share of those placed, not of those planned."""
    sites = work.sites.get(demand.id, [])
    pinned = {(held.shape, held.gpus, held.start) for held in demand.held if held.pinned} & work.kept
    limits = (
        (demand.spread.node, "node", pinned_at(work, demand, "node")),
        (demand.spread.zone, "zone", pinned_at(work, demand, "zone")),
    )
    while sites:
        lost = next(
            (
                movable[-1]
                for share, place, fixed in limits
                for name, members in _by_place(sites, place).items()
                if share < 1 and len(members) > max(cap(share, len(sites)), fixed[name])
                if (movable := [s for s in members if (s.shape, s.gpus, s.start) not in pinned])
            ),
            None,
        )
        if lost is None:
            return
        sites.remove(lost)
        work.kept.discard((lost.shape, lost.gpus, lost.start))
        work.short[demand.id, lost.shape] += 1
        for gpu in lost.gpus:
            del work.owner[gpu, lost.start]


def _by_place(sites: list[VacantSite], place: str) -> dict[str, list[VacantSite]]:
    by_place: dict[str, list[VacantSite]] = {}
    for spot in sites:
        by_place.setdefault(spot.node if place == "node" else spot.zone, []).append(spot)
    return by_place


@dataclass(slots=True)
class _SpreadRoom:
    """Where one more replica of a demand may stand."""

    limit: int  # on one node
    fixed: Counter[str]  # replicas that must not move, by node: a node may have as many
    left: Counter[str] | None  # by place, as the model has it
    nodes: Counter[str] = field(default_factory=Counter)
    closed: frozenset[str] = frozenset()  # GPUs where none may stand

    def has(self, spot: VacantSite) -> bool:
        """Whether a replica may stand there."""
        most = max(self.limit, self.fixed[spot.node])
        open_there = self.left is None or self.left[spot.place] > 0
        return self.nodes[spot.node] < most and open_there and spot.gpus[0] not in self.closed

    def take(self, spot: VacantSite, *, counted: bool = True) -> None:
        """Count a replica that stands there; of another shape it only counts on its node."""
        self.nodes[spot.node] += 1
        if self.left is not None and counted:
            self.left[spot.place] -= 1


def _take(
    work: AssignmentState, demand: PreparedDemand, shape: ShapeKey, missing: int, room: _SpreadRoom
) -> int:
    """Give free spots to a demand, in order; to be spread, always on the node with most of them left."""
    offered = work.free.get(shape, [])
    if demand.spread.node < 1:
        offered = _fullest_first(offered)
    rest: list[VacantSite] = []
    for index, spot in enumerate(offered):
        if not missing:
            rest += offered[index:]
            break
        if not room.has(spot):
            rest.append(spot)
            continue
        missing -= 1
        room.take(spot)
        give(work, demand.id, spot, gang_of(demand.id, spot))
    work.free[shape] = rest
    return missing


def _fullest_first(spots: list[VacantSite]) -> list[VacantSite]:
    """Take from the node with most spots left each time: what is left then suits later demands best."""
    by_node: dict[str, list[VacantSite]] = {}
    for spot in spots:
        by_node.setdefault(spot.node, []).append(spot)
    left = {spot: len(sites) - i for sites in by_node.values() for i, spot in enumerate(sites)}
    return sorted(spots, key=lambda spot: -left[spot])  # stable: equal ones stay in order


def _recut(work: AssignmentState, gpu_id: str, placement: Placement) -> None:
    """Cut an idle GPU for one replica; the slices that it offered are gone."""
    for unit in work.units:
        if gpu_id in unit.free:
            unit.free.remove(gpu_id)
    for shape, spots in work.free.items():
        work.free[shape] = [spot for spot in spots if gpu_id not in spot.gpus]
    work.targets[gpu_id] = Target("cut", layout=(placement,))


def _open(
    work: AssignmentState, shape: ShapeKey, missing: int, room: _SpreadRoom, idle: Mapping[str, Sequence[str]]
) -> None:
    """Put idle GPUs to use on nodes that have room: the price of spread that the model could not see."""
    sites: list[VacantSite] = []
    left = None if room.left is None else Counter(room.left)
    room = _SpreadRoom(room.limit, room.fixed, left, Counter(room.nodes), room.closed)
    if shape.profile == WHOLE_GPU:
        for unit in work.units:
            while unit.kind.sku == shape.sku and unit.takes(shape.gpus) and len(sites) < missing:
                spot = spot_of(work, shape, tuple(unit.free[: shape.gpus]), 0, exists=True)
                if not room.has(spot):
                    break
                unit.take(shape.gpus)
                room.take(spot)
                sites.append(spot)
    for gpu_id, start in _slice_starts(work, shape, idle.get(shape.sku, ())):
        spot = spot_of(work, shape, (gpu_id,), start, exists=False)
        if len(sites) == missing:
            break
        if room.has(spot):
            _recut(work, gpu_id, Placement(start, shape.profile))
            room.take(spot)
            sites.append(spot)
    work.free[shape] = [*work.free.get(shape, []), *sites]


def _slice_starts(work: AssignmentState, shape: ShapeKey, gpu_ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return where idle GPUs would have a slice, those first that have it now: they need no cut."""
    board = work.fleet.problem.board(shape.sku)
    start = board.last_start(shape.profile) if board else None
    if start is None:
        return []
    present = {
        gpu_id: instance.start
        for gpu_id in gpu_ids
        for instance in work.gpus[gpu_id].instances
        if instance.profile == shape.profile
    }
    return [*present.items(), *((gpu_id, start) for gpu_id in gpu_ids if gpu_id not in present)]
