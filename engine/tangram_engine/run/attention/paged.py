"""Attention on a GPU: the Triton kernels for single tokens, torch's flash attention for prompts.

A step's single tokens come first. Their attention reads device rows alone (tables, positions), so that it
can be captured in a CUDA graph; chunks of prompts run beside it and are never captured. The pool has one
block more than the engine counts: the padding row of the device rows writes there.
"""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor

from tangram_engine.checkpoint import DecoderSpec
from tangram_engine.kernels import decode_attention
from tangram_engine.kernels.ops import Ops
from tangram_engine.kernels.store_kv import HeadRotation, Pages
from tangram_engine.models.rope import cos_sin, unrotated
from tangram_engine.models.weights import LayerWeights
from tangram_engine.run.attention.paged_prefill import CollectedPrefill, collected_bytes, upload
from tangram_engine.run.attention.reference import Span


def workspace_bytes(
    spec: DecoderSpec, block_size: int, dtype: torch.dtype, max_num_seqs: int, max_model_len: int
) -> int:
    """Bytes that attention on a GPU keeps beside the pool, all allocated at construction.

    Partial results of decode attention, 4 x `scratch_size`; cosines and sines, 4 x max_model_len x D; and
    `collected_bytes` for prompts.
    """
    longest = -(-max_model_len // block_size) * block_size
    scratch = decode_attention.scratch_size(max_num_seqs, longest, spec.heads, spec.head_dim)
    rope = max_model_len * spec.head_dim
    return 4 * (scratch + rope) + collected_bytes(spec, block_size, dtype, max_model_len)


class PagedAttention:
    """See `.reference.Attention`; `tables` int32 [max_num_seqs + 1, blocks of a row]."""

    def __init__(
        self,
        spec: DecoderSpec,
        tables: Tensor,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        max_model_len: int,
        ops: Ops,
        prefill: CollectedPrefill | None = None,
    ) -> None:
        device = tables.device
        self._spec, self._tables, self._dtype, self._device = spec, tables, dtype, device
        self._block_size = block_size
        self._ops = ops
        self._prefill = prefill or CollectedPrefill(spec, block_size, dtype, device, max_model_len)
        self._rope = cos_sin(spec, max_model_len, device)
        self._unrotated = unrotated(spec, device).expand(max_model_len, -1) if spec.unrotated_layers else None
        values = decode_attention.scratch_size(
            len(tables) - 1, tables.shape[1] * block_size, spec.heads, spec.head_dim
        )
        self._scratch = torch.empty(values, dtype=torch.float32, device=device)
        self.resize(num_blocks)

    def resize(self, num_blocks: int) -> int:
        """See `Attention.resize`. With the block for padding, unless there are none at all."""
        self._layers: list[Tensor] = []
        self.pool = torch.empty(0, dtype=self._dtype, device=self._device)
        none = torch.zeros(0, dtype=torch.int32, device=self._device)
        self.plan_decodes(none, none)  # what the last step planned goes with its pool
        spec, blocks = self._spec, num_blocks + 1 if num_blocks else 0
        shape = (spec.layers, blocks, 2, spec.kv_heads, self._block_size, spec.head_dim)
        self.pool = torch.empty(shape, dtype=self._dtype, device=self._device)
        self._layers = list(self.pool)
        return self.pool.nbytes

    def plan(self, spans: Sequence[Span], positions: Tensor) -> None:
        """See `Attention.plan`: spans of one token first. Uploads one number a token, without waiting."""
        rows = [span.row for span in spans for _ in range(span.length)]
        self.plan_decodes(upload(rows, torch.int32, self._device), positions)
        self._singles = sum(1 for _ in takewhile(lambda span: span.length == 1, spans))
        self._chunked = self._singles < len(spans)
        if self._chunked:
            self._prefill.plan(spans[self._singles :], self._tables)

    def plan_decodes(self, rows: Tensor, positions: Tensor) -> None:
        """One token for each of some device rows int32 [B], at positions [B]. CUDA graphs may capture it."""
        self._rows, self._positions = rows, positions.int()
        self._singles, self._chunked = len(rows), False

    def attend(self, index: int, qkv: Tensor, layer: LayerWeights) -> Tensor:
        """See `tangram_engine.models.decoder.Attend`. Keys are stored before any row attends."""
        rotation = self._rotation(index, layer)
        rows, positions, singles, pool = self._rows, self._positions, self._singles, self._layers[index]

        def inputs(tokens: slice) -> tuple[Tensor, HeadRotation, Pages]:
            return qkv[tokens], rotation, Pages(rows[tokens], positions[tokens], self._tables, pool)

        parts = []
        if self._chunked:
            q = self._ops.store_kv(*inputs(slice(singles, None)))
            parts.append(self._prefill.attend(q, pool))
        if singles:
            parts.insert(0, self._ops.decode_attention(*inputs(slice(singles)), self._scratch))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    def _rotation(self, index: int, layer: LayerWeights) -> HeadRotation:
        still = self._unrotated if index in self._spec.unrotated_layers else None
        rope = self._rope if still is None else still
        return HeadRotation(layer.q_norm, layer.k_norm, self._spec.rms_norm_eps, rope)
