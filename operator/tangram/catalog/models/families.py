"""Supported model families: how each is read from its config.json, layer by layer.

Names of keys and their defaults are those of transformers 5 (`configuration_*.py` of each family).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tangram.catalog.models.architecture import Attention, LayerGroup
from tangram.catalog.models.tensors import TensorKind
from tangram.catalog.reading.fields import Fields

MAX_LAYERS = 10_000
MAX_HEADS = 65_536
MAX_EXPERTS = 65_536

_SLIDES = {"full_attention": False, "sliding_attention": True}


@dataclass(frozen=True, slots=True)
class Family:
    """How one class of `architectures` is read."""

    attention: Callable[[Fields], Attention]
    layer: Callable[[Fields, Attention, int], LayerGroup]
    windowed: Callable[[Fields, int], bool]  # whether a layer is windowed, without `layer_types`
    tied: bool = False
    under: str | None = None  # key of the decoder's part of a multimodal config
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where a key is absent; null stays null
    unquantised: tuple[TensorKind, ...] = ()  # kinds that published quantised checkpoints leave in 16 bits


def layer_groups(family: Family, fields: Fields) -> tuple[LayerGroup, ...]:
    """Return the layers, equal ones together, in the order in which their kinds first appear."""
    count = fields.size("num_hidden_layers", maximum=MAX_LAYERS)
    attention = family.attention(fields)
    windows = _windows(family, fields, count)
    layers = Counter(
        family.layer(fields, replace(attention, window=window), index) for index, window in enumerate(windows)
    )
    return tuple(replace(layer, count=times) for layer, times in layers.items())


def _windows(family: Family, fields: Fields, count: int) -> list[int | None]:
    types = fields.names("layer_types")
    if types and len(types) != count:
        raise fields.error("layer_types", f"has {len(types)} entries for {count} layers")
    for name in types:
        if name not in _SLIDES:
            raise fields.error("layer_types", f"{name!r} is not one of {', '.join(_SLIDES)}")
    sliding = [_SLIDES[types[index]] if types else family.windowed(fields, index) for index in range(count)]
    if not any(sliding) or not fields.has("sliding_window"):
        return [None] * count
    window = fields.size("sliding_window")
    if window >= fields.size("max_position_embeddings"):
        return [None] * count
    return [window if slides else None for slides in sliding]


# Which layers are windowed.


def _never(_fields: Fields, _layer: int) -> bool:
    return False


def _always(_fields: Fields, _layer: int) -> bool:
    return True


def _even(_fields: Fields, layer: int) -> bool:
    return layer % 2 == 0


def _but_every_nth(fields: Fields, layer: int) -> bool:
    return (layer + 1) % fields.size("sliding_window_pattern", 6) != 0


def _late(fields: Fields, layer: int) -> bool:
    return fields.flag("use_sliding_window") and layer >= fields.size("max_window_layers", 28, minimum=0)


# Attention.


def _grouped(fields: Fields) -> Attention:
    heads = fields.size("num_attention_heads", maximum=MAX_HEADS)
    kv_heads = fields.size("num_key_value_heads", heads, maximum=MAX_HEADS)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"{kv_heads} does not divide the {heads} attention heads")
    hidden = fields.size("hidden_size")
    if not fields.has("head_dim") and hidden % heads:
        raise fields.error("num_attention_heads", f"{heads} does not divide hidden_size {hidden}")
    head_dim = fields.size("head_dim", hidden // heads, maximum=MAX_HEADS)
    return Attention(heads, kv_heads, head_dim, head_dim)


def _biased_by_flag(fields: Fields) -> Attention:
    bias = fields.flag("attention_bias")
    return replace(_grouped(fields), bias=bias, output_bias=bias)


def _biased_inputs_by_flag(fields: Fields) -> Attention:
    biases = fields.flag("attention_bias"), fields.flag("attention_out_bias")
    return replace(_grouped(fields), bias=biases[0], output_bias=biases[1])


def _biased_inputs(fields: Fields) -> Attention:
    return replace(_grouped(fields), bias=True)


def _normed(fields: Fields) -> Attention:
    return replace(_biased_by_flag(fields), qk_norm=True)


def _with_sinks(fields: Fields) -> Attention:
    return replace(_biased_by_flag(fields), sinks=True)


def _latent(fields: Fields) -> Attention:
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


# What follows attention.


def _dense(fields: Fields, attention: Attention, _layer: int) -> LayerGroup:
    return LayerGroup(1, attention, fields.size("intermediate_size"), mlp_bias=fields.flag("mlp_bias"))


def _four_norms(fields: Fields, attention: Attention, layer: int) -> LayerGroup:
    return replace(_dense(fields, attention, layer), norms=4)


def _experts(fields: Fields, attention: Attention, count_key: str, size_key: str) -> LayerGroup:
    experts = fields.size(count_key, maximum=MAX_EXPERTS)
    chosen = fields.size("num_experts_per_tok")
    if chosen > experts:
        raise fields.error("num_experts_per_tok", f"{chosen} of {experts} experts cannot be chosen")
    return LayerGroup(1, attention, 0, experts, chosen, fields.size(size_key))


def _mixtral(fields: Fields, attention: Attention, _layer: int) -> LayerGroup:
    return _experts(fields, attention, "num_local_experts", "intermediate_size")


def _gpt_oss(fields: Fields, attention: Attention, _layer: int) -> LayerGroup:
    layer = _experts(fields, attention, "num_local_experts", "intermediate_size")
    return replace(layer, router_bias=True, expert_bias=True)


def _qwen_moe(fields: Fields, attention: Attention, layer: int) -> LayerGroup:
    sparse = (layer + 1) % fields.size("decoder_sparse_step", 1) == 0
    if layer in fields.sizes("mlp_only_layers") or not sparse:
        return _dense(fields, attention, layer)
    return _experts(fields, attention, "num_experts", "moe_intermediate_size")


def _qwen2_moe(fields: Fields, attention: Attention, layer: int) -> LayerGroup:
    group = _qwen_moe(fields, attention, layer)
    if not group.experts:
        return group
    width = fields.size("shared_expert_intermediate_size")
    return replace(group, shared_intermediate_size=width, shared_gate=True)


def _deepseek(fields: Fields, attention: Attention, layer: int) -> LayerGroup:
    if fields.size("moe_layer_freq", 1) != 1:
        raise fields.error("moe_layer_freq", "only 1 is known")
    if layer < fields.size("first_k_dense_replace", 0, minimum=0):
        return _dense(fields, attention, layer)
    group = _experts(fields, attention, "n_routed_experts", "moe_intermediate_size")
    shared = fields.size("n_shared_experts", 0, minimum=0) * group.expert_intermediate_size
    return replace(group, shared_intermediate_size=shared)


def _deepseek_v3(fields: Fields, attention: Attention, layer: int) -> LayerGroup:
    group = _deepseek(fields, attention, layer)
    return replace(group, router_bias=group.experts > 0)


# gemma-3-4b and larger omit what equals transformers' default.
_GEMMA3 = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_GEMMA2 = {"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096}
_GPT_OSS = {"attention_bias": True, "head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128}
_SEED_OSS = {"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8}
_MISTRAL_FAMILY = Family(
    _grouped, _dense, _always, defaults={"num_key_value_heads": 8, "sliding_window": 4096}
)
_GEMMA3_FAMILY = Family(_normed, _four_norms, _but_every_nth, tied=True, defaults=_GEMMA3)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(_biased_by_flag, _dense, _never),
    "MistralForCausalLM": _MISTRAL_FAMILY,
    "Mistral3ForConditionalGeneration": replace(_MISTRAL_FAMILY, under="text_config"),
    "MixtralForCausalLM": Family(_grouped, _mixtral, _always, defaults={"num_key_value_heads": 8}),
    "Qwen2ForCausalLM": Family(_biased_inputs, _dense, _late),
    "Qwen2MoeForCausalLM": Family(_biased_inputs, _qwen2_moe, _late),
    "Qwen3ForCausalLM": Family(_normed, _dense, _late, defaults={"head_dim": 128}),
    "Qwen3MoeForCausalLM": Family(_normed, _qwen_moe, _late, defaults={"num_key_value_heads": 4}),
    "GemmaForCausalLM": Family(_grouped, _dense, _never, tied=True, defaults={"head_dim": 256}),
    "Gemma2ForCausalLM": Family(_grouped, _four_norms, _even, tied=True, defaults=_GEMMA2),
    "Gemma3ForCausalLM": _GEMMA3_FAMILY,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3_FAMILY, under="text_config"),
    "GptOssForCausalLM": Family(
        _with_sinks, _gpt_oss, _even, defaults=_GPT_OSS, unquantised=(TensorKind.ATTENTION,)
    ),
    "SeedOssForCausalLM": Family(_biased_inputs_by_flag, _dense, _never, defaults=_SEED_OSS),
    "Phi3ForCausalLM": Family(_grouped, _dense, _always),
    "DeepseekV2ForCausalLM": Family(_latent, _deepseek, _never),
    "DeepseekV3ForCausalLM": Family(_latent, _deepseek_v3, _never),
}
