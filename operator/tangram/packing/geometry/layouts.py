"""Which slices may stand side by side on a board. Counted once per board, then looked up.

A set of placements is legal if every start is one that the driver lists, no memory slice is used twice, and
the sum of compute and of each kind of engine stays within what the board has. MIG User Guide, "Concepts", and
the listings of `nvidia-smi mig -lgip` and `-lgipp`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from tangram.catalog import InputError
from tangram.packing.geometry.board import Board, Option


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


@cache
def layouts(board: Board) -> tuple[Layout, ...]:
    """Return every legal layout, the empty one first, in a fixed order."""
    return tuple(tuple(Placement(o.start, o.profile) for o in chosen) for chosen in _grow(board, 0, ()))


@cache
def maximal_layouts(board: Board) -> tuple[Layout, ...]:
    """Return the layouts to which nothing can be added."""
    return tuple(layout for layout in layouts(board) if not _can_grow(board, layout))


@cache
def multisets(board: Board) -> tuple[Multiset, ...]:
    """Return what layouts offer, without positions; sorted."""
    return tuple(sorted({multiset(layout) for layout in layouts(board)}))


@cache
def maximal_multisets(board: Board) -> tuple[Multiset, ...]:
    """Return the multisets that no other contains: all that a packer of fresh GPUs has to look at."""
    found = [Counter(dict(m)) for m in multisets(board)]
    return tuple(
        tuple(sorted(mine.items()))
        for mine in found
        if not any(mine is not other and mine <= other for other in found)
    )


@cache
def layout_of(board: Board, wanted: Multiset) -> Layout | None:
    """Return the first legal layout that offers exactly `wanted`; None: the board cannot hold it."""
    return next((layout for layout in layouts(board) if multiset(layout) == wanted), None)


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


def default_position(board: Board, layout: Layout, profile: str) -> Placement | None:
    """Return where the driver puts a new instance that names no position: the highest free legal start.

    So say the MIG User Guide's examples: the first 1g goes to 6, 2g and 3g go to 4. None: no room.
    """
    free = [p for p in _additions(board, layout) if p.profile == profile]
    return max(free) if free else None


@cache
def creation_order(board: Board, wanted: Multiset) -> Layout | None:
    """Return an order in which creation at default positions yields `wanted`, with those positions.

    Order matters: 1g, 1g, 2g and then 3g fails where 3g first succeeds. Largest first is tried first, as
    mig-parted does, which permutes until one order works. None: no order does.
    """
    size = {option.profile: (option.mask.bit_count(), option.compute) for option in board.options}
    names = tuple(sorted(dict(wanted), key=lambda name: (size.get(name, (0, 0)), name), reverse=True))
    return _create(board, (), names, dict(wanted))


def _create(board: Board, made: Layout, names: tuple[str, ...], left: dict[str, int]) -> Layout | None:
    if not any(left.values()):
        return made
    for name in names:
        position = default_position(board, made, name) if left[name] else None
        if position is not None:
            done = _create(board, (*made, position), names, left | {name: left[name] - 1})
            if done is not None:
                return done
    return None


def _grow(board: Board, first: int, chosen: tuple[Option, ...]) -> Iterator[tuple[Option, ...]]:
    yield chosen
    used = sum(option.mask for option in chosen)
    for index in range(first, len(board.options)):
        option = board.options[index]
        if not used & option.mask and not _exhausted(board, (*chosen, option)):
            yield from _grow(board, index + 1, (*chosen, option))


def _can_grow(board: Board, layout: Layout) -> bool:
    return next(_additions(board, layout), None) is not None


def _additions(board: Board, layout: Iterable[Placement]) -> Iterator[Placement]:
    found = [board.option(p.profile, p.start) for p in layout]
    chosen = [option for option in found if option is not None]
    used = sum(option.mask for option in chosen)
    for option in board.options:
        if not used & option.mask and not _exhausted(board, (*chosen, option)):
            yield Placement(option.start, option.profile)


def _exhausted(board: Board, chosen: Iterable[Option]) -> str:
    """Return which resource besides memory slices `chosen` has too much of, or the empty string."""
    taken: Counter[str] = Counter()
    compute = 0
    for option in chosen:
        compute += option.compute
        taken.update(dict(option.engines))
    if compute > board.compute_slices:
        return "compute"
    return next((kind for kind, cap in board.engine_caps if taken[kind] > cap), "")


def _unknown(board: Board, placement: Placement) -> str:
    starts = [str(o.start) for o in board.options if o.profile == placement.profile]
    if not starts:
        return f"{board.key} has no profile {placement.profile!r}; it has {', '.join(board.profiles)}"
    return f"{placement.profile} may start at {', '.join(starts)} on {board.key}, not at {placement.start}"
