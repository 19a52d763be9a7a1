"""The free blocks, in the order in which they are allocated."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class FreeList:
    """Least recently used first; every operation is O(1).

    A free block that is registered under its key stays matchable until it is evicted, so it may also be
    taken out of the middle (`remove`).
    """

    def __init__(self, blocks: Iterable[int]) -> None:
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(blocks)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __contains__(self, block: int) -> bool:
        return block in self._order

    def pop(self) -> int:
        """Take the block that was used longest ago."""
        return self._order.popitem(last=False)[0]

    def remove(self, block: int) -> None:
        """Take this very block, because its contents are wanted again."""
        del self._order[block]

    def give_last(self, block: int) -> None:
        """Return a block whose contents may be wanted again."""
        self._order[block] = None

    def give_first(self, block: int) -> None:
        """Return a block with nothing in it worth keeping: it goes before all others."""
        self._order[block] = None
        self._order.move_to_end(block, last=False)
