"""The two formats of a weight [out, in]: what is stored, how it is made, and what it stands for.

fp8: e4m3, one float32 scale for each output channel. 1 + 4 / in bytes per weight.
int4: round to nearest in groups of 128 inputs, w = (q - zero) x scale with q and zero in 0..15. The offset
lets a group use all 16 levels wherever its range lies, for half a byte per group; without one, a group whose
values lean to one side loses up to half of them. 0.5 + 2.5 / 128 bytes per weight.

The operator counts the same bytes: its formats `fp8` and `int4` in tangram/catalog/models/precision.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tangram_engine.checkpoint.errors import invalid

FORMATS = ("fp8", "int4")
GROUP = 128  # inputs that share a scale and a zero (int4)
LARGEST_FP8 = 448.0  # of e4m3 without infinities
LEVELS = 15  # steps between the least and the greatest value of a group
CHUNK = 1 << 22  # weights that are converted at a time: float32 copies of more are never alive


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """w[n, k] = values[n, k] x scales[n]."""

    values: Tensor  # float8_e4m3fn [out, in]
    scales: Tensor  # float32 [out]

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input features."""
        return self.values.shape[0], self.values.shape[1]

    def dequantized(self, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """The weights that the format stands for, rounded once to `dtype`, in `out` if given. [out, in]."""
        whole = torch.empty(self.shape, dtype=dtype, device=self.values.device) if out is None else out
        for rows in _chunks(*self.shape):
            whole[rows] = self.values[rows].float() * self.scales[rows, None]
        return whole


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w[n, k] = (q[n, k] - zero[n, k // 128]) x scales[n, k // 128].

    A group of c <= 128 inputs (the last one may be shorter) takes c / 2 bytes: byte i has input i in its low
    and input i + c / 2 in its high four bits, so that both halves of a tile are contiguous inputs. Zeros of
    outputs 2 n (low) and 2 n + 1 (high) share a byte.
    """

    packed: Tensor  # uint8 [out, in / 2]
    scales: Tensor  # float16 [out, groups]
    zeros: Tensor  # uint8 [(out + 1) // 2, groups]

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input features."""
        return self.packed.shape[0], 2 * self.packed.shape[1]

    def dequantized(self, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """The weights that the format stands for, rounded once to `dtype`, in `out` if given. [out, in]."""
        outputs, columns = self.shape
        whole = torch.empty(self.shape, dtype=dtype, device=self.packed.device) if out is None else out
        zeros = torch.stack((self.zeros & 15, self.zeros >> 4), 1).flatten(0, 1)[:outputs].float()
        scales = self.scales.float()
        for rows in _chunks(outputs, columns):
            for group, inputs in _spans(columns):
                bytes_ = slice(inputs.start // 2, inputs.stop // 2)
                part = _by_group(self.packed[rows, bytes_], group)
                levels = torch.cat((part & 15, part >> 4), 2).float()
                part = (levels - zeros[rows, group, None]) * scales[rows, group, None]
                whole[rows, inputs] = part.flatten(1)
        return whole


QuantizedWeight = Fp8Weight | Int4Weight


def quantizable(form: str, columns: int) -> bool:
    """Whether a matrix with that many inputs has the format: int4 stores two inputs in a byte."""
    return form == "fp8" or columns % 2 == 0


def bytes_of(form: str, outputs: int, columns: int) -> int:
    """Bytes of a matrix in that format, scales and zeros included. It must be `quantizable`."""
    if form == "fp8":
        return outputs * columns + 4 * outputs
    groups = -(-columns // GROUP)
    return outputs * columns // 2 + groups * (2 * outputs + (outputs + 1) // 2)


def quantize(weight: Tensor, form: str) -> QuantizedWeight:
    """The nearest values of that format, on the weight's device. Raises CheckpointError unless finite.

    fp8: off by at most 1/16 of the value or 2^-10 of the channel's scale; int4: by half of the group's scale.
    """
    if form == "fp8":
        return to_fp8(weight)
    if form == "int4":
        return to_int4(weight)
    raise ValueError(f"quantize {form!r} is not one of {', '.join(FORMATS)}")


def to_fp8(weight: Tensor) -> Fp8Weight:
    """As `quantize`."""
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for rows in _chunks(*weight.shape):
        part = weight[rows].float()
        scale = part.abs().amax(1) / LARGEST_FP8
        scales[rows] = torch.where(scale == 0, 1.0, scale)
        values[rows] = (part / scales[rows, None]).clamp(-LARGEST_FP8, LARGEST_FP8).to(values.dtype)
    _check_finite(scales)
    return Fp8Weight(values, scales)


def to_int4(weight: Tensor) -> Int4Weight:
    """As `quantize`."""
    outputs, columns = weight.shape
    groups, device = -(-columns // GROUP), weight.device
    packed = torch.empty(outputs, columns // 2, dtype=torch.uint8, device=device)
    scales = torch.empty(outputs, groups, dtype=torch.float16, device=device)
    zeros = torch.zeros(outputs + outputs % 2, groups, dtype=torch.uint8, device=device)
    for rows in _chunks(outputs, columns):
        for group, inputs in _spans(columns):
            part = _by_group(weight[rows, inputs].float(), group)
            low, high = part.amin(2).clamp(max=0.0), part.amax(2).clamp(min=0.0)  # 0 is always exact
            scales[rows, group] = _rounded_up((high - low) / LEVELS)
            scale = scales[rows, group].float()
            zero = (-low / scale).round()
            levels = ((part / scale[..., None]).round() + zero[..., None]).clamp(0, LEVELS).to(torch.uint8)
            first, second = levels.chunk(2, dim=2)
            packed[rows, inputs.start // 2 : inputs.stop // 2] = (first | second << 4).flatten(1)
            zeros[:outputs][rows, group] = zero.to(torch.uint8)
    _check_finite(scales)
    return Int4Weight(packed, scales, zeros[::2] | zeros[1::2] << 4)


def _rounded_up(scale: Tensor) -> Tensor:
    """float16, not below `scale` and not 0: a group's extremes stay within its 16 levels."""
    halves = scale.half()
    below = (halves.float() < scale) | (halves == 0)
    return (halves.view(torch.int16) + below.to(torch.int16)).view(torch.float16)


def _check_finite(scales: Tensor) -> None:
    if not bool(scales.isfinite().all()):
        raise invalid(
            "a weight is not finite, or too large for the format's scales: the checkpoint cannot be "
            "quantized; start without --quantize"
        )


def _spans(columns: int) -> Iterator[tuple[slice, slice]]:
    """Groups and inputs that are converted together: all whole groups, and the shorter last one."""
    whole = columns // GROUP
    if whole:
        yield slice(0, whole), slice(0, whole * GROUP)
    if columns % GROUP:
        yield slice(whole, whole + 1), slice(whole * GROUP, columns)


def _by_group(part: Tensor, group: slice) -> Tensor:
    return part.reshape(part.shape[0], group.stop - group.start, -1)


def _chunks(outputs: int, columns: int) -> Iterator[slice]:
    step = max(1, CHUNK // columns)
    return (slice(start, start + step) for start in range(0, outputs, step))
