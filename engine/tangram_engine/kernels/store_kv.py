"""From packed projections of prompts to rotated queries and to keys and values in their pages.

Single tokens of a step do without: decode attention stores their keys and values itself. One program per
token and HEADS heads, in the order q, k, v of the packed row. Queries and keys are normalised per head where
the model does so (Qwen3), then their pairs (i, i + D/2) are turned by the angle of the position. Queries go
to a tensor of their own; keys and values go straight to the place of (row, position) in the pool, which the
page table of the row names: no key is written twice.

Bytes moved, in a dtype of b bytes: 2 T (H + 2 K) D b, and 4 D bytes of cosines and sines a token. For 64
tokens of an 8B model (H = 32, K = 8, D = 128, bf16) 1.6 MB: 0.4 us at 4.3 TB/s; at 8,192 tokens 205 MB
and 48 us.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels.tiles import tile
from tangram_engine.kernels.triton_runtime import CompileCase, launch, tl, triton

TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.float16: (4e-3, 4e-3), torch.bfloat16: (3.2e-2, 3.2e-2)}
FEW_TOKENS = 64  # up to here a program per head: the launch is short of programs, not of bytes


class HeadRotation(NamedTuple):
    """How heads are normalised and rotated: the norms of a model that has them, and angles by position."""

    q_norm: Tensor | None  # [D]; both norms or neither
    k_norm: Tensor | None
    eps: float
    rope: Tensor  # float32 [positions, D], cosines beside sines; an expanded row where nothing is rotated

    def arguments(self, qkv: Tensor) -> tuple[Tensor, Tensor, float, Tensor, int]:
        """Those of a kernel; any address stands for a norm that there is not."""
        norms = (qkv, qkv) if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)
        return *norms, self.eps, self.rope, self.rope.stride(0)


class Pages(NamedTuple):
    """Where T tokens lie in one layer of the KV pool."""

    rows: Tensor  # int32 [T], of the tables
    positions: Tensor  # int32 [T]
    tables: Tensor  # int32 [R, blocks of a row]
    pool: Tensor  # [blocks, 2, K, block size, D]


@triton.jit
def rotated(head, weight, eps, angle, dim, inside, D: tl.constexpr, NORM: tl.constexpr):  # noqa: ANN201
    """Heads at addresses [N, 1], normalised and rotated: float32 [N, D_PADDED].

    `dim` is [1, D_PADDED], `inside` [N, D_PADDED]; weight is one address, or one for each head. Each number
    is loaded again as the other one of its pair, which spares exchanges between threads.
    """
    first = dim < D // 2
    other = tl.where(first, dim + D // 2, dim - D // 2)
    x = tl.load(head + dim, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(head + other, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        x = x * scale * tl.load(weight + dim, mask=dim < D, other=0.0).to(tl.float32)
        y = y * scale * tl.load(weight + other, mask=dim < D, other=0.0).to(tl.float32)
    at = angle + tl.where(first, dim, other)
    cos = tl.load(at, mask=dim < D, other=0.0)
    sin = tl.load(at + D // 2, mask=dim < D, other=0.0)
    return x * cos + y * tl.where(first, -sin, sin)


# TABLE follows from max_model_len: a constant would make every context length a kernel of its own.
@triton.jit(do_not_specialize=["TABLE"], do_not_specialize_on_alignment=["rows", "positions"])
def _store_kv(
    qkv,
    q_norm,
    k_norm,
    eps,
    rope,
    rope_stride,  # numbers from one position to the next: D, or 0
    rows,
    positions,
    tables,
    pool,
    out,
    TABLE,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dim = tl.arange(0, D_PADDED)[None, :]
    inside = (head < QUERY_HEADS + 2 * KV_HEADS) & (dim < D)
    is_query = head < QUERY_HEADS
    position = tl.load(positions + token)
    at = qkv + (token * (QUERY_HEADS + 2 * KV_HEADS) + head) * D
    weight = tl.where(is_query, q_norm, k_norm)
    turned = rotated(at, weight, eps, rope + position.to(tl.int64) * rope_stride, dim, inside, D, NORM)
    value = tl.load(at + dim, mask=inside, other=0.0)
    turned = tl.where(head < QUERY_HEADS + KV_HEADS, turned.to(value.dtype), value)

    tl.store(out + (token * QUERY_HEADS + head) * D + dim, turned, mask=inside & is_query)
    block = tl.load(tables + tl.load(rows + token).to(tl.int64) * TABLE + position // BLOCK_SIZE)
    place = block.to(tl.int64) * (2 * KV_HEADS) + (head - QUERY_HEADS)
    to_pool = pool + (place * BLOCK_SIZE + position % BLOCK_SIZE) * D + dim
    tl.store(to_pool, turned.to(pool.dtype.element_ty), mask=inside & ~is_query)


def store_kv(qkv: Tensor, rotation: HeadRotation, pages: Pages) -> Tensor:
    """Write the keys and values of qkv [T, (H + 2 K) D] into their pages; return queries [T, H, D]."""
    _, _, kv_heads, block_size, size = pages.pool.shape
    tokens, heads = qkv.shape[0], qkv.shape[1] // size - 2 * kv_heads
    out = qkv.new_empty(tokens, heads, size)
    sizes = dict(tile("store_kv", qkv.device))
    if tokens <= FEW_TOKENS:
        sizes["HEADS"] = 1
    if tokens:
        launch(
            _store_kv,
            (tokens, -(-(heads + 2 * kv_heads) // sizes["HEADS"])),
            qkv,
            *rotation.arguments(qkv),
            *pages,
            out,
            pages.tables.shape[1],
            QUERY_HEADS=heads,
            KV_HEADS=kv_heads,
            D=size,
            D_PADDED=triton.next_power_of_2(size),
            BLOCK_SIZE=block_size,
            NORM=rotation.q_norm is not None,
            **sizes,
        )
    return out


def reference(qkv: Tensor, rotation: HeadRotation, pages: Pages) -> Tensor:
    """The same in plain torch, on any device."""
    q_norm, k_norm, eps, rope = rotation
    rows, positions, tables, pool_layer = pages
    _, _, kv_heads, block_size, size = pool_layer.shape
    heads = qkv.shape[1] // size - 2 * kv_heads
    q, k, v = qkv.view(-1, heads + 2 * kv_heads, size).split_with_sizes((heads, kv_heads, kv_heads), 1)
    if q_norm is not None and k_norm is not None:
        q, k = (
            functional.rms_norm(x.float(), (size,), weight.float(), eps)
            for x, weight in ((q, q_norm), (k, k_norm))
        )
    cos, sin = rope.index_select(0, positions.long())[:, None].chunk(2, -1)
    q, k = (_rotate(x.float(), cos, sin).to(qkv.dtype) for x in (q, k))
    at = positions.long()
    blocks = tables[rows.long(), at // block_size].long()
    pool_layer[blocks, :, :, at % block_size] = torch.stack((k, v), 1).to(pool_layer.dtype)
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


_SIGNATURE = {
    **dict.fromkeys(("qkv", "q_norm", "k_norm"), "*bf16:16"),
    "eps": "fp32",
    "rope": "*fp32:16",
    "rope_stride": "i32:16",
    **dict.fromkeys(("rows", "positions"), "*i32"),
    "tables": "*i32:16",
    **dict.fromkeys(("pool", "out"), "*bf16:16"),
    "TABLE": "i32",
}
CASES = tuple(
    CompileCase(
        f"store_kv, D {size}, {heads} heads a program{', norm' * norm}",
        _store_kv,
        _SIGNATURE,
        {
            "QUERY_HEADS": 32,
            "KV_HEADS": 8,
            "D": size,
            "D_PADDED": padded,
            "BLOCK_SIZE": 16,
            "NORM": norm,
            "HEADS": heads,
        },
    )
    for size, padded, heads, norm in (
        (128, 128, 1, False),
        (128, 128, 8, True),
        (80, 128, 8, False),
        (256, 256, 8, True),
    )
)
