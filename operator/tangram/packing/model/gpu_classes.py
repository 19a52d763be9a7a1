"""Classes of interchangeable GPUs and nodes, which the packing model counts.

GPUs that look the same to the solver (SKU, price, place, instances and their owners) form a class; a target
is one thing that a GPU of the class may become. The solver counts GPUs instead of naming them, which is exact
because any GPU of a class would do. GPUs out of MIG mode are looked at node by node as soon as gangs are in
play, else one by one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tangram.catalog.prices import Prices
from tangram.catalog.records import NODE_GPUS
from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.gangs import gangs_that_fit
from tangram.packing.geometry.layouts import Placement
from tangram.packing.model.targets import (
    Gang,
    Origin,
    OwnerTag,
    Rules,
    Slot,
    Target,
    gpu_targets,
    node_targets,
)
from tangram.packing.problem.prepared import PreparedDemand, RunningReplica, units
from tangram.packing.problem.statement import Backend, GPUState, GrowablePool, Problem

_MOST_CHOICES = 64  # of the GPUs of one node that are in MIG mode or not: eight GPUs of six layouts

Namer = Callable[[RunningReplica], OwnerTag]


@dataclass(frozen=True, slots=True, order=True)
class GPUKind:
    """What GPUs have in common that may stand in for each other."""

    sku: str
    place: str  # node, zone or nothing: as finely as spread demands
    price: int  # per GPU and hour, in solver units
    nvlink_gpus: int = NODE_GPUS  # of the node that one NVLink domain joins
    node_size: int = 1  # GPUs of the node, MIG ones counted

    @property
    def one_gpu(self) -> "GPUKind":
        """The kind of each of its GPUs in MIG mode, where the node does not matter."""
        return GPUKind(self.sku, self.place, self.price)

    def gangs_that_fit(self, size: int, free: int) -> int:
        """Return how many gangs of `size` GPUs fit on `free` GPUs of a node."""
        return gangs_that_fit(size, free=free, node_gpus=self.node_size, nvlink_gpus=self.nvlink_gpus)


@dataclass(frozen=True, slots=True)
class StateClass:
    """GPUs in MIG mode, or nodes' whole GPUs, that are alike."""

    kind: GPUKind
    members: tuple[tuple[str, ...], ...]  # ids of the GPUs of each member
    targets: tuple[Target, ...]
    is_node: bool = False


@dataclass(frozen=True, slots=True)
class ConvertedClass:
    """GPUs that are in MIG mode if the nodes' targets say so: how many, those decide."""

    kind: GPUKind
    origin: Origin
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class GrownClass:
    """GPUs of nodes that do not exist yet."""

    pool: GrowablePool
    kind: GPUKind
    targets: tuple[Target, ...]  # of one GPU in MIG mode; whole GPUs have none, they take gangs


@dataclass(frozen=True, slots=True)
class GPUClasses:
    """Everything that the fleet may become."""

    existing: tuple[StateClass, ...]
    converted: tuple[ConvertedClass, ...]
    grown: tuple[GrownClass, ...]
    name: Namer

    def restricted(self, numbers: Sequence[Collection[int]]) -> "GPUClasses":
        """Return the same with few of the targets of what exists: those of `numbers`, by class."""
        few = (
            replace(group, targets=tuple(t for n, t in enumerate(group.targets) if n in numbers_of_class))
            for group, numbers_of_class in zip(self.existing, numbers, strict=True)
        )
        return replace(self, existing=tuple(few))


@dataclass(frozen=True, slots=True)
class PreparedFleet:
    """A problem, prepared: its demands, its prices, and its GPUs for grouping."""

    problem: Problem
    demands: tuple[PreparedDemand, ...]  # sorted by id
    prices: Prices
    gpu_prices: Mapping[str, int]  # per GPU id and hour, in solver units
    held: Mapping[tuple[str, int], RunningReplica]  # (GPU id, start) of the replicas that demands own
    profiles: Mapping[str, frozenset[str]]  # MIG profiles in play, by SKU
    levels: Mapping[str, tuple[int, ...]]  # gang sizes in play, by SKU, ascending
    places: Mapping[str, str]  # GPU id -> place
    nodes: Mapping[str, str]  # GPU id -> node
    guarded: Mapping[str, str] = field(default_factory=dict)  # GPU id -> its pool, if that has a move budget
    scattered: frozenset[str] = frozenset()  # SKUs to be used node by node in turn, for the sake of spread


@dataclass(frozen=True, slots=True, order=True)
class _MIGState:
    """State of a GPU in MIG mode."""

    kind: GPUKind
    backend: Backend
    cuttable: bool
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, order=True)
class _Whole:
    """State of a node's GPUs out of MIG mode."""

    kind: GPUKind
    count: int
    convertible: tuple[tuple[Origin, int], ...]
    foreign: int
    gangs: tuple[Gang, ...]


