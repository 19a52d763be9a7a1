"""The decoder of Llama, Qwen2 and Qwen3, from token ids to logits.

T tokens of any number of sequences go through together, without padding; only attention needs to know
which token belongs to whom. D is the size of a head.
"""

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from tangram_engine.checkpoint import ModelSpec
from tangram_engine.kernels.ops import Ops
from tangram_engine.models.weights import LayerWeights, Weights


class Attend(Protocol):
    """Attention of the step's tokens to everything before them, each in its own sequence."""

    def __call__(self, index: int, qkv: Tensor, layer: LayerWeights) -> Tensor:
        """Normalise and rotate q and k, keep k and v, attend in layer number `index`.

        Packed projections qkv [T, (heads + 2 kv_heads) D] -> [T, heads D].
        """
        ...


class Decoder:
    """Weights and the order in which they are applied."""

    def __init__(self, spec: ModelSpec, weights: Weights, ops: Ops) -> None:
        self.spec = spec
        self.weights = weights
        self._ops = ops
        # The normalisation at the end of a layer is the one that the next layer begins with.
        self._next_norms = (*(layer.input_norm for layer in weights.layers), weights.norm)[1:]

    def forward(self, ids: Tensor, attend: Attend) -> Tensor:
        """Token ids [T] -> normalised hidden states [T, hidden]."""
        add_norm, eps = self._ops.add_norm, self.spec.rms_norm_eps
        residual = functional.embedding(ids, self.weights.embedding)
        x = add_norm(None, residual, self.weights.layers[0].input_norm, eps)
        for index, (layer, next_norm) in enumerate(zip(self.weights.layers, self._next_norms, strict=True)):
            # One name: what a stage has read is freed before the next one computes.
            x = layer.qkv(x)
            x = attend(index, x, layer)
            x = add_norm(layer.out(x), residual, layer.post_norm, eps)
            x = layer.gate_up(x)
            x = self._ops.silu_mul(x)
            x = add_norm(layer.down(x), residual, next_norm, eps)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocabulary]."""
        return self.weights.head(x).float()
