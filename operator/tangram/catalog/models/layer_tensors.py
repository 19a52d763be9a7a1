"""The tensors of a decoder, part by part: attention, recurrent branches, MLPs, experts."""

from collections.abc import Iterator
from dataclasses import replace

from tangram.catalog.models.layer_parts import Attention, LayerGroup
from tangram.catalog.models.tensors import Shard, Tensor, TensorKind


def layer_tensors(hidden: int, group: LayerGroup) -> Iterator[Tensor]:
    """Yield the tensors of `group.count` layers, before quantisation."""
    if group.attention is not None:
        yield from _attention(hidden, group.attention, group.count)
    yield from _repeated(group.recurrent.tensors if group.recurrent else (), group.count)
    yield from _feed_forward(hidden, group)
    for name in _NORMS[: group.norms]:
        yield norm(f"model.layers.*.{name}", hidden, group.count)
    yield from _repeated(group.extra_tensors, group.count)


def _repeated(tensors: tuple[Tensor, ...], layers: int) -> Iterator[Tensor]:
    return (replace(tensor, count=tensor.count * layers) for tensor in tensors)


_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def norm(name: str, width: int, count: int = 1) -> Tensor:
    """Return the weight of a norm over `width` features."""
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


def _attention(hidden: int, at: Attention, n: int) -> Iterator[Tensor]:
    kind, prefix = TensorKind.ATTENTION, "model.layers.*.self_attn"
    if at.latent is not None:
        yield from _latent_attention(prefix, hidden, at, at.latent, n)
    else:
        queries = at.heads * at.head_dim * (2 if at.output_gate else 1)
        yield from _linear(f"{prefix}.q_proj", (queries, hidden), kind, Shard.ROWS, n, bias=at.bias)
        yield from _keys_and_values(prefix, hidden, at, n)
    values = at.heads * at.v_head_dim
    yield from _linear(f"{prefix}.o_proj", (hidden, values), kind, Shard.COLUMNS, n, bias=at.output_bias)
    if at.qk_norm:
        yield norm(f"{prefix}.q_norm", at.head_dim * (at.heads if at.norm_over_heads else 1), n)
    if at.qk_norm and not at.shares_cache:
        yield norm(f"{prefix}.k_norm", at.head_dim * (at.kv_heads if at.norm_over_heads else 1), n)
    if at.sinks:
        yield Tensor(f"{prefix}.sinks", (at.heads,), kind, Shard.ROWS, n)
    if at.index_heads:
        yield from _key_index(f"{prefix}.indexer", hidden, at, n)


def _keys_and_values(prefix: str, hidden: int, at: Attention, n: int) -> Iterator[Tensor]:
    if at.shares_cache:
        return
    for name, width in (("k_proj", at.head_dim), ("v_proj", at.v_head_dim)):
        if name == "k_proj" or not at.keys_as_values:
            shape, kind = (at.kv_heads * width, hidden), TensorKind.ATTENTION
            yield from _linear(
                f"{prefix}.{name}", shape, kind, Shard.KV_HEADS, n, bias=at.bias, kv_heads=at.kv_heads
            )


def _key_index(prefix: str, hidden: int, at: Attention, n: int) -> Iterator[Tensor]:
    """Scores of DeepSeek sparse attention; every rank has them whole."""
    kind, whole = TensorKind.ATTENTION, Shard.REPLICATED
    queries = (at.index_heads * at.index_dim, at.q_latent or hidden)
    yield from _linear(f"{prefix}.wq_b", queries, kind, whole, n)
    yield from _linear(f"{prefix}.wk", (at.index_dim, hidden), kind, whole, n)
    yield from _linear(f"{prefix}.weights_proj", (at.index_heads, hidden), kind, whole, n)
    yield norm(f"{prefix}.k_norm", at.index_dim, n)
    yield Tensor(f"{prefix}.k_norm.bias", (at.index_dim,), TensorKind.NORM, whole, n)


def _latent_attention(prefix: str, hidden: int, at: Attention, latent: int, n: int) -> Iterator[Tensor]:
    """Queries, keys and values of MLA."""
    kind, queries = TensorKind.ATTENTION, at.heads * at.head_dim
    expanded = at.heads * (at.head_dim - at.rope_dim + at.v_head_dim)
    if at.q_latent is None:
        yield from _linear(f"{prefix}.q_proj", (queries, hidden), kind, Shard.ROWS, n)
    else:
        down = (at.q_latent, hidden)
        yield from _linear(f"{prefix}.q_a_proj", down, kind, Shard.REPLICATED, n, bias=at.bias)
        yield norm(f"{prefix}.q_a_layernorm", at.q_latent, n)
        yield from _linear(f"{prefix}.q_b_proj", (queries, at.q_latent), kind, Shard.ROWS, n)
    name = f"{prefix}.kv_a_proj_with_mqa"
    yield from _linear(name, (latent + at.rope_dim, hidden), kind, Shard.REPLICATED, n, bias=at.bias)
    yield norm(f"{prefix}.kv_a_layernorm", latent, n)
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
    width = group.expert_input_size or hidden
    experts = f"{prefix}.experts.*"
    yield from _mlp(experts, width, inner, TensorKind.EXPERT, count, group.gated, group.expert_bias)
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
