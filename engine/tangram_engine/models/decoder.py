"""The decoder of Llama, Mistral, Qwen and the other families of the table, from token ids to logits.

T tokens of any number of sequences go through together, without padding; only attention needs to know
which token belongs to whom. D is the size of a head.
"""

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from tangram_engine.checkpoint import DecoderSpec
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

    def __init__(self, spec: DecoderSpec, weights: Weights) -> None:
        self.spec = spec
        self.weights = weights

    def forward(self, ids: Tensor, attend: Attend) -> Tensor:
        """Token ids [T] -> hidden states after the last layer [T, hidden]."""
        hidden = functional.embedding(ids, self.weights.embedding)
        if self.spec.embedding_scale != 1.0:
            hidden = hidden * self.spec.embedding_scale
        # Without names in between, what a stage has read is freed before the next one computes.
        for index, layer in enumerate(self.weights.layers):
            hidden = layer.out(attend(index, layer.qkv(hidden, layer.input_norm), layer), residual=hidden)
            hidden = layer.down(layer.gate_up(hidden, layer.post_norm, gated=True), residual=hidden)
        return hidden

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocabulary], in `out` if given."""
        logits = self.weights.head(hidden, self.weights.norm)
        logits = logits.float() if out is None else out.copy_(logits)
        return logits if self.spec.logits_divisor == 1.0 else logits.div_(self.spec.logits_divisor)
