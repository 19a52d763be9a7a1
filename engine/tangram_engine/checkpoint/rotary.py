"""The rotary settings of config.json, in any spelling that transformers 5 reads.

Where both blocks are set, rope_scaling (transformers 4) replaces rope_parameters (5): READMEs say to
add it. Source: `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict` and `standardize_rope_params`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .config_values import CONFIG, bad_value, read_values
from .spec import RopeScaling

_ORIGINAL = "original_max_position_embeddings"
_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "finetuned", _ORIGINAL}
_KEYS_OF_KIND = {
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "yarn": {"beta_fast", "beta_slow"},
}
# With factor 1 and up to max_position_embeddings, these turn as without scaling.
_NEUTRAL_AT_ONE = ("dynamic", "yarn")
_DEFAULT_THETA = 10000.0
_Factor = Annotated[float, Meta(ge=1, le=1e6)]
_Frequency = Annotated[float, Meta(ge=1e-6, le=1e6)]


class _Theta(msgspec.Struct):
    rope_theta: Annotated[float, Meta(ge=1e-3, le=1e12)] = _DEFAULT_THETA


class _Linear(msgspec.Struct):
    factor: _Factor


class _Llama3(_Linear):
    low_freq_factor: _Frequency
    high_freq_factor: _Frequency
    original_max_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 31)]


def read_rotary(config: dict[str, Any], max_positions: int) -> tuple[float, RopeScaling | None]:
    """The base of the frequencies and their scaling. Raises CheckpointError for what is not implemented."""
    name, block = _block(config)
    kind = block.get("rope_type", block.get("type", "default"))
    known = _KEYS | _KEYS_OF_KIND.get(str(kind), set())
    if unknown := sorted(set(block) - known):
        raise bad_value(f"{name}.{unknown[0][:100]}", "is not implemented")
    for holder in (block, config):
        if holder.get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
            raise bad_value("partial_rotary_factor", "only a full rotation is implemented")
    return _theta(config, name, block), _scaling(kind, config, name, block, max_positions)


def _block(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
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
    theta = parameters.get("rope_theta", _DEFAULT_THETA)
    if theta != _DEFAULT_THETA and "rope_theta" not in {*scaling, *config}:
        raise bad_value(
            "rope_scaling",
            "replaces rope_parameters, whose rope_theta would be lost; write all of it in rope_parameters",
        )
    return "rope_scaling", scaling


def _theta(config: dict[str, Any], name: str, block: dict[str, Any]) -> float:
    if "rope_theta" in block:
        return read_values({"rope_theta": block["rope_theta"]}, _Theta, CONFIG, name).rope_theta
    return read_values({"rope_theta": config.get("rope_theta")}, _Theta, CONFIG).rope_theta


def _scaling(
    kind: Any, config: dict[str, Any], name: str, block: dict[str, Any], max_positions: int
) -> RopeScaling | None:
    if kind == "default" or (kind in _NEUTRAL_AT_ONE and block.get("factor") == 1):
        return None
    if kind == "linear":
        return RopeScaling("linear", read_values(block, _Linear, CONFIG, name).factor)
    if kind == "llama3":
        # As transformers: the value beside the block goes before that inside, and the context is the default.
        original = config.get(_ORIGINAL) or block.get(_ORIGINAL) or max_positions
        values = read_values(block | {_ORIGINAL: original}, _Llama3, CONFIG, name)
        scaling = RopeScaling("llama3", **msgspec.structs.asdict(values))
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise bad_value(f"{name}.high_freq_factor", "must be greater than low_freq_factor")
        return scaling
    problem = f"{str(kind)[:50]!r} is not implemented; default, linear and llama3 are"
    raise bad_value(f"{name}.rope_type", problem)
