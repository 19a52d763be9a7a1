"""Which implementation computes each fused operation of a step: a Triton kernel, or plain torch.

The decoder and the sampler call an entry of the table and do not know which one it is. The reference
table serves the CPU, the tests and every device that the kernels do not support.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional


class AddNorm(Protocol):
    """Add to the residual stream, then normalise it."""

    def __call__(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual [T, C] += x [T, C], in place; its RMSNorm times weight [C] is returned. [T, C]."""
        ...


class SiluMul(Protocol):
    """The gated activation of an MLP."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of rows [T, 2 I] that hold both side by side. [T, I]."""
        ...


@dataclass(frozen=True, slots=True)
class Ops:
    """The fused operations of a decoder layer."""

    add_norm: AddNorm
    silu_mul: SiluMul


def _add_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x is not None:
        residual += x
    return functional.rms_norm(residual, weight.shape, weight, eps)


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def reference_ops() -> Ops:
    """Every operation in plain torch."""
    return Ops(add_norm=_add_norm, silu_mul=_silu_mul)
