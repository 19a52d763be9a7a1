"""Projections with what the decoder computes before and after them."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tangram_engine.kernels import small_linear, triton_runtime
from tangram_engine.kernels.ops import Ops, SmallLinear
from tangram_engine.kernels.rms_norm import RmsNorm
from tangram_engine.kernels.small_linear import StoredWeight

_reorder: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_multiply: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
PACKED_FOR_ROWS = 64  # measured: a weight blocked for 64 rows is also the fastest for 1 to 256


class FusedLinear:
    """y = x W^T + b with its norm, gate or residual: for few rows, gate and residual are part of the kernel.

    Subclasses compute the product of many rows.
    """

    def __init__(self, weight: StoredWeight, bias: Tensor | None, dtype: torch.dtype, ops: Ops) -> None:
        self._weight = weight
        self._bias = bias
        self._ops = ops
        self._small = kernel_for_few_rows(dtype, ops)

    def __call__(
        self, x: Tensor, norm: RmsNorm | None = None, *, gated: bool = False, residual: Tensor | None = None
    ) -> Tensor:
        """See `tangram_engine.models.weights.Projection`."""
        if self._small is not None and 0 < x.shape[0] <= small_linear.ROWS:
            x = self.normed(x, norm).contiguous()
            return self._small(x, self._weight, self._bias, gated, residual)
        y = self.product(x, norm, residual)
        return self._ops.silu_mul(y) if gated else y

    def product(self, x: Tensor, norm: RmsNorm | None, residual: Tensor | None) -> Tensor:
        """The same for any number of rows, without the gate."""
        raise NotImplementedError

    def normed(self, x: Tensor, norm: RmsNorm | None) -> Tensor:
        """x, normalised where there is a norm. [rows, in]."""
        return x if norm is None else self._ops.rms_norm(x, *norm)


class Linear(FusedLinear):
    """A weight as it is stored.

    A few rows times a large float32 matrix is what decoding on a CPU consists of, and there an ordinary
    product first copies the matrix into blocks, in every step. oneDNN can do that once, at load, which
    makes 1 to 16 rows about twice as fast (AMD EPYC, one thread). These are the operators that
    torch.compile uses for frozen weights; without them the plain product does the same.
    """

    _weight: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None, ops: Ops) -> None:
        self._packed = can_pack(weight) and kernel_for_few_rows(weight.dtype, ops) is None
        super().__init__(
            _reorder(weight, PACKED_FOR_ROWS) if self._packed else weight, bias, weight.dtype, ops
        )

    def product(self, x: Tensor, norm: RmsNorm | None, residual: Tensor | None) -> Tensor:
        """See `FusedLinear.product`."""
        if not self._packed:
            return multiply(self.normed(x, norm), self._weight, self._bias, residual)
        y: Tensor = _multiply(self.normed(x, norm), self._weight, self._bias, "none", [], "")
        return y if residual is None else residual.add_(y)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """x [rows, in] times weight [out, in] by the library; the sum with a residual is part of its product."""
    if residual is None:
        return functional.linear(x, weight, bias)
    product = residual.addmm_(x, weight.t())
    return product if bias is None else product.add_(bias)


def kernel_for_few_rows(dtype: torch.dtype, ops: Ops) -> SmallLinear | None:
    """The kernel of `ops` for 16 bits, which tensor cores multiply; the interpreter takes any `dtype`."""
    return ops.small_linear if dtype.itemsize == 2 or triton_runtime.INTERPRETED else None


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN has a blocked order for this weight."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and _reorder is not None
        and _multiply is not None
    )
