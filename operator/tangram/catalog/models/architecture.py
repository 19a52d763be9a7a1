"""A decoder-only language model as data."""

from dataclasses import dataclass

from tangram.catalog.models.layer_parts import LayerGroup
from tangram.catalog.models.layer_tensors import layer_tensors, norm
from tangram.catalog.models.tensors import Shard, Tensor, TensorKind

NO_VISION = "vision tower (not counted)"  # in `Architecture.unverified`


@dataclass(frozen=True, slots=True)
class ModuleFormat:
    """Weight format of `count` of the tensors that a `Tensor` stands for."""

    name: str  # of the `Tensor`
    shape: tuple[int, ...]
    precision: str
    count: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`count` stored tensors whose names differ in layer and expert only, by the safetensors headers."""

    name: str
    dtype: str  # as safetensors writes it: BF16, F8_E4M3, I32
    shape: tuple[int, ...]
    count: int
    nbytes: int  # of all of them


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only language model: enough to know every tensor, the KV cache and the work per token."""

    name: str
    hidden_size: int
    vocab_size: int
    groups: tuple[LayerGroup, ...]
    tied_embeddings: bool
    max_position_embeddings: int
    dtype: str = "bf16"  # of the tensors that no format quantises: bf16 | fp16 | fp32
    quantization: str | None = None  # precision of the checkpoint's quantised tensors; None: there are none
    unquantised: tuple[TensorKind, ...] = ()  # of the body: what quantised checkpoints leave in `dtype`
    module_formats: tuple[ModuleFormat, ...] = ()  # of quantised tensors, where the config tells; else all
    other_parameters: int = 0  # outside the decoder (a vision tower): loaded, replicated, not read per token
    extra_tensors: tuple[Tensor, ...] = ()  # of the decoder, outside its layers
    draft_tensors: tuple[Tensor, ...] = ()  # multi-token prediction: stored, loaded for drafts only
    engine_family: bool = True  # whether the bundled engine knows the family
    source: str = ""
    unverified: tuple[str, ...] = ()  # facts recalled or assumed; every output marks them
    stored_tensors: tuple[StoredTensor, ...] | None = None  # from safetensors headers, where they are there

    @property
    def layers(self) -> int:
        """Transformer layers."""
        return sum(group.count for group in self.groups)

    @property
    def precision(self) -> str:
        """How the checkpoint stores its linear layers."""
        return self.quantization or self.dtype

    @property
    def served_by_engine(self) -> bool:
        """Whether the bundled engine serves this checkpoint; other runtimes serve every one that is sized."""
        windowed = any(group.attention and group.attention.window for group in self.groups)
        return self.engine_family and self.quantization is None and not windowed

    @property
    def served_precision(self) -> str:
        """Format it is served in unless it is converted: as stored; engines cast fp32 as they load."""
        return "bf16" if self.precision == "fp32" else self.precision

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor before quantisation, by the name that checkpoints usually give it."""
        table = (self.vocab_size, self.hidden_size)
        head = Tensor("lm_head.weight", table, TensorKind.HEAD, Shard.VOCABULARY)
        return (
            Tensor("model.embed_tokens.weight", table, TensorKind.EMBEDDING, Shard.VOCABULARY),
            *(tensor for group in self.groups for tensor in layer_tensors(self.hidden_size, group)),
            norm("model.norm", self.hidden_size),
            *self.extra_tensors,
            *(() if self.tied_embeddings else (head,)),
        )

    @property
    def parameters(self) -> int:
        """All of them; a tied head counts once."""
        return sum(tensor.elements for tensor in self.tensors) + self.other_parameters
