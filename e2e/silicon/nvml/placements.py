"""Where GPU instances may stand on a board: legal starts, no overlap, sums of engines and compute slices.

Rules and default positions are those of the MIG User Guide. They are written down apart from the operator's
own geometry, so that each can be tested against the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from e2e.silicon.catalog import ENGINES, Board, Profile

Placed = tuple[Profile, int]  # a profile and its first memory slice


def fits(board: Board, placed: Iterable[Placed], profile: Profile, start: int) -> bool:
    """Whether `profile` can be created at `start`, a legal start of it, beside the instances `placed`."""
    together = [*placed, (profile, start)]
    slices = [piece for one, first in together for piece in range(first, first + one.size)]
    if len(slices) != len(set(slices)) or max(slices) >= board.memory_slices:
        return False
    if sum(one.compute_slices for one, _ in together) > board.compute_slices:
        return False
    if sum(one.name == profile.name for one, _ in together) > profile.max_instances:
        return False
    return all(
        (cap := board.engine_caps.get(engine)) is None
        or sum(one.engines[engine] for one, _ in together) <= cap
        for engine in ENGINES
    )


def default_start(board: Board, placed: Iterable[Placed], profile: Profile) -> int | None:
    """Return where the driver puts an instance for which no placement is asked; None: it has no room.

    The highest free start: the guide's examples put the first 1g at 6, 2g and 3g at 4 and a second 3g at 0.
    """
    placed = list(placed)
    return max((start for start in profile.starts if fits(board, placed, profile, start)), default=None)


def remaining_capacity(board: Board, placed: Iterable[Placed], profile: Profile) -> int:
    """Return how many more instances of this one profile fit; starts of one profile never overlap in part."""
    placed = list(placed)
    before = len(placed)
    while (start := default_start(board, placed, profile)) is not None:
        placed.append((profile, start))
    return len(placed) - before


def instance_id(board: Board, start: int, size: int) -> int:
    """Return the id of a GPU instance by its placement: 0 is the whole board, 1 and 2 its halves, and so on.

    Captured listings have this order, some with the right half first. So the next instance at a placement has
    the same id.
    """
    return board.memory_slices // size - 1 + start // size
