"""y = x W^T + b for up to 8 rows, W in bf16, fp8 or int4, with the gate or residual after.

So few rows cost the time in which the weights are read: each is read once, as it is stored, and multiplied
with all rows. One program computes all rows of 16 outputs. Its four warps take turns along the inputs, each
with tensor cores of its own, and add up in a fixed order: no atomics and no second launch. x is padded to 8
rows, whatever T is: a row's result depends neither on the other rows nor on how many there are. Tiles come
through shared memory while earlier ones are multiplied (cp.async).

Gate: a program reads 8 rows of the gate and the same 8 of up. Residual: y is added to what `out` holds, each
element by one program. The norm before a product is a kernel of its own: inside the loop, its squares and its
factors cost 16 us of gate_up's 75 in bf16 and 19 of 52 in fp8 on an H200, alone it takes 1.7 us.

`tl.dot` rather than multiply and add, which takes T instructions for a weight: an SM issues 128 a cycle, and
the wire of an H200 brings it 9 weights a cycle in bf16, 19 in fp8, 37 in int4. The loop takes 1.8, 3.2 and
3.3 for a weight (SASS of sm_90). The mma.sync form also on Hopper and Blackwell: wgmma and tcgen05 take 64
outputs a program, too few programs.

Bytes moved: those of W (2, 1 or 0.52 for each weight) + 2 T (in + out). Llama-3-8B, microseconds at the 4.3
TB/s of an H200, programs on its 132 SMs:

    qkv      6144 x  4096    384 programs    50 MB   bf16  11.7   fp8  5.9   int4  3.0
    o        4096 x  4096    256 programs    34 MB          7.8        3.9         2.0
    gate_up 28672 x  4096   1792 programs   235 MB         54.6       27.3        14.2
    down     4096 x 14336    256 programs   117 MB         27.3       13.7         7.1
    head   128256 x  4096   8016 programs  1051 MB        244.4       (stays in bf16)
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels import silu_mul
from tangram_engine.kernels.tiles import hardware, tile
from tangram_engine.kernels.triton_runtime import (
    ARCHITECTURES,
    INTERPRETED,
    CompileCase,
    launch,
    tl,
    triton,
)
from tangram_engine.quantize import Fp8Weight, Int4Weight

ROWS = 8  # at most
BLOCK_T = 8  # the least that tensor cores take (mma.sync m16n8k16)
CONVERTS_FP8 = 89  # compute capability from which one instruction converts e4m3
TOLERANCE = {torch.float32: (1e-4, 1e-4), torch.float16: (4e-3, 4e-3), torch.bfloat16: (1.6e-2, 1e-2)}

StoredWeight = Tensor | Fp8Weight | Int4Weight


@triton.jit
def from_e4m3(bits, CONVERT: tl.constexpr):  # noqa: ANN201
    """uint8 -> float32. Without the instruction: shifted by 7 it is float16, but for the exponent's bias."""
    if CONVERT:
        value = bits.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        wide = bits.to(tl.uint16)
        half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return value


# Of 4 bytes, `from_level` of the low and of the high halves, and ones: two 16-bit numbers in an instruction.
_UNPACK = """{{
.reg .b32 a, b;
prmt.b32 a, $6, 0, 0x4140;
prmt.b32 b, $6, 0, 0x4342;
shl.b32 a, a, {shift};
shl.b32 b, b, {shift};
lop3.b32 $0, a, {mask:#x}, {base:#x}, 0xEA;
lop3.b32 $1, b, {mask:#x}, {base:#x}, 0xEA;
shr.b32 a, a, 4;
shr.b32 b, b, 4;
lop3.b32 $2, a, {mask:#x}, {base:#x}, 0xEA;
lop3.b32 $3, b, {mask:#x}, {base:#x}, 0xEA;
mov.b32 $4, {one:#x};
mov.b32 $5, {one:#x};
}}"""
UNPACK = {
    torch.bfloat16: _UNPACK.format(shift=0, mask=0xF000F, base=0x43004300, one=0x3F803F80),
    torch.float16: _UNPACK.format(shift=3, mask=0x780078, base=0x58005800, one=0x3C003C00),
}


