"""How many replicas of several whole GPUs (gangs) the free GPUs of nodes can hold.

A gang takes any GPUs of one node: predictions count on the slowest link that the device plugin may give it
(`GPU.nvlink_joins`). Sizes are powers of two, so each divides the next, and gangs fit together exactly where
the places of each size do: a gang takes one place of its size, and as many of each smaller size as it has of
these.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

GANG_SIZES = (1, 2, 4, 8)  # GPUs of one replica, within a node of eight


def gangs_that_fit(size: int, *, free: int, node_gpus: int, nvlink_gpus: int) -> int:
    """Return how many gangs of `size` GPUs fit on `free` GPUs of a node with `node_gpus`.

    Where an inventory says that one NVLink domain joins fewer GPUs than a gang has (`nvlink_gpus` of them),
    it takes the whole node: gangs are counted as if they filled one domain after the other.
    """
    if size <= nvlink_gpus:
        return free // size
    return int(size == free == node_gpus)


@dataclass(frozen=True, slots=True, order=True)
class GangCapacity:
    """Gangs that fit on free GPUs; slices hold gangs of one."""

    by_size: tuple[int, ...] = (0,)  # gangs of 1, 2, 4, 8 GPUs, each size as if it were the only one

    @classmethod
    def on_nodes(cls, nodes: Iterable[int]) -> "GangCapacity":
        """Return the capacity of nodes with so many free GPUs."""
        free = tuple(nodes)
        return cls(tuple(sum(gpus // size for gpus in free) for size in GANG_SIZES))

    @property
    def devices(self) -> int:
        """Free GPUs or slices."""
        return self.by_size[0]

    def up_to(self, size: int) -> "GangCapacity":
        """Return the capacity for gangs of at most `size` GPUs."""
        return replace(self, by_size=self.by_size[: GANG_SIZES.index(size) + 1])

    def fitting(self, size: int) -> int:
        """Return how many gangs of `size` GPUs fit."""
        if size not in GANG_SIZES[: len(self.by_size)]:
            return 0
        return max(
            0, min(places // needed for places, needed in zip(self.by_size, _needs(size), strict=False))
        )

    def without(self, size: int, count: int) -> "GangCapacity":
        """Return what is left beside `count` gangs of `size` GPUs."""
        left = list(self.by_size)
        for index, needed in enumerate(_needs(size)):
            left[index] -= count * needed
        return replace(self, by_size=tuple(left))

    def at_most(self, gangs: Mapping[int, int]) -> "GangCapacity":
        """Return the capacity, no larger than a number of gangs by size needs."""
        needed = GangCapacity((0,) * len(self.by_size))
        for size, count in gangs.items():
            needed = needed.without(size, -count)
        return replace(self, by_size=tuple(map(min, self.by_size, needed.by_size)))

    def nodes(self) -> Iterator[int]:
        """Yield the GPUs of nodes that have this capacity together, the largest first."""
        left = self
        for size in reversed(GANG_SIZES[: len(self.by_size)]):
            count = left.fitting(size)
            left = left.without(size, count)
            yield from (size for _ in range(count))


def _needs(size: int) -> tuple[int, ...]:
    """Return how many places of each size, up to its own, a gang takes."""
    return tuple(size // smaller for smaller in GANG_SIZES if smaller <= size)
