"""How many replicas of several whole GPUs (gangs) the free GPUs of nodes can hold.

A gang takes GPUs of one node that one NVLink domain joins, or the whole node. Sizes are powers of two, so
each divides the next, and gangs fit together exactly where the places of each size do: a gang takes one place
of its size, and as many of each smaller size as it has of these.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tangram.catalog.records import NODE_GPUS

GANG_SIZES = (1, 2, 4, 8)  # GPUs of one replica, within a node of eight


def gangs_that_fit(size: int, *, free: int, node_gpus: int, nvlink_gpus: int) -> int:
    """Return how many gangs of `size` GPUs fit on `free` GPUs of a node with `node_gpus`.

    A gang takes GPUs that one NVLink domain joins (`nvlink_gpus` of them; 1: no NVLink), or the whole node.
    Nodes do not show which GPUs are one domain. NVIDIA's device plugin prefers GPUs that NVLink joins, so
    gangs are counted as if they filled one domain after the other.
    """
    if size <= nvlink_gpus:
        return free // size
    return int(size == free == node_gpus)


@dataclass(frozen=True, slots=True, order=True)
class GangCapacity:
    """Gangs that fit on free GPUs; slices hold gangs of one."""

    by_size: tuple[int, ...] = (0,)  # gangs of 1, 2, 4, 8 GPUs, each size as if it were the only one
    nvlink_gpus: int = NODE_GPUS  # that one domain joins; a larger gang takes a whole node

    @classmethod
    def on_nodes(cls, nodes: Iterable[tuple[int, int]], nvlink_gpus: int) -> "GangCapacity":
        """Return the capacity of nodes, each with its free GPUs and the number of all its GPUs."""
        by_size = [0] * len(GANG_SIZES)
        for free, gpus in nodes:
            for index, size in enumerate(GANG_SIZES):
                by_size[index] += gangs_that_fit(size, free=free, node_gpus=gpus, nvlink_gpus=nvlink_gpus)
        return cls(tuple(by_size), nvlink_gpus)

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
        return max(0, min(self.by_size[index] // needed for index, needed in self._needs(size)))

    def without(self, size: int, count: int) -> "GangCapacity":
        """Return what is left beside `count` gangs of `size` GPUs."""
        left = list(self.by_size)
        for index, needed in self._needs(size):
            left[index] -= count * needed
        return replace(self, by_size=tuple(left))

    def at_most(self, gangs: Mapping[int, int]) -> "GangCapacity":
        """Return the capacity, no larger than a number of gangs by size needs."""
        most = [0] * len(self.by_size)
        for size, count in gangs.items():
            for index, needed in self._needs(size):
                most[index] += count * needed
        return replace(self, by_size=tuple(map(min, self.by_size, most)))

    def nodes(self) -> Iterator[int]:
        """Yield the GPUs of nodes that have this capacity together, the largest first."""
        left = self
        for size in reversed(GANG_SIZES[: len(self.by_size)]):
            count = left.fitting(size)
            left = left.without(size, count)
            yield from (size for _ in range(count))

    def _needs(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield what a gang takes: the index of each size of which it takes places, with their number."""
        for index, smaller in enumerate(GANG_SIZES):
            if smaller == size or smaller < min(size, self.nvlink_gpus + 1):
                yield index, size // smaller
