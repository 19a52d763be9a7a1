"""From counts to GPUs: which one becomes what, and whose replica stands where. Deterministic.

Any GPU of a class would do for the objective, so the order of names decides. Replicas stay where they are
when the layout keeps their slice; new ones go to slices that exist before ones that have to be cut, and to
the high end first, where they spoil least.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.fleet.intent import cap
from tangram.packing.assignment.counts import SolutionCounts
from tangram.packing.assignment.fill import fill, has_room, idle_gpus, mend, urgency
from tangram.packing.assignment.sites import (
    AssignmentState,
    InstanceOwner,
    Unit,
    VacantSite,
    give,
    pinned_at,
    quotas,
    room_by_place,
    shapes_at,
    spot_of,
)
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.packing.model.gpu_classes import GPUClasses, GPUKind, Namer, PreparedFleet, in_turn, origins
from tangram.packing.model.targets import Origin, OwnerTag, Target
from tangram.packing.problem.mix import MixLimits
from tangram.packing.problem.prepared import PreparedDemand, RunningReplica
from tangram.packing.problem.result import GPULayout, Placed
from tangram.packing.problem.statement import GPUState, new_nodes


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where everything stands."""

    layouts: tuple[GPULayout, ...]
    sites: Mapping[str, tuple[VacantSite, ...]]  # by demand
    kept: frozenset[tuple[ShapeKey, tuple[str, ...], int]]  # sites whose replica goes on undisturbed
    short: Mapping[tuple[str, ShapeKey], int]  # replicas for which spread left no room
    new_gpus: Mapping[str, GPUState]


def assign(fleet: PreparedFleet, classes: GPUClasses, counts: SolutionCounts) -> Assignment:
    """Name the GPUs behind `counts`."""
    new = _new_gpus(fleet, classes, counts)
    new_gpus = {gpu.id: gpu for gpu in chain(*new)}
    gpus = {gpu.id: gpu for gpu in fleet.problem.gpus} | new_gpus
    work = AssignmentState(fleet, gpus, quotas=quotas(counts))
    _own_foreign_instances(work)
    _cut(work, classes, counts)
    spread = any(demand.spread.node < 1 for demand in fleet.demands)
    work.units = _whole(work, classes, counts) + _grow(work, classes, counts, new, spread=spread)
    _gangs(work, counts)
    _stay_all(work, classes, counts)
    _slots(work)
    _fill_all(work, counts)
    sites = {demand: tuple(sites_of_demand) for demand, sites_of_demand in sorted(work.sites.items())}
    return Assignment(_layouts(work), sites, frozenset(work.kept), dict(work.short), new_gpus)


def _new_gpus(fleet: PreparedFleet, classes: GPUClasses, counts: SolutionCounts) -> list[list[GPUState]]:
    """Return the GPUs of new nodes, by pool that grows."""
    pairs = zip(classes.grown, counts.grown, strict=True)
    return [[*chain(*new_nodes(fleet.problem, grown.pool, n).values())] for grown, (n, _) in pairs]


def _own_foreign_instances(work: AssignmentState) -> None:
    """Leave the instances of owners that are no demand where they are."""
    for gpu in work.fleet.problem.gpus:
        for instance in gpu.instances:
            if instance.owner is not None and (gpu.id, instance.start) not in work.fleet.held:
                owner = InstanceOwner(instance.owner, instance.profile, instance.gang)
                work.owner[gpu.id, instance.start] = owner


def _stay_all(work: AssignmentState, classes: GPUClasses, counts: SolutionCounts) -> None:
    """Leave the replicas of all demands where they are, as many as the counts keep."""
    quota = None if counts.keeps is None else Counter(counts.keeps)
    for demand in work.fleet.demands:
        _StayingReplicas(work, demand, classes.name, quota).leave(counts.taken.get(demand.id, {}))


def _fill_all(work: AssignmentState, counts: SolutionCounts) -> None:
    """Place the other replicas, the most urgent first; then replace those for which spread left no room."""
    vacated = _cut_in_use(work)
    for demand in sorted(work.fleet.demands, key=lambda demand: urgency(demand, counts, vacated)):
        fill(work, demand, counts)
    for recut in (False, True):
        idle = idle_gpus(work, recut=recut)
        for demand in _short(work, idle):
            mend(work, demand, idle)


