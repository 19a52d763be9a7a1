"""Which replica holds which prefix blocks, as far as its requests tell. Bounded in all."""

from collections.abc import Sequence
from itertools import islice

MOST_ENTRIES = 1 << 18  # (block, replica) pairs over all replicas: about 64 MB


class PrefixIndex:
    """Blocks of each replica by last use, and for each block the set of its replicas as bits of a number.

    A replica has a place: a small number. It holds at most its own capacity and at most its equal share of
    `most_entries`; the least recently used block goes first, of one prompt the last block.
    """

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self.most_entries = most_entries
        self._holders: dict[int, int] = {}  # block -> bits of the places that hold it
        self._blocks: dict[int, dict[int, None]] = {}  # place -> its blocks, the least recently used first

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._blocks.values())

    def add(self, *places: int) -> None:
        """Add replicas that hold nothing. Others may lose blocks, as their shares shrink."""
        self._blocks.update((place, {}) for place in places)
        for other in self._blocks:
            self._evict(other, self.most_blocks)

    def remove(self, place: int) -> None:
        """Forget a replica and its blocks."""
        self._evict(place, 0)
        del self._blocks[place]

    @property
    def most_blocks(self) -> int:
        """Blocks of one replica at most."""
        return self.most_entries // max(1, len(self._blocks))

    def store(self, place: int, blocks: Sequence[int], most_blocks: int | None = None) -> None:
        """Note that a replica, whose own cache has room for `most_blocks`, holds the blocks of a prompt."""
        most = self.most_blocks if most_blocks is None else min(most_blocks, self.most_blocks)
        held, holders, bit = self._blocks[place], self._holders, 1 << place
        for block in reversed(blocks[:most]):  # so that the first blocks are the last to be evicted
            if block in held:
                del held[block]
            else:
                holders[block] = holders.get(block, 0) | bit
            held[block] = None
        self._evict(place, most)

    def matched_blocks(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many of the first blocks each replica holds, by place; absent: none."""
        holders, matched = self._holders, dict[int, int]()
        left = -1  # places that hold all blocks so far
        for count, block in enumerate(blocks):
            still = holders.get(block, 0) & left
            if still != left:
                if count:
                    _set_places(matched, left & ~still, count)
                if not still:
                    return matched
                left = still
        if blocks:
            _set_places(matched, left, len(blocks))
        return matched

    def _evict(self, place: int, most: int) -> None:
        held, holders, bit = self._blocks[place], self._holders, 1 << place
        for block in list(islice(held, max(0, len(held) - most))):
            del held[block]
            left = holders[block] & ~bit
            if left:
                holders[block] = left
            else:
                del holders[block]


def _set_places(matched: dict[int, int], bits: int, count: int) -> None:
    while bits:
        lowest = bits & -bits
        matched[lowest.bit_length() - 1] = count
        bits ^= lowest
