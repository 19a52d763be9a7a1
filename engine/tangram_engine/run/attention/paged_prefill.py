"""Attention of prompts, or chunks of them, to keys and values that lie in pages.

Two implementations: torch's attention over pages where the build and the device have it, and otherwise flash
attention over pages that were collected side by side. Neither writes scores or masks to memory.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.checkpoint import DecoderSpec
from tangram_engine.run.attention.reference import Span

logger = logging.getLogger(__name__)


class PagedPrefill(Protocol):
    """One `plan` serves all layers of a step."""

    def plan(self, chunks: Sequence[Span], tables: Tensor) -> None:
        """Prepare for chunks laid out one after the other; `tables` int32 [R, blocks of a row]."""
        ...

    def attend(self, q: Tensor, pool_layer: Tensor) -> Tensor:
        """Each token to its own past. q [T, H, D], pool_layer [blocks, 2, K, block size, D] -> [T, H, D]."""
        ...


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
        """See `PagedPrefill`. Nothing is uploaded: the tables are on the device."""
        self._chunks = []
        for chunk in chunks:
            blocks = tables[chunk.row, : -(-chunk.end // self._block_size)].long()
            self._chunks.append((chunk, blocks * len(self._kinds) + self._kinds))

    def attend(self, q: Tensor, pool_layer: Tensor) -> Tensor:
        """See `PagedPrefill`."""
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


class VarlenPrefill:
    """All chunks of a step in one call of torch's attention over pages; there is no workspace."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - torch 2.10 and later

        self._varlen: Callable[..., Any] = varlen_attn
        self._block_size, self._device = block_size, device
        self._arguments: dict[str, Any] = {}

    def plan(self, chunks: Sequence[Span], tables: Tensor) -> None:
        """See `PagedPrefill`. Uploads two numbers a chunk, without waiting."""
        rows = [chunk.row for chunk in chunks]
        ends = [chunk.end for chunk in chunks]
        begins = [0]
        for chunk in chunks:
            begins.append(begins[-1] + chunk.length)
        packed = upload([*begins, *ends, *rows], torch.int32, self._device)
        cu_seq_q, used, chosen = packed.split_with_sizes([len(begins), len(ends), len(rows)])
        blocks = -(-max(ends) // self._block_size)
        self._arguments = {
            "cu_seq_q": cu_seq_q.clone(),  # kernels want the start of an allocation
            "cu_seq_k": None,
            "max_q": max(chunk.length for chunk in chunks),
            "max_k": blocks * self._block_size,
            "window_size": (-1, 0),  # causal
            "seqused_k": used.clone(),
            "block_table": tables.index_select(0, chosen)[:, :blocks].contiguous(),
            "num_splits": 1,  # the automatic choice gives NaN over pages in some builds (pytorch #179760)
        }

    def attend(self, q: Tensor, pool_layer: Tensor) -> Tensor:
        """See `PagedPrefill`."""
        keys, values = pool_layer.transpose(2, 3).unbind(1)  # [blocks, block size, K, D]
        grouped = q.shape[1] != keys.shape[2]
        out: Tensor = self._varlen(q, keys, values, enable_gqa=grouped, **self._arguments)
        return out


def upload(values: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor on the device; the host does not wait for the copy."""
    pinned = device.type == "cuda" and torch.cuda.is_available()
    return torch.tensor(values, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)


def choose_prefill(
    spec: DecoderSpec, block_size: int, dtype: torch.dtype, device: torch.device, max_model_len: int
) -> PagedPrefill:
    """Attention over pages where it passes a trial on this device, else over collected pages."""
    collected = CollectedPrefill(spec, block_size, dtype, device, max_model_len)
    if device.type != "cuda":
        return collected
    try:
        paged = VarlenPrefill(block_size, device)
        trial = CollectedPrefill(spec, block_size, dtype, device, 3 * block_size)
        agree = trial_passes(paged, trial, spec, block_size, dtype, device)
    except Exception as problem:  # noqa: BLE001 - builds refuse in many ways; each means the same here
        logger.info("prompts attend over collected pages: %s", str(problem).partition("\n")[0])
        return collected
    logger.info(
        "prompts attend over %s", "pages" if agree else "collected pages: those in place fail a trial"
    )
    return paged if agree else collected


def trial_passes(
    attention: PagedPrefill,
    trusted: PagedPrefill,
    spec: DecoderSpec,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    """Whether two chunks over scattered pages come out alike, though unowned slots are NaN."""
    generator = torch.Generator(device).manual_seed(0)
    tables = torch.tensor([[5, 1, 3], [2, 4, 0]], dtype=torch.int32, device=device)
    chunks = [Span(block_size + 1, block_size, (), 0), Span(0, block_size - 1, (), 1)]
    pool = torch.empty(6, 2, spec.kv_heads, block_size, spec.head_dim, dtype=dtype, device=device)
    pool.normal_(generator=generator)
    pool[3, :, :, 1:], pool[2, :, :, block_size - 1 :] = torch.nan, torch.nan
    pool[[0, 4]] = torch.nan
    q = torch.empty(2 * block_size - 1, spec.heads, spec.head_dim, dtype=dtype, device=device)
    q.normal_(generator=generator)
    results = []
    for prefill in (attention, trusted):
        prefill.plan(chunks, tables)
        results.append(prefill.attend(q, pool))
    return torch.allclose(results[0], results[1], rtol=2e-2, atol=2e-2)