def _layouts(work: AssignmentState) -> tuple[GPULayout, ...]:
    owned: dict[str, dict[int, InstanceOwner]] = {}
    for (gpu_id, start), owner in work.owner.items():
        owned.setdefault(gpu_id, {})[start] = owner
    return tuple(_layout(work, gpu, owned.get(name, {})) for name, gpu in sorted(work.gpus.items()))


def _short(work: AssignmentState, idle: Mapping[str, list[str]]) -> list[PreparedDemand]:
    """Return the demands that lost planned replicas, and those that go short beside free GPUs or slices."""
    lost, problem = {name for name, _ in work.short}, work.fleet.problem
    limited = problem.move_budget is not None or bool(problem.move_budgets)  # another shape may be a move

    def may_have_more(demand: PreparedDemand, mix: MixLimits) -> bool:
        if problem.headroom or (limited and demand.held):
            return False
        unmet = mix.unmet(shapes_at(work.sites.get(demand.id, ())))
        return unmet > mix.least_unmet and any(has_room(work, i.shape, idle) for i in mix.items if i.serves)

    demands_with_room = (
        d for d in work.fleet.demands if d.limits is not None and (d.id in lost or may_have_more(d, d.limits))
    )
    return sorted(demands_with_room, key=lambda demand: (-demand.priority, demand.id))


def _cut(work: AssignmentState, classes: GPUClasses, counts: SolutionCounts) -> None:
    for group, n in zip(classes.existing, counts.classes, strict=True):
        if not group.is_node:
            chosen = _repeat(group.targets, n)
            for (gpu,), target in zip(group.members, chosen, strict=True):
                work.targets[gpu] = target


def _repeat(targets: Iterable[Target], counts: Iterable[int]) -> list[Target]:
    return [target for target, n in zip(targets, counts, strict=True) for _ in range(n)]


def _whole(work: AssignmentState, classes: GPUClasses, counts: SolutionCounts) -> list[Unit]:
    """Return the GPUs of each node that stay whole; the others get their targets."""
    units = []
    in_mig: dict[tuple[GPUKind, Origin], list[str]] = {}
    for group, n in zip(classes.existing, counts.classes, strict=True):
        if group.is_node:
            for ids, target in zip(group.members, _repeat(group.targets, n), strict=True):
                free = _keep_gangs(work, ids, target, classes)
                by_origin = _in_mig(work, ids, free, target, classes)
                for origin, gpus in by_origin.items():
                    in_mig.setdefault((group.kind.one_gpu, origin), []).extend(sorted(gpus))
                taken = {gpu for gpus in by_origin.values() for gpu in gpus}
                units.append(Unit(group.kind, [gpu for gpu in free if gpu not in taken]))
    for converted, n in zip(classes.converted, counts.converted, strict=True):
        alike_gpus = ((gpu,) for gpu in in_mig.get((converted.kind, converted.origin), []))
        members = in_turn(work.fleet, converted.kind.sku, alike_gpus)
        for (gpu,), target in zip(members, _repeat(converted.targets, n), strict=True):
            work.targets[gpu] = target
    return units


def _in_mig(
    work: AssignmentState, ids: tuple[str, ...], free: list[str], target: Target, classes: GPUClasses
) -> dict[Origin, list[str]]:
    """Return the free GPUs of a node that are in MIG mode under its target, the last first, by origin."""
    origin_of = origins(work.fleet, (work.gpus[gpu] for gpu in ids), classes.name)
    by_origin: dict[Origin, list[str]] = {}
    for origin, count in target.in_mig:
        alike = [gpu for gpu in reversed(free) if origin_of.get(gpu) == origin]
        by_origin.setdefault(origin, []).extend(alike[:count])
    return by_origin


def _keep_gangs(
    work: AssignmentState, ids: tuple[str, ...], target: Target, classes: GPUClasses
) -> list[str]:
    """Mark the gangs that may stay on a node; return its GPUs that are free then."""
    quota = Counter(dict(target.kept))
    gangs = {
        held.gpus: held
        for gpu in ids
        if not work.gpus[gpu].mig_enabled and (held := work.fleet.held.get((gpu, 0))) is not None
    }
    used = {gpu for gpu in ids if (gpu, 0) in work.owner and not work.gpus[gpu].mig_enabled}
    for gpus, held in sorted(gangs.items()):
        tag = classes.name(held)
        if quota[tag]:
            quota[tag] -= 1
            work.stays.add((gpus, 0))
            used |= set(gpus)
    return [gpu for gpu in ids if gpu not in used]


