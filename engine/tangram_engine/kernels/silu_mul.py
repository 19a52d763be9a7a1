"""The gated activation of an MLP: silu(gate) * up, from rows that hold both side by side.

One program per token and BLOCK columns. Bytes moved: 3 T I b in a dtype of b bytes. For 64 tokens of an 8B
model (I = 14336, bf16) that is 5.5 MB: 1.3 us at 4.3 TB/s; at 8,192 tokens 705 MB and 164 us.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels.tiles import tile
from tangram_engine.kernels.triton_runtime import CompileCase, launch, tl, triton

TOLERANCE = {torch.float32: (1e-5, 1e-6), torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 1e-2)}


@triton.jit
def _silu_mul(gate_up, out, COLUMNS, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    at = gate_up + token * (2 * COLUMNS) + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + COLUMNS, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out + token * COLUMNS + column, product.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of contiguous rows [T, 2 I]. [T, I]."""
    tokens, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, columns)
    sizes = tile("silu_mul", gate_up.device)
    if tokens:
        launch(_silu_mul, (tokens, -(-columns // sizes["BLOCK"])), gate_up, out, columns, **sizes)
    return out


def reference(gate_up: Tensor) -> Tensor:
    """The same in plain torch, on any device."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


CASES = (
    CompileCase(
        "silu_mul",
        _silu_mul,
        {"gate_up": "*bf16:16", "out": "*bf16:16", "COLUMNS": "i32:16"},
        {"BLOCK": 1024},
        emits=("ld.global.v4",),
    ),
)
