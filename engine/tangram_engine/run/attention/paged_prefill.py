"""Attention of prompts, or chunks of them, to keys and values that lie in pages.

torch's flash attention reads keys and values that lie side by side, so the pages of a sequence are copied
there first. It writes no scores or masks to memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.checkpoint import DecoderSpec
from tangram_engine.run.attention.reference import Span

# q [1, H, length, D], keys and values [1, K, end, D], length <= end -> [1, H, length, D]: the last query sees
# all keys, the one before all but one, and so on.
Causal = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`Causal` by torch: flash or memory-efficient attention on a GPU, where no mask is written out."""
    # Its import brings torch's compiler, which takes as long as torch itself: not for an engine on a CPU.
    from torch.nn.attention.bias import causal_lower_right  # noqa: PLC0415

    bias: Any = causal_lower_right(q.shape[2], keys.shape[2])
    grouped = q.shape[1] != keys.shape[1]
    return functional.scaled_dot_product_attention(q, keys, values, attn_mask=bias, enable_gqa=grouped)


def collected_bytes(spec: DecoderSpec, block_size: int, dtype: torch.dtype, max_model_len: int) -> int:
    """Of the workspace of `CollectedPrefill`: keys and values of one layer of the longest sequence.

    2 x K x D x ceil(max_model_len / block size) x block size x bytes of the dtype.
    """
    tokens = -(-max_model_len // block_size) * block_size
    return 2 * spec.kv_heads * spec.head_dim * tokens * dtype.itemsize


class CollectedPrefill:
    """Copies the pages of one sequence at a time into a workspace, which is allocated once.

    One `plan` serves all layers of a step.

    The copy moves 4 K D b bytes a token of context where attention reads 2 K D b: at 8,192 tokens of an 8B
    model 67 MB and 16 us a layer, below 1 % of what the layer takes to compute them.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        causal: Causal = causal_attention,
    ) -> None:
        values = collected_bytes(spec, block_size, dtype, max_model_len) // dtype.itemsize
        self._collected = torch.empty(values, dtype=dtype, device=device)
        self._block_size, self._causal = block_size, causal
        self._kinds = torch.arange(2 * spec.kv_heads, device=device)[:, None]
        self._chunks: list[tuple[Span, Tensor]] = []

    def plan(self, chunks: Sequence[Span], tables: Tensor) -> None:
        """Prepare for chunks laid out one after the other; `tables` int32 [R, blocks of a row].

        Nothing is uploaded: the tables are on the device.
        """
        self._chunks = []
        for chunk in chunks:
            blocks = tables[chunk.row, : -(-chunk.end // self._block_size)].long()
            self._chunks.append((chunk, blocks * len(self._kinds) + self._kinds))

    def attend(self, q: Tensor, pool_layer: Tensor) -> Tensor:
        """Each token to its own past. q [T, H, D], pool_layer [blocks, 2, K, block size, D] -> [T, H, D]."""
        parts = q.split_with_sizes([chunk.length for chunk, _ in self._chunks])
        done = [
            self._attend(part, pool_layer, chunk.end, rows)
            for part, (chunk, rows) in zip(parts, self._chunks, strict=True)
        ]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _attend(self, q: Tensor, pool_layer: Tensor, end: int, rows: Tensor) -> Tensor:
        _, _, kv_heads, size, head_dim = pool_layer.shape
        pages = pool_layer.view(-1, size * head_dim)  # one row per (block, k or v, head)
        room = self._collected[: rows.numel() * pages.shape[1]].view(rows.numel(), -1)
        keys_and_values = torch.index_select(pages, 0, rows.view(-1), out=room)
        keys, values = keys_and_values.view(2, 1, kv_heads, -1, head_dim)[:, :, :, :end]
        return self._causal(q.transpose(0, 1)[None], keys, values)[0].transpose(0, 1)


def upload(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the device; the host does not wait for the copy."""
    pinned = device.type == "cuda" and torch.cuda.is_available()
    return torch.tensor(values, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)