def in_play(
    problem: Problem, demands: Iterable[PreparedDemand]
) -> tuple[dict[str, frozenset[str]], dict[str, tuple[int, ...]]]:
    """Return the MIG profiles and the gang sizes that matter, by SKU."""
    profiles: dict[str, set[str]] = {}
    sizes: dict[str, set[int]] = {}
    for demand in demands:
        for shape in demand.shapes:
            if shape.profile == WHOLE_GPU:
                sizes.setdefault(shape.sku, set()).add(shape.gpus)
            else:
                profiles.setdefault(shape.sku, set()).add(shape.profile)
    for item in problem.headroom:
        if item.profile != WHOLE_GPU:
            profiles.setdefault(item.sku, set()).add(item.profile)
    return (
        {sku: frozenset(names) for sku, names in profiles.items()},
        {sku: tuple(sorted(gang_sizes)) for sku, gang_sizes in sizes.items()},
    )


def gpu_classes(fleet: PreparedFleet, name: Namer) -> GPUClasses:
    """Group the fleet, telling owners apart as finely as `name` does."""
    return _classes(fleet, name, *_states(fleet, name))


def finest_classes(fleet: PreparedFleet, fine: Namer, coarse: Namer, most: int) -> tuple[GPUClasses, bool]:
    """Group by `fine`, or by `coarse` where that makes more than `most` classes. True: by `fine`."""
    cut, whole = _states(fleet, fine)
    if len(cut) + len(whole) > most:
        return gpu_classes(fleet, coarse), False
    return _classes(fleet, fine, cut, whole), True


def _states(
    fleet: PreparedFleet, name: Namer
) -> tuple[dict[_MIGState, list[GPUState]], dict[_Whole, list[tuple[str, ...]]]]:
    """Return the states that there are, each with its GPUs, or with those of each node."""
    cut: dict[_MIGState, list[GPUState]] = {}
    units: dict[tuple[str, GPUKind], list[GPUState]] = {}
    sizes = Counter(gpu.node for gpu in fleet.problem.gpus)
    for gpu in fleet.problem.gpus:
        place, price = fleet.places[gpu.id], fleet.gpu_prices[gpu.id]
        if gpu.mig_enabled and not _changes_mode(fleet, gpu):
            kind = GPUKind(gpu.sku, place, price)
            state = _MIGState(kind, gpu.backend, gpu.cuttable, _slots(fleet, gpu, name))
            cut.setdefault(state, []).append(gpu)
        elif fleet.levels.get(gpu.sku, (1,)) == (1,):
            units[gpu.id, GPUKind(gpu.sku, place, price)] = [gpu]
        else:
            kind = GPUKind(gpu.sku, place, price, gpu.nvlink_gpus, sizes[gpu.node])
            units.setdefault((gpu.node, kind), []).append(gpu)
    whole: dict[_Whole, list[tuple[str, ...]]] = {}
    for (_, kind), gpus in units.items():
        ids = tuple(sorted(gpu.id for gpu in gpus))
        whole.setdefault(_whole(fleet, kind, gpus, name), []).append(ids)
    return cut, whole


def _classes(
    fleet: PreparedFleet,
    name: Namer,
    cut: Mapping[_MIGState, list[GPUState]],
    whole: Mapping[_Whole, list[tuple[str, ...]]],
) -> GPUClasses:
    classes = [_cut_class(fleet, state, cut[state]) for state in sorted(cut, key=_order)]
    classes += [_node_class(fleet, state, whole[state]) for state in sorted(whole, key=_whole_order)]
    return GPUClasses(tuple(classes), _converted(fleet, classes), _grown(fleet), name)


def _order(state: _MIGState) -> tuple[object, ...]:
    return state.kind, state.backend, state.cuttable, _slot_order(state.slots)


def _slots(fleet: PreparedFleet, gpu: GPUState, name: Namer) -> tuple[Slot, ...]:
    slots = []
    for instance in gpu.instances:
        held = fleet.held.get((gpu.id, instance.start))
        foreign = held is None and instance.owner is not None
        slots.append(
            Slot(
                placement=Placement(instance.start, instance.profile),
                owner_tag=name(held) if held is not None else None,
                fixed=foreign or (held is not None and held.never_surplus),
                foreign=foreign,
            )
        )
    return tuple(sorted(slots, key=lambda slot: slot.placement))


def _whole(fleet: PreparedFleet, kind: GPUKind, gpus: list[GPUState], name: Namer) -> _Whole:
    gangs: dict[tuple[str, ...], RunningReplica] = {}
    foreign = 0
    for gpu in gpus:
        held = fleet.held.get((gpu.id, 0)) if not gpu.mig_enabled else None
        if held is not None:
            gangs[held.gpus] = held
        elif not gpu.mig_enabled:
            foreign += gpu.in_use
    convertible = tuple(sorted(Counter(origins(fleet, gpus, name).values()).items(), key=_origin_order))
    named = tuple(sorted((name(held), held.shape) for held in gangs.values()))
    return _Whole(kind, len(gpus), convertible, foreign, named)


