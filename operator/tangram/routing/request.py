"""What a gateway knows about a request before it runs."""

from dataclasses import dataclass

BLOCK_BYTES = 1024  # of prompt text; about 256 tokens of English
MOST_BLOCKS = 1024  # that are hashed of one prompt: a shared beginning of a megabyte


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request as far as routing looks at it. Tokens are estimates (`token_estimate`)."""

    model: str  # served model id
    prompt_tokens: int
    most_tokens: int  # of the answer: max_tokens, or what is left of the context
    blocks: tuple[int, ...] = ()  # hashes of prefix blocks, each over all before it (`prefix_blocks`)
    tenant: str = ""
    block_tokens: float = 256.0  # tokens of one block

    def __post_init__(self) -> None:
        """Raise `ValueError` for a request that no engine takes."""
        if self.prompt_tokens < 1 or self.most_tokens < 1 or not self.block_tokens > 0:
            raise ValueError("a request has at least one token of prompt, of answer and of each block")


def prefix_blocks(prompt: bytes, salt: str = "") -> tuple[int, ...]:
    """Return the hashes of the whole blocks of a prompt, at most `MOST_BLOCKS`.

    Each hash is over all bytes up to its block's end, so that equal hashes mean equal prefixes. `salt` is
    what must not share prefixes: tenants (`cache_salt`), adapters. The hash is Python's: keyed by process, so
    that a client cannot compute collisions, and no two processes agree on it.
    """
    chained, blocks = hash(salt), []
    end = min(len(prompt) // BLOCK_BYTES, MOST_BLOCKS) * BLOCK_BYTES
    for start in range(0, end, BLOCK_BYTES):
        chained = hash((chained, prompt[start : start + BLOCK_BYTES]))
        blocks.append(chained)
    return tuple(blocks)
