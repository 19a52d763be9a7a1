"""config.json of a closed list of architectures -> DecoderSpec. `auto_map` and the like are never executed.

Accepts the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters).
Whatever would change the mathematics and is not implemented is refused by name, never ignored.
"""

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .config_values import CONFIG, GENERATION_CONFIG, bad_value, read_values
from .errors import CheckpointError, RefusalReason
from .families import FAMILIES, DecoderFamily
from .rotary import read_rotary
from .spec import DecoderSpec, RopeScaling

_MOST_POSITIONS = 1 << 31
_Size = Annotated[int, Meta(ge=1, le=_MOST_POSITIONS)]
_Heads = Annotated[int, Meta(ge=1, le=1 << 16)]
_TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
# A block that another class of configuration or another program reads in place of the keys beside it.
_OTHER_BLOCKS = {
    "quantization_config": "quantized checkpoints are not supported; use the original weights",
    "compression_config": "quantized checkpoints are not supported; use the original weights",
    "quantization": "quantized checkpoints are not supported; use the original weights",
    "text_config": "nested configurations are not supported",
    "llm_config": "nested configurations are not supported",
    "language_config": "nested configurations are not supported",
}
_ACTIVATIONS = ("silu", "swish")  # two names of one function
_DEFAULT_WINDOW = 4096  # tokens; transformers' default for Qwen2 and Qwen3
_DEFAULT_MAX_WINDOW_LAYERS = 28


class _EndTokens(msgspec.Struct):
    """The part of config.json that generation_config.json repeats."""

    eos_token_id: _TokenId | list[_TokenId | None] | None = None


class _Config(_EndTokens, kw_only=True):
    """config.json without its nulls and its blocks."""

    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=4096)]
    num_attention_heads: _Heads
    num_key_value_heads: _Heads | None = None
    head_dim: _Heads | None = None
    vocab_size: Annotated[int, Meta(ge=1, le=1 << 24)]
    max_position_embeddings: _Size
    rms_norm_eps: Annotated[float, Meta(ge=1e-12, le=1)] | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    attention_out_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    max_window_layers: Annotated[int, Meta(ge=0, le=1 << 31)] = _DEFAULT_MAX_WINDOW_LAYERS
    bos_token_id: _TokenId | list[_TokenId | None] | None = None


def parse_config(config: dict[str, Any], generation: dict[str, Any], dtype: str) -> DecoderSpec:
    """Build the spec from config.json, generation_config.json (may be empty) and the stored dtype."""
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    sizes = read_values(config, _Config, CONFIG)
    rope_theta, rope_scaling = read_rotary(config, sizes.max_position_embeddings, family.rope_theta)
    if rope_scaling is not None and not family.rope_scaling:
        raise bad_value("rope_scaling", f"{rope_scaling.kind!r} is not what {architecture} reads")
    context = _context(sizes.max_position_embeddings, rope_scaling)
    _refuse_unimplemented(config, sizes, family, context)
    kv_heads, head_dim = _heads(config, sizes, family)
    tied = sizes.tie_word_embeddings
    end_tokens = read_values(generation, _EndTokens, GENERATION_CONFIG).eos_token_id
    spec = DecoderSpec(
        family=family.name,
        architecture=architecture,
        layers=sizes.num_hidden_layers,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        heads=sizes.num_attention_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=sizes.vocab_size,
        max_position_embeddings=context,
        rms_norm_eps=sizes.rms_norm_eps or family.rms_norm_eps,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tied_embeddings=family.tied if tied is None else tied,
        attention_bias=family.attention_bias and not (family.bias_by_flag and sizes.attention_bias is False),
        qk_norm=family.qk_norm,
        # Chat models name their end-of-turn token only in generation_config.json.
        eos_token_ids=_token_ids(sizes.eos_token_id, end_tokens),
        bos_token_id=next(iter(_token_ids(sizes.bos_token_id)), None),
        dtype=dtype,
        interleaved_rotation=family.interleaved_rotation,
        packed_projections=family.packed_projections,
    )
    return replace(spec, **family.own_keys(config, spec))


