"""y = x W^T + b for up to 64 rows and int4 weights, and int4 weights back in 16 bits for more.

The operands change places: 64 outputs of W are the side of which the tensor cores want 64 (wgmma on Hopper,
tcgen05 on Blackwell; mma.sync elsewhere), and the rows, padded to 32 or 64, are the other. A program
takes a group of 128 inputs of its outputs at a time: 64 bytes of each, unpacked in registers, multiplied
with either half of the inputs, accumulated in float32. Scale and zero apply to the group's sums. Where 64
outputs a program are too few programs for the SMs, 2 or 4 of them share the inputs; a second kernel adds
their parts in order. A row's result does not depend on the other rows' content.

Bytes moved: 0.52 for each weight, 2 T (in + out), and 8 T out for each part. 64 rows of Llama-3-8B on an H200
(4.3 TB/s, 132 SMs): qkv 192 programs in 2 parts, 13.6 MB + 1.3 + 3.1, 4.2 us; o 256 in 4, 8.7 MB + 1.0 + 8.4,
4.2 us; gate_up 448 in 1, 61 MB + 4.2, 15.2 us; down 256 in 4, 30.5 MB + 2.4 + 8.4, 9.6 us (parts stay in L2).
Measured there: 30, 18, 101 and 48 us; what limits it are instructions, and the rows that each program reads.

Beyond 64 rows a product is bound by arithmetic: W is dequantised into a buffer (2.52 bytes a weight: 34 us
for down), which cuBLAS multiplies with.
"""

import torch
from torch import Tensor

from tangram_engine.kernels import small_linear
from tangram_engine.kernels.small_linear import from_level
from tangram_engine.kernels.tiles import hardware, tile
from tangram_engine.kernels.triton_runtime import TENSOR_CORES, CompileCase, launch, tl, triton
from tangram_engine.quantize import Int4Weight

ROWS = 64  # at most
TOLERANCE = small_linear.TOLERANCE
PARTS = (1, 2, 4)
BLOCK_T = (32, 64)  # with 16, registers spill on sm_100


