"""Which sequence holds which KV block.

Questions (`matched`, `can_admit`, `can_extend`) and commands (`admit`, `extend`, `register`,
`release`) come in pairs. A command whose question was answered with no is a bug and raises.

A block table only ever grows at its end, and a block that two owners share is full, registered and
never written again. Two owners that compute equal blocks at the same time keep both copies: the
first one to be registered is the one that later owners share.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from tangram_engine.cache.free_list import FreeList

Owner = Hashable  # a slot of the scheduler; any other token will do
UNREGISTERED = b""  # in place of a key: shared by its owners, found by no other one
AUDIT_SLICE = 1024  # blocks; about half a millisecond of Python


class BlockManager:
    """Reference counts, block tables and the prefix index of one pool of KV blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tables: dict[Owner, list[int]] = {}
        self._references = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._registered: dict[bytes, int] = {}
        self._free = FreeList(range(num_blocks))

    @property
    def free(self) -> int:
        """Blocks without an owner; cached ones among them stay matchable until they are evicted."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that at least one owner holds."""
        return self.num_blocks - len(self._free)

    @property
    def owners(self) -> set[Owner]:
        """Every owner of a table."""
        return set(self._tables)

    def table(self, owner: Owner) -> list[int]:
        """The owner's blocks in the order of its tokens. It grows in place; do not change it."""
        return self._tables[owner]

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` tokens occupy."""
        return -(-tokens // self.block_size)

    def matched(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the longest prefix of `keys` that the pool still holds."""
        blocks = []
        for key in keys:
            block = self._registered.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def can_admit(self, keys: Sequence[bytes], tokens: int, spare: int = 0) -> bool:
        """Whether a new owner of `tokens` tokens fits and leaves `spare` blocks free."""
        held_by_others = sum(1 for block in self.matched(keys) if self._references[block])
        return self.blocks_for(tokens) - held_by_others + spare <= self.free

    def admit(self, owner: Owner, keys: Sequence[bytes], tokens: int) -> int:
        """Give a new owner blocks for `tokens` tokens; returns how many were found by their keys."""
        if owner in self._tables:
            raise KeyError(f"{owner} already holds blocks")
        shared = self.matched(keys)
        for block in shared:
            if not self._references[block]:
                self._free.remove(block)
            self._references[block] += 1
        hits = len(shared)
        self._tables[owner] = shared
        self.extend(owner, tokens)
        return hits

    def can_extend(self, owner: Owner, tokens: int) -> bool:
        """Whether the owner's table can grow to hold `tokens` tokens."""
        return self.blocks_for(tokens) - len(self._tables[owner]) <= self.free

    def extend(self, owner: Owner, tokens: int) -> None:
        """Grow the owner's table until it holds `tokens` tokens."""
        table = self._tables[owner]
        for _ in range(self.blocks_for(tokens) - len(table)):
            table.append(self._take())

    def register(self, owner: Owner, index: int, key: bytes) -> None:
        """Register the full block number `index` of the owner under its key, so that others can share it."""
        block = self._tables[owner][index]
        if self._keys[block] is None and key not in self._registered:
            self._keys[block] = key
            self._registered[key] = block

    def unregister(self, owner: Owner) -> None:
        """Unregister the blocks of the owner, because their contents may be bad."""
        for block in self._tables[owner]:
            key = self._keys[block]
            if key:
                del self._registered[key]
                self._keys[block] = UNREGISTERED

    def release(self, owner: Owner) -> None:
        """Return all blocks of the owner; registered ones stay matchable until they are evicted.

        The end of the table is returned first: a prefix outlives its continuations.
        """
        for block in reversed(self._tables.pop(owner)):
            self._references[block] -= 1
            if self._references[block] == 0:
                give = self._free.give_last if self._keys[block] else self._free.give_first
                give(block)

    def audit(self) -> None:
        """Raise AssertionError if the books do not balance."""
        for _ in self.audit_slices():
            pass

    def audit_slices(self) -> Iterator[None]:
        """As `audit`, with a yield after every AUDIT_SLICE blocks, at which the caller may stop for good.

        No command may run between two slices: what has been read of the books would no longer hold.
        """
        held: Counter[int] = Counter()
        for owner, table in self._tables.items():
            distinct: set[int] = set()
            for start in range(0, len(table), AUDIT_SLICE):
                part = table[start : start + AUDIT_SLICE]
                held.update(part)
                distinct.update(part)
                yield
            if len(distinct) < len(table):
                raise AssertionError(f"{owner} holds a block twice")
        registered = free = 0
        for start in range(0, self.num_blocks, AUDIT_SLICE):
            for block in range(start, min(start + AUDIT_SLICE, self.num_blocks)):
                references, key = self._references[block], self._keys[block]
                if references != held.get(block, 0):
                    raise AssertionError(f"block {block}: {references} references, {held[block]} holders")
                if (references == 0) != (block in self._free):
                    raise AssertionError(f"block {block} is neither free nor used")
                if key is None and references > 1:
                    raise AssertionError(f"block {block} is shared without a key")
                if key and self._registered.get(key) != block:
                    raise AssertionError(f"block {block} is indexed under a foreign key")
                registered += bool(key)
                free += references == 0
            yield
        # Each registered block is found by its key, so equal counts leave no other entry in the index.
        if registered != len(self._registered):
            raise AssertionError(f"{registered} registered blocks, {len(self._registered)} in the index")
        if free != len(self._free):
            raise AssertionError(f"{free} blocks without references, {len(self._free)} in the free list")

    def _take(self) -> int:
        block = self._free.pop()
        key = self._keys[block]
        if key:
            del self._registered[key]
        self._keys[block] = None
        self._references[block] = 1
        return block
