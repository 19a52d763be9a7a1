"""Keys of full blocks.

A key is a digest of everything that determines a block's keys and values: all tokens from the
beginning of the sequence up to the end of the block. Equal keys therefore mean equal contents, and
a prefix can be looked up block by block.

A chain of keys begins at a root. Requests with a cache salt have a root of their own, so that only
requests with the same salt share blocks: what another tenant has asked for shows neither in
`cached_tokens` nor in the time to the first token.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

ROOT = b""
DIGEST_BYTES = 16  # collisions must stay out of reach even for a tenant that searches one


def salted_root(salt: str) -> bytes:
    """The root of the chains of requests with this salt; the salt itself stays in the API process."""
    # The personalisation keeps roots and block keys apart: no choice of tokens leads into a salted chain.
    return blake2b(salt.encode("utf-8"), digest_size=DIGEST_BYTES, person=b"cache_salt").digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block that holds `tokens` and follows the block with the key `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


def extend_keys(keys: list[bytes], tokens: Sequence[int], block_size: int, root: bytes = ROOT) -> None:
    """Append to `keys` the keys of the full blocks of `tokens` that it lacks."""
    for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
        parent = keys[-1] if keys else root
        keys.append(block_key(parent, tokens[start : start + block_size]))
