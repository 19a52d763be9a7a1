"""What the memory holds: weights, tables, and how many KV blocks; and the refusal to start with too little.

The operator predicts the same numbers before it places a model. Neither imports the other: both are held to
`tests/contracts/memory_golden.json`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tangram_engine.checkpoint import EMBEDDING, HEAD, DecoderSpec, expected_shapes
from tangram_engine.models.quantized import largest_projection
from tangram_engine.quantize import bytes_of, quantizable
from tangram_engine.run.attention.paged import workspace_bytes
from tangram_engine.run.attention.reference import SCORES, collected_tokens
from tangram_engine.run.rows import device_rows_bytes
from tangram_engine.start_error import StartError

MIB = 1 << 20
CPU_SHARE = 4  # of the memory limit, one part in four; the rest is weights, activations and Python
CPU_DEFAULT_BYTES = 1024 * MIB  # the default on a CPU
# Per row and entry of the vocabulary. Kernels leave float32 logits and, for log-probabilities, two copies;
# plain torch also sorts, adjusts and draws in copies, with 64-bit counters that it keeps.
SAMPLING_BYTES, TORCH_SAMPLING_BYTES, COUNTER_BYTES = 12, 40, 8
INPUT_BYTES = 48  # per token of a step: ids, positions and rows, with the upload that brought them
CUDA_RESERVE_BYTES = 256 * MIB  # and at least 1 %: libraries allocate outside torch's allocator


class OutOfMemory(StartError):
    """The device cannot hold what was asked for; the message says what it could hold."""


def weight_bytes(spec: DecoderSpec, dtype: torch.dtype, quantize: str | None = None) -> dict[str, int]:
    """Bytes of the weights by what they are for: embedding, attention, mlp, norm; head unless it is tied.

    `quantize`: the format of the layers' matrices on a GPU; a CPU keeps what they stand for in `dtype`.
    """
    sizes = dict.fromkeys(("embedding", "attention", "mlp", "norm", "head"), 0)
    for name, shape in expected_shapes(spec):
        kind = _kind(name)
        body = kind in ("attention", "mlp") and len(shape) == 2
        if quantize is not None and body and quantizable(quantize, shape[1]):
            sizes[kind] += bytes_of(quantize, *shape)
        else:
            sizes[kind] += math.prod(shape) * dtype.itemsize
    return sizes


def dequantization_bytes(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """Bytes of the buffer for one dequantised matrix, the largest; a GPU keeps it for quantised weights."""
    return largest_projection(spec) * dtype.itemsize


def read_bytes(spec: DecoderSpec, dtype: torch.dtype, quantize: str | None = None) -> int:
    """Bytes of weights that each step reads: all but the input embedding, of which it looks up rows."""
    weights = weight_bytes(spec, dtype, quantize)
    return sum(weights.values()) - (0 if spec.tied_embeddings else weights["embedding"])


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Bytes of all but weights and KV pool, by formula: what is kept, and the peak of the largest step.

    A start on a GPU measures the peak; the formula says what a smaller setting would take.
    """

    spec: DecoderSpec
    dtype: torch.dtype
    block_size: int
    max_num_seqs: int
    step_tokens: int
    kernels: bool  # else plain torch
    form: str | None = None  # of weights that are quantised on a GPU

    @property
    def weights(self) -> int:
        """All weights."""
        return sum(weight_bytes(self.spec, self.dtype, self.form).values())

    @property
    def per_block(self) -> int:
        """One block of the KV pool."""
        return block_bytes(self.spec, self.block_size, self.dtype)

    def kept(self, max_model_len: int) -> int:
        """Device rows, workspaces of attention and sampler, the padding block, one dequantised matrix."""
        spec, dtype, rows = self.spec, self.dtype, self.max_num_seqs
        total = device_rows_bytes(rows, max_model_len, self.block_size, spec.vocab_size)
        if self.form is not None:
            total += dequantization_bytes(spec, dtype)
        if self.kernels:
            workspace = workspace_bytes(spec, self.block_size, dtype, rows, max_model_len)
            return total + workspace + self.per_block
        collected = collected_tokens(spec, self.block_size, dtype, rows, max_model_len)
        keys_and_values = 2 * collected * spec.kv_heads * spec.head_dim * dtype.itemsize
        rope = 2 * max_model_len * spec.head_dim * dtype.itemsize
        return total + keys_and_values + rope + COUNTER_BYTES * spec.vocab_size

    def step(self, max_model_len: int) -> int:
        """The most of: MLP, attention of a chunk with a past, sampling."""
        spec, element = self.spec, self.dtype.itemsize
        tokens = min(self.step_tokens, self.max_num_seqs * max_model_len)
        hidden, inner, sampled = spec.hidden_size, spec.intermediate_size, spec.vocab_size * self.max_num_seqs
        queries, packed = spec.heads * spec.head_dim, (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        if not self.kernels:
            scores = min(min(tokens, max_model_len) * max_model_len * spec.heads, SCORES)
            mask = scores // spec.kv_heads * (1 + element)
            mlp = element * (hidden + 4 * inner) * tokens
            attention = 2 * element * (hidden + packed + queries) * tokens + mask
            return max(mlp, attention, TORCH_SAMPLING_BYTES * sampled)
        mlp = element * (hidden + 3 * inner)
        attention = element * (hidden + packed + 3 * queries)
        # Pages that chunks attend to, of a long past and of many short requests.
        blocks = -(-max_model_len // self.block_size) + 2 * tokens // self.block_size
        fed = INPUT_BYTES * tokens + 8 * (2 * spec.kv_heads + 1) * blocks
        return max(max(mlp, attention) * tokens + fed, SAMPLING_BYTES * sampled)


def check_weights(needed: int, available: int) -> None:
    """Refuse before anything is read what cannot end well: weights alone above all there is."""
    if needed > available:
        raise OutOfMemory(
            f"the weights need {needed / MIB:.0f} MiB, but the engine may use {available / MIB:.0f} MiB; "
            "use a larger device or slice, or a smaller dtype"
        )


def block_bytes(spec: DecoderSpec, block_size: int, dtype: torch.dtype) -> int:
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
    sized_bytes: Callable[[int], int] | None = None,
) -> int:
    """Blocks in a pool of that size; raises OutOfMemory when one request of full length needs more.

    `sized_bytes`: what is allocated beside the pool, by max_model_len; a shorter one leaves the pool more.
    """
    blocks = max(0, pool_bytes // bytes_per_block)
    needed = -(-max_model_len // block_size)
    if blocks < needed:
        beside = sized_bytes or (lambda _: 0)
        largest = largest_model_len(
            pool_bytes + beside(max_model_len),
            max_model_len,
            lambda length: -(-length // block_size) * bytes_per_block + beside(length),
        )
        room = f"{blocks} blocks of {block_size} tokens ({pool_bytes / MIB:.1f} MiB)"
        requirement = (
            f"max_model_len {max_model_len} needs {needed} ({needed * bytes_per_block / MIB:.1f} MiB)"
        )
        advice = f"the largest workable max_model_len is {largest}" if largest else "nothing fits"
        raise OutOfMemory(f"the KV cache has room for {room}, but one request of {requirement}; {advice}")
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
