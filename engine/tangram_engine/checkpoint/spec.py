"""What a checkpoint is, as data: the model's shape and where each tensor lies on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A change of the rotary frequencies, whose `kind` is "linear", "llama3" or "yarn".

    "linear" has no more than `factor`; the last two fields are those of "yarn".
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0  # turns in the original context: below, a pair is slower (YaRN: beta_slow)
    high_freq_factor: float = 4.0  # and above, it is as fast as before (YaRN: beta_fast)
    original_max_position_embeddings: int = 0
    attention_factor: float = 1.0  # of cosines and sines
    whole_pairs: bool = True  # both bounds are rounded, outwards, to pairs


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """One decoder-only model, enough to build it and to plan its memory."""

    family: str  # the short name of the architecture: llama, qwen2
    architecture: str  # as config.json says: LlamaForCausalLM
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    attention_bias: bool  # q, k and v projections have a bias, o has none (Qwen2)
    qk_norm: bool  # RMSNorm over head_dim on q and k before the rotation (Qwen3)
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    dtype: str  # bf16 | fp16 | fp32: that of most stored bytes, whatever config.json claims
    unrotated_layers: tuple[int, ...] = ()  # whose queries and keys have no positions (SmolLM3)
    interleaved_rotation: bool = False  # q and k are stored for pairs (2 i, 2 i + 1) (Ernie 4.5)
    packed_projections: bool = False  # q, k and v are stored as one tensor, gate and up as another (Phi-3)
    attention_scale: float | None = None  # of scores before the softmax; None: head_dim ** -0.5
    embedding_scale: float = 1.0  # of what is looked up; the head of tied embeddings is not scaled
    logits_divisor: float = 1.0


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in a safetensors file; `offset` counts bytes from the start of the file."""

    file: Path  # without links
    dtype: str  # BF16 | F16 | F32, as safetensors spells it
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A validated checkpoint: every tensor the model needs is there, rightly shaped, inside its file."""

    spec: DecoderSpec
    tensors: dict[str, TensorEntry]
    digest: str  # sha256 over config.json and the safetensors headers, in hexadecimal; see `read_checkpoint`

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold these tensors, each once."""
        return tuple(dict.fromkeys(entry.file for entry in self.tensors.values()))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors that are loaded."""
        return sum(entry.nbytes for entry in self.tensors.values())


@dataclass(frozen=True, slots=True)
class OtherCheckpoint:
    """A checkpoint that this engine does not implement: what a planner of other runtimes needs of it."""

    config: dict[str, Any]  # config.json
    weight_bytes: int  # of all tensors
    digest: str  # as of `Checkpoint`
