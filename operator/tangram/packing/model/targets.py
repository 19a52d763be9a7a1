"""Targets of GPUs: what one GPU in MIG mode, or the whole GPUs of one node, may become.

A target is of use only if no other offers as many slices of each profile and keeps as many replicas of each
owner tag. Dropping the rest loses nothing: no constraint asks for fewer slices or fewer kept replicas.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

from tangram.fleet import ShapeKey
from tangram.packing.geometry.board import Board
from tangram.packing.geometry.count_vectors import guards, maximal, unit
from tangram.packing.geometry.layouts import (
    Layout,
    Placement,
    creation_order,
    maximal_layouts,
    maximal_multisets,
)
from tangram.packing.problem.statement import Backend

OwnerTag = tuple[str | int, ...]  # of a replica: its owner and more, as finely as the fleet's size allows
Gang = tuple[OwnerTag, ShapeKey]
Supply = tuple[tuple[ShapeKey, int], ...]  # sorted by shape, counts above zero


class Slot(NamedTuple):
    """A GPU instance that exists."""

    placement: Placement
    owner_tag: OwnerTag | None = None  # None: free, or taken by a pod that is not part of the problem
    fixed: bool = False  # in every layout
    foreign: bool = False  # taken by a pod that is not part of the problem


class Origin(NamedTuple):
    """What a GPU is before a plan that may change its MIG mode."""

    backend: Backend
    mig_enabled: bool
    slots: tuple[Slot, ...] = ()  # free, or of replicas that may move

    @property
    def without_owners(self) -> "Origin":
        """The same, whoever holds its slices."""
        return self._replace(slots=tuple(slot._replace(owner_tag=None) for slot in self.slots))


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that a GPU in MIG mode, or a node's whole GPUs, may become."""

    kind: str  # idle | same | cut (MIG) | node (whole GPUs)
    supply: Supply = ()  # slices and kept gangs that demands may take
    kept: tuple[tuple[OwnerTag, int], ...] = ()  # replicas that may stay where they are
    used: int = 0  # GPUs paid for; of a node: those of kept gangs and of foreign pods
    stranded: int = 0  # compute slices that no demand can reach
    layout: Layout = ()  # kind cut: where the slices are
    free: int = 0  # kind node: whole GPUs that new gangs may take
    in_mig: tuple[tuple[Origin, int], ...] = ()  # kind node: convertible GPUs that are in MIG mode then
    switched_off: int = 0  # kind node: GPUs whose MIG mode ends

    @property
    def recut(self) -> int:
        """How many GPUs get another layout or leave MIG mode."""
        return self.switched_off + (self.kind == "cut")


@dataclass(frozen=True, slots=True)
class Rules:
    """What limits the targets of a GPU in MIG mode."""

    board: Board
    sku: str
    profiles: frozenset[str]  # that demands take or replicas hold
    backend: Backend = "nvml"
    cuttable: bool = True


class _CutLayout(NamedTuple):
    """A layout that a GPU may be cut to."""

    supply: Supply  # of an empty GPU
    layout: Layout
    options: int  # a bit for each option of the board
    vector: int  # slices by profile, as a count vector
    stranded: int


def gpu_targets(rules: Rules, slots: tuple[Slot, ...]) -> tuple[Target, ...]:
    """Return what a GPU in MIG mode with these instances may become.

    Tags are numbered in order of appearance, so that GPUs which differ in tags alone share one search.
    """
    numbers: dict[OwnerTag, OwnerTag] = {}
    for slot in slots:
        if slot.owner_tag is not None:
            numbers.setdefault(slot.owner_tag, (len(numbers),))
    plain = tuple(s if s.owner_tag is None else s._replace(owner_tag=numbers[s.owner_tag]) for s in slots)
    back = {number: tag for tag, number in numbers.items()}
    return tuple(
        Target(t.kind, t.supply, tuple(sorted((back[k], n) for k, n in t.kept)), t.used, t.stranded, t.layout)
        for t in _gpu_targets(rules, plain)
    )


