"""config.json of a closed list of architectures -> DecoderSpec. `auto_map` and the like are never executed.

Accepts the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters).
Whatever would change the mathematics and is not implemented is refused by name, never ignored.
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from tangram_engine.validation import locate

from .errors import CheckpointError, RefusalReason, invalid
from .spec import DecoderSpec, RopeScaling

T = TypeVar("T")
_Size = Annotated[int, Meta(ge=1, le=1 << 31)]
_Heads = Annotated[int, Meta(ge=1, le=1 << 16)]
_TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Frequency = Annotated[float, Meta(ge=1e-6, le=1e6)]


class _EndTokens(msgspec.Struct):
    """The part of config.json that generation_config.json repeats."""

    eos_token_id: _TokenId | list[_TokenId | None] | None = None


class _Config(_EndTokens, kw_only=True):
    """config.json without its nulls, and with the rotary block's fields beside the others."""

    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=4096)]
    num_attention_heads: _Heads
    num_key_value_heads: _Heads | None = None
    head_dim: _Heads | None = None
    vocab_size: Annotated[int, Meta(ge=1, le=1 << 24)]
    max_position_embeddings: _Size
    rms_norm_eps: Annotated[float, Meta(ge=1e-12, le=1)] = 1e-6
    rope_theta: Annotated[float, Meta(ge=1e-3, le=1e12)] = 10000.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    bos_token_id: _TokenId | list[_TokenId | None] | None = None


class _Linear(msgspec.Struct):
    factor: Annotated[float, Meta(ge=1, le=1e6)]


class _Llama3(_Linear):
    low_freq_factor: _Frequency
    high_freq_factor: _Frequency
    original_max_position_embeddings: _Size


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    attention_bias: bool
    qk_norm: bool
    head_dim: int | None  # transformers' default where config.json omits it; None: hidden_size / heads


FAMILIES = {
    "LlamaForCausalLM": _Family("llama", attention_bias=False, qk_norm=False, head_dim=None),
    "Qwen2ForCausalLM": _Family("qwen2", attention_bias=True, qk_norm=False, head_dim=None),
    "Qwen3ForCausalLM": _Family("qwen3", attention_bias=False, qk_norm=True, head_dim=128),
}


def parse_config(config: dict[str, Any], generation: dict[str, Any], dtype: str) -> DecoderSpec:
    """Build the spec from config.json, generation_config.json (may be empty) and the stored dtype."""
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    rope = _rope(config)
    flat = config | rope
    sizes = _read(flat, _Config)
    _refuse_unimplemented(config, sizes, family)
    heads, kv_heads = sizes.num_attention_heads, sizes.num_key_value_heads or sizes.num_attention_heads
    if heads % kv_heads:
        raise _bad("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads ({heads})")
    head_dim = sizes.head_dim or family.head_dim or sizes.hidden_size // heads
    if head_dim % 2 or not head_dim:
        raise _bad("head_dim", f"must be even for rotary embeddings, not {head_dim}")
    return DecoderSpec(
        family=family.name,
        architecture=architecture,
        layers=sizes.num_hidden_layers,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=sizes.vocab_size,
        max_position_embeddings=sizes.max_position_embeddings,
        rms_norm_eps=sizes.rms_norm_eps,
        rope_theta=sizes.rope_theta,
        rope_scaling=_scaling(rope.get("rope_type", rope.get("type", "default")), flat),
        tied_embeddings=sizes.tie_word_embeddings,
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        # Chat models name their end-of-turn token only in generation_config.json.
        eos_token_ids=_token_ids(sizes.eos_token_id, _read(generation, _EndTokens).eos_token_id),
        bos_token_id=next(iter(_token_ids(sizes.bos_token_id)), None),
        dtype=dtype,
    )


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


def _refuse_unimplemented(config: dict[str, Any], sizes: _Config, family: _Family) -> None:
    if config.get("quantization_config") is not None:
        raise _bad("quantization_config", "quantized checkpoints are not supported; use the original weights")
    if config.get("hidden_act", "silu") != "silu":
        raise _bad("hidden_act", f"only 'silu' is implemented, not {str(config['hidden_act'])[:50]!r}")
    if sizes.attention_bias and not family.attention_bias:
        raise _bad("attention_bias", "biases on all four attention projections are not implemented")
    if sizes.mlp_bias:
        raise _bad("mlp_bias", "is not implemented")
    if sizes.use_sliding_window:
        raise _bad("use_sliding_window", "sliding-window attention is not implemented")
    layer_types = config.get("layer_types")
    if layer_types is not None and (
        not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
    ):
        raise _bad("layer_types", "only full_attention layers are implemented")


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings beside config.json's own, wherever this version of transformers wrote them."""
    block: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if value is not None and not isinstance(value, dict):
            raise _bad(key, "must be an object or null")
        block |= value or {}
    for holder in (block, config):
        if holder.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
            raise _bad("partial_rotary_factor", "only a full rotation is implemented")
    return {key: value for key, value in block.items() if value is not None}


def _scaling(kind: Any, flat: dict[str, Any]) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", _read(flat, _Linear).factor)
    if kind == "llama3":
        scaling = RopeScaling("llama3", **msgspec.structs.asdict(_read(flat, _Llama3)))
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise _bad("rope_scaling.high_freq_factor", "must be greater than low_freq_factor")
        return scaling
    raise _bad("rope_type", f"{str(kind)[:50]!r} is not implemented; default, linear and llama3 are")


def _token_ids(*values: int | list[int | None] | None) -> tuple[int, ...]:
    """Each id once, of ids and lists of them."""
    lists = (value if isinstance(value, list) else [value] for value in values)
    return tuple(dict.fromkeys(item for items in lists for item in items if item is not None))


def _read(values: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert({key: value for key, value in values.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise _bad(*locate(error)) from None


def _bad(key: str, message: str) -> CheckpointError:
    return invalid(f"config.json: {key}: {message}")