@triton.jit
def unpacked(w, x, UNPACK: tl.constexpr):  # noqa: ANN201
    """Bytes -> 128 + level of their low and of their high halves, and ones, in the dtype of x."""
    if UNPACK is None:
        DTYPE: tl.constexpr = x.dtype.element_ty
        low, high = from_level(w & 15, DTYPE), from_level(w >> 4, DTYPE)
        ones = tl.full(w.shape, 1.0, DTYPE)
    else:
        dtype = x.dtype.element_ty
        low, high, ones = tl.inline_asm_elementwise(
            UNPACK, "=r,=r,=r,=r,=r,=r,r", [w], dtype=(dtype, dtype, dtype), is_pure=True, pack=4
        )
    return low, high, ones


@triton.jit
def from_level(level, DTYPE: tl.constexpr):  # noqa: ANN201
    """0..15 -> 128 + level, exactly: put into the mantissa of 128, as converting an integer is slow."""
    if DTYPE == tl.float32:  # noqa: SIM300
        value = ((level.to(tl.int32) << 16) | 0x43000000).to(tl.float32, bitcast=True)
    elif DTYPE == tl.float16:  # noqa: SIM300
        value = ((level.to(tl.int16) << 3) | 0x5800).to(tl.float16, bitcast=True)
    else:
        value = (level.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    return value


@triton.jit
def _outputs(N, BLOCK_N: tl.constexpr, GATED: tl.constexpr):
    """Rows of W that a program reads: BLOCK_N in a row, or half as many of the gate and the same of up."""
    n = tl.arange(0, BLOCK_N)
    if GATED:
        HALF: tl.constexpr = BLOCK_N // 2
        n = tl.program_id(0) * HALF + n % HALF + n // HALF * (N // 2)
    else:
        n += tl.program_id(0) * BLOCK_N
    return n


@triton.jit
def _finish(
    y, bias, out, n, t, T, N,
    BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Bias, gate and residual of the products y [BLOCK_N, BLOCK_T]."""
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    if GATED:
        HALF: tl.constexpr = BLOCK_N // 2
        gate, up = tl.split(tl.permute(tl.reshape(y, (2, HALF, BLOCK_T)), (1, 2, 0)))
        y = gate * tl.sigmoid(gate) * up
        n = tl.program_id(0) * HALF + tl.arange(0, HALF)
        N = N // 2
    at = out + t[None, :] * N + n[:, None]
    inside = (n < N)[:, None] & (t < T)[None, :]
    if ADD:
        y += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T"])  # or 1 and 8 rows would be compiled apart
def _plain_or_fp8(
    x, weight, scales, bias, out, T, N, K,
    FP8: tl.constexpr, CONVERT: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WARPS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    n = _outputs(N, BLOCK_N, GATED)
    t = tl.arange(0, BLOCK_T)
    inside = n < N
    row, output = t[None, None, :] < T, inside[None, :, None]
    warp = tl.arange(0, WARPS)[:, None, None] * BLOCK_K
    k, kx = tl.arange(0, BLOCK_K)[None, None, :], tl.arange(0, BLOCK_K)[None, :, None]
    w_at = weight + n[None, :, None].to(tl.int64) * K + (warp + k)
    x_at = x + t[None, None, :] * K + (warp + kx)
    total = tl.zeros((WARPS, BLOCK_N, BLOCK_T), tl.float32)
    for start in tl.range(0, K, WARPS * BLOCK_K, num_stages=STAGES):
        if EVEN:
            w = tl.load(w_at + start)
            columns = tl.load(x_at + start, mask=row, other=0.0)
        else:
            w = tl.load(w_at + start, mask=output & (start + warp + k < K), other=0)
            columns = tl.load(x_at + start, mask=row & (start + warp + kx < K), other=0.0)
        if FP8:
            w = from_e4m3(w, CONVERT).to(x.dtype.element_ty)
        total = tl.dot(w, columns, total, input_precision="ieee")
    y = tl.sum(total, axis=0)
    if FP8:
        y *= tl.load(scales + n, mask=inside, other=0.0)[:, None]
    _finish(y, bias, out, n, t, T, N, BIAS, GATED, ADD, BLOCK_N, BLOCK_T)


@triton.jit(do_not_specialize=["T"])  # or 1 and 8 rows would be compiled apart
def _int4(
    x, weight, scales, zeros, bias, out, T, N, K, GROUPS,
    EVEN: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    UNPACK: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Each warp takes a group of 128 inputs at a time: 64 bytes, in each an input of either half.

    sum (q - z) s x = s (sum (128 + q) x - (128 + z) sum x): scale and zero apply to sums, not to weights.
    """
    n = _outputs(N, BLOCK_N, GATED)
    t = tl.arange(0, BLOCK_T)
    row, output = t[None, None, :] < T, (n < N)[None, :, None]
    warp = tl.arange(0, WARPS)[:, None, None]
    k, kx = tl.arange(0, 64)[None, None, :], tl.arange(0, 64)[None, :, None]
    w_at = weight + n[None, :, None].to(tl.int64) * (K // 2) + (warp * 64 + k)
    x_at = x + t[None, None, :] * K + (warp * 128 + kx)
    scale_at = scales + n[None, :, None] * GROUPS + warp
    zero_at = zeros + n[None, :, None] // 2 * GROUPS + warp
    shift = (n % 2 * 4)[None, :, None]
    total = tl.zeros((WARPS, BLOCK_N, BLOCK_T), tl.float32)
    for first in tl.range(0, GROUPS, WARPS, num_stages=STAGES):
        if EVEN:
            half = 64
            w = tl.load(w_at + first * 64)
            low = tl.load(x_at + first * 128, mask=row, other=0.0)
            high = tl.load(x_at + (first * 128 + 64), mask=row, other=0.0)
            scale, zero = tl.load(scale_at + first), tl.load(zero_at + first)
        else:
            half = tl.minimum(K - (first + warp) * 128, 128) // 2  # below 1 beyond the last group
            w = tl.load(w_at + first * 64, mask=output & (k < half), other=0)
            low = tl.load(x_at + first * 128, mask=row & (kx < half), other=0.0)
            high = tl.load(x_at + (first * 128 + half), mask=row & (kx < half), other=0.0)
            scale = tl.load(scale_at + first, mask=output & (half > 0), other=0.0)
            zero = tl.load(zero_at + first, mask=output & (half > 0), other=0)
        low_levels, high_levels, ones = unpacked(w, x, UNPACK)
        part = tl.dot(low_levels, low, input_precision="ieee")
        part = tl.dot(high_levels, high, part, input_precision="ieee")
        # Each row of a product with ones is the sum: tensor cores have time for it.
        sums = tl.dot(ones, low, input_precision="ieee")
        sums = tl.dot(ones, high, sums, input_precision="ieee")
        offset = ((zero >> shift) & 15).to(tl.float32) + 128.0
        total += (part - offset * sums) * scale.to(tl.float32)
    y = tl.sum(total, axis=0)
    _finish(y, bias, out, n, t, T, N, BIAS, GATED, ADD, BLOCK_N, BLOCK_T)


def small_linear(
    x: Tensor,
    weight: StoredWeight,
    bias: Tensor | None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Contiguous x [T <= 8, in], weight [out, in], bias [out] -> [T, out] in x's dtype.

    gated: silu(first half) * second half of the outputs, [T, out / 2]. residual: of the result's shape, to
    which it is added in place.
    """
    rows, columns = x.shape
    outputs = weight.shape[0]
    out = x.new_empty(rows, outputs // 2 if gated else outputs) if residual is None else residual
    name = "small_linear" + {Fp8Weight: " fp8", Int4Weight: " int4"}.get(type(weight), "")
    sizes = dict(tile(name, x.device))
    warps, stages = sizes["num_warps"], sizes.pop("num_stages")
    grid = (-(-outputs // sizes["BLOCK_N"]),)
    shared = {
        "EVEN": outputs % sizes["BLOCK_N"] == 0 and columns % (sizes.get("BLOCK_K", 128) * warps) == 0,
        "BIAS": bias is not None, "GATED": gated, "ADD": residual is not None,
        "BLOCK_T": BLOCK_T, "WARPS": warps, "STAGES": stages,
    } | sizes  # fmt: skip
    if isinstance(weight, Int4Weight):
        launch(
            _int4, grid, x, weight.packed, weight.scales, weight.zeros, bias, out,
            rows, outputs, columns, weight.scales.shape[1],
            UNPACK=None if INTERPRETED else UNPACK.get(x.dtype), **shared,
        )  # fmt: skip
        return out
    stored, scales = weight, None
    if isinstance(weight, Fp8Weight):
        stored, scales = weight.values.view(torch.uint8), weight.scales
    launch(
        _plain_or_fp8, grid, x, stored, scales, bias, out, rows, outputs, columns,
        FP8=scales is not None, CONVERT=hardware(x.device)[0] >= CONVERTS_FP8, **shared,
    )  # fmt: skip
    return out


def reference(
    x: Tensor,
    weight: StoredWeight,
    bias: Tensor | None,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """The same in plain torch, on any device."""
    whole = weight if isinstance(weight, Tensor) else weight.dequantized(x.dtype)
    y = functional.linear(x, whole, bias)
    y = silu_mul.reference(y) if gated else y
    return y if residual is None else residual.add_(y)


_SIGNATURE = dict.fromkeys(("x", "bias", "out"), "*bf16:16") | {
    "T": "i32",
    "N": "i32:16",
    "K": "i32:16",
}
_TILE: dict[str, Any] = {"EVEN": True, "BLOCK_T": BLOCK_T, "BLOCK_N": 16, "WARPS": 4, "STAGES": 4}
_BF16 = {"FP8": False, "CONVERT": False, "BLOCK_K": 64, "scales": None}
_FP8 = {"FP8": True, "CONVERT": True, "BLOCK_K": 128}
_FP8_STORED = {"weight": "*u8:16", "scales": "*fp32:16"}
_INT4_STORED = {"weight": "*u8:16", "scales": "*fp16:16", "zeros": "*u8:16", "GROUPS": "i32:16"}
_OLD = tuple(sm for sm in ARCHITECTURES if sm < CONVERTS_FP8)
_NEW = tuple(sm for sm in ARCHITECTURES if sm >= CONVERTS_FP8)
# Which projections are computed how: GATED, ADD, BIAS.
_USES = {
    "gate_up": (True, False, False),
    "qkv, head": (False, False, False),
    "qkv with a bias": (False, False, True),
    "o, down": (False, True, False),
}
CASES = tuple(
    CompileCase(
        f"{form}, {use}",
        kernel,
        _SIGNATURE | stored,
        _TILE | constexprs | dict(zip(("GATED", "ADD", "BIAS"), options, strict=True)),
        architectures=architectures,
        emits=("cp.async.cg", "mma.sync"),
        quick="qkv" not in use,
    )
    for use, options in _USES.items()
    for form, kernel, stored, constexprs, architectures in (
        ("bf16", _plain_or_fp8, {"weight": "*bf16:16"}, _BF16, ARCHITECTURES),
        ("fp8 by shifts", _plain_or_fp8, _FP8_STORED, _FP8 | {"CONVERT": False}, _OLD),
        ("fp8", _plain_or_fp8, _FP8_STORED, _FP8, _NEW),
        ("int4", _int4, _INT4_STORED, {"UNPACK": UNPACK[torch.bfloat16]}, ARCHITECTURES),
    )
)