@cache
def _gpu_targets(rules: Rules, slots: tuple[Slot, ...]) -> tuple[Target, ...]:
    targets = [] if any(slot.foreign for slot in slots) else [Target("idle")]
    targets.append(
        Target(
            kind="same",
            supply=_supply(rules, (slot.placement for slot in slots if not slot.foreign)),
            kept=tuple(sorted(Counter(s.owner_tag for s in slots if s.owner_tag is not None).items())),
            used=1,
            stranded=_stranded(rules, tuple(slot.placement for slot in slots)),
        )
    )
    if not rules.cuttable:
        return tuple(targets)
    if rules.backend == "nvml":  # destroys and creates single instances
        targets += _unbeaten(rules, slots, lasting=slots)
    elif not any(slot.fixed for slot in slots):  # mig-manager destroys all of them when the counts change
        targets += _unbeaten(rules, slots, lasting=())
    return tuple(targets)


def _unbeaten(rules: Rules, slots: tuple[Slot, ...], lasting: tuple[Slot, ...]) -> list[Target]:
    """Return the cuts that offer or keep more than each of the others, and than the GPU as it is.

    `lasting`: the instances that stay where a layout has them. All layouts have those of foreign pods, so
    that counting these does not change which vector is larger. More slices of the same profiles strand less.
    """
    fixed = frozenset(slot.placement.profile for slot in slots if slot.fixed)
    needed = sum(_option(rules.board, slot.placement) for slot in slots if slot.fixed)
    lasting_instances = _LastingInstances(rules, lasting)
    best: dict[int, tuple[int, _CutLayout]] = {}
    for rank, cut in enumerate(_cuts(rules, fixed)):
        if needed & ~cut.options:
            continue
        vector = cut.vector + lasting_instances.of(cut)[0]
        if vector not in best or cut.stranded < best[vector][1].stranded:
            best[vector] = rank, cut
    same = _vector(rules, (slot.placement for slot in slots))
    same += sum(_unit(rules, slot.owner_tag) for slot in slots if slot.owner_tag is not None)
    largest = maximal(best, guards(len(rules.profiles) + len(slots)), (same,))
    foreign = tuple(slot.placement for slot in slots if slot.foreign)
    return [
        Target(
            kind="cut",
            supply=cut.supply if not foreign else _supply(rules, (p for p in cut.layout if p not in foreign)),
            kept=lasting_instances.of(cut)[1],
            used=1,
            stranded=cut.stranded,
            layout=cut.layout,
        )
        for _, cut in sorted(best[vector] for vector in largest)
    ]


class _LastingInstances:
    """The replicas of lasting instances that stay under a cut: as a vector, and by owner tag."""

    def __init__(self, rules: Rules, lasting: tuple[Slot, ...]) -> None:
        self._rules = rules
        self._tags = [
            (_option(rules.board, slot.placement), slot.owner_tag)
            for slot in lasting
            if slot.owner_tag is not None
        ]
        self._options = sum(option for option, _ in self._tags)
        self._by_options: dict[int, tuple[int, tuple[tuple[OwnerTag, int], ...]]] = {}

    def of(self, cut: "_CutLayout") -> tuple[int, tuple[tuple[OwnerTag, int], ...]]:
        stay = cut.options & self._options
        if stay not in self._by_options:
            tags = Counter(tag for option, tag in self._tags if option & stay)
            vector = sum(_unit(self._rules, tag) * n for tag, n in tags.items())
            self._by_options[stay] = vector, tuple(sorted(tags.items()))
        return self._by_options[stay]


@cache
def _cuts(rules: Rules, fixed: frozenset[str]) -> tuple[_CutLayout, ...]:
    """Return the maximal layouts of the profiles in play and of those that are `fixed`."""
    board = rules.board
    if rules.backend == "nvml":
        layouts: Iterable[Layout] = maximal_layouts(board.only(rules.profiles | fixed))
    else:  # mig-manager creates all slices at default positions
        orders = (creation_order(board, counts) for counts in maximal_multisets(board.only(rules.profiles)))
        layouts = (tuple(sorted(order)) for order in orders if order is not None)
    cuts = (
        _CutLayout(
            supply=_supply(rules, layout),
            layout=layout,
            options=sum(_option(board, placement) for placement in layout),
            vector=_vector(rules, layout),
            stranded=board.compute_slices - _compute(board, layout),
        )
        for layout in layouts
    )
    return tuple(sorted(cuts))


