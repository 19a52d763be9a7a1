"""Prompt blocks that a replica has computed and that later prompts with the same beginning reuse."""

from collections.abc import Sequence

BLOCK_TOKENS = 512  # of a block id in published traces (Mooncake, FAST 2025)


class PrefixCache:
    """Block ids by last use: the least recently used block is evicted first.

    It holds at most `tokens` tokens, those of the whole KV cache. This is rough: answers take no room here,
    and blocks that running requests share are counted once here and once per request in the simulation.
    """

    def __init__(self, tokens: int | None) -> None:
        self.most_blocks = None if tokens is None else tokens // BLOCK_TOKENS
        self.blocks: dict[int, None] = {}  # the least recently used first

    def cached_tokens(self, block_ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt with these blocks are cached, from its beginning on."""
        blocks = self.blocks
        for place, block in enumerate(block_ids):
            if block not in blocks:
                return place * BLOCK_TOKENS
        return len(block_ids) * BLOCK_TOKENS

    def store(self, block_ids: Sequence[int]) -> None:
        """Cache the blocks of a computed prompt. Its last blocks are evicted before its first ones."""
        blocks = self.blocks
        for block in reversed(block_ids):
            blocks.pop(block, None)
            blocks[block] = None
        if self.most_blocks is not None:
            while len(blocks) > self.most_blocks:
                del blocks[next(iter(blocks))]
