"""The least cover, and the least fixed number of replicas, whose replay reaches an attainment.

The need of a bin follows from a rate per replica, which leaves out how requests queue. So the load is scaled
until requests that are replayed through the cover meet their objectives as often as asked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tangram.simulator.oracle.replica_cover import ReplicaCover

Replay = Callable[[Sequence[int]], float]  # ordered replicas of each bin -> attainment, 0 to 1


@dataclass(frozen=True, slots=True)
class CoverAtAttainment:
    """A cover, the factor on the load that it was made for, and the attainment of its replay."""

    cover: ReplicaCover
    scale: float
    attainment: float


def cover_at_attainment(
    load: Sequence[float],
    cover_of: Callable[[Sequence[int]], ReplicaCover],
    replay: Replay,
    attainment: float,
    *,
    low: float = 0.5,
    high: float = 2.0,
    steps: int = 12,
) -> CoverAtAttainment | None:
    """Return the cheapest cover found whose replay reaches `attainment`; None if none does.

    `load` is that of each bin in replicas, not rounded. The factor is bisected from `low` to `high`, which
    is doubled three times if it is too low; of all covers that reach the attainment the cheapest is taken, as
    a replay is not quite monotone.
    """
    reached: list[CoverAtAttainment] = []

    def is_reached(scale: float) -> bool:
        cover = cover_of([math.ceil(part * scale - 1e-9) for part in load])
        result = CoverAtAttainment(cover, scale, replay(cover.ordered))
        if result.attainment >= attainment:
            reached.append(result)
        return result.attainment >= attainment

    doublings = 0
    while not is_reached(high):
        if doublings == 3:
            return None
        low, high, doublings = high, 2 * high, doublings + 1
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return min(reached, key=lambda result: (result.cover.replica_s, result.scale))


def least_static(bins: int, replay: Replay, attainment: float, most: int) -> int | None:
    """Return the least fixed number of replicas whose replay reaches `attainment`; None: not even `most`."""
    if replay([most] * bins) < attainment:
        return None
    low, high = 0, most  # low does not reach it, high does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if replay([middle] * bins) >= attainment else (middle, high)
    return high
