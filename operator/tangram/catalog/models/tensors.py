"""One tensor of a decoder, as a pattern over its layers and experts: what it is and how ranks share it."""

import math
from dataclasses import dataclass
from enum import StrEnum


class TensorKind(StrEnum):
    """What a tensor is for."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    RECURRENT = "recurrent"  # state-space and linear-attention branches
    MLP = "mlp"
    EXPERT = "expert"
    SHARED_EXPERT = "shared expert"
    ROUTER = "router"
    NORM = "norm"
    HEAD = "head"
    OTHER = "other"  # vision towers, draft layers: not part of the decoder


class Shard(StrEnum):
    """How a tensor-parallel group shares a tensor (Megatron-LM's scheme, as vLLM does it)."""

    ROWS = "rows"  # output features split: a column-parallel linear layer
    COLUMNS = "columns"  # input features split: a row-parallel linear layer
    KV_HEADS = "kv heads"  # rows split by KV head; beyond one head per rank, heads are replicated
    VOCABULARY = "vocabulary"  # rows split after padding
    REPLICATED = "replicated"


# vLLM pads a shared vocabulary to this many rows (DEFAULT_VOCAB_PADDING_SIZE), then splits it.
VOCABULARY_PADDING = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """`count` tensors of one shape: one per layer, or one per layer and expert."""

    name: str  # with `*` for layer and expert: model.layers.*.self_attn.q_proj.weight
    shape: tuple[int, ...]  # (output features, input features) of a matrix
    kind: TensorKind
    shard: Shard
    count: int = 1
    kv_heads: int = 0  # of Shard.KV_HEADS

    @property
    def elements(self) -> int:
        """Elements of all `count` tensors."""
        return self.count * math.prod(self.shape)

    @property
    def quantisable(self) -> bool:
        """Whether weight formats apply: linear layers of the body; the rest stays 16-bit everywhere."""
        body = self.kind in {
            TensorKind.ATTENTION,
            TensorKind.RECURRENT,
            TensorKind.MLP,
            TensorKind.EXPERT,
            TensorKind.SHARED_EXPERT,
        }
        return body and len(self.shape) == 2 and self.name.endswith(".weight")

    def on_rank(self, tensor_parallel: int) -> tuple[int, ...]:
        """Shape of one of them on one rank; rounded up where the split is uneven."""
        if tensor_parallel == 1 or self.shard is Shard.REPLICATED:
            return self.shape
        rows, *rest = self.shape
        if self.shard is Shard.COLUMNS:
            return (rows, -(-rest[0] // tensor_parallel))
        if self.shard is Shard.KV_HEADS:
            return (rows // self.kv_heads * -(-self.kv_heads // tensor_parallel), *rest)
        if self.shard is Shard.VOCABULARY:
            rows = -(-rows // VOCABULARY_PADDING) * VOCABULARY_PADDING
        return (-(-rows // tensor_parallel), *rest)
