"""The decoder of Llama, Qwen2 and Qwen3, from token ids to logits.

T tokens of any number of sequences go through together, without padding; only attention needs to know
which token belongs to whom. D is the size of a head.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.checkpoint import ModelSpec
from tangram_engine.models.rope import Rope, rotate
from tangram_engine.models.weights import LayerWeights, Weights


class Attend(Protocol):
    """Attention of the step's tokens to everything before them, each in its own sequence."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep k and v; q [T, heads, D], k and v [T, kv_heads, D] -> [T, heads, D]."""
        ...


class Decoder:
    """Weights and the order in which they are applied."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_positions: int) -> None:
        self.spec = spec
        self.weights = weights
        self._rope = Rope(spec, max_positions, weights.embedding.dtype, weights.embedding.device)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Token ids and their positions, each [T] -> hidden states [T, hidden]."""
        rotation = self._rope.at(positions)
        x = functional.embedding(ids, self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, self._norm(x, layer.input_norm), rotation)
            x += layer.out(attend(index, q, k, v).flatten(1))
            x += _mlp(layer, self._norm(x, layer.post_norm))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocabulary]."""
        return self.weights.head(self._norm(x, self.weights.norm)).float()

    def _project(
        self, layer: LayerWeights, x: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads = self.spec.heads, self.spec.kv_heads
        qkv = layer.qkv(x).view(x.shape[0], -1, self.spec.head_dim)
        qk, v = qkv.split_with_sizes((heads + kv_heads, kv_heads), 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split_with_sizes((heads, kv_heads), 1)
            qk = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=1)
        q, k = rotate(qk, rotation).split_with_sizes((heads, kv_heads), 1)
        return q, k, v

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.spec.rms_norm_eps)


def _mlp(layer: LayerWeights, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(functional.silu(gate) * up)