@cache
def _bits(board: Board) -> dict[tuple[str, int], int]:
    return {(option.profile, option.start): 1 << number for number, option in enumerate(board.options)}


def _option(board: Board, placement: Placement) -> int:
    """Return the bit of one option of the board."""
    return _bits(board).get((placement.profile, placement.start), 0)


def _unit(rules: Rules, tag: OwnerTag) -> int:
    """Return the count vector of one replica of a numbered tag: fields after those of the profiles."""
    return unit(len(rules.profiles) + int(tag[0]))


def _vector(rules: Rules, placements: Iterable[Placement]) -> int:
    """Return the count vector of the slices that demands take, by profile."""
    fields = {profile: unit(field) for field, profile in enumerate(sorted(rules.profiles))}
    return sum(fields.get(placement.profile, 0) for placement in placements)


def _compute(board: Board, layout: Layout) -> int:
    options = (board.option(placement.profile, placement.start) for placement in layout)
    return sum(option.compute for option in options if option is not None)


def _stranded(rules: Rules, layout: Layout) -> int:
    """Return the compute slices that no demand can use while `layout` stands, whatever is cut beside it."""
    least = rules.board.compute_slices - _compute(rules.board, layout)
    if rules.cuttable and rules.backend == "nvml":
        present = sum(_option(rules.board, placement) for placement in layout)
        cuts = _cuts(rules, frozenset(placement.profile for placement in layout))
        least = min((cut.stranded for cut in cuts if not present & ~cut.options), default=least)
    return least


def _supply(rules: Rules, placements: Iterable[Placement]) -> Supply:
    """Return the slices that demands take."""
    counts = Counter(p.profile for p in placements if p.profile in rules.profiles)
    return tuple((ShapeKey(rules.sku, profile), n) for profile, n in sorted(counts.items()))


@cache
def node_targets(
    count: int, convertible: tuple[tuple[Origin, int], ...], foreign: int, gangs: tuple[Gang, ...]
) -> tuple[Target, ...]:
    """Return what the whole GPUs of a node may become, the node as it is first.

    Every choice of gangs that stay, and of convertible GPUs that are in MIG mode then, by what they are now;
    the rest is free for new gangs. `count`: GPUs in all, `foreign` of them taken by pods that are not part of
    the problem. Of a node of several GPUs, those of gangs are not convertible.
    """
    targets = []
    for stay in _subsets(gangs):
        used = sum(shape.gpus for _, shape in stay)
        for in_mig in product(*(_as_now_first(origin, n) for origin, n in convertible)):
            if (free := count - foreign - used - sum(in_mig)) < 0:
                continue  # the gang that stays has the GPU
            pairs = [(origin, n, now) for (origin, now), n in zip(convertible, in_mig, strict=True)]
            targets.append(
                Target(
                    kind="node",
                    supply=tuple(sorted(Counter(shape for _, shape in stay).items())),
                    kept=tuple(sorted(Counter(tag for tag, _ in stay).items())),
                    used=used + foreign,
                    free=free,
                    in_mig=tuple((origin, n) for origin, n, _ in pairs if n),
                    switched_off=sum(now - n for origin, n, now in pairs if origin.mig_enabled),
                )
            )
    return tuple(targets)


def _as_now_first(origin: Origin, count: int) -> range:
    """Return how many of `count` GPUs may be in MIG mode; first, as many as are now."""
    return range(count, -1, -1) if origin.mig_enabled else range(count + 1)


def _subsets(gangs: Sequence[Gang]) -> list[tuple[Gang, ...]]:
    """Return the distinct sub-multisets, the largest first."""
    subsets: list[tuple[Gang, ...]] = [()]
    for gang, n in sorted(Counter(gangs).items()):
        subsets = [(*stay, *(gang,) * some) for stay in subsets for some in range(n, -1, -1)]
    return subsets
