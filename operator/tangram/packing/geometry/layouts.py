"""Layouts: which GPU instances may stand side by side on a board. Enumerated once per board, then looked up.

A board is a vector of resources: each memory slice once, compute slices, and engines of each kind. A set of
placements is legal if each start is one that the driver lists and the placements together take no more than
the board has. MIG User Guide, "Concepts", and the listings of `nvidia-smi mig -lgip` and `-lgipp`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from tangram.catalog import InputError
from tangram.packing.geometry.board import Board, Option
from tangram.packing.geometry.count_vectors import guards, maximal, pack, within


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One GPU instance: a profile at a memory slice."""

    start: int
    profile: str

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


Layout = tuple[Placement, ...]  # sorted
Multiset = tuple[tuple[str, int], ...]  # (profile, count), sorted, counts above zero


class IllegalLayout(InputError):
    """Instances that this board cannot hold together."""


@dataclass(frozen=True, slots=True)
class _Resources:
    """What a board has, and what each of its options takes of it, as count vectors."""

    whole: int
    options: tuple[int, ...]
    guard: int

    def fitting(self, left: int, first: int = 0) -> list[int]:
        """Return the options, from `first` on, that what is left has room for."""
        rest = range(first, len(self.options))
        return [index for index in rest if within(self.options[index], left, self.guard)]


@cache
def _resources(board: Board) -> _Resources:
    kinds = [kind for kind, _ in board.engine_caps]
    slices = range(board.memory_slices)

    def taken(option: Option) -> int:
        engines = dict(option.engines)
        memory = (option.mask >> slice_ & 1 for slice_ in slices)
        return pack((*memory, option.compute, *(engines.get(kind, 0) for kind in kinds)))

    whole = pack((*(1 for _ in slices), board.compute_slices, *(cap for _, cap in board.engine_caps)))
    return _Resources(whole, tuple(map(taken, board.options)), guards(len(slices) + 1 + len(kinds)))


@cache
def layouts(board: Board) -> tuple[Layout, ...]:
    """Return every legal layout, the empty one first, in a fixed order."""
    return tuple(layout for layout, _ in _with_rest(board))


@cache
def maximal_layouts(board: Board) -> tuple[Layout, ...]:
    """Return the layouts to which nothing can be added."""
    resources = _resources(board)
    return tuple(layout for layout, left in _with_rest(board) if not resources.fitting(left))


@cache
def multisets(board: Board) -> tuple[Multiset, ...]:
    """Return what layouts offer, without positions; sorted."""
    return tuple(sorted({multiset(layout) for layout in layouts(board)}))


@cache
def maximal_multisets(board: Board) -> tuple[Multiset, ...]:
    """Return the multisets that no other contains, sorted: an empty GPU need not be cut to any other."""
    profiles = board.profiles
    vectors = {pack(dict(counts).get(name, 0) for name in profiles): counts for counts in multisets(board)}
    return tuple(sorted(vectors[vector] for vector in maximal(vectors, guards(len(profiles)))))


@cache
def layout_of(board: Board, counts: Multiset) -> Layout | None:
    """Return the first legal layout that offers exactly `counts`; None: the board cannot hold it."""
    return next((layout for layout in layouts(board) if multiset(layout) == counts), None)


def multiset(layout: Iterable[Placement]) -> Multiset:
    """Return how often each profile stands in `layout`."""
    return tuple(sorted(Counter(placement.profile for placement in layout).items()))


def check(board: Board, layout: Iterable[Placement], field: str = "layout") -> None:
    """Raise `IllegalLayout(field, ...)` naming the first rule that `layout` breaks."""
    used, chosen = 0, []
    for placement in sorted(layout):
        option = board.option(placement.profile, placement.start)
        if option is None:
            raise IllegalLayout(field, _unknown(board, placement))
        if used & option.mask:
            raise IllegalLayout(field, f"{placement} overlaps another instance on {board.key}")
        used |= option.mask
        chosen.append(option)
        short = _exhausted(board, chosen)
        if short:
            raise IllegalLayout(field, f"{placement} needs more {short} than {board.key} has left")


def is_legal(board: Board, layout: Iterable[Placement]) -> bool:
    """Whether `layout` breaks no rule."""
    try:
        check(board, layout)
    except IllegalLayout:
        return False
    return True


def default_position(board: Board, layout: Layout, profile: str) -> Placement | None:
    """Return where the driver puts a new instance that names no position: the highest free legal start.

    So say the MIG User Guide's examples: the first 1g goes to 6, 2g and 3g go to 4. None: no room.
    """
    free = [p for p in _additions(board, layout) if p.profile == profile]
    return max(free) if free else None


@cache
def creation_order(board: Board, multiset: Multiset) -> Layout | None:
    """Return an order in which creation at default positions yields `multiset`, with those positions.

    Order matters: 1g, 1g, 2g and then 3g fails where 3g first succeeds. Largest first is tried first, as
    mig-parted does, which permutes until one order works. None: no order does.
    """
    size = {option.profile: (option.mask.bit_count(), option.compute) for option in board.options}
    names = tuple(sorted(dict(multiset), key=lambda name: (size.get(name, (0, 0)), name), reverse=True))
    return _create(board, (), names, dict(multiset))


def _create(board: Board, created: Layout, names: tuple[str, ...], left: dict[str, int]) -> Layout | None:
    if not any(left.values()):
        return created
    for name in names:
        position = default_position(board, created, name) if left[name] else None
        if position is not None:
            done = _create(board, (*created, position), names, left | {name: left[name] - 1})
            if done is not None:
                return done
    return None


@cache
def _with_rest(board: Board) -> tuple[tuple[Layout, int], ...]:
    """Return every legal layout with the resources that it leaves."""
    resources, placements = _resources(board), [Placement(o.start, o.profile) for o in board.options]

    def grow(layout: Layout, left: int, first: int) -> Iterator[tuple[Layout, int]]:
        yield layout, left
        for index in resources.fitting(left, first):
            yield from grow((*layout, placements[index]), left - resources.options[index], index + 1)

    return tuple(grow((), resources.whole, 0))


def _additions(board: Board, layout: Iterable[Placement]) -> Iterator[Placement]:
    """Yield what can be added to a legal layout."""
    resources, left = _resources(board), _resources(board).whole
    numbers = {(option.profile, option.start): index for index, option in enumerate(board.options)}
    for placement in layout:
        index = numbers.get((placement.profile, placement.start))
        left -= 0 if index is None else resources.options[index]
    for index in resources.fitting(left):
        yield Placement(board.options[index].start, board.options[index].profile)


def _exhausted(board: Board, chosen: Iterable[Option]) -> str:
    """Return which resource besides memory slices `chosen` has too much of, or the empty string."""
    used = Counter[str]()
    for option in chosen:
        used.update({"compute": option.compute} | dict(option.engines))
    caps = (("compute", board.compute_slices), *board.engine_caps)
    return next((kind for kind, cap in caps if used[kind] > cap), "")


def _unknown(board: Board, placement: Placement) -> str:
    starts = [str(o.start) for o in board.options if o.profile == placement.profile]
    if not starts:
        return f"{board.key} has no profile {placement.profile!r}; it has {', '.join(board.profiles)}"
    return f"{placement.profile} may start at {', '.join(starts)} on {board.key}, not at {placement.start}"
