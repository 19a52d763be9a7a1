"""Which implementation computes each fused operation of a step: a Triton kernel, or plain torch.

The decoder and the sampler call an entry of the table and do not know which one it is. The reference
table serves the CPU, the tests and every device that the kernels do not support.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tangram_engine.kernels import (
    decode_attention,
    rms_norm,
    sample,
    silu_mul,
    small_linear,
    store_kv,
)
from tangram_engine.kernels import (
    triton_runtime as language,
)
from tangram_engine.kernels.small_linear import StoredWeight
from tangram_engine.kernels.store_kv import HeadRotation, Pages
from tangram_engine.sample.sampler import TokenSampler

logger = logging.getLogger(__name__)


# Types alone: the kernel file of the same name documents arguments and result.
RmsNormed = Callable[[Tensor, Tensor, float], Tensor]
SiluMul = Callable[[Tensor], Tensor]
SmallLinear = Callable[[Tensor, StoredWeight, Tensor | None, bool, Tensor | None], Tensor]
StoreKV = Callable[[Tensor, HeadRotation, Pages], Tensor]
DecodeAttention = Callable[[Tensor, HeadRotation, Pages, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Ops:
    """The fused operations of a step."""

    rms_norm: RmsNormed
    silu_mul: SiluMul
    small_linear: SmallLinear | None  # None: a library multiplies any number of rows
    store_kv: StoreKV
    decode_attention: DecodeAttention
    sample: TokenSampler


def reference_ops() -> Ops:
    """Every operation in plain torch."""
    return Ops(
        rms_norm=rms_norm.reference,
        silu_mul=silu_mul.reference,
        small_linear=None,
        store_kv=store_kv.reference,
        decode_attention=decode_attention.reference,
        sample=sample.reference,
    )


def kernel_ops() -> Ops:
    """Every operation by its Triton kernel."""
    return Ops(
        rms_norm=rms_norm.rms_norm,
        silu_mul=silu_mul.silu_mul,
        small_linear=small_linear.small_linear,
        store_kv=store_kv.store_kv,
        decode_attention=decode_attention.decode_attention,
        sample=sample.sample,
    )


def why_not_kernels(device: torch.device) -> str | None:
    """Why plain torch computes on this device, or None where the kernels do."""
    if device.type != "cuda":
        return f"the device is a {device.type}"
    if not language.INSTALLED:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor < min(language.ARCHITECTURES):
        return f"compute capability {major}.{minor} is below 8.0"
    return language.launcher_error()


def use_kernels(device: torch.device) -> bool:
    """Whether the kernels compute on this device; where a GPU has none, the log has the reason."""
    reason = why_not_kernels(device)
    if reason is not None and device.type == "cuda":
        logger.warning("no Triton kernels, plain torch computes, several times slower: %s", reason)
    return reason is None
