"""A projection, with its weight in the order in which the device multiplies fastest."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels import small_linear
from tangram_engine.kernels.ops import why_not_kernels

_reorder: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_multiply: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
PACKED_FOR_ROWS = 64  # measured: a weight blocked for 64 rows is also the fastest for 1 to 256


class Linear:
    """y = x W^T + b.

    A few rows times a large float32 matrix is what decoding on a CPU consists of, and there an ordinary
    product first copies the matrix into blocks, in every step. oneDNN can do that once, at load, which
    makes 1 to 16 rows about twice as fast (AMD EPYC, one thread). These are the operators that
    torch.compile uses for frozen weights; without them the plain product does the same.

    On a GPU with kernels, up to 8 rows take one that reads the weight at the speed of memory.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._packed = can_pack(weight)
        self._small = has_kernels(weight.dtype, weight.device)
        self._weight: Tensor = _reorder(weight, PACKED_FOR_ROWS) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        if self._packed:
            product: Tensor = _multiply(x, self._weight, self._bias, "none", [], "")
            return product
        if self._small and 0 < x.shape[0] <= small_linear.ROWS:
            return small_linear.small_linear(x.contiguous(), self._weight, self._bias)
        return functional.linear(x, self._weight, self._bias)


def has_kernels(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether kernels multiply in this dtype here: in 16 bits, which tensor cores have."""
    return dtype.itemsize == 2 and why_not_kernels(device) is None


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN has a blocked order for this weight."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _reorder is not None
        and _multiply is not None
    )
