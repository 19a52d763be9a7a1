"""What one GPU, or one node's whole GPUs, may become: only the targets that no other target beats."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tangram.packing.geometry.board import Board
from tangram.packing.geometry.layouts import (
    Layout,
    Placement,
    creation_order,
    maximal_layouts,
    maximal_multisets,
    multiset,
)
from tangram.packing.problem.statement import Backend, ShapeKey

Label = tuple[str | int, ...]  # whose replica, told apart as finely as the fleet's size allows
Gang = tuple[Label, ShapeKey]


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """An instance that exists."""

    placement: Placement
    label: Label | None = None  # None: free, or a stranger's
    fixed: bool = False  # must be in every layout
    stranger: bool = False  # taken by somebody who is not part of the problem


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that a GPU in MIG mode, or a node's whole GPUs, may become."""

    kind: str  # idle | same | cut (MIG) | node (whole GPUs)
    supply: tuple[tuple[ShapeKey, int], ...] = ()  # slots and kept gangs that demands may take
    kept: tuple[tuple[Label, int], ...] = ()  # replicas that may go on where they are
    used: int = 0  # GPUs paid for; of a node: those of kept gangs and of strangers
    stranded: int = 0  # compute slices out of everybody's reach
    layout: Layout = ()  # kind cut: where the slices are
    free: int = 0  # kind node: whole GPUs that new gangs may take
    cut: int = 0  # kind node: convertible GPUs that are given to MIG


@dataclass(frozen=True, slots=True)
class Rules:
    """What limits the targets of a GPU in MIG mode."""

    board: Board
    sku: str
    profiles: frozenset[str]  # that anybody wants or holds
    backend: Backend = "nvml"
    cuttable: bool = True


def gpu_targets(rules: Rules, slots: tuple[Slot, ...]) -> tuple[Target, ...]:
    """Return what a GPU in MIG mode with these instances may become.

    Owners are numbered in order of appearance first, so that GPUs that differ only in names are thought about
    once.
    """
    names: dict[Label, int] = {}
    for slot in slots:
        if slot.label is not None:
            names.setdefault(slot.label, len(names))
    plain = tuple(s if s.label is None else replace(s, label=(names[s.label],)) for s in slots)
    back: dict[Label, Label] = {(number,): label for label, number in names.items()}
    return tuple(
        replace(target, kept=tuple(sorted((back[label], n) for label, n in target.kept)))
        for target in _gpu_targets(rules, plain)
    )


@cache
def _gpu_targets(rules: Rules, slots: tuple[Slot, ...]) -> tuple[Target, ...]:
    found = [] if any(slot.stranger for slot in slots) else [Target("idle")]
    same = _target("same", rules, slots, tuple(slot.placement for slot in slots))
    found.append(same)
    if rules.cuttable:
        fresh = _cleared if rules.backend == "mig-manager" else _recut
        found += _unbeaten(same, list(fresh(rules, slots)))
    return tuple(found)


def _recut(rules: Rules, slots: tuple[Slot, ...]) -> Iterable[Target]:
    """NVML destroys and creates single instances: equal slices stay."""
    fixed = {slot.placement for slot in slots if slot.fixed}
    wanted = rules.profiles | {placement.profile for placement in fixed}
    for layout in maximal_layouts(rules.board.only(wanted)):
        if fixed <= set(layout):
            yield _target("cut", rules, slots, layout)


def _cleared(rules: Rules, slots: tuple[Slot, ...]) -> Iterable[Target]:
    """mig-manager clears a GPU whose counts change, and creates all slices at default positions."""
    if any(slot.fixed for slot in slots):
        return
    now = multiset(slot.placement for slot in slots)
    for wanted in maximal_multisets(rules.board.only(rules.profiles)):
        order = creation_order(rules.board, wanted)
        if order is not None and wanted != now:
            yield _target("cut", rules, (), tuple(sorted(order)))


def _target(kind: str, rules: Rules, slots: tuple[Slot, ...], layout: Layout) -> Target:
    stays = set(layout)
    kept = Counter(s.label for s in slots if s.label is not None and s.placement in stays)
    strangers = {slot.placement for slot in slots if slot.stranger}
    supply = Counter(ShapeKey(rules.sku, p.profile) for p in layout if p not in strangers)
    return Target(
        kind=kind,
        supply=tuple(sorted((shape, n) for shape, n in supply.items() if shape.profile in rules.profiles)),
        kept=tuple(sorted((label, n) for label, n in kept.items() if label is not None)),
        used=1,
        stranded=_stranded(rules, layout),
        layout=layout if kind == "cut" else (),
    )


@cache
def _stranded(rules: Rules, layout: Layout) -> int:
    """Compute slices that nobody can use while `layout` stands, whatever else is cut."""
    board = rules.board
    compute = {(option.profile, option.start): option.compute for option in board.options}
    reached = [layout]
    if rules.cuttable and rules.backend == "nvml":
        names = rules.profiles | {placement.profile for placement in layout}
        reached += [m for m in maximal_layouts(board.only(names)) if set(layout) <= set(m)]
    most = max(sum(compute[p.profile, p.start] for p in placements) for placements in reached)
    return board.compute_slices - most


def _unbeaten(same: Target, found: list[Target]) -> list[Target]:
    """Drop targets that offer and keep no more than another, or than leaving the GPU as it is."""
    best: dict[tuple[object, object], Target] = {}
    for target in found:
        key = (target.supply, target.kept)
        if target.supply and (key not in best or target.stranded < best[key].stranded):
            best[key] = target
    left = sorted(best.values(), key=lambda t: (t.supply, t.kept, t.layout))
    vectors = [_vector(target) for target in left]
    mine = _vector(same)
    return [
        target
        for i, target in enumerate(left)
        if not _within(vectors[i], mine)
        and not any(i != j and _within(vectors[i], other) for j, other in enumerate(vectors))
    ]


def _vector(target: Target) -> dict[object, int]:
    return {**dict(target.supply), **dict(target.kept)}


def _within(small: dict[object, int], large: dict[object, int]) -> bool:
    return all(large.get(key, 0) >= count for key, count in small.items())


@cache
def node_targets(count: int, convertible: int, strangers: int, gangs: tuple[Gang, ...]) -> tuple[Target, ...]:
    """Return what the whole GPUs of a node may become.

    Every choice of gangs that stay, and of convertible GPUs that go to MIG; the rest is free for new gangs.
    `count` GPUs in all, `strangers` of them taken by somebody who is not part of the problem.
    """
    found = []
    for stay in _subsets(gangs):
        taken = sum(shape.tensor_parallel for _, shape in stay)
        left = count - strangers - taken
        found += [
            Target(
                kind="node",
                supply=tuple(sorted(Counter(shape for _, shape in stay).items())),
                kept=tuple(sorted(Counter(label for label, _ in stay).items())),
                used=taken + strangers,
                free=left - cut,
                cut=cut,
            )
            for cut in range(min(convertible, left) + 1)
        ]
    return tuple(found)


def _subsets(gangs: Sequence[Gang]) -> list[tuple[Gang, ...]]:
    """Return the distinct sub-multisets, the largest first."""
    found: list[tuple[Gang, ...]] = [()]
    for gang, n in sorted(Counter(gangs).items()):
        found = [(*stay, *(gang,) * some) for stay in found for some in range(n, -1, -1)]
    return found
