"""State-space and linear-attention branches, read from config.json."""

from tangram.catalog.configs.attention_kinds import MAX_HEADS, biased_by_flag, is_linear
from tangram.catalog.models.layer_parts import Attention, Recurrent
from tangram.catalog.models.layer_tensors import norm
from tangram.catalog.models.tensors import Shard, Tensor, TensorKind
from tangram.catalog.reading.fields import Fields

_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "auto": 2}


def no_state(_fields: Fields, _layer: int) -> None:
    """Return None: the family has attention alone."""


def gated_delta(fields: Fields, layer: int) -> Recurrent | None:
    """Return the gated delta rule of Qwen3-Next and Qwen3.5 (transformers, `Qwen3NextGatedDeltaNet`)."""
    if not is_linear(fields, layer):
        return None
    heads = fields.size("linear_num_value_heads", 32, maximum=MAX_HEADS)
    key_dim, value_dim = fields.size("linear_key_head_dim", 128), fields.size("linear_value_head_dim", 128)
    keys = fields.size("linear_num_key_heads", 16, maximum=MAX_HEADS) * key_dim
    values, kernel = heads * value_dim, fields.size("linear_conv_kernel_dim", 4)
    hidden, prefix = fields.size("hidden_size"), "model.layers.*.linear_attn"
    mixed = 2 * keys + values
    return Recurrent(
        heads=heads,
        tensors=(
            _matrix(f"{prefix}.in_proj_qkv", mixed, hidden, Shard.ROWS),
            _matrix(f"{prefix}.in_proj_z", values, hidden, Shard.ROWS),
            _matrix(f"{prefix}.in_proj_b", heads, hidden, Shard.ROWS),
            _matrix(f"{prefix}.in_proj_a", heads, hidden, Shard.ROWS),
            _matrix(f"{prefix}.out_proj", hidden, values, Shard.COLUMNS),
            _convolution(f"{prefix}.conv1d.weight", mixed, kernel),
            *(_vector(f"{prefix}.{name}", heads) for name in ("dt_bias", "A_log")),
            norm(f"{prefix}.norm", value_dim),
        ),
        conv_elements=mixed * (kernel - 1),
        state_elements=heads * key_dim * value_dim,
        state_bytes=_state_bytes(fields, "mamba_ssm_dtype"),
    )


def nemotron_state(fields: Fields, layer: int) -> Recurrent | None:
    """Return the Mamba-2 branch of Nemotron-H, in the layers that the pattern marks M."""
    if nemotron_kind(fields, layer) != "mamba":
        return None
    heads = fields.size("mamba_num_heads", 128, maximum=MAX_HEADS)
    return _mamba2(
        fields,
        prefix="model.layers.*.mixer",
        heads=heads,
        inner=heads * fields.size("mamba_head_dim", 64),
        groups=fields.size("n_groups", 8),
        state=fields.size("ssm_state_size", 128),
        kernel=fields.size("conv_kernel", 4),
        conv_bias=fields.flag("use_conv_bias", default=True),
        normed=True,
    )


_NEMOTRON_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_kind(fields: Fields, layer: int) -> str:
    """Return mamba, attention, mlp or moe: the one thing that a layer of Nemotron-H does."""
    if kinds := fields.names("layers_block_type"):
        kind = kinds[layer] if layer < len(kinds) else "missing"
        key = "layers_block_type"
    else:
        pattern, key = fields.text("hybrid_override_pattern"), "hybrid_override_pattern"
        kind = _NEMOTRON_KINDS.get(pattern[layer : layer + 1], "missing")
    if kind not in _NEMOTRON_KINDS.values():
        raise fields.error(key, f"says of layer {layer} none of mamba, attention, mlp and moe")
    return kind


def granite_state(fields: Fields, layer: int) -> Recurrent | None:
    """Return the Mamba-2 branch of Granite 4, in the layers that `layer_types` marks."""
    if granite_attention(fields, layer) is not None:
        return None
    return _mamba2_by_expansion(fields, normed=True)


