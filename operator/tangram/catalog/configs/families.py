"""Model families: how each is read from its config.json, layer by layer.

Names of keys and their defaults are those of transformers 5 (`configuration_*.py` of each family).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tangram.catalog.configs import attention_kinds as attention
from tangram.catalog.configs import drafts, recurrent_kinds, towers
from tangram.catalog.configs import feed_forward_kinds as feed_forward
from tangram.catalog.models.layer_parts import Attention, LayerGroup, Recurrent
from tangram.catalog.models.tensors import Tensor, TensorKind
from tangram.catalog.reading.fields import Fields

MAX_LAYERS = 4096  # as many as the bundled engine reads

_WINDOWED_KINDS = {"sliding_attention", "chunked_attention"}
_ATTENTION_KINDS = ("full_attention", "sliding_attention")
_BESIDE_STATES = ("full_attention", "linear_attention")


# Which layers are windowed, without `layer_types`.


def _never(_fields: Fields, _layer: int) -> bool:
    return False


def _always(_fields: Fields, _layer: int) -> bool:
    return True


def _even(_fields: Fields, layer: int) -> bool:
    return layer % 2 == 0


def _but_every_nth(fields: Fields, layer: int) -> bool:
    return (layer + 1) % fields.size("sliding_window_pattern", 6) != 0


def _but_every_fourth(fields: Fields, layer: int) -> bool:
    return (layer + 1) % fields.size("sliding_window_pattern", 4) != 0


def _with_rotation(fields: Fields, layer: int) -> bool:
    """Llama 4: chunks are attended to in the layers that rotate, three of four."""
    rotated = fields.sizes("no_rope_layers")
    return rotated[layer] != 0 if layer < len(rotated) else (layer + 1) % 4 != 0


def _without_rotation(fields: Fields, layer: int) -> bool:
    """SmolLM3: where windows are switched on, the layers that do not rotate have them."""
    rotated = fields.sizes("no_rope_layers")
    last_of_interval = (layer + 1) % fields.size("no_rope_layer_interval", 4) == 0
    unrotated = rotated[layer] == 0 if layer < len(rotated) else last_of_interval
    return fields.flag("use_sliding_window") and unrotated


def _late(fields: Fields, layer: int) -> bool:
    return fields.flag("use_sliding_window") and layer >= fields.size("max_window_layers", 28, minimum=0)


def _no_tensors(_fields: Fields) -> tuple[Tensor, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Family:
    """How one class of `architectures` is read."""

    attention: Callable[[Fields, int], Attention | None]
    layer: Callable[[Fields, Attention | None, int], LayerGroup]
    windowed: Callable[[Fields, int], bool] = _never
    recurrent: Callable[[Fields, int], Recurrent | None] = recurrent_kinds.no_state
    tied: bool = False
    under: str | None = None  # key of the decoder's part of a multimodal config
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where a key is absent; null stays null
    unquantised: tuple[TensorKind, ...] = ()  # kinds that published quantised checkpoints leave in 16 bits
    window_key: str = "sliding_window"
    layer_kinds: tuple[str, ...] = _ATTENTION_KINDS  # known values of `layer_types`
    tensors: Callable[[Fields], tuple[Tensor, ...]] = _no_tensors  # of the decoder, outside its layers
    tower: Callable[[Fields, Fields], int] | None = None  # parameters by `vision_config` and the decoder's
    draft: Callable[[Fields, LayerGroup], tuple[Tensor, ...]] = drafts.no_draft
    module_names: tuple[tuple[str, str], ...] = ()  # parts of our names, and what the family calls them
    in_engine: bool = False  # whether the bundled engine serves it; vLLM and SGLang serve all
    engine_rotations: tuple[str, ...] = ("default", "dynamic", "linear", "llama3", "yarn")  # and with which


def layers_of(family: Family, fields: Fields) -> tuple[LayerGroup, ...]:
    """Return every layer, in order, as a group of one."""
    count = _count(fields)
    windows = _windows(family, fields, count)
    return tuple(_layer(family, fields, index, windows[index]) for index in range(count))


def _count(fields: Fields) -> int:
    """Nemotron 3 Ultra lists its layers instead of counting them."""
    if not fields.has("num_hidden_layers") and (kinds := fields.names("layers_block_type")):
        return len(kinds[: MAX_LAYERS + 1])
    return fields.size("num_hidden_layers", maximum=MAX_LAYERS)


def _layer(family: Family, fields: Fields, index: int, window: int | None) -> LayerGroup:
    own = family.attention(fields, index)
    group = family.layer(fields, replace(own, window=window) if own else None, index)
    return replace(group, recurrent=family.recurrent(fields, index))


def _windows(family: Family, fields: Fields, count: int) -> list[int | None]:
    types = fields.names("layer_types")
    if types and len(types) != count:
        raise fields.error("layer_types", f"has {len(types)} entries for {count} layers")
    for name in types:
        if name not in family.layer_kinds:
            raise fields.error("layer_types", f"{name!r} is not one of {', '.join(family.layer_kinds)}")
    sliding = [
        types[index] in _WINDOWED_KINDS if types else family.windowed(fields, index) for index in range(count)
    ]
    if not any(sliding) or not fields.has(family.window_key):
        return [None] * count
    window = fields.size(family.window_key)
    if window >= fields.size("max_position_embeddings"):
        return [None] * count
    return [window if slides else None for slides in sliding]


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
_GEMMA4 = {"global_head_dim": 512, "sliding_window": 512, "head_dim": 256, "max_position_embeddings": 131_072}
_GPT_OSS = {"attention_bias": True, "head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128}
_LLAMA4 = {
    "intermediate_size_mlp": 16_384,
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
}
_QWEN_NEXT = {"head_dim": 256, "max_position_embeddings": 32_768}

# Experts as Mixtral names them.
_SPARSE_BLOCKS = (
    (".mlp.", ".block_sparse_moe."),
    (".gate_proj", ".w1"),
    (".up_proj", ".w3"),
    (".down_proj", ".w2"),
)
_MIXERS = ((".mlp.", ".mixer."), (".self_attn.", ".mixer."))
_TEXT = "text_config"

_MISTRAL_FAMILY = Family(
    attention.grouped,
    feed_forward.dense,
    _always,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
)
_QWEN2_FAMILY = Family(attention.biased_inputs, feed_forward.dense, _late)
_QWEN3_FAMILY = Family(attention.normed, feed_forward.dense, _late, defaults={"head_dim": 128})
_QWEN3_MOE_FAMILY = Family(
    attention.normed, feed_forward.qwen_moe, _late, defaults={"num_key_value_heads": 4}
)
_QWEN_NEXT_FAMILY = Family(
    attention.gated_beside_state,
    feed_forward.qwen2_moe,
    recurrent=recurrent_kinds.gated_delta,
    defaults=_QWEN_NEXT,
    layer_kinds=_BESIDE_STATES,
    draft=drafts.qwen,
)
_QWEN35_FAMILY = replace(_QWEN_NEXT_FAMILY, layer=feed_forward.dense)
_GEMMA3_FAMILY = Family(
    attention.normed, feed_forward.four_norms, _but_every_nth, tied=True, defaults=_GEMMA3
)
_GEMMA4_FAMILY = Family(
    attention.gemma4,
    feed_forward.gemma4,
    attention.is_windowed_gemma4,
    tied=True,
    defaults=_GEMMA4,
    tensors=feed_forward.gemma4_inputs,
    module_names=((".mlp.experts", ".experts"), (".mlp.gate.", ".router.proj.")),
)
_LLAMA4_FAMILY = Family(
    attention.biased_by_flag,
    feed_forward.llama4,
    _with_rotation,
    defaults=_LLAMA4,
    window_key="attention_chunk_size",
    layer_kinds=("full_attention", "chunked_attention"),
    module_names=(
        (".mlp.", ".feed_forward."),
        (".gate.", ".router."),
        (".shared_experts.", ".shared_expert."),
    ),
)
_DEEPSEEK_V3_FAMILY = Family(attention.latent, feed_forward.deepseek_v3, draft=drafts.with_own_embeddings)
_INDEXED_FAMILY = Family(
    attention.indexed_latent,
    feed_forward.deepseek_v3,
    layer_kinds=("indexed_attention", "deepseek_sparse_attention"),
    draft=drafts.with_own_embeddings,
)
_OLMO2_FAMILY = Family(attention.normed_over_heads, feed_forward.norms_behind)
_COHERE_FAMILY = Family(attention.normed_over_heads_by_flag, feed_forward.one_norm, tied=True)
_GLM4_FAMILY = Family(attention.inputs_biased_by_flag, feed_forward.dense, defaults={"head_dim": 128})

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(attention.biased_by_flag, feed_forward.dense, in_engine=True),
    "MistralForCausalLM": replace(_MISTRAL_FAMILY, in_engine=True),
    "Ministral3ForCausalLM": replace(_MISTRAL_FAMILY, defaults={"num_key_value_heads": 8}),
    "Mistral3ForConditionalGeneration": replace(_MISTRAL_FAMILY, under=_TEXT, tower=towers.pixtral),
    "MixtralForCausalLM": Family(
        attention.grouped,
        feed_forward.mixtral,
        _always,
        defaults={"num_key_value_heads": 8},
        module_names=_SPARSE_BLOCKS,
    ),
    "Qwen2ForCausalLM": replace(_QWEN2_FAMILY, in_engine=True),
    "Qwen2VLForConditionalGeneration": replace(_QWEN2_FAMILY, under=_TEXT, tower=towers.qwen2_vision),
    "Qwen2_5_VLForConditionalGeneration": replace(_QWEN2_FAMILY, under=_TEXT, tower=towers.qwen2_5_vision),
    "MiMoForCausalLM": replace(_QWEN2_FAMILY, draft=drafts.shared_embeddings),
    "Qwen2MoeForCausalLM": Family(attention.biased_inputs, feed_forward.qwen2_moe, _late),
    "Qwen3ForCausalLM": replace(_QWEN3_FAMILY, in_engine=True),
    "Qwen3VLForConditionalGeneration": replace(_QWEN3_FAMILY, under=_TEXT, tower=towers.qwen3_vision),
    "Qwen3MoeForCausalLM": _QWEN3_MOE_FAMILY,
    "Qwen3VLMoeForConditionalGeneration": replace(_QWEN3_MOE_FAMILY, under=_TEXT, tower=towers.qwen3_vision),
    "Qwen3NextForCausalLM": _QWEN_NEXT_FAMILY,
    "Qwen3_5ForCausalLM": _QWEN35_FAMILY,
    "Qwen3_5ForConditionalGeneration": replace(_QWEN35_FAMILY, under=_TEXT, tower=towers.qwen3_vision),
    "Qwen3_5MoeForCausalLM": _QWEN_NEXT_FAMILY,
    "Qwen3_5MoeForConditionalGeneration": replace(_QWEN_NEXT_FAMILY, under=_TEXT, tower=towers.qwen3_vision),
    "GemmaForCausalLM": Family(attention.grouped, feed_forward.dense, tied=True, defaults={"head_dim": 256}),
    "Gemma2ForCausalLM": Family(
        attention.grouped, feed_forward.four_norms, _even, tied=True, defaults=_GEMMA2
    ),
    "Gemma3ForCausalLM": _GEMMA3_FAMILY,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3_FAMILY, under=_TEXT, tower=towers.siglip),
    "Gemma4ForCausalLM": _GEMMA4_FAMILY,
    "Gemma4ForConditionalGeneration": replace(_GEMMA4_FAMILY, under=_TEXT, tower=towers.gemma4_vision),
    "GptOssForCausalLM": Family(
        attention.with_sinks,
        feed_forward.gpt_oss,
        _even,
        defaults=_GPT_OSS,
        unquantised=(TensorKind.ATTENTION,),
    ),
    "Phi3ForCausalLM": Family(
        attention.grouped,
        feed_forward.dense,
        _always,
        in_engine=True,
        engine_rotations=("default", "dynamic"),
    ),
    "Llama4ForCausalLM": _LLAMA4_FAMILY,
    "Llama4ForConditionalGeneration": replace(_LLAMA4_FAMILY, under=_TEXT, tower=towers.llama4_vision),
    "DeepseekV2ForCausalLM": Family(attention.latent, feed_forward.deepseek),
    "DeepseekV3ForCausalLM": _DEEPSEEK_V3_FAMILY,
    "DeepseekV32ForCausalLM": _INDEXED_FAMILY,
    "KimiK25ForConditionalGeneration": replace(_DEEPSEEK_V3_FAMILY, under=_TEXT, tower=towers.kimi_vision),
    "GlmMoeDsaForCausalLM": replace(_INDEXED_FAMILY, draft=drafts.shared_embeddings),
    "Glm4MoeLiteForCausalLM": replace(_DEEPSEEK_V3_FAMILY, draft=drafts.shared_embeddings),
    "Glm4MoeForCausalLM": Family(
        attention.normed_by_flag, feed_forward.deepseek_v3, draft=drafts.with_own_embeddings
    ),
    "GlmForCausalLM": _GLM4_FAMILY,
    "Glm4ForCausalLM": replace(_GLM4_FAMILY, layer=feed_forward.four_norms),
    "MiniMaxM2ForCausalLM": Family(
        attention.normed_over_heads, feed_forward.minimax, module_names=_SPARSE_BLOCKS
    ),
    "MiMoV2FlashForCausalLM": Family(attention.mimo, feed_forward.mimo_moe, attention.is_windowed_mimo),
    "NemotronHForCausalLM": Family(
        recurrent_kinds.nemotron_attention,
        feed_forward.nemotron,
        recurrent=recurrent_kinds.nemotron_state,
        module_names=_MIXERS,
    ),
    "FalconH1ForCausalLM": Family(
        attention.biased_by_flag,
        feed_forward.dense,
        recurrent=recurrent_kinds.falcon_state,
        module_names=((".mlp.", ".feed_forward."),),
    ),
    "CohereForCausalLM": _COHERE_FAMILY,
    "Cohere2ForCausalLM": replace(
        _COHERE_FAMILY,
        attention=attention.biased_by_flag,
        windowed=_but_every_fourth,
        defaults={"sliding_window": 4096},
    ),
    "Olmo2ForCausalLM": _OLMO2_FAMILY,
    "Olmo3ForCausalLM": replace(_OLMO2_FAMILY, windowed=_but_every_fourth, defaults={"sliding_window": 4096}),
    "OlmoeForCausalLM": replace(_OLMO2_FAMILY, layer=feed_forward.olmoe),
    "GraniteForCausalLM": Family(attention.biased_by_flag, feed_forward.dense, in_engine=True),
    "GraniteMoeForCausalLM": Family(attention.biased_by_flag, feed_forward.mixtral),
    "GraniteMoeHybridForCausalLM": Family(
        recurrent_kinds.granite_attention,
        feed_forward.granite_hybrid,
        recurrent=recurrent_kinds.granite_state,
        layer_kinds=("attention", "full_attention", "mamba", "linear_attention"),
        module_names=((".mlp.experts", ".block_sparse_moe"), (".mlp.shared_experts.", ".shared_mlp.")),
    ),
    "SmolLM3ForCausalLM": Family(
        attention.biased_by_flag,
        feed_forward.dense,
        _without_rotation,
        tied=True,
        defaults={"num_key_value_heads": 4},
        in_engine=True,
    ),
    "SeedOssForCausalLM": Family(
        attention.biased_by_two_flags,
        feed_forward.dense,
        defaults={"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8},
        in_engine=True,
    ),
    "Exaone4ForCausalLM": Family(attention.normed, feed_forward.norms_behind, _but_every_fourth),
    "Dots1ForCausalLM": Family(attention.normed, feed_forward.deepseek_v3),
    "DeciLMForCausalLM": Family(attention.searched, feed_forward.searched),
    "Ernie4_5ForCausalLM": Family(
        attention.ernie,
        feed_forward.dense_biased_by("use_bias"),
        tied=True,
        defaults={"head_dim": 128, "num_key_value_heads": 2},
        in_engine=True,
    ),
    "InternLM3ForCausalLM": Family(
        attention.internlm3,
        feed_forward.dense_biased_by("bias"),
        defaults={"head_dim": 128, "num_key_value_heads": 2},
        in_engine=True,
    ),
    "IQuestCoderForCausalLM": Family(
        attention.biased_by_flag,
        feed_forward.dense,
        defaults={"head_dim": 128, "num_key_value_heads": 8},
        in_engine=True,
    ),
    "Ernie4_5_MoeForCausalLM": Family(attention.grouped, feed_forward.ernie_moe, tied=True),
}
