"""Which implementation computes each fused operation of a step: a Triton kernel, or plain torch.

The decoder and the sampler call an entry of the table and do not know which one it is. The reference
table serves the CPU, the tests and every device that the kernels do not support.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tangram_engine.kernels import add_norm, language, silu_mul

logger = logging.getLogger(__name__)


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


def reference_ops() -> Ops:
    """Every operation in plain torch."""
    return Ops(add_norm=add_norm.reference, silu_mul=silu_mul.reference)


def kernel_ops() -> Ops:
    """Every operation by its Triton kernel."""
    return Ops(add_norm=add_norm.add_norm, silu_mul=silu_mul.silu_mul)


def why_not_kernels(device: torch.device) -> str | None:
    """Why plain torch computes on this device, or None where the kernels do."""
    if device.type != "cuda":
        return f"the device is a {device.type}"
    if not language.INSTALLED:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor < min(language.ARCHITECTURES):
        return f"compute capability {major}.{minor} is below 8.0"
    return None


def use_kernels(device: torch.device) -> bool:
    """Whether the kernels compute on this device; where a GPU has none, the log has the reason."""
    reason = why_not_kernels(device)
    if reason is not None and device.type == "cuda":
        logger.warning("no Triton kernels, plain torch computes, several times slower: %s", reason)
    return reason is None