def _changes_mode(fleet: PreparedFleet, gpu: GPUState) -> bool:
    """Whether the MIG mode of a GPU may change. Of one in use, only where no gang of several GPUs is in play:
    a node that chooses for each of its GPUs would have too many targets.
    """
    return gpu.may_convert and (not gpu.in_use or fleet.levels.get(gpu.sku, (1,)) == (1,))


def _whole_order(state: _Whole) -> tuple[object, ...]:
    convertible = tuple(map(_origin_order, state.convertible))
    return state.kind, state.count, convertible, state.foreign, state.gangs


def _origin_order(counted: tuple[Origin, int]) -> tuple[object, ...]:
    origin, count = counted
    return origin.backend, origin.mig_enabled, _slot_order(origin.slots), count


def _slot_order(slots: tuple[Slot, ...]) -> tuple[object, ...]:
    return tuple((s.placement, s.owner_tag or (), s.fixed, s.foreign) for s in slots)


def origins(fleet: PreparedFleet, gpus: Iterable[GPUState], name: Namer) -> dict[str, Origin]:
    """Return what the convertible GPUs of a node are now, by id: those that may be in MIG mode afterwards.

    Where layouts differ so much that the node had too many targets, free slices count as not there: plans
    stay possible and their dollars exact, but may cut a GPU anew that has the slices already.
    """
    found = {
        gpu.id: Origin(gpu.backend, gpu.mig_enabled, _slots(fleet, gpu, name) if gpu.mig_enabled else ())
        for gpu in gpus
        if _changes_mode(fleet, gpu) and (gpu.mig_enabled or fleet.profiles.get(gpu.sku))
    }
    choices = prod(n + 1 for n in Counter(found.values()).values())
    if choices <= _MOST_CHOICES:
        return found
    return {gpu: origin._replace(slots=()) for gpu, origin in found.items()}


def _cut_class(fleet: PreparedFleet, state: _MIGState, gpus: list[GPUState]) -> StateClass:
    board = fleet.problem.board(state.kind.sku)
    if board is None:  # cannot be: validated
        raise ValueError(state.kind.sku)
    profiles = fleet.profiles.get(state.kind.sku, frozenset())
    rules = Rules(board, state.kind.sku, profiles, state.backend, state.cuttable)
    return StateClass(
        state.kind,
        in_turn(fleet, state.kind.sku, ((gpu.id,) for gpu in gpus)),
        gpu_targets(rules, state.slots),
    )


def _node_class(fleet: PreparedFleet, state: _Whole, members: list[tuple[str, ...]]) -> StateClass:
    targets = node_targets(state.count, state.convertible, state.foreign, state.gangs)
    return StateClass(state.kind, in_turn(fleet, state.kind.sku, members), targets, is_node=True)


def in_turn(
    fleet: PreparedFleet, sku: str, members: Iterable[tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    """Return members node after node, which touches few nodes; or, to be spread, one of each node in turn."""
    order = sorted(members, key=lambda ids: (fleet.nodes[ids[0]], ids))
    if sku not in fleet.scattered:
        return tuple(order)
    by_node: Counter[str] = Counter()
    ranked = []
    for ids in order:
        ranked.append((by_node[fleet.nodes[ids[0]]], ids))
        by_node[fleet.nodes[ids[0]]] += 1
    return tuple(ids for _, ids in sorted(ranked, key=lambda item: item[0]))


def _converted(fleet: PreparedFleet, classes: Iterable[StateClass]) -> tuple[ConvertedClass, ...]:
    kinds = {(c.kind.one_gpu, origin) for c in classes for target in c.targets for origin, _ in target.in_mig}
    converted = []
    for kind, origin in sorted(kinds, key=lambda pair: (pair[0], _origin_order((pair[1], 1)))):
        board = fleet.problem.board(kind.sku)
        if board is not None:
            profiles = fleet.profiles.get(kind.sku, frozenset())
            rules = Rules(board, kind.sku, profiles, origin.backend)
            targets = gpu_targets(rules, origin.slots)
            if not origin.slots:  # nothing to be left as it is
                targets = tuple(target for target in targets if target.kind != "same")
            converted.append(ConvertedClass(kind, origin, targets))
    return tuple(converted)


def _grown(fleet: PreparedFleet) -> tuple[GrownClass, ...]:
    classes = []
    for pool in fleet.problem.growable:
        price = units(pool.price_per_gpu_hour)
        kind = GPUKind(pool.sku, f"+{pool.name}", price, pool.nvlink_gpus, pool.node_size)
        profiles = fleet.profiles.get(pool.sku, frozenset()) if pool.mig_enabled else frozenset()
        classes.append(GrownClass(pool, kind, fresh_targets(fleet.problem, pool.sku, profiles)))
    return tuple(classes)


def fresh_targets(problem: Problem, sku: str, profiles: frozenset[str]) -> tuple[Target, ...]:
    """Return how an empty GPU may be cut to `profiles`."""
    board = problem.board(sku)
    return tuple(t for t in gpu_targets(Rules(board, sku, profiles), ()) if t.kind == "cut") if board else ()