def _heads(config: dict[str, Any], sizes: _Config, family: DecoderFamily) -> tuple[int, int]:
    """The number of heads of keys and values, and the size of any head."""
    heads = sizes.num_attention_heads
    default = None if "num_key_value_heads" in config else family.kv_heads  # null: as many as heads
    kv_heads = sizes.num_key_value_heads or default or heads
    if heads % kv_heads:
        raise bad_value("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads ({heads})")
    head_dim = sizes.head_dim or family.head_dim or sizes.hidden_size // heads
    if head_dim % 2 or not head_dim:
        raise bad_value("head_dim", f"must be even for rotary embeddings, not {head_dim}")
    return kv_heads, head_dim


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise _unknown(f"config.json: architectures must name exactly one class, not {str(names)[:100]}")
    if names[0] not in FAMILIES:
        raise _unknown(f"config.json: architecture {names[0][:100]!r} is not one this engine implements")
    return names[0]


def _unknown(message: str) -> CheckpointError:
    return CheckpointError(
        RefusalReason.UNKNOWN_ARCHITECTURE, f"{message}; supported: {', '.join(sorted(FAMILIES))}"
    )


def _refuse_unimplemented(
    config: dict[str, Any], sizes: _Config, family: DecoderFamily, context: int
) -> None:
    for key, problem in _OTHER_BLOCKS.items():
        if config.get(key) is not None:
            raise bad_value(key, problem)
    if config.get("hidden_act", "silu") not in _ACTIVATIONS:
        raise bad_value("hidden_act", f"only 'silu' is implemented, not {str(config['hidden_act'])[:50]!r}")
    if sizes.attention_bias and not family.attention_bias:
        raise bad_value("attention_bias", "biases on all four attention projections are not implemented")
    if sizes.attention_out_bias:
        raise bad_value("attention_out_bias", "is not implemented")
    if sizes.mlp_bias:
        raise bad_value("mlp_bias", "is not implemented")
    _refuse_sliding(config, sizes, family, context)


def _context(positions: int, scaling: RopeScaling | None) -> int:
    """Tokens of the longest request. YaRN stretches the positions of the training, as in vLLM."""
    if scaling is None or scaling.kind != "yarn":
        return positions
    context = int(scaling.original_max_position_embeddings * scaling.factor)
    if context > _MOST_POSITIONS:
        raise bad_value("rope_scaling", f"a context of {context} tokens is more than {_MOST_POSITIONS}")
    return context


def _refuse_sliding(config: dict[str, Any], sizes: _Config, family: DecoderFamily, context: int) -> None:
    """Refuse a layer whose window is shorter than the context; the switch alone changes nothing.

    Source: `Qwen2Config.__post_init__`, `MistralModel.forward`. A token sees itself and the window's other
    tokens before it.
    """
    layer_types = config.get("layer_types")
    if family.windowed:
        key, window = "sliding_window", config.get("sliding_window", family.window)
        slides = window is not None
    elif layer_types is None:
        key, window = "use_sliding_window", config.get("sliding_window", _DEFAULT_WINDOW)
        reaches = not family.late_windows or sizes.max_window_layers < sizes.num_hidden_layers
        slides = sizes.use_sliding_window and window is not None and reaches
    else:
        key, window = "layer_types", config.get("sliding_window")
        kinds = {"full_attention", "sliding_attention"}
        if not isinstance(layer_types, list) or not all(kind in kinds for kind in map(str, layer_types)):
            raise bad_value(key, "only full_attention layers are implemented")
        slides = "sliding_attention" in layer_types
    if slides and not (isinstance(window, int | float) and window >= context):
        raise bad_value(key, "attention in windows shorter than the context is not implemented")


def _token_ids(*values: int | list[int | None] | None) -> tuple[int, ...]:
    """Each id once, of ids and lists of them."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return tuple(dict.fromkeys(item for items in lists for item in items if item is not None))