# Not compiled apart: 16 and 17 rows, 16 and 17 groups.
@triton.jit(do_not_specialize=["T", "GROUPS", "PER_PART"])
def _int4_gemm(
    x, weight, scales, zeros, bias, out, T, N, K, GROUPS, PER_PART,
    EVEN: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(1)
    t = tl.arange(0, BLOCK_T)
    row, output = t[None, :] < T, n[:, None] < N
    k, kx = tl.arange(0, 64)[None, :], tl.arange(0, 64)[:, None]
    dtype = x.dtype.element_ty
    w_at = weight + n[:, None].to(tl.int64) * (K // 2) + k
    x_at = x + t[None, :] * K + kx
    total = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for group in tl.range(part * PER_PART, tl.minimum((part + 1) * PER_PART, GROUPS), num_stages=STAGES):
        if EVEN:
            w = tl.load(w_at + group * 64)
            low = tl.load(x_at + group * 128, mask=row, other=0.0)
            high = tl.load(x_at + (group * 128 + 64), mask=row, other=0.0)
        else:
            half = tl.minimum(K - group * 128, 128) // 2
            w = tl.load(w_at + group * 64, mask=output & (k < half), other=0)
            low = tl.load(x_at + group * 128, mask=row & (kx < half), other=0.0)
            high = tl.load(x_at + (group * 128 + half), mask=row & (kx < half), other=0.0)
        scale = tl.load(scales + n * GROUPS + group, mask=n < N, other=0.0).to(tl.float32)
        zero = tl.load(zeros + n // 2 * GROUPS + group, mask=n < N, other=0)
        offset = ((zero >> (n % 2 * 4)) & 15).to(tl.float32) + 128.0
        product = tl.dot(from_level(w & 15, dtype), low, input_precision="ieee")
        product = tl.dot(from_level(w >> 4, dtype), high, product, input_precision="ieee")
        sums = tl.sum(low.to(tl.float32) + high.to(tl.float32), axis=0)
        total += (product - offset[:, None] * sums[None, :]) * scale[:, None]
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = out + part * T * N + t[None, :] * N + n[:, None]
    if ADD:
        total += tl.load(at, mask=row & output, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=row & output)


@triton.jit
def _add_parts(
    parts, bias, out, SIZE, N,
    PARTS: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    total = tl.load(parts + at, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * SIZE + at, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + at % N, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        total += tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["GROUPS"])
def _dequantize(weight, scales, zeros, out, N, K, GROUPS, BLOCK_N: tl.constexpr):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(1)
    half = tl.minimum(K - group * 128, 128) // 2
    k = tl.arange(0, 64)[None, :]
    inside = (n[:, None] < N) & (k < half)
    w = tl.load(weight + n[:, None].to(tl.int64) * (K // 2) + (group * 64 + k), mask=inside, other=0)
    scale = tl.load(scales + n * GROUPS + group, mask=n < N, other=0.0).to(tl.float32)[:, None]
    zero = tl.load(zeros + n // 2 * GROUPS + group, mask=n < N, other=0)
    offset = (((zero >> (n % 2 * 4)) & 15).to(tl.float32) + 128.0)[:, None]
    at = out + n[:, None].to(tl.int64) * K + (group * 128 + k)
    low, high = from_level(w & 15, tl.float32) - offset, from_level(w >> 4, tl.float32) - offset
    tl.store(at, (low * scale).to(out.dtype.element_ty), mask=inside)
    tl.store(at + half, (high * scale).to(out.dtype.element_ty), mask=inside)


def int4_gemm(x: Tensor, weight: Int4Weight, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
    """Contiguous x [T <= 64, in], bias [out] -> [T, out] in x's dtype, added to a residual in place."""
    rows, columns = x.shape
    outputs, groups = weight.scales.shape
    sizes = dict(tile("int4_gemm", x.device))
    blocks = -(-outputs // sizes["BLOCK_N"])
    parts = parts_of(blocks, groups, hardware(x.device)[1])
    out = x.new_empty(rows, outputs) if residual is None else residual
    target = out if parts == 1 else x.new_empty(parts, rows, outputs, dtype=torch.float32)
    launch(
        _int4_gemm, (blocks, parts),
        x, weight.packed, weight.scales, weight.zeros, bias if parts == 1 else None, target,
        rows, outputs, columns, groups, -(-groups // parts),
        EVEN=outputs % sizes["BLOCK_N"] == 0 and columns % 128 == 0,
        BIAS=bias is not None and parts == 1, ADD=residual is not None and parts == 1,
        BLOCK_T=BLOCK_T[0] if rows <= BLOCK_T[0] else BLOCK_T[1],
        STAGES=sizes.pop("num_stages"), **sizes,
    )  # fmt: skip
    if parts > 1:
        launch(
            _add_parts, (-(-out.numel() // 1024),), target, bias, out, out.numel(), outputs,
            PARTS=parts, BIAS=bias is not None, ADD=residual is not None, BLOCK=1024, num_warps=4,
        )  # fmt: skip
    return out


def reference(x: Tensor, weight: Int4Weight, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
    """The same in plain torch, on any device."""
    return small_linear.reference(x, weight, bias, residual=residual)


def dequantize(weight: Int4Weight, out: Tensor) -> Tensor:
    """The weights that the format stands for, written into `out` [out, in] and returned."""
    outputs, columns = weight.shape
    grid = -(-outputs // 32), weight.scales.shape[1]
    launch(
        _dequantize, grid, weight.packed, weight.scales, weight.zeros, out, outputs, columns, grid[1],
        BLOCK_N=32, num_warps=4,
    )  # fmt: skip
    return out


def parts_of(blocks: int, groups: int, multiprocessors: int) -> int:
    """How many programs share the inputs: the fewest with which each SM has one, four at most."""
    return (
        next((parts for parts in PARTS if blocks * parts >= multiprocessors), PARTS[-1]) if groups > 8 else 1
    )


_PACKED = {"weight": "*u8:16", "scales": "*fp16:16", "zeros": "*u8:16"}
_SIZES = {"T": "i32", "N": "i32:16", "K": "i32:16", "GROUPS": "i32"}
CASES = (
    *(
        CompileCase(
            f"{rows} rows, {'all inputs' if whole else 'a part'}",
            _int4_gemm,
            _PACKED | _SIZES | {"x": "*bf16:16", "bias": "*bf16:16"}
            | {"out": "*bf16:16" if whole else "*fp32:16", "PER_PART": "i32"},
            {"EVEN": True, "BIAS": whole, "ADD": whole, "BLOCK_T": rows, "BLOCK_N": 64, "STAGES": 4},
            emits=("cp.async.cg",),
            emits_on=TENSOR_CORES,
        )
        for rows, whole in zip(BLOCK_T, (True, False), strict=True)
    ),
    CompileCase(
        "sum of parts",
        _add_parts,
        {"parts": "*fp32:16", "out": "*bf16:16", "SIZE": "i32:16", "N": "i32:16"},
        {"PARTS": 4, "BIAS": False, "ADD": True, "BLOCK": 1024, "bias": None},
        architectures=(80, 90, 100),
    ),
    CompileCase(
        "dequantize",
        _dequantize,
        _PACKED | {"out": "*bf16:16", "N": "i32:16", "K": "i32:16", "GROUPS": "i32"},
        {"BLOCK_N": 32},
        architectures=(80, 90, 100),
    ),
)  # fmt: skip
