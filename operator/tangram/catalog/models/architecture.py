"""A decoder's structure: layer groups, attention, and the tensors that follow from them."""

from collections.abc import Iterator
from dataclasses import dataclass

from tangram.catalog.models.tensors import Shard, Tensor, TensorKind

NO_VISION = "vision tower (not counted)"  # in `Architecture.unverified`


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention of one layer: multi-head, grouped-query, or multi-head latent (MLA, `latent` set)."""

    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys; MLA: the part without rotary positions plus `rope_dim`
    v_head_dim: int
    window: int | None = None  # tokens that a query sees; None: all
    latent: int | None = None  # MLA: kv_lora_rank, what the KV cache holds of a token beside `rope_dim`
    rope_dim: int = 0  # MLA: qk_rope_head_dim, one shared key
    q_latent: int | None = None  # MLA: q_lora_rank; None: queries come from the hidden state
    bias: bool = False  # of q, k and v
    output_bias: bool = False
    qk_norm: bool = False  # one norm per head over queries and over keys
    sinks: bool = False  # gpt-oss: one learned logit per head

    @property
    def kv_elements(self) -> int:
        """Elements that the KV cache holds per token, over all KV heads."""
        if self.latent is not None:
            return self.latent + self.rope_dim
        return self.kv_heads * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers; they need not be neighbours."""

    count: int
    attention: Attention
    intermediate_size: int  # of the dense MLP; 0: none, experts instead
    experts: int = 0  # routed
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = 0  # all shared experts together
    shared_gate: bool = False  # Qwen2-MoE: a learned gate on the shared expert
    router_bias: bool = False  # gpt-oss: a bias; DeepSeek-V3: e_score_correction_bias
    expert_bias: bool = False  # gpt-oss
    mlp_bias: bool = False
    gated: bool = True  # gate, up, down; else up, down
    norms: int = 2  # Gemma 2 and 3: four


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
    other_parameters: int = 0  # outside the decoder (a vision tower): loaded, replicated, not read per token
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
    def served_precision(self) -> str:
        """Format it is served in unless it is converted: as stored; engines cast fp32 as they load."""
        return "bf16" if self.precision == "fp32" else self.precision

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor before quantisation, by the name that checkpoints usually give it."""
        return tuple(_tensors(self))

    @property
    def parameters(self) -> int:
        """All of them; a tied head counts once."""
        return sum(tensor.elements for tensor in self.tensors) + self.other_parameters


def _tensors(architecture: Architecture) -> Iterator[Tensor]:
    hidden, table = architecture.hidden_size, (architecture.vocab_size, architecture.hidden_size)
    yield Tensor("model.embed_tokens.weight", table, TensorKind.EMBEDDING, Shard.VOCABULARY)
    for group in architecture.groups:
        yield from _attention(hidden, group)
        yield from _feed_forward(hidden, group)
        for name in _NORMS[: group.norms]:
            yield _norm(f"model.layers.*.{name}", hidden, group.count)
    yield _norm("model.norm", hidden)
    if not architecture.tied_embeddings:
        yield Tensor("lm_head.weight", table, TensorKind.HEAD, Shard.VOCABULARY)


_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def _norm(name: str, width: int, count: int = 1) -> Tensor:
    return Tensor(f"{name}.weight", (width,), TensorKind.NORM, Shard.REPLICATED, count)


def _linear(
    name: str,
    shape: tuple[int, int],
    kind: TensorKind,
    shard: Shard,
    count: int,
    *,
    bias: bool = False,
    kv_heads: int = 0,
) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", shape, kind, shard, count, kv_heads)
    if bias:
        along = Shard.REPLICATED if shard is Shard.COLUMNS else shard
        yield Tensor(f"{name}.bias", shape[:1], kind, along, count, kv_heads)


def _attention(hidden: int, group: LayerGroup) -> Iterator[Tensor]:
    at, n, kind, prefix = group.attention, group.count, TensorKind.ATTENTION, "model.layers.*.self_attn"
    if at.latent is not None:
        yield from _latent_attention(prefix, hidden, at, at.latent, n)
    else:
        queries = at.heads * at.head_dim
        yield from _linear(f"{prefix}.q_proj", (queries, hidden), kind, Shard.ROWS, n, bias=at.bias)
        for name, width in (("k_proj", at.head_dim), ("v_proj", at.v_head_dim)):
            shape, heads = (at.kv_heads * width, hidden), at.kv_heads
            yield from _linear(
                f"{prefix}.{name}", shape, kind, Shard.KV_HEADS, n, bias=at.bias, kv_heads=heads
            )
    values = at.heads * at.v_head_dim
    yield from _linear(f"{prefix}.o_proj", (hidden, values), kind, Shard.COLUMNS, n, bias=at.output_bias)
    if at.qk_norm:
        yield _norm(f"{prefix}.q_norm", at.head_dim, n)
        yield _norm(f"{prefix}.k_norm", at.head_dim, n)
    if at.sinks:
        yield Tensor(f"{prefix}.sinks", (at.heads,), kind, Shard.ROWS, n)


def _latent_attention(prefix: str, hidden: int, at: Attention, latent: int, n: int) -> Iterator[Tensor]:
    """Queries, keys and values of MLA."""
    kind, queries = TensorKind.ATTENTION, at.heads * at.head_dim
    expanded = at.heads * (at.head_dim - at.rope_dim + at.v_head_dim)
    if at.q_latent is None:
        yield from _linear(f"{prefix}.q_proj", (queries, hidden), kind, Shard.ROWS, n)
    else:
        down = (at.q_latent, hidden)
        yield from _linear(f"{prefix}.q_a_proj", down, kind, Shard.REPLICATED, n, bias=at.bias)
        yield _norm(f"{prefix}.q_a_layernorm", at.q_latent, n)
        yield from _linear(f"{prefix}.q_b_proj", (queries, at.q_latent), kind, Shard.ROWS, n)
    name = f"{prefix}.kv_a_proj_with_mqa"
    yield from _linear(name, (latent + at.rope_dim, hidden), kind, Shard.REPLICATED, n, bias=at.bias)
    yield _norm(f"{prefix}.kv_a_layernorm", latent, n)
    yield from _linear(f"{prefix}.kv_b_proj", (expanded, latent), kind, Shard.ROWS, n)


def _feed_forward(hidden: int, group: LayerGroup) -> Iterator[Tensor]:
    prefix, n, inner = "model.layers.*.mlp", group.count, group.intermediate_size
    if inner:
        yield from _mlp(prefix, hidden, inner, TensorKind.MLP, n, group.gated, group.mlp_bias)
    if not group.experts:
        return
    router, replicated = TensorKind.ROUTER, Shard.REPLICATED
    choices = (group.experts, hidden)
    yield from _linear(f"{prefix}.gate", choices, router, replicated, n, bias=group.router_bias)
    inner, count = group.expert_intermediate_size, n * group.experts
    experts = f"{prefix}.experts.*"
    yield from _mlp(experts, hidden, inner, TensorKind.EXPERT, count, group.gated, group.expert_bias)
    if inner := group.shared_intermediate_size:
        shared = f"{prefix}.shared_experts"
        yield from _mlp(shared, hidden, inner, TensorKind.SHARED_EXPERT, n, group.gated, False)
    if group.shared_gate:
        yield Tensor(f"{prefix}.shared_expert_gate.weight", (1, hidden), router, replicated, n)


def _mlp(
    prefix: str, hidden: int, inner: int, kind: TensorKind, count: int, gated: bool, bias: bool
) -> Iterator[Tensor]:
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        yield from _linear(f"{prefix}.{name}", (inner, hidden), kind, Shard.ROWS, count, bias=bias)
    yield from _linear(f"{prefix}.down_proj", (hidden, inner), kind, Shard.COLUMNS, count, bias=bias)
