"""Paged attention: the interface, and its reference in plain torch.

Within one layer the pool is laid out [block, k or v, kv head, offset, D]: the tokens of one head in one
block are contiguous, so that collecting a sequence's blocks yields [kv head, token, D] without a
transpose, whichever blocks they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tangram_engine.checkpoint import DecoderSpec
from tangram_engine.models.rope import Rope, rotate
from tangram_engine.models.weights import LayerWeights

FREE_PADDING = 64  # tokens; below this, one padded call is cheaper than two exact ones
# Both bound memory that is needed beside the pool, whatever comes together in a step. Sequences with the same
# beginning share blocks of the pool, but not of what is collected from it.
COLLECTED_BYTES = 256 << 20  # keys and values for one call; a single sequence may need more
SCORES = 1 << 25  # queries times keys in one call, for implementations that write them out


class Span(NamedTuple):
    """`length` consecutive tokens of one sequence, beginning at position `start`."""

    start: int
    length: int
    table: Sequence[int]  # blocks of the sequence, at least up to the span's end
    row: int = 0  # of the device rows, whose table holds the same blocks

    @property
    def end(self) -> int:
        """Tokens the last one of the span attends to, itself included."""
        return self.start + self.length


class AttentionBackend(Protocol):
    """A KV pool and the attention over it. One `plan` serves all layers of a step."""

    def resize(self, num_blocks: int) -> int:
        """Free the pool, then allocate one of that many blocks at once; its bytes. Workspaces stay."""
        ...

    def plan(self, spans: Sequence[Span], positions: Tensor) -> None:
        """Prepare for tokens laid out span after span, at `positions` [T] of their sequences."""
        ...

    def plan_decodes(self, rows: Tensor, positions: Tensor) -> None:
        """Prepare for one token of each of the device rows int32 [B], without a look at the host."""
        ...

    def attend(self, index: int, qkv: Tensor, layer: LayerWeights) -> Tensor:
        """See `tangram_engine.models.decoder.Attend`."""
        ...


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Sequences with one new token each, padded to the longest."""

    context: int
    blocks: Tensor  # rows of the pool, [B, 2 * kv_heads, blocks]
    mask: Tensor | None  # additive, [B, 1, 1, context]


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence with several new tokens; `blocks` is None when nothing precedes them."""

    span: Span
    blocks: Tensor | None


class TorchAttention:
    """Collects the blocks of each sequence and calls scaled_dot_product_attention.

    The workspace for what is collected is allocated once, for the largest step that `max_num_seqs` sequences
    of as many tokens as `rope` has positions can make. On a CPU, memory is committed when it is first used:
    neither pool nor workspace is cleared.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        rope: Rope,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        max_num_seqs: int = 64,
    ) -> None:
        device = rope.device
        self._rope, self._eps = rope, spec.rms_norm_eps
        self._layers, self._heads, self._kv_heads = spec.layers, spec.heads, spec.kv_heads
        self._head_dim, self._unrotated_layers = spec.head_dim, spec.unrotated_layers
        self._block_size, self._dtype, self._device = block_size, dtype, device
        self._kinds = np.arange(2 * spec.kv_heads)  # (k or v, head), as they follow each other in a block
        self._collected_tokens = collected_tokens(spec, block_size, dtype, max_num_seqs, rope.positions)
        rows = self._collected_tokens // block_size * len(self._kinds)
        self._collected = torch.empty(rows, block_size * spec.head_dim, dtype=dtype, device=device)
        self.resize(num_blocks)
        self._store = torch.empty(0, dtype=torch.int64)
        self._fresh: Tensor | None = None
        self._groups: list[_Decodes | _Prefill] = []
        self._sizes: list[int] = []
        self._rotation = rope.at(torch.zeros(0, dtype=torch.int64, device=device))

    def resize(self, num_blocks: int) -> int:
        """See `AttentionBackend.resize`. The former pool is freed first: there may be no room for both."""
        self._blocks, self._slots = [], []
        self.pool = torch.empty(0, dtype=self._dtype, device=self._device)
        shape = (self._layers, num_blocks * len(self._kinds), self._block_size * self._head_dim)
        self.pool = torch.empty(shape, dtype=self._dtype, device=self._device)
        self._blocks = list(self.pool)  # per layer: one row per (block, k or v, head)
        self._slots = [layer.view(-1, self._head_dim) for layer in self._blocks]  # and offset
        return self.pool.nbytes

    def plan(self, spans: Sequence[Span], positions: Tensor) -> None:
        """Look up where the step's keys and values go, and what each sequence will look at."""
        self._rotation = self._rope.at(positions)
        self._store = self._tensor(self._store_rows(spans))
        self._fresh = self._fresh_rows(spans)
        self._groups, self._sizes = [], []
        for group in _groups(spans, self._collected_tokens, self._block_size):
            self._groups.append(self._prefill(group[0]) if group[0].length > 1 else self._decodes(group))
            self._sizes.append(sum(span.length for span in group))

    def plan_decodes(self, rows: Tensor, positions: Tensor) -> None:
        """Not possible: what is collected for a step is chosen on the host."""
        raise NotImplementedError

    def attend(self, index: int, qkv: Tensor, layer: LayerWeights) -> Tensor:
        """See `AttentionBackend.attend`."""
        heads, kv_heads = self._heads, self._kv_heads
        qk, v = qkv.view(qkv.shape[0], -1, self._head_dim).split_with_sizes((heads + kv_heads, kv_heads), 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split_with_sizes((heads, kv_heads), 1)
            qk = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=1)
        still = self._rope.unrotated if index in self._unrotated_layers else None
        rotation = self._rotation if still is None else still
        q, k = rotate(qk, rotation).split_with_sizes((heads, kv_heads), 1)
        return self.store_and_attend(index, q, k, v).flatten(1)

    def store_and_attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rotated q [T, heads, D], k and v [T, kv_heads, D] -> [T, heads, D].

        New keys are stored before any row attends, so that all rows see them.
        """
        blocks = self._blocks[layer]
        if self._fresh is not None:
            blocks.index_fill_(0, self._fresh, 0.0)
        self._slots[layer].index_copy_(0, self._store, torch.cat((k, v), 1).view(-1, self._head_dim))
        if len(self._groups) == 1:
            return self._attend_group(self._groups[0], blocks, q, k, v)
        parts = zip(self._groups, *(x.split_with_sizes(self._sizes) for x in (q, k, v)), strict=True)
        return torch.cat([self._attend_group(group, blocks, *qkv) for group, *qkv in parts])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self._eps)

    def _attend_group(
        self, group: _Decodes | _Prefill, blocks: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        if isinstance(group, _Decodes):
            # The query heads that share a kv head act as its query positions: no repeated keys.
            q = q.view(q.shape[0], self._kv_heads, -1, self._head_dim)
            keys, values = self._collect(blocks, group.blocks, group.context)
            return functional.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask).flatten(
                1, 2
            )
        if group.blocks is not None:
            return self._continue(group.span, q, *self._collect(blocks, group.blocks, group.span.end))
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            enable_gqa=self._heads != self._kv_heads,
        )
        return out[0].transpose(0, 1)

    def _continue(self, span: Span, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """A span that begins later: q [length, heads, D], keys and values [1, kv_heads, end, D].

        As with single tokens, query heads that share a kv head act as positions: implementations that take
        a mask want as many query heads as kv heads, or write out all scores.
        """
        shared = self._heads // self._kv_heads
        rows = max(1, SCORES // (self._heads * span.end))
        parts = []
        for first in range(0, span.length, rows):
            part = q[first : first + rows]
            length = part.shape[0]
            part = part.view(length, self._kv_heads, shared, self._head_dim).transpose(0, 1).flatten(1, 2)
            mask = torch.ones(length, span.end, dtype=torch.bool, device=self._device)
            mask = mask.tril_(span.start + first).repeat_interleave(shared, 0)
            out = functional.scaled_dot_product_attention(part[None], keys, values, attn_mask=mask)
            parts.append(out.reshape(self._kv_heads, length, -1).transpose(0, 1))
        return torch.cat(parts).view(q.shape)

    def _collect(self, blocks: Tensor, rows: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Keys and values of B sequences, each [B, kv_heads, context, D]."""
        sequences, count = rows.shape[0], rows.shape[-1]
        keys_and_values = torch.index_select(blocks, 0, rows.view(-1), out=self._collected[: rows.numel()])
        keys_and_values = keys_and_values.view(
            sequences, 2, self._kv_heads, count * self._block_size, self._head_dim
        )
        keys, values = keys_and_values[:, :, :, :context].unbind(1)
        return keys, values

    def _decodes(self, spans: Sequence[Span]) -> _Decodes:
        ends = np.array([span.end for span in spans])
        context = int(ends.max())
        mask = None
        if ends.min() < context:
            unseen = torch.from_numpy(np.arange(context) >= ends[:, None])
            mask = torch.zeros(unseen.shape, dtype=self._dtype).masked_fill_(unseen, float("-inf"))
            mask = mask[:, None, None].to(self._device)
        return _Decodes(context, self._rows(spans, context), mask)

    def _prefill(self, span: Span) -> _Prefill:
        return _Prefill(span, self._rows((span,), span.end) if span.start else None)

    def _rows(self, spans: Sequence[Span], context: int) -> Tensor:
        """Rows of the pool with the blocks, [B, 2 * kv_heads, blocks]; short tables repeat their first."""
        count = -(-context // self._block_size)
        tables = np.empty((len(spans), 1, count), np.int64)
        for table, span in zip(tables[:, 0], spans, strict=True):
            used = -(-span.end // self._block_size)
            table[:used] = span.table[:used]
            table[used:] = span.table[0]
        return self._tensor(tables * len(self._kinds) + self._kinds[:, None])

    def _fresh_rows(self, spans: Sequence[Span]) -> Tensor | None:
        """Rows of the blocks that this step begins and does not fill.

        What a former owner left in them would be masked, but a masked NaN is still NaN: without clearing,
        one request whose numbers overflowed could end others.
        """
        size = self._block_size
        blocks = [
            span.table[span.end // size]
            for span in spans
            if span.end % size and span.end // size * size >= span.start
        ]
        if not blocks:
            return None
        return self._tensor((np.array(blocks)[:, None] * len(self._kinds) + self._kinds).reshape(-1))

    def _store_rows(self, spans: Sequence[Span]) -> NDArray[np.int64]:
        """Slots of the pool for every (token, k or v, head), in the order in which `attend` writes them."""
        size = self._block_size
        blocks, offsets = np.concatenate([_places(span, size) for span in spans], axis=1)
        rows: NDArray[np.int64] = (blocks * len(self._kinds) * size + offsets)[:, None] + self._kinds * size
        return rows.reshape(-1)

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def collected_tokens(
    spec: DecoderSpec, block_size: int, dtype: torch.dtype, max_num_seqs: int, max_model_len: int
) -> int:
    """Tokens, in whole blocks, whose keys and values lie side by side for one call.

    Bounded by COLLECTED_BYTES, but never below one sequence of full length.
    """
    bound = COLLECTED_BYTES // (2 * spec.kv_heads * spec.head_dim * dtype.itemsize * block_size)
    longest = -(-max_model_len // block_size)
    return max(longest, min(max_num_seqs * longest, bound)) * block_size


def decode_first(span: Span) -> tuple[bool, int]:
    """Sort key of a step's spans: single tokens first, by context, so that little is padded."""
    return (span.length > 1, span.end if span.length == 1 else 0)


def _groups(spans: Sequence[Span], most: int, block_size: int) -> Iterator[list[Span]]:
    """Single tokens of similar context together, in blocks of `most` tokens at most; longer spans alone."""
    group: list[Span] = []
    for span in spans:
        collected = (len(group) + 1) * -(-span.end // block_size) * block_size
        alike = group and span.length == 1 == group[0].length and collected <= most
        if group and not (alike and span.end <= 2 * group[0].end + FREE_PADDING):
            yield group
            group = []
        group.append(span)
    yield group


def _places(span: Span, block_size: int) -> NDArray[np.int64]:
    """Block and offset of each token of the span. [2, length]."""
    positions = np.arange(span.start, span.end)
    first = span.start // block_size
    blocks = np.array(span.table[first : -(-span.end // block_size)])
    return np.stack((blocks[positions // block_size - first], positions % block_size))
