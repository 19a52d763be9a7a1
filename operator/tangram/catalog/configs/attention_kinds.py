"""Attention of one layer, read from config.json.

Names of keys and their defaults are those of transformers 5 (`configuration_*.py` of each family).
"""

from dataclasses import replace

from tangram.catalog.models.layer_parts import Attention
from tangram.catalog.reading.fields import Fields

MAX_HEADS = 65_536


def grouped(fields: Fields, _layer: int = 0) -> Attention:
    """Return multi-head or grouped-query attention without biases."""
    return _of_sizes(fields, "num_attention_heads", "num_key_value_heads", "head_dim")


def _of_sizes(fields: Fields, heads_key: str, kv_key: str, dim_key: str) -> Attention:
    heads = fields.size(heads_key, maximum=MAX_HEADS)
    kv_heads = fields.size(kv_key, heads, maximum=MAX_HEADS)
    if heads % kv_heads:
        raise fields.error(kv_key, f"{kv_heads} does not divide the {heads} attention heads")
    hidden = fields.size("hidden_size")
    if not fields.has(dim_key) and hidden % heads:
        raise fields.error(heads_key, f"{heads} does not divide hidden_size {hidden}")
    head_dim = fields.size(dim_key, hidden // heads, maximum=MAX_HEADS)
    return Attention(heads, kv_heads, head_dim, head_dim)


def biased_by_flag(fields: Fields, layer: int = 0) -> Attention:
    """Return attention whose four projections have biases by `attention_bias`."""
    bias = fields.flag("attention_bias")
    return replace(grouped(fields, layer), bias=bias, output_bias=bias)


def inputs_biased_by_flag(fields: Fields, layer: int = 0) -> Attention:
    """Return attention in which `attention_bias` spares the output projection."""
    return replace(grouped(fields, layer), bias=fields.flag("attention_bias"))


def ernie(fields: Fields, layer: int = 0) -> Attention:
    """Return attention of Ernie 4.5: `use_bias` gives every projection of the model a bias."""
    bias = fields.flag("use_bias")
    return replace(grouped(fields, layer), bias=bias, output_bias=bias)


def internlm3(fields: Fields, layer: int = 0) -> Attention:
    """Return attention of InternLM3: biases of the inputs and of the output, each by a flag of its own."""
    return replace(grouped(fields, layer), bias=fields.flag("qkv_bias"), output_bias=fields.flag("bias"))


def biased_by_two_flags(fields: Fields, layer: int = 0) -> Attention:
    """Return attention of Seed-OSS: biases of the inputs and of the output, each by its flag."""
    output = fields.flag("attention_out_bias")
    return replace(inputs_biased_by_flag(fields, layer), output_bias=output)


def biased_inputs(fields: Fields, layer: int = 0) -> Attention:
    """Return attention with biases of queries, keys and values (Qwen2)."""
    return replace(grouped(fields, layer), bias=True)


def normed(fields: Fields, layer: int = 0) -> Attention:
    """Return attention with a norm per head over queries and over keys."""
    return replace(biased_by_flag(fields, layer), qk_norm=True)


def normed_by_flag(fields: Fields, layer: int = 0) -> Attention:
    """Return attention of GLM-4.5: biases of the inputs and norms per head, each by its flag."""
    return replace(inputs_biased_by_flag(fields, layer), qk_norm=fields.flag("use_qk_norm"))


def normed_over_heads(fields: Fields, layer: int = 0) -> Attention:
    """Return attention whose norms span all heads (OLMo 2, MiniMax-M2)."""
    return replace(biased_by_flag(fields, layer), qk_norm=True, norm_over_heads=True)


def normed_over_heads_by_flag(fields: Fields, layer: int = 0) -> Attention:
    """Return attention of Command R: norms of every head's own weights by `use_qk_norm`."""
    return replace(biased_by_flag(fields, layer), qk_norm=fields.flag("use_qk_norm"), norm_over_heads=True)


def with_sinks(fields: Fields, layer: int = 0) -> Attention:
    """Return attention of gpt-oss."""
    return replace(biased_by_flag(fields, layer), sinks=True)


def latent(fields: Fields, _layer: int = 0) -> Attention:
    """Return multi-head latent attention (DeepSeek-V2)."""
    heads = fields.size("num_attention_heads", maximum=MAX_HEADS)
    rope = fields.size("qk_rope_head_dim")
    bias = fields.flag("attention_bias")
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=fields.size("qk_nope_head_dim") + rope,
        v_head_dim=fields.size("v_head_dim"),
        latent=fields.size("kv_lora_rank"),
        rope_dim=rope,
        q_latent=fields.size("q_lora_rank") if fields.has("q_lora_rank") else None,
        bias=bias,
        output_bias=bias,
    )


