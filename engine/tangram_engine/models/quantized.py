"""Choose the kernel that multiplies a weight in 8 or 4 bits, by the number of rows."""

import logging

import torch
from torch import Tensor

from tangram_engine.checkpoint import DecoderSpec
from tangram_engine.kernels import fp8_rows, int4_gemm
from tangram_engine.kernels.ops import Ops
from tangram_engine.kernels.rms_norm import RmsNorm
from tangram_engine.models.linear import FusedLinear, Linear, multiply
from tangram_engine.models.weights import MakeProjection, Projection, ReadMatrix
from tangram_engine.quantize import Fp8Weight, Int4Weight, QuantizedWeight, quantizable, quantize, to_fp8

logger = logging.getLogger(__name__)

EACH_WAY = (9, 33, 65)  # numbers of rows that take different kernels; fewer are recorded in each size


class QuantizedLinear(FusedLinear):
    """A weight in fp8 or int4, on a GPU.

    Up to 8 rows (64 with int4) a kernel reads the weights as they are stored. More rows, fp8: activations
    in fp8 too, with a scale for each row, where the device has that product. Else the weights are
    dequantised into `buffer`, which all matrices share, and multiplied as ever.
    """

    _weight: QuantizedWeight

    def __init__(
        self, weight: QuantizedWeight, bias: Tensor | None, buffer: Tensor, ops: Ops, *, scaled: bool
    ) -> None:
        super().__init__(weight, bias, buffer.dtype, ops)
        self._buffer = buffer
        self._kernels = self._small is not None
        self._scaled = scaled and all(size % 16 == 0 for size in weight.shape)

    def product(self, x: Tensor, norm: RmsNorm | None, residual: Tensor | None) -> Tensor:
        """See `FusedLinear.product`."""
        weight = self._weight
        if self._scaled and isinstance(weight, Fp8Weight):
            to_fp8 = fp8_rows.fp8_rows if self._kernels else fp8_rows.reference
            y = scaled_product(*to_fp8(x, norm), weight, self._bias, x.dtype)
            return y if residual is None else residual.add_(y)
        x = self.normed(x, norm)
        if self._kernels and isinstance(weight, Int4Weight) and 0 < x.shape[0] <= int4_gemm.ROWS:
            return int4_gemm.int4_gemm(x.contiguous(), weight, self._bias, residual)
        return multiply(x, self._dequantized(weight), self._bias, residual)

    def _dequantized(self, weight: QuantizedWeight) -> Tensor:
        outputs, columns = weight.shape
        out = self._buffer[: outputs * columns].view(outputs, columns)
        if self._kernels and isinstance(weight, Int4Weight):
            return int4_gemm.dequantize(weight, out)
        return weight.dequantized(out.dtype, out)


def scaled_product(
    rows: Tensor, scales: Tensor, weight: Fp8Weight, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Rows in fp8 [T, in] with scales [T, 1] times the weight. [T, out]. A row depends on no other."""
    product: Tensor = torch._scaled_mm(  # noqa: SLF001  (torch's only scaled product in all versions we run on)
        rows,
        weight.values.t(),
        scale_a=scales,
        scale_b=weight.scales[None],
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=True,
    )
    return product


def compute_each_way(projection: Projection, x: Tensor) -> None:
    """Use each kernel of a projection once, on the first rows of x: none is compiled while requests wait."""
    for rows in EACH_WAY:
        projection(x[:rows], residual=projection(x[:rows]))


def has_scaled_product(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether fp8 rows times fp8 weights, with a scale for each row and channel, run here: by trying it."""
    if device.type != "cuda":
        return False
    try:
        ones = torch.ones(16, 32, dtype=dtype, device=device)
        scaled_product(*fp8_rows.reference(ones), to_fp8(ones), ones[0, :16], dtype).sum().item()
    except (RuntimeError, AttributeError, ValueError) as reason:
        logger.info("fp8 weights are dequantised for more than a few rows: %s", reason)
        return False
    return True


def quantized_on_load(
    spec: DecoderSpec, form: str, dtype: torch.dtype, device: torch.device
) -> MakeProjection:
    """Projections in that format, one after the other: no two full-precision ones are alive at a time.

    A CPU multiplies with what the format stands for, in `dtype`: the answers of the format at the speed and
    size of the full model. A matrix that does not have the format stays as it is stored.
    """
    if device.type == "cpu":
        return lambda read, ops: _dequantized(form, dtype, ops, *read())
    buffer = torch.empty(largest_projection(spec), dtype=dtype, device=device)
    scaled = form == "fp8" and has_scaled_product(dtype, device)

    def make(read: ReadMatrix, ops: Ops) -> Projection:
        weight, bias = read()
        if not _has_format(form, weight):
            return Linear(weight, bias, ops)
        linear = QuantizedLinear(quantize(weight, form), bias, buffer, ops, scaled=scaled)
        compute_each_way(linear, weight.new_zeros(EACH_WAY[-1], weight.shape[1]))
        return linear

    return make


def largest_projection(spec: DecoderSpec) -> int:
    """Weights of the largest matrix of a layer: what a buffer for one dequantised matrix must hold."""
    heads, inner = spec.heads * spec.head_dim, spec.intermediate_size
    return spec.hidden_size * max(heads + 2 * spec.kv_heads * spec.head_dim, 2 * inner)


def _dequantized(form: str, dtype: torch.dtype, ops: Ops, weight: Tensor, bias: Tensor | None) -> Projection:
    if _has_format(form, weight):
        weight = quantize(weight, form).dequantized(dtype)
    return Linear(weight, bias, ops)


def _has_format(form: str, weight: Tensor) -> bool:
    fits = quantizable(form, weight.shape[1])
    if not fits:
        logger.info("a matrix of %d x %d has no %s: it stays as it is stored", *weight.shape, form)
    return fits
