"""What the memory holds: weights, tables, and how many KV blocks; and the refusal to start with too little.

The operator predicts the same numbers before it places a model. Neither imports the other: both are held to
`tests/contracts/memory_golden.json`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable

import torch

from tangram_engine.checkpoint import EMBEDDING, HEAD, ModelSpec, expected_shapes
from tangram_engine.models.quantized import largest_projection
from tangram_engine.quantize import bytes_of, quantizable
from tangram_engine.run.attention import SCORES, collected_tokens
from tangram_engine.start_error import StartError

MIB = 1 << 20
CPU_SHARE = 4  # of the memory limit, one part in four; the rest is weights, activations and Python
CPU_DEFAULT_BYTES = 1024 * MIB  # nobody asked for more on a CPU
SAMPLING_BYTES = 40  # per row and entry of the vocabulary: float32 logits, adjusted copies, sorting, noise
CUDA_RESERVE_BYTES = 256 * MIB  # and at least 1 %: libraries allocate outside torch's allocator


class OutOfMemory(StartError):
    """The device cannot hold what was asked for; the message says what it could hold."""


def weight_bytes(spec: ModelSpec, dtype: torch.dtype, quantize: str | None = None) -> dict[str, int]:
    """Bytes of the weights by what they are for: embedding, attention, mlp, norm; head unless it is tied.

    `quantize`: the format of the layers' matrices on a GPU; a CPU keeps what they stand for in `dtype`.
    """
    found = dict.fromkeys(("embedding", "attention", "mlp", "norm", "head"), 0)
    for name, shape in expected_shapes(spec):
        kind = _kind(name)
        body = kind in ("attention", "mlp") and len(shape) == 2
        if quantize is not None and body and quantizable(quantize, shape[1]):
            found[kind] += bytes_of(quantize, *shape)
        else:
            found[kind] += math.prod(shape) * dtype.itemsize
    return found


def dequantization_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of the buffer for one dequantised matrix, the largest: with `quantize` it is kept on a GPU."""
    return largest_projection(spec) * dtype.itemsize


def rope_bytes(spec: ModelSpec, positions: int, dtype: torch.dtype) -> int:
    """Bytes of the cosines and sines of all positions."""
    return 2 * positions * spec.head_dim * dtype.itemsize


def read_bytes(spec: ModelSpec, dtype: torch.dtype, quantize: str | None = None) -> int:
    """Bytes of weights that each step reads: all but the input embedding, of which it looks up rows."""
    weights = weight_bytes(spec, dtype, quantize)
    return sum(weights.values()) - (0 if spec.tied_embeddings else weights["embedding"])


def growing_bytes(
    spec: ModelSpec, max_num_seqs: int, max_model_len: int, block_size: int, dtype: torch.dtype
) -> int:
    """Bytes of the buffers beside the KV pool that grow with max_model_len."""
    collected = collected_tokens(spec, block_size, dtype, max_num_seqs, max_model_len)
    layer = 2 * spec.kv_heads * spec.head_dim * dtype.itemsize
    tables = 4 * (max_num_seqs + 1) * -(-max_model_len // block_size)
    return rope_bytes(spec, max_model_len, dtype) + collected * layer + tables


def activation_bytes(
    spec: ModelSpec, step_tokens: int, max_num_seqs: int, max_model_len: int, dtype: torch.dtype
) -> int:
    """Peak of the largest step in plain torch: in the MLP, in attention with a long past, or in sampling."""
    hidden, kv_heads, head = spec.hidden_size, spec.kv_heads, spec.head_dim
    mlp = (hidden + 4 * spec.intermediate_size) * step_tokens * dtype.itemsize
    scores = min(min(step_tokens, max_model_len) * max_model_len * spec.heads, SCORES)
    mask = scores // kv_heads * (1 + dtype.itemsize)
    attention = 2 * (hidden + 2 * (spec.heads + kv_heads) * head) * step_tokens * dtype.itemsize + mask
    return max(mlp, attention, SAMPLING_BYTES * spec.vocab_size * max_num_seqs)


def check_weights(needed: int, available: int) -> None:
    """Refuse before anything is read what cannot end well: weights alone above all there is."""
    if needed > available:
        raise OutOfMemory(
            f"the weights need {needed / MIB:.0f} MiB, but the engine may use {available / MIB:.0f} MiB; "
            "use a larger device or slice, or a smaller dtype"
        )


def block_bytes(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in all layers."""
    return 2 * spec.layers * spec.kv_heads * spec.head_dim * block_size * dtype.itemsize


def cpu_pool_bytes(limit_bytes: int) -> int:
    """Default size of the KV pool under a memory limit."""
    return min(limit_bytes // CPU_SHARE, CPU_DEFAULT_BYTES)


def cuda_pool_bytes(free: int, total: int, utilization: float, step_bytes: int) -> int:
    """What is left for KV blocks once all that stays is allocated; `step_bytes`: largest step and graphs."""
    reserve = max(CUDA_RESERVE_BYTES, total // 100)
    return int(total * utilization) - (total - free) - step_bytes - reserve


def count_blocks(
    pool_bytes: int,
    bytes_per_block: int,
    block_size: int,
    max_model_len: int,
    sized_bytes: Callable[[int], int] = lambda _: 0,
) -> int:
    """Blocks in a pool of that size; raises OutOfMemory when one request of full length needs more.

    `sized_bytes`: what is allocated beside the pool, by max_model_len; a shorter one leaves the pool more.
    """
    blocks = max(0, pool_bytes // bytes_per_block)
    needed = -(-max_model_len // block_size)
    if blocks < needed:
        available = pool_bytes + sized_bytes(max_model_len)
        largest = largest_model_len(
            available,
            max_model_len,
            lambda length: -(-length // block_size) * bytes_per_block + sized_bytes(length),
        )
        room = f"{blocks} blocks of {block_size} tokens ({pool_bytes / MIB:.1f} MiB)"
        wanted = f"max_model_len {max_model_len} needs {needed} ({needed * bytes_per_block / MIB:.1f} MiB)"
        advice = f"the largest workable max_model_len is {largest}" if largest else "nothing fits"
        raise OutOfMemory(f"the KV cache has room for {room}, but one request of {wanted}; {advice}")
    return blocks


def largest_model_len(available: int, most: int, needed: Callable[[int], int]) -> int:
    """The longest context up to `most` tokens whose bytes are available; 0: none. `needed` grows with it."""
    return bisect_right(range(1, most + 1), available, key=needed)


def _kind(name: str) -> str:
    if name == EMBEDDING:
        return "embedding"
    if name == HEAD:
        return "head"
    if "norm." in name:
        return "norm"
    return "mlp" if ".mlp." in name else "attention"