def indexed_latent(fields: Fields, layer: int = 0) -> Attention:
    """Return latent attention to the keys that an index selects (DeepSeek-V3.2, GLM-5)."""
    if not _has_index(fields, layer):
        return latent(fields, layer)
    return replace(
        latent(fields, layer),
        index_heads=fields.size("index_n_heads", maximum=MAX_HEADS),
        index_dim=fields.size("index_head_dim", maximum=MAX_HEADS),
    )


def _has_index(fields: Fields, layer: int) -> bool:
    """GLM-5.2: layers marked "shared" use the selection of the layer before them."""
    kinds = fields.names("indexer_types")
    if kinds and layer >= len(kinds):
        raise fields.error("indexer_types", f"has {len(kinds)} entries, none for layer {layer}")
    return not kinds or kinds[layer] == "full"


def gated_beside_state(fields: Fields, layer: int) -> Attention | None:
    """Return attention of Qwen3-Next and Qwen3.5: every n-th layer; the others keep a state."""
    if is_linear(fields, layer):
        return None
    return replace(normed(fields, layer), output_gate=fields.flag("attn_output_gate", default=True))


def is_linear(fields: Fields, layer: int) -> bool:
    """Whether a layer of Qwen3-Next has linear attention."""
    if types := fields.names("layer_types"):
        return layer < len(types) and types[layer] == "linear_attention"
    return (layer + 1) % fields.size("full_attention_interval", 4) != 0


def gemma4(fields: Fields, layer: int) -> Attention:
    """Return attention of Gemma 4: layers without a window have larger heads, and fewer of them."""
    last_own = fields.size("num_hidden_layers") - fields.size("num_kv_shared_layers", 0, minimum=0)
    shares = layer >= last_own
    if is_windowed_gemma4(fields, layer):
        return replace(normed(fields, layer), shares_cache=shares)
    keys_as_values = fields.flag("attention_k_eq_v")
    kv_key = (
        "num_global_key_value_heads"
        if keys_as_values and fields.has("num_global_key_value_heads")
        else "num_key_value_heads"
    )
    whole = _of_sizes(fields, "num_attention_heads", kv_key, "global_head_dim")
    return replace(whole, qk_norm=True, keys_as_values=keys_as_values, shares_cache=shares)


def is_windowed_gemma4(fields: Fields, layer: int) -> bool:
    """Whether a layer of Gemma 4 has a window: five of six, never the last."""
    types = fields.names("layer_types")
    if layer < len(types):
        return types[layer] == "sliding_attention"
    return (layer + 1) % 6 != 0 and layer + 1 < fields.size("num_hidden_layers")


def searched(fields: Fields, layer: int) -> Attention | None:
    """Return attention of Llama-Nemotron: layers differ in KV heads, and some have no attention."""
    block = searched_block(fields, layer, "attention")
    if block is None:
        return None
    heads, group = fields.size("num_attention_heads", maximum=MAX_HEADS), block.size("n_heads_in_group")
    if heads % group:
        raise block.error("n_heads_in_group", f"{group} does not divide the {heads} attention heads")
    return grouped(replace(fields, values={**fields.values, "num_key_value_heads": heads // group}))


def searched_block(fields: Fields, layer: int, part: str) -> Fields | None:
    """Return what `block_configs` says of a part of a layer; None: the layer lacks it."""
    block = fields.entry("block_configs", layer).under(part)
    if block is None:
        raise fields.error("block_configs", f"says nothing of {part} in layer {layer}")
    for key in ("replace_with_linear", "sparsify"):
        if block.values.get(key):
            raise block.error(key, "is not known")
    return None if block.flag("no_op") else block


def mimo(fields: Fields, layer: int) -> Attention:
    """Return attention of MiMo-V2: windowed layers have sizes of their own."""
    windowed = is_windowed_mimo(fields, layer)
    swa = "swa_" if windowed else ""
    grouped_query = _of_sizes(
        fields, f"{swa}num_attention_heads", f"{swa}num_key_value_heads", f"{swa}head_dim"
    )
    sinks = fields.flag(f"add_{'swa' if windowed else 'full'}_attention_sink_bias")
    width = fields.size(f"{swa}v_head_dim", grouped_query.head_dim, maximum=MAX_HEADS)
    return replace(grouped_query, v_head_dim=width, sinks=sinks)


def is_windowed_mimo(fields: Fields, layer: int) -> bool:
    """Whether `hybrid_layer_pattern` gives a layer a window."""
    pattern = fields.sizes("hybrid_layer_pattern")
    return layer < len(pattern) and pattern[layer] == 1