def _grow(
    work: AssignmentState,
    classes: GPUClasses,
    counts: SolutionCounts,
    new: list[list[GPUState]],
    *,
    spread: bool,
) -> list[Unit]:
    """Cut the GPUs of new nodes, node after node; to be spread, equal ones on different nodes."""
    units = []
    for grown, gpus, (_, cut) in zip(classes.grown, new, counts.grown, strict=True):
        ids, size = [gpu.id for gpu in gpus], grown.pool.node_size
        if grown.pool.mig_enabled:
            dealt = [gpu for first in range(size) for gpu in ids[first::size]] if spread else ids
            work.targets |= dict(zip(dealt, _repeat(grown.targets, cut), strict=False))
            work.targets |= {gpu: Target("idle") for gpu in ids if gpu not in work.targets}
            continue
        units += [Unit(grown.kind, ids[i : i + size]) for i in range(0, len(ids), size)]
    return units


def _gangs(work: AssignmentState, counts: SolutionCounts) -> None:
    """Place new gangs, the largest first, on the fullest node that has room; to be spread, the emptiest."""
    for (kind, size), n in sorted(counts.gangs.items(), key=lambda item: (-item[0][1], item[0])):
        units = [unit for unit in work.units if unit.kind == kind]
        for _ in range(n):
            fits = [unit for unit in units if unit.takes(size)]
            if not fits:
                break
            sign = -1 if kind.sku in work.fleet.scattered else 1
            unit = min(fits, key=lambda u: sign * len(u.free))
            shape = ShapeKey(kind.sku, WHOLE_GPU, size)
            work.free.setdefault(shape, []).append(spot_of(work, shape, unit.take(size), 0, exists=True))


class _StayingReplicas:
    """The replicas of one demand that stay where they are; those in crowded places go first.

    `quota`: replicas of each owner tag that may stay; None: the model did not tell owners apart.
    """

    def __init__(
        self, work: AssignmentState, demand: PreparedDemand, name: Namer, quota: Counter[OwnerTag] | None
    ) -> None:
        self._work, self._demand, self._name, self._quota = work, demand, name, quota
        self._by_node: Counter[str] = Counter()
        self._pinned_by_node = pinned_at(work, demand, "node")

    def leave(self, planned: Mapping[ShapeKey, int]) -> None:
        """Leave as many replicas as are planned; offer the whole GPUs of the others."""
        by_shape: dict[ShapeKey, list[RunningReplica]] = {}
        for held in self._demand.held:
            if _may_stay(self._work, held):
                by_shape.setdefault(held.shape, []).append(held)
        limit = cap(self._demand.spread.node, sum(planned.values()))
        for shape, candidates in sorted(by_shape.items()):
            staying = self._leave_shape(shape, candidates, planned.get(shape, 0), limit)
            if shape.profile == WHOLE_GPU:
                self._offer([held for held in candidates if (held.gpus, held.start) not in staying])

    def _leave_shape(
        self, shape: ShapeKey, candidates: list[RunningReplica], planned: int, limit: int
    ) -> set[tuple[tuple[str, ...], int]]:
        left = room_by_place(self._work, self._demand, shape)
        staying = set[tuple[tuple[str, ...], int]]()
        for held in sorted(candidates, key=lambda h: (not h.pinned, h.gpus, h.start)):
            spot = spot_of(self._work, shape, held.gpus, held.start, exists=True)
            room = left is None or left[spot.place] > 0
            if len(staying) >= planned or not room or not self._may_stay(held, spot.node, limit):
                continue
            staying.add((spot.gpus, spot.start))
            if left is not None:
                left[spot.place] -= 1
            self._record(held, spot)
        return staying

    def _may_stay(self, held: RunningReplica, node: str, limit: int) -> bool:
        """Whether quota and spread let a replica stay on its node."""
        if self._quota is not None and self._quota[self._name(held)] <= 0:
            return False
        is_full = self._by_node[node] >= max(limit, self._pinned_by_node[node])
        return held.pinned or not is_full or self._demand.spread.node >= 1

    def _record(self, held: RunningReplica, spot: VacantSite) -> None:
        if self._quota is not None:
            self._quota[self._name(held)] -= 1
        self._by_node[spot.node] += 1
        self._work.kept.add((held.shape, spot.gpus, spot.start))
        give(self._work, self._demand.id, spot, held.gang)

    def _offer(self, leaving: Iterable[RunningReplica]) -> None:
        """Offer the whole GPUs of replicas that leave."""
        for held in leaving:
            spot = spot_of(self._work, held.shape, held.gpus, 0, exists=True)
            self._work.free.setdefault(held.shape, []).append(spot)


