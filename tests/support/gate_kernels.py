"""Kernels and cases that the tests give to the compile gate: two that pass, one for each way to fail."""

from dataclasses import replace

from tangram_engine.kernels.triton_runtime import TENSOR_CORES, CompileCase, tl, triton


@triton.jit
def _sum(x, y, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, N, BLOCK, num_stages=STAGES):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < N, other=0).to(tl.float32)
    tl.store(y, tl.sum(total))


@triton.jit
def _matmul(x, y, z, K, BLOCK: tl.constexpr):
    row, col = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, K, 64):
        inner = start + tl.arange(0, 64)
        left = tl.load(x + row * K + inner[None, :])
        right = tl.load(y + inner[:, None] * BLOCK + col)
        total = tl.dot(left, right, total)
    tl.store(z + row * BLOCK + col, total)


@triton.jit
def _unknown_name(x, BLOCK: tl.constexpr):
    tl.store(x, no_such_name)  # noqa: F821


_SUM = CompileCase(
    name="pipelined sum",
    kernel=_sum,
    signature={"x": "*bf16:16", "y": "*fp32:16", "N": "i32:16"},
    constexprs={"BLOCK": 1024, "STAGES": 3},
    emits=("cp.async",),
    avoids=("mma.sync",),
)
_MATMUL = CompileCase(
    name="matmul",
    kernel=_matmul,
    signature={"x": "*bf16:16", "y": "*bf16:16", "z": "*fp32:16", "K": "i32:16"},
    constexprs={"BLOCK": 64},
    num_stages=3,
    emits_on=TENSOR_CORES,
)
CASES = [
    _SUM,
    _MATMUL,
    replace(_SUM, name="in machine code", emits=("LDGSTS",), avoids=("HGMMA",), architectures=(90,)),
    replace(_SUM, name="not pipelined", constexprs={"BLOCK": 1024, "STAGES": 1}, architectures=(90,)),
    replace(_MATMUL, name="unwanted", emits_on={}, avoids=("wgmma",), architectures=(90,)),
    replace(_MATMUL, name="too much shared", num_stages=9, architectures=(86,)),
    replace(_MATMUL, name="more shared than stated", shared_bytes=1000, architectures=(90,)),
    replace(_MATMUL, name="spills", constexprs={"BLOCK": 128}, num_warps=1, architectures=(80,)),
    CompileCase("no kernel", _unknown_name, {"x": "*fp32:16"}, {"BLOCK": 1}, architectures=(90,)),
]
