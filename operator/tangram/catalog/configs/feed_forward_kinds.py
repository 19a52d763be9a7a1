"""What follows attention in a layer, read from config.json: MLPs, experts, norms."""

from collections.abc import Callable
from dataclasses import replace

from tangram.catalog.configs.attention_kinds import searched_block
from tangram.catalog.configs.recurrent_kinds import nemotron_kind
from tangram.catalog.models.layer_parts import Attention, LayerGroup
from tangram.catalog.models.layer_tensors import norm
from tangram.catalog.models.tensors import Shard, Tensor, TensorKind
from tangram.catalog.reading.fields import Fields

MAX_EXPERTS = 65_536


def dense(fields: Fields, attention: Attention | None, _layer: int) -> LayerGroup:
    """Return a layer with a gated MLP."""
    return LayerGroup(1, attention, fields.size("intermediate_size"), mlp_bias=fields.flag("mlp_bias"))


def dense_biased_by(key: str) -> Callable[[Fields, Attention | None, int], LayerGroup]:
    """Return how to read layers with a gated MLP, which has biases by a flag of that name."""

    def layer_of(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
        return replace(dense(fields, attention, layer), mlp_bias=fields.flag(key))

    return layer_of


def one_norm(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Command R: attention and MLP read the same normed input."""
    return replace(dense(fields, attention, layer), norms=1)


def four_norms(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer with norms before and after attention and MLP."""
    return replace(dense(fields, attention, layer), norms=4)


def norms_behind(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of OLMo 2: norms follow attention and MLP."""
    hidden = fields.size("hidden_size")
    names = ("post_attention_layernorm", "post_feedforward_layernorm")
    after = tuple(norm(f"model.layers.*.{name}", hidden) for name in names)
    return replace(dense(fields, attention, layer), norms=0, extra_tensors=after)


def searched(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Llama-Nemotron: MLPs differ in width."""
    block, hidden = searched_block(fields, layer, "ffn"), fields.size("hidden_size")
    # Width as transformers' DeciLM computes it: two thirds of the multiple, rounded up to 256.
    width = 256 * -(-int(2 * block.ratio("ffn_mult", 1.0) * hidden / 3) // 256) if block else 0
    return LayerGroup(1, attention, width, norms=(attention is not None) + (block is not None))


def _experts(fields: Fields, attention: Attention | None, count_key: str, size_key: str) -> LayerGroup:
    experts = fields.size(count_key, maximum=MAX_EXPERTS)
    chosen = fields.size("num_experts_per_tok")
    if chosen > experts:
        raise fields.error("num_experts_per_tok", f"{chosen} of {experts} experts cannot be chosen")
    return LayerGroup(1, attention, 0, experts, chosen, fields.size(size_key))


def mixtral(fields: Fields, attention: Attention | None, _layer: int) -> LayerGroup:
    """Return a layer of experts that all have `intermediate_size`."""
    return _experts(fields, attention, "num_local_experts", "intermediate_size")


def minimax(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of MiniMax-M2: a learned correction of the router's scores."""
    if fields.size("shared_intermediate_size", 0, minimum=0):
        raise fields.error("shared_intermediate_size", "is not 0; shared experts of MiniMax are not known")
    return replace(mixtral(fields, attention, layer), router_bias=True)


def gpt_oss(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of gpt-oss: biases everywhere."""
    return replace(mixtral(fields, attention, layer), router_bias=True, expert_bias=True)


def granite_hybrid(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Granite 4: a shared MLP, and experts beside it in the larger models."""
    shared = fields.size("shared_intermediate_size", 1024)
    if not fields.size("num_local_experts", 8, minimum=0):
        return LayerGroup(1, attention, shared)
    return replace(mixtral(fields, attention, layer), shared_intermediate_size=shared)


def olmoe(fields: Fields, attention: Attention | None, _layer: int) -> LayerGroup:
    """Return a layer of OLMoE."""
    return _experts(fields, attention, "num_experts", "intermediate_size")


def qwen_moe(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Qwen3-MoE: every n-th has experts."""
    sparse = (layer + 1) % fields.size("decoder_sparse_step", 1) == 0
    if layer in fields.sizes("mlp_only_layers") or not sparse:
        return dense(fields, attention, layer)
    return _experts(fields, attention, "num_experts", "moe_intermediate_size")


def qwen2_moe(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Qwen2-MoE, Qwen3-Next or Qwen3.5: one shared expert with a gate."""
    group = qwen_moe(fields, attention, layer)
    if not group.experts:
        return group
    width = fields.size("shared_expert_intermediate_size")
    return replace(group, shared_intermediate_size=width, shared_gate=True)


def deepseek(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of DeepSeek-V2: the first ones are dense."""
    if fields.size("moe_layer_freq", 1) != 1:
        raise fields.error("moe_layer_freq", "only 1 is known")
    if layer < fields.size("first_k_dense_replace", 0, minimum=0):
        return dense(fields, attention, layer)
    group = _experts(fields, attention, "n_routed_experts", "moe_intermediate_size")
    shared = fields.size("n_shared_experts", 0, minimum=0) * group.expert_intermediate_size
    return replace(group, shared_intermediate_size=shared)


def deepseek_v3(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of DeepSeek-V3: a learned correction of the router's scores."""
    group = deepseek(fields, attention, layer)
    return replace(group, router_bias=group.experts > 0)


def mimo_moe(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of MiMo-V2: `moe_layer_freq` lists the layers with experts."""
    sparse = fields.sizes("moe_layer_freq")
    if layer >= len(sparse):
        raise fields.error("moe_layer_freq", f"has {len(sparse)} entries, none for layer {layer}")
    if not sparse[layer]:
        return dense(fields, attention, layer)
    group = _experts(fields, attention, "n_routed_experts", "moe_intermediate_size")
    shared = fields.size("n_shared_experts", 0, minimum=0) * group.expert_intermediate_size
    return replace(group, shared_intermediate_size=shared, router_bias=True)


def ernie_moe(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of ERNIE 4.5: experts between two layers, every n-th."""
    count = fields.size("num_hidden_layers")
    first = fields.size("moe_layer_start_index", 1, minimum=0)
    last = fields.values.get("moe_layer_end_index")
    end = count - 1 if last in {None, -1} else fields.size("moe_layer_end_index", minimum=0)
    if not first <= layer <= end or (layer + 1) % fields.size("moe_layer_interval", 1):
        return dense(fields, attention, layer)
    experts, chosen = fields.size("moe_num_experts", maximum=MAX_EXPERTS), fields.size("moe_k")
    if chosen > experts:
        raise fields.error("moe_k", f"{chosen} of {experts} experts cannot be chosen")
    width = fields.size("moe_intermediate_size")
    shared = fields.size("moe_num_shared_experts", 0, minimum=0) * width
    return LayerGroup(
        1, attention, 0, experts, chosen, width, shared_intermediate_size=shared, router_bias=True
    )


def llama4(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Llama 4: experts with a shared one, or a wider dense MLP."""
    if not _has_experts_llama4(fields, layer):
        return LayerGroup(1, attention, fields.size("intermediate_size_mlp"))
    group = _experts(fields, attention, "num_local_experts", "intermediate_size")
    return replace(group, shared_intermediate_size=group.expert_intermediate_size)


def _has_experts_llama4(fields: Fields, layer: int) -> bool:
    if fields.has("moe_layers"):
        return layer in fields.sizes("moe_layers")
    return (layer + 1) % fields.size("interleave_moe_layer_step", 1) == 0


def gemma4(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Gemma 4: a dense MLP, and experts or inputs per layer beside it."""
    hidden, prefix = fields.size("hidden_size"), "model.layers.*"
    group = replace(four_norms(fields, attention, layer), extra_tensors=(_one(f"{prefix}.layer_scalar", 1),))
    if fields.flag("use_double_wide_mlp") and attention is not None and attention.shares_cache:
        group = replace(group, intermediate_size=2 * group.intermediate_size)
    if width := fields.size("hidden_size_per_layer_input", 256, minimum=0):
        whole = Shard.REPLICATED
        inputs = (
            Tensor(f"{prefix}.per_layer_input_gate.weight", (width, hidden), TensorKind.MLP, whole),
            Tensor(f"{prefix}.per_layer_projection.weight", (hidden, width), TensorKind.MLP, whole),
            norm(f"{prefix}.post_per_layer_input_norm", hidden),
        )
        group = replace(group, extra_tensors=(*group.extra_tensors, *inputs))
    if not fields.flag("enable_moe_block"):
        return group
    experts, chosen = fields.size("num_experts", maximum=MAX_EXPERTS), fields.size("top_k_experts")
    if chosen > experts:
        raise fields.error("top_k_experts", f"{chosen} of {experts} experts cannot be chosen")
    names = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    scales = (_one(f"{prefix}.router.scale", hidden), _one(f"{prefix}.router.per_expert_scale", experts))
    return replace(
        group,
        experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=fields.size("moe_intermediate_size"),
        extra_tensors=(*group.extra_tensors, *scales, *(norm(f"{prefix}.{name}", hidden) for name in names)),
    )


def gemma4_inputs(fields: Fields) -> tuple[Tensor, ...]:
    """Return the embeddings per layer of Gemma 4 E2B and E4B."""
    width = fields.size("hidden_size_per_layer_input", 256, minimum=0)
    if not width:
        return ()
    packed = fields.size("num_hidden_layers") * width
    rows = fields.size("vocab_size_per_layer_input", 262_144)
    hidden, whole = fields.size("hidden_size"), Shard.REPLICATED
    return (
        Tensor("model.embed_tokens_per_layer.weight", (rows, packed), TensorKind.OTHER, Shard.VOCABULARY),
        Tensor("model.per_layer_model_projection.weight", (packed, hidden), TensorKind.OTHER, whole),
        norm("model.per_layer_projection_norm", width),
    )


def nemotron(fields: Fields, attention: Attention | None, layer: int) -> LayerGroup:
    """Return a layer of Nemotron-H: one norm, and a mixer, an MLP or experts, none of them gated."""
    kind = nemotron_kind(fields, layer)
    if kind == "mlp":
        width, bias = fields.size("intermediate_size"), fields.flag("mlp_bias")
        return LayerGroup(1, None, width, mlp_bias=bias, gated=False, norms=1)
    if kind != "moe":
        return LayerGroup(1, attention, 0, norms=1)
    group = _experts(fields, None, "n_routed_experts", "moe_intermediate_size")
    shared = fields.size("n_shared_experts", 1, minimum=0) * fields.size(
        "moe_shared_expert_intermediate_size"
    )
    group = replace(group, shared_intermediate_size=shared, router_bias=True, gated=False, norms=1)
    if not fields.has("moe_latent_size"):
        return group
    latent, hidden = fields.size("moe_latent_size"), fields.size("hidden_size")
    projections = tuple(
        Tensor(f"model.layers.*.mixer.{name}.weight", shape, TensorKind.MLP, Shard.REPLICATED)
        for name, shape in (("fc1_latent_proj", (latent, hidden)), ("fc2_latent_proj", (hidden, latent)))
    )
    return replace(group, expert_input_size=latent, extra_tensors=projections)


def _one(name: str, width: int) -> Tensor:
    return Tensor(name, (width,), TensorKind.NORM, Shard.REPLICATED)
