"""The model families that the engine serves, and the keys of config.json that only one of them reads.

Defaults are those of transformers 5 (`configuration_*.py` of each family).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .config_values import CONFIG, bad_value, read_values
from .rotary import DEFAULT_THETA
from .spec import DecoderSpec

_Scale = Annotated[float, Meta(ge=1e-4, le=1e4)]
# Fields of the spec that follow from keys of the family's own. Raises CheckpointError.
OwnKeys = Callable[[dict[str, Any], DecoderSpec], dict[str, Any]]


def _none(_config: dict[str, Any], _spec: DecoderSpec) -> dict[str, Any]:
    return {}


class _Rotated(msgspec.Struct):
    no_rope_layers: Annotated[list[int], Meta(max_length=4096)] | None = None
    no_rope_layer_interval: Annotated[int, Meta(ge=1, le=1 << 31)] = 4


def _smollm3(config: dict[str, Any], spec: DecoderSpec) -> dict[str, Any]:
    """Every fourth layer does not rotate; `no_rope_layers` has a 0 for each of them."""
    keys = read_values({name: config.get(name) for name in _Rotated.__struct_fields__}, _Rotated, CONFIG)
    rotated = keys.no_rope_layers
    if rotated is None:
        rotated = [(layer + 1) % keys.no_rope_layer_interval for layer in range(spec.layers)]
    if len(rotated) < spec.layers:
        raise bad_value("no_rope_layers", f"has {len(rotated)} entries for {spec.layers} layers")
    return {"unrotated_layers": tuple(layer for layer in range(spec.layers) if not rotated[layer])}


class _Multipliers(msgspec.Struct):
    embedding_multiplier: _Scale = 1.0
    residual_multiplier: _Scale = 1.0
    attention_multiplier: _Scale = 1.0
    logits_scaling: _Scale = 1.0


def _granite(config: dict[str, Any], spec: DecoderSpec) -> dict[str, Any]:
    """What a layer adds is multiplied by `residual_multiplier`.

    The engine divides the embedding by it instead, and with it all that is added up. Every reader of that sum
    normalises it first, which undoes the division: but for epsilon, which is added to squares.
    """
    keys = read_values(
        {name: config.get(name) for name in _Multipliers.__struct_fields__}, _Multipliers, CONFIG
    )
    return {
        "embedding_scale": keys.embedding_multiplier / keys.residual_multiplier,
        "rms_norm_eps": spec.rms_norm_eps / keys.residual_multiplier**2,
        "attention_scale": keys.attention_multiplier,
        "logits_divisor": keys.logits_scaling,
    }


def _refuse(*names: str) -> OwnKeys:
    """Refuse keys that switch on what the decoder does not compute."""

    def own_keys(config: dict[str, Any], _spec: DecoderSpec) -> dict[str, Any]:
        for name in names:
            if config.get(name):
                raise bad_value(name, "is not implemented")
        return {}

    return own_keys


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """How one class of `architectures` is read."""

    name: str
    attention_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None  # where config.json omits it; None: hidden_size / heads
    kv_heads: int | None = None  # likewise, where the key is absent; None: as many as heads
    rms_norm_eps: float = 1e-6  # likewise
    rope_theta: float = DEFAULT_THETA  # likewise
    tied: bool = False  # likewise
    window: int | None = 4096  # likewise, of a windowed family
    bias_by_flag: bool = False  # config.json may switch the biases of q, k and v off
    windowed: bool = False  # every layer is, unless config.json has null as the window
    late_windows: bool = True  # `max_window_layers` says from which layer on there are windows
    rope_scaling: bool = True  # whether the family has one that the engine has
    interleaved_rotation: bool = False
    packed_projections: bool = False
    own_keys: OwnKeys = _none


FAMILIES = {
    "LlamaForCausalLM": DecoderFamily("llama"),
    "MistralForCausalLM": DecoderFamily("mistral", kv_heads=8, windowed=True),
    "SeedOssForCausalLM": DecoderFamily(
        "seed_oss", attention_bias=True, head_dim=128, kv_heads=8, bias_by_flag=True
    ),
    "Qwen2ForCausalLM": DecoderFamily("qwen2", attention_bias=True),
    "Qwen3ForCausalLM": DecoderFamily("qwen3", qk_norm=True, head_dim=128),
    "SmolLM3ForCausalLM": DecoderFamily(
        "smollm3", kv_heads=4, rope_theta=2e6, tied=True, late_windows=False, own_keys=_smollm3
    ),
    "GraniteForCausalLM": DecoderFamily("granite", own_keys=_granite),
    "Phi3ForCausalLM": DecoderFamily(
        "phi3", rms_norm_eps=1e-5, windowed=True, window=None, rope_scaling=False, packed_projections=True
    ),
    "Ernie4_5ForCausalLM": DecoderFamily(
        "ernie4_5",
        head_dim=128,
        kv_heads=2,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        tied=True,
        interleaved_rotation=True,
        own_keys=_refuse("use_bias"),
    ),
    "InternLM3ForCausalLM": DecoderFamily(
        "internlm3", head_dim=128, kv_heads=2, rms_norm_eps=1e-5, own_keys=_refuse("qkv_bias", "bias")
    ),
    "IQuestCoderForCausalLM": DecoderFamily(
        "iquestcoder", head_dim=128, kv_heads=8, rms_norm_eps=1e-5, own_keys=_refuse("clip_qkv")
    ),
}
