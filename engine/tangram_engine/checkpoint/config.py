"""config.json of a closed list of architectures -> ModelSpec. `auto_map` and the like are never executed.

Accepts the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters).
Whatever would change the mathematics and is not implemented is refused by name, never ignored.
"""

import math
from dataclasses import dataclass
from typing import Any

from .errors import CheckpointError, Reason, invalid
from .spec import ModelSpec, RopeScaling

_MAX_INT = 1 << 31


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


def parse_config(config: dict[str, Any], generation: dict[str, Any], dtype: str) -> ModelSpec:
    """Build the spec from config.json, generation_config.json (may be empty) and the stored dtype."""
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    _refuse_unimplemented(config, family)
    hidden = _integer(config, "hidden_size")
    heads = _integer(config, "num_attention_heads", limit=1 << 16)
    kv_heads = _integer(config, "num_key_value_heads", default=heads, limit=1 << 16)
    if heads % kv_heads:
        raise _bad("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads ({heads})")
    head_dim = _integer(config, "head_dim", default=family.head_dim or hidden // heads, limit=1 << 16)
    if head_dim % 2:
        raise _bad("head_dim", f"must be even for rotary embeddings, not {head_dim}")
    rope_theta, rope_scaling = _rope(config)
    return ModelSpec(
        family=family.name,
        architecture=architecture,
        layers=_integer(config, "num_hidden_layers", limit=4096),
        hidden_size=hidden,
        intermediate_size=_integer(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_integer(config, "vocab_size", limit=1 << 24),
        max_position_embeddings=_integer(config, "max_position_embeddings"),
        rms_norm_eps=_number(config, "rms_norm_eps", default=1e-6, low=1e-12, high=1.0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tied_embeddings=_flag(config, "tie_word_embeddings"),
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        eos_token_ids=_token_ids(config, generation, "eos_token_id"),
        bos_token_id=next(iter(_token_ids(config, {}, "bos_token_id")), None),
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
        Reason.UNKNOWN_ARCHITECTURE, f"{message}; supported: {', '.join(sorted(FAMILIES))}"
    )


def _refuse_unimplemented(config: dict[str, Any], family: _Family) -> None:
    if config.get("quantization_config") is not None:
        raise _bad("quantization_config", "quantized checkpoints are not supported; use the original weights")
    if config.get("hidden_act", "silu") != "silu":
        raise _bad("hidden_act", f"only 'silu' is implemented, not {str(config['hidden_act'])[:50]!r}")
    if family.name != "qwen2" and _flag(config, "attention_bias"):
        raise _bad("attention_bias", "biases on all four attention projections are not implemented")
    if _flag(config, "mlp_bias"):
        raise _bad("mlp_bias", "is not implemented")
    if _flag(config, "use_sliding_window"):
        raise _bad("use_sliding_window", "sliding-window attention is not implemented")
    layer_types = config.get("layer_types")
    if layer_types is not None and (
        not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types)
    ):
        raise _bad("layer_types", "only full_attention layers are implemented")


def _rope(config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Rotary base and scaling, wherever this version of transformers wrote them."""
    block: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if value is not None and not isinstance(value, dict):
            raise _bad(key, "must be an object or null")
        block |= value or {}
    source = block if block.get("rope_theta") is not None else config
    theta = _number(source, "rope_theta", default=10000.0, low=1e-3, high=1e12)
    for holder in (block, config):
        if holder.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
            raise _bad("partial_rotary_factor", "only a full rotation is implemented")
    return theta, _scaling(config, block)


def _scaling(config: dict[str, Any], block: dict[str, Any]) -> RopeScaling | None:
    kind = block.get("rope_type", block.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", _number(block, "factor", low=1.0, high=1e6))
    if kind == "llama3":
        original = block if "original_max_position_embeddings" in block else config
        scaling = RopeScaling(
            "llama3",
            factor=_number(block, "factor", low=1.0, high=1e6),
            low_freq_factor=_number(block, "low_freq_factor", low=1e-6, high=1e6),
            high_freq_factor=_number(block, "high_freq_factor", low=1e-6, high=1e6),
            original_max_position_embeddings=_integer(original, "original_max_position_embeddings"),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise _bad("rope_scaling.high_freq_factor", "must be greater than low_freq_factor")
        return scaling
    raise _bad("rope_type", f"{str(kind)[:50]!r} is not implemented; default, linear and llama3 are")


def _token_ids(config: dict[str, Any], generation: dict[str, Any], key: str) -> tuple[int, ...]:
    """Ids from both files, each once: chat models name their end-of-turn token only in the second."""
    found: list[int] = []
    for holder in (config, generation):
        value = holder.get(key)
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                continue
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < _MAX_INT:
                raise _bad(key, f"must be a token id or a list of them, not {str(item)[:50]!r}")
            if item not in found:
                found.append(item)
    return tuple(found)


def _integer(config: dict[str, Any], key: str, *, default: int | None = None, limit: int = _MAX_INT) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise _bad(key, "is missing")
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise _bad(key, f"must be an integer from 1 to {limit}, not {str(value)[:50]}")
    return value


def _number(
    config: dict[str, Any], key: str, *, default: float | None = None, low: float, high: float
) -> float:
    value = config.get(key)
    if value is None:
        if default is None:
            raise _bad(key, "is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _bad(key, f"must be a number from {low:g} to {high:g}, not {str(value)[:50]}")
    result = float(value)
    if not math.isfinite(result):
        raise _bad(key, "must be finite")
    return result


def _flag(config: dict[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _bad(key, f"must be true or false, not {str(value)[:50]}")
    return value


def _bad(key: str, message: str) -> CheckpointError:
    return invalid(f"config.json: {key}: {message}")
