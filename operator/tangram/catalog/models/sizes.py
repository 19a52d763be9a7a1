"""A decoder from its size alone: sizes that are not given are those of Llama 3, and marked as assumed."""

import math
from dataclasses import dataclass

from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.layer_parts import Attention, LayerGroup
from tangram.catalog.reading.errors import InputError

# Llama 3: 8 KV heads of 128, an MLP of 3.5 times the hidden size, 128,256 tokens, embeddings untied from 8B.
HEAD_DIM = 128
KV_HEADS = 8
MLP_RATIO = 3.5
VOCABULARY = 128_256
MAX_POSITION = 131_072
TIED_BELOW = 4e9
# Hidden size per layer: 128 (8B), 102 (70B), 130 (405B).
WIDTH_PER_LAYER = 115
MLP_STEP = 256  # sizes that eight ranks and blocks of 128 divide, within half a percent of the exact size
SMALLEST, LARGEST = 1e6, 1e14


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that a user gives. None: assume."""

    parameters: float
    layers: int | None = None
    hidden_size: int | None = None
    kv_heads: int | None = None
    vocab_size: int | None = None


def architecture_from_size(sizes: Sizes) -> Architecture:
    """Return a dense decoder with about `sizes.parameters`. Raises `InputError` naming the flag."""
    _check(sizes)
    tied = sizes.parameters < TIED_BELOW
    vocab = sizes.vocab_size or VOCABULARY
    layers = sizes.layers or _layers(sizes.parameters)
    hidden = sizes.hidden_size or _hidden(sizes.parameters, layers, vocab * (1 if tied else 2))
    heads, head_dim = _heads(hidden)
    kv_heads = sizes.kv_heads or math.gcd(KV_HEADS, heads)
    if heads % kv_heads:
        raise InputError(
            "--kv-heads", f"{kv_heads} does not divide the {heads} heads of hidden size {hidden}"
        )
    attention = Attention(heads, kv_heads, head_dim, head_dim)
    inner = _inner(sizes.parameters, layers, hidden, vocab * (1 if tied else 2), attention)
    assumed = {
        f"{layers} layers": sizes.layers,
        f"hidden size {hidden}": sizes.hidden_size,
        f"{kv_heads} KV heads": sizes.kv_heads,
        f"vocabulary {vocab}": sizes.vocab_size,
        f"{heads} heads of {head_dim}": None,
        f"MLP size {inner}": None,
        "tied embeddings" if tied else "untied embeddings": None,
    }
    return Architecture(
        name=f"{sizes.parameters / 1e9:.3g}B parameters",
        hidden_size=hidden,
        vocab_size=vocab,
        groups=(LayerGroup(layers, attention, inner),),
        tied_embeddings=tied,
        max_position_embeddings=MAX_POSITION,
        source="sizes given",
        unverified=tuple(f"assumed: {fact}" for fact, value in assumed.items() if value is None),
    )


def _check(sizes: Sizes) -> None:
    if not SMALLEST <= sizes.parameters <= LARGEST:  # false for NaN too
        raise InputError("--parameters", f"{sizes.parameters:g} is not from {SMALLEST:g} to {LARGEST:g}")
    for flag, value, limit in (
        ("--layers", sizes.layers, 10_000),
        ("--hidden-size", sizes.hidden_size, 1_000_000),
        ("--kv-heads", sizes.kv_heads, 65_536),
        ("--vocab-size", sizes.vocab_size, 100_000_000),
    ):
        if value is not None and not 1 <= value <= limit:
            raise InputError(flag, f"{value} is not from 1 to {limit}")


def _layers(parameters: float) -> int:
    per_square = 2 + 3 * MLP_RATIO
    return max(2, 2 * round(math.cbrt(parameters / (per_square * WIDTH_PER_LAYER**2)) / 2))


def _hidden(parameters: float, layers: int, rows: int) -> int:
    """Solve P = layers (2 + 3 x 3.5) h^2 + (2 layers KV + rows) h, then round to whole heads."""
    square = layers * (2 + 3 * MLP_RATIO)
    linear = 2 * layers * KV_HEADS * HEAD_DIM + rows
    exact = (math.sqrt(linear**2 + 4 * square * parameters) - linear) / (2 * square)
    step = next((step for step in (1024, 512) if exact >= 4 * step), HEAD_DIM)
    return max(HEAD_DIM, step * round(exact / step))


def _heads(hidden: int) -> tuple[int, int]:
    for head_dim in (HEAD_DIM, 64, 80, 96, 256):
        if hidden % head_dim == 0:
            return hidden // head_dim, head_dim
    raise InputError(
        "--hidden-size", f"{hidden} is not a multiple of 64, 80 or 96: no usual head size divides it"
    )


def _inner(parameters: float, layers: int, hidden: int, rows: int, attention: Attention) -> int:
    """The MLP takes what the rest leaves."""
    width = attention.head_dim
    projections = hidden * width * (2 * attention.heads + 2 * attention.kv_heads)
    left = parameters - rows * hidden - layers * (projections + 2 * hidden) - hidden
    if left <= 0:
        raise InputError(
            "--parameters",
            f"{parameters:g} are fewer than attention and embeddings of {layers} layers of {hidden} take",
        )
    return max(MLP_STEP, MLP_STEP * round(left / (3 * layers * hidden) / MLP_STEP))