def granite_attention(fields: Fields, layer: int) -> Attention | None:
    """Return the attention of Granite 4, in the few layers that have it."""
    types = fields.names("layer_types")
    attends = layer < len(types) and types[layer] in {"attention", "full_attention"}
    return biased_by_flag(fields, layer) if attends else None


def falcon_state(fields: Fields, _layer: int) -> Recurrent:
    """Return the Mamba-2 branch of Falcon-H1, beside attention in every layer."""
    return _mamba2_by_expansion(fields, normed=fields.flag("mamba_rms_norm"))


def _mamba2_by_expansion(fields: Fields, *, normed: bool) -> Recurrent:
    """Return a mixer of Bamba's keys, which Falcon-H1 and Granite 4 share."""
    expanded = fields.size("mamba_expand", 2) * fields.size("hidden_size")
    return _mamba2(
        fields,
        prefix="model.layers.*.mamba",
        heads=fields.size("mamba_n_heads", 128, maximum=MAX_HEADS),
        inner=fields.size("mamba_d_ssm", expanded) if fields.has("mamba_d_ssm") else expanded,
        groups=fields.size("mamba_n_groups", 1),
        state=fields.size("mamba_d_state", 256),
        kernel=fields.size("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        normed=normed,
    )


def _mamba2(
    fields: Fields,
    *,
    prefix: str,
    heads: int,
    inner: int,
    groups: int,
    state: int,
    kernel: int,
    conv_bias: bool,
    normed: bool,
) -> Recurrent:
    """Return a Mamba-2 mixer (transformers, `Mamba2Mixer`). Biases of its projections are not known."""
    for key in ("mamba_proj_bias", "use_bias"):
        if fields.flag(key):
            raise fields.error(key, "is true; only mixers without these biases are known")
    hidden, mixed = fields.size("hidden_size"), inner + 2 * groups * state
    return Recurrent(
        heads=heads,
        tensors=(
            _matrix(f"{prefix}.in_proj", inner + mixed + heads, hidden, Shard.ROWS),
            _matrix(f"{prefix}.out_proj", hidden, inner, Shard.COLUMNS),
            _convolution(f"{prefix}.conv1d.weight", mixed, kernel),
            *((_vector(f"{prefix}.conv1d.bias", mixed),) if conv_bias else ()),
            *(_vector(f"{prefix}.{name}", heads) for name in ("dt_bias", "A_log", "D")),
            *((norm(f"{prefix}.norm", inner),) if normed else ()),
        ),
        conv_elements=mixed * (kernel - 1),
        state_elements=inner * state,
        state_bytes=_state_bytes(fields, "mamba_ssm_cache_dtype"),
    )


def _matrix(name: str, rows: int, columns: int, shard: Shard) -> Tensor:
    return Tensor(f"{name}.weight", (rows, columns), TensorKind.RECURRENT, shard)


def _convolution(name: str, channels: int, kernel: int) -> Tensor:
    return Tensor(name, (channels, 1, kernel), TensorKind.RECURRENT, Shard.ROWS)


def _vector(name: str, width: int) -> Tensor:
    return Tensor(name, (width,), TensorKind.RECURRENT, Shard.ROWS)


def _state_bytes(fields: Fields, key: str) -> int:
    """Return the bytes of one element of the state; runtimes keep it in the model's type unless told."""
    name = fields.text(key, "auto") if fields.has(key) else "auto"
    if name not in _ELEMENT_BYTES:
        raise fields.error(key, f"{name!r} is not one of {', '.join(_ELEMENT_BYTES)}")
    return _ELEMENT_BYTES[name]


def nemotron_attention(fields: Fields, layer: int) -> Attention | None:
    """Return the attention of Nemotron-H, in the layers that the pattern marks *."""
    return biased_by_flag(fields, layer) if nemotron_kind(fields, layer) == "attention" else None