def _may_stay(work: AssignmentState, held: RunningReplica) -> bool:
    if held.shape.profile == WHOLE_GPU:
        return (held.gpus, 0) in work.stays
    target = work.targets.get(held.gpus[0])  # None: its GPU leaves MIG mode
    if target is not None and target.kind == "cut":
        return Placement(held.start, held.shape.profile) in target.layout and _keeps(work, held.gpus[0])
    return target is not None and target.kind == "same"


def _keeps(work: AssignmentState, gpu: str) -> bool:
    """Whether a change of this GPU's layout leaves equal slices alone."""
    return work.gpus[gpu].backend != "mig-manager"


def _slots(work: AssignmentState) -> None:
    """Offer every slice of the layouts that no replica holds."""
    for gpu_id, target in sorted(work.targets.items()):
        gpu = work.gpus[gpu_id]
        if target.kind == "idle":
            continue
        now = {Placement(i.start, i.profile) for i in gpu.instances} if gpu.mig_enabled else set()
        layout = target.layout if target.kind == "cut" else tuple(sorted(now))
        for placement in layout:
            if (gpu_id, placement.start) not in work.owner:
                shape = ShapeKey(gpu.sku, placement.profile)
                exists = placement in now and (target.kind == "same" or _keeps(work, gpu_id))
                spot = spot_of(work, shape, (gpu_id,), placement.start, exists=exists)
                work.free.setdefault(shape, []).append(spot)
    used, vacated = {gpu for gpu, _ in work.owner}, _cut_in_use(work)
    for spots in work.free.values():
        spots.sort(
            key=lambda s: (
                not s.exists,
                s.gpus[0] in vacated,
                s.gpus[0] not in used,
                s.node,
                s.gpus,
                -s.start,
            )
        )


def _cut_in_use(work: AssignmentState) -> frozenset[str]:
    """Return the whole GPUs that are cut once their replicas have left: those need other places, first."""
    cut = (work.gpus[gpu] for gpu, target in work.targets.items() if target.kind == "cut")
    return frozenset(gpu.id for gpu in cut if gpu.in_use and not gpu.mig_enabled)


def _layout(work: AssignmentState, gpu: GPUState, owned: Mapping[int, InstanceOwner]) -> GPULayout:
    now = {Placement(i.start, i.profile) for i in gpu.instances} if gpu.mig_enabled else set()
    target = work.targets.get(gpu.id)
    whole = 0 in owned and owned[0].profile == WHOLE_GPU
    if whole:
        placements = {Placement(0, WHOLE_GPU)}
    elif target is not None and target.kind == "cut" and owned and gpu.backend == "mig-manager":
        placements = set(target.layout)
    else:
        placements = _leave_alone(work, gpu, {Placement(start, o.profile) for start, o in owned.items()}, now)
    instances = tuple(
        Placed(p.start, p.profile, owned[p.start].name, owned[p.start].gang)
        if p.start in owned
        else Placed(p.start, p.profile)
        for p in sorted(placements)
    )
    recut = gpu.mig_enabled if whole else placements != now
    return GPULayout(gpu.id, instances, in_use=bool(owned), recut=recut)


def _leave_alone(
    work: AssignmentState, gpu: GPUState, placements: set[Placement], now: set[Placement]
) -> set[Placement]:
    """Add the free slices that exist and overlap no other: nothing is destroyed without need."""
    board = work.fleet.problem.board(gpu.sku)
    remaining = set(placements)
    for placement in sorted(now - placements):
        if board is not None and is_legal(board, remaining | {placement}):
            remaining.add(placement)
    return remaining
