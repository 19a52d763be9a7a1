"""The rotary settings of config.json, in any spelling that transformers 5 reads.

Where both blocks are set, rope_scaling (transformers 4) replaces rope_parameters (5): READMEs say to
add it. Source: `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict` and `standardize_rope_params`.
"""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .config_values import CONFIG, bad_value, read_values
from .spec import RopeScaling

_ORIGINAL = "original_max_position_embeddings"
_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "finetuned", _ORIGINAL}
_KEYS_OF_KIND = {
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "yarn": {"beta_fast", "beta_slow", "attention_factor", "truncate"},
}
# Up to max_position_embeddings, beyond which no request goes, dynamic scaling changes nothing.
_UNSCALED = ("default", "dynamic")
DEFAULT_THETA = 10000.0
_Factor = Annotated[float, Meta(ge=1, le=1e6)]
_Frequency = Annotated[float, Meta(ge=1e-6, le=1e6)]


class _Theta(msgspec.Struct):
    rope_theta: Annotated[float, Meta(ge=1e-3, le=1e12)] | None = None


class _Linear(msgspec.Struct):
    factor: _Factor


class _Llama3(_Linear):
    low_freq_factor: _Frequency
    high_freq_factor: _Frequency
    original_max_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 31)]


class _Yarn(_Linear):
    original_max_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 31)]
    beta_slow: _Frequency = 1.0
    beta_fast: _Frequency = 32.0
    attention_factor: Annotated[float, Meta(ge=1e-3, le=1e3)] | None = None
    truncate: bool = True


def read_rotary(
    config: dict[str, Any], max_positions: int, default_theta: float
) -> tuple[float, RopeScaling | None]:
    """The base of the frequencies and their scaling. Raises CheckpointError for what is not implemented."""
    name, block = _block(config, default_theta)
    kind = block.get("rope_type", block.get("type", "default"))
    known = _KEYS | _KEYS_OF_KIND.get(str(kind), set())
    if unknown := sorted(set(block) - known):
        raise bad_value(f"{name}.{unknown[0][:100]}", "is not implemented")
    for holder in (block, config):
        if holder.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
            raise bad_value("partial_rotary_factor", "only a full rotation is implemented")
    theta = _theta(config, name, block) or default_theta
    scaling = _scaling(kind, config, name, block, max_positions)
    if scaling is not None and scaling.kind == "yarn" and theta <= 1:
        raise bad_value("rope_theta", "must be above 1 for yarn, whose pairs are found by its logarithm")
    return theta, scaling


def _block(config: dict[str, Any], default_theta: float) -> tuple[str, dict[str, Any]]:
    """Name and settings, without nulls, of the block that counts."""
    blocks = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = config.get(name)
        if value is not None and not isinstance(value, dict):
            raise bad_value(name, "must be an object or null")
        blocks[name] = {key: item for key, item in (value or {}).items() if item is not None}
    scaling, parameters = blocks["rope_scaling"], blocks["rope_parameters"]
    if not scaling:
        return "rope_parameters", parameters
    if parameters.get("rope_theta", default_theta) != default_theta and "rope_theta" not in {
        *scaling,
        *config,
    }:
        raise bad_value(
            "rope_scaling",
            "replaces rope_parameters, whose rope_theta would be lost; write all of it in rope_parameters",
        )
    return "rope_scaling", scaling


def _theta(config: dict[str, Any], name: str, block: dict[str, Any]) -> float | None:
    if "rope_theta" in block:
        return read_values({"rope_theta": block["rope_theta"]}, _Theta, CONFIG, name).rope_theta
    return read_values({"rope_theta": config.get("rope_theta")}, _Theta, CONFIG).rope_theta


def _scaling(
    kind: Any, config: dict[str, Any], name: str, block: dict[str, Any], max_positions: int
) -> RopeScaling | None:
    if kind in _UNSCALED:
        return None
    if kind == "linear":
        return RopeScaling("linear", read_values(block, _Linear, CONFIG, name).factor)
    if kind in ("llama3", "yarn"):
        # As transformers: the value beside the block goes before that inside, and the context is the default.
        original = config.get(_ORIGINAL) or block.get(_ORIGINAL) or max_positions
        read = _llama3 if kind == "llama3" else _yarn
        return read(block | {_ORIGINAL: original}, name)
    problem = f"{str(kind)[:50]!r} is not implemented; default, dynamic, linear, llama3 and yarn are"
    raise bad_value(f"{name}.rope_type", problem)


def _llama3(block: dict[str, Any], name: str) -> RopeScaling:
    scaling = RopeScaling("llama3", **msgspec.structs.asdict(read_values(block, _Llama3, CONFIG, name)))
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise bad_value(f"{name}.high_freq_factor", "must be greater than low_freq_factor")
    return scaling


def _yarn(block: dict[str, Any], name: str) -> RopeScaling:
    values = read_values(block, _Yarn, CONFIG, name)
    if values.beta_fast < values.beta_slow:
        raise bad_value(f"{name}.beta_fast", "must not be less than beta_slow")
    return RopeScaling(
        "yarn",
        values.factor,
        low_freq_factor=values.beta_slow,
        high_freq_factor=values.beta_fast,
        original_max_position_embeddings=values.original_max_position_embeddings,
        attention_factor=values.attention_factor or 0.1 * math.log(values.factor) + 1.0,
        whole_pairs=values.truncate,
    )
