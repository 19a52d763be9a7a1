"""y = x W^T + b for up to 8 rows: each weight is read once, as it is stored, and multiplied with all rows.

So few rows cost the time in which the weights are read. One program computes all rows of 16 outputs. Its four
warps take turns along the inputs, each with tensor cores of its own, and add up in a fixed order: no atomics
and no second launch. x is padded to 16 rows, whatever T is: a row's result depends neither on the other rows
nor on how many there are. Tiles come through shared memory while earlier ones are multiplied (cp.async).

`tl.dot` rather than multiply and add, by instructions per weight (an SM issues 128 a cycle; the wire of an
H200 brings it 9 weights a cycle in bf16, 19 in fp8, 37 in int4): products cost T of them without `tl.dot` and
less than 0.1 with it; what is left is the conversion of fp8 (2; 8 before sm_89) and of int4 (2). The mma.sync
form also on Hopper and Blackwell: wgmma and tcgen05 take 64 outputs a program, too few programs for this.

Bytes moved: those of W (2, 1 or 0.52 for each weight) + 2 T (in + out). Llama-3-8B, microseconds at the 4.3
TB/s of an H200, programs on its 132 SMs:

    qkv      6144 x  4096    384 programs    50 MB   bf16  11.7   fp8  5.9   int4  3.0
    o        4096 x  4096    256 programs    34 MB          7.8        3.9         2.0
    gate_up 28672 x  4096   1792 programs   235 MB         54.6       27.3        14.2
    down     4096 x 14336    256 programs   117 MB         27.3       13.7         7.1
    head   128256 x  4096   8016 programs  1051 MB        244.4       (stays in bf16)
"""

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels.language import CompileCase, launch, tl, triton
from tangram_engine.kernels.tiles import hardware, tile
from tangram_engine.quantize import Fp8Weight, Int4Weight

ROWS = 8  # at most
BLOCK_T = 16  # the least that `tl.dot` takes
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


@triton.jit(do_not_specialize=["T"])  # or 1 and 16 rows would be compiled apart
def _plain_or_fp8(
    x, weight, scales, bias, out, T, N, K,
    FP8: tl.constexpr, CONVERT: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WARPS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
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
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    at = out + t[None, :] * N + n[:, None]
    tl.store(at, y.to(out.dtype.element_ty), mask=inside[:, None] & (t[None, :] < T))


@triton.jit(do_not_specialize=["T"])  # or 1 and 16 rows would be compiled apart
def _int4(
    x, weight, scales, zeros, bias, out, T, N, K, GROUPS,
    EVEN: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Each warp takes a group of 128 inputs at a time: 64 bytes, in each an input of either half.

    sum (q - z) s x = s (sum (128 + q) x - (128 + z) sum x): scale and zero apply to sums, not to weights.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.arange(0, BLOCK_T)
    inside = n < N
    row, output = t[None, None, :] < T, inside[None, :, None]
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
        dtype = x.dtype.element_ty
        part = tl.dot(from_level(w & 15, dtype), low, input_precision="ieee")
        part = tl.dot(from_level(w >> 4, dtype), high, part, input_precision="ieee")
        sums = tl.sum(low.to(tl.float32) + high.to(tl.float32), axis=1, keep_dims=True)
        offset = ((zero >> shift) & 15).to(tl.float32) + 128.0
        total += (part - offset * sums) * scale.to(tl.float32)
    y = tl.sum(total, axis=0)
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    at = out + t[None, :] * N + n[:, None]
    tl.store(at, y.to(out.dtype.element_ty), mask=inside[:, None] & (t[None, :] < T))


def small_linear(x: Tensor, weight: StoredWeight, bias: Tensor | None) -> Tensor:
    """Contiguous x [T <= 8, in], weight [out, in], bias [out] -> [T, out] in x's dtype."""
    rows, columns = x.shape
    outputs = weight.shape[0]
    out = x.new_empty(rows, outputs)
    if isinstance(weight, Int4Weight):
        sizes = dict(tile("small_linear int4", x.device))
        groups = weight.scales.shape[1]
        even = outputs % sizes["BLOCK_N"] == 0 and columns % (128 * sizes["num_warps"]) == 0
        launch(
            _int4, (-(-outputs // sizes["BLOCK_N"]),),
            x, weight.packed, weight.scales, weight.zeros, bias, out, rows, outputs, columns, groups,
            EVEN=even, BIAS=bias is not None, BLOCK_T=BLOCK_T,
            WARPS=sizes["num_warps"], STAGES=sizes.pop("num_stages"), **sizes,
        )  # fmt: skip
        return out
    fp8 = not isinstance(weight, Tensor)
    sizes = dict(tile("small_linear fp8" if fp8 else "small_linear", x.device))
    stored, scales = weight, None
    if isinstance(weight, Fp8Weight):
        stored, scales = weight.values.view(torch.uint8), weight.scales
    even = outputs % sizes["BLOCK_N"] == 0 and columns % (sizes["BLOCK_K"] * sizes["num_warps"]) == 0
    launch(
        _plain_or_fp8, (-(-outputs // sizes["BLOCK_N"]),),
        x, stored, scales, bias, out, rows, outputs, columns,
        FP8=fp8, CONVERT=hardware(x.device)[0] >= CONVERTS_FP8, EVEN=even, BIAS=bias is not None,
        BLOCK_T=BLOCK_T, WARPS=sizes["num_warps"], STAGES=sizes.pop("num_stages"), **sizes,
    )  # fmt: skip
    return out


def reference(x: Tensor, weight: StoredWeight, bias: Tensor | None) -> Tensor:
    """The same in plain torch, on any device."""
    whole = weight if isinstance(weight, Tensor) else weight.dequantized(x.dtype)
    return functional.linear(x, whole, bias)


_SIZES = {"T": "i32", "N": "i32:16", "K": "i32:16"}
_POINTERS = {"x": "*bf16:16", "bias": "*bf16:16", "out": "*bf16:16"}
_PIPELINED = ("cp.async.cg", "mma.sync")
CASES = (
    CompileCase(
        "bf16",
        _plain_or_fp8,
        _POINTERS | _SIZES | {"weight": "*bf16:16"},
        {"scales": None, "FP8": False, "CONVERT": False, "EVEN": True, "BIAS": True, "BLOCK_T": 16}
        | {"BLOCK_N": 16, "BLOCK_K": 64, "WARPS": 4, "STAGES": 4},
        emits=_PIPELINED,
    ),
    *(
        CompileCase(
            f"fp8, converted {'by an instruction' if convert else 'by shifts'}",
            _plain_or_fp8,
            _POINTERS | _SIZES | {"weight": "*u8:16", "scales": "*fp32:16"},
            {"FP8": True, "CONVERT": convert, "EVEN": True, "BIAS": True, "BLOCK_T": 16}
            | {"BLOCK_N": 16, "BLOCK_K": 128, "WARPS": 4, "STAGES": 4},
            architectures=(89, 90, 100, 103, 120) if convert else (80, 86),
            emits=_PIPELINED,
        )
        for convert in (False, True)
    ),
    CompileCase(
        "int4",
        _int4,
        _POINTERS | _SIZES
        | {"weight": "*u8:16", "scales": "*fp16:16", "zeros": "*u8:16", "GROUPS": "i32:16"},
        {"EVEN": True, "BIAS": True, "BLOCK_T": 16, "BLOCK_N": 16, "WARPS": 4, "STAGES": 4},
        emits=_PIPELINED,
    ),
)  # fmt: skip
