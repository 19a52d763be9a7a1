"""Which tensors a model needs, with which shapes; and the first one that is missing, misshaped or surplus."""

import re
from collections.abc import Iterator

from .errors import invalid
from .spec import DecoderSpec, TensorEntry

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_PIECE = 1 << 20  # bytes that are read at once
_DTYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
# Buffers that old versions of transformers stored beside the weights; computed, never loaded.
_COMPUTED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def expected_shapes(spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor, in the order of the forward pass. Projections are [out, in]."""
    hidden, inner, head_dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q_rows, kv_rows = spec.heads * head_dim, spec.kv_heads * head_dim
    rows_of = {
        "q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows, "qkv_proj": q_rows + 2 * kv_rows,
        "gate_proj": inner, "up_proj": inner, "gate_up_proj": 2 * inner,
    }  # fmt: skip
    qkv, gate_up = projection_inputs(spec)
    yield EMBEDDING, (spec.vocab_size, hidden)
    for layer in range(spec.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        for name in qkv:
            yield f"{at}.self_attn.{name}.weight", (rows_of[name], hidden)
            if spec.attention_bias:
                yield f"{at}.self_attn.{name}.bias", (rows_of[name],)
        if spec.qk_norm:
            yield f"{at}.self_attn.q_norm.weight", (head_dim,)
            yield f"{at}.self_attn.k_norm.weight", (head_dim,)
        yield f"{at}.self_attn.o_proj.weight", (hidden, q_rows)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        for name in gate_up:
            yield f"{at}.mlp.{name}.weight", (rows_of[name], hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not spec.tied_embeddings:
        yield HEAD, (spec.vocab_size, hidden)


def projection_inputs(spec: DecoderSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules whose rows, side by side, are the decoder's qkv; and those that are its gate_up."""
    if spec.packed_projections:
        return ("qkv_proj",), ("gate_up_proj",)
    return ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def select(spec: DecoderSpec, stored: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors to load, checked against the spec. Raises CheckpointError naming the first wrong one."""
    expected = dict(expected_shapes(spec))
    for name, shape in expected.items():
        entry = stored.get(name)
        if entry is None:
            raise invalid(
                f"tensor {name} is missing; the checkpoint is incomplete or config.json is another model's"
            )
        if entry.shape != shape:
            raise invalid(f"tensor {name} has shape {list(entry.shape)}; config.json implies {list(shape)}")
        if entry.dtype not in _DTYPES:
            raise invalid(
                f"tensor {name} is stored as {entry.dtype}; only {', '.join(_DTYPES)} are supported"
            )
    for name in stored:
        if name not in expected and not can_lack(spec, name):
            raise invalid(
                f"tensor {name[:200]} is not part of the {spec.architecture} that config.json describes"
            )
    return {name: stored[name] for name in expected}


def can_lack(spec: DecoderSpec, name: str) -> bool:
    """Whether a tensor is never loaded: a buffer that is computed, or a head tied to an equal embedding."""
    return _COMPUTED.fullmatch(name) is not None or (spec.tied_embeddings and name == HEAD)


def equal_data(one: TensorEntry, other: TensorEntry) -> bool:
    """Whether two tensors are stored alike, in dtype, shape and every byte. Raises CheckpointError."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(one.offset)
        second.seek(other.offset)
        for start in range(0, one.nbytes, _PIECE):
            size = min(_PIECE, one.nbytes - start)
            piece = first.read(size)
            if len(piece) != size:
                raise invalid(f"{one.file.name} changed while it was read")
            if piece != second.read(size):
                return False
    return True


def stored_dtype(tensors: dict[str, TensorEntry]) -> str:
    """The dtype most bytes are stored in: bf16, fp16 or fp32."""
    totals = dict.fromkeys(_DTYPES, 0)
    for entry in tensors.values():
        if entry.dtype in totals:
            totals[entry.dtype] += entry.nbytes
    return _DTYPES[max(totals, key=lambda dtype: totals[dtype])]
