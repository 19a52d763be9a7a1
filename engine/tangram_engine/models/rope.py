"""Rotary position embeddings: pairs (i, i + D/2) of a head turn by an angle that grows with the position."""

import math

import torch
from torch import Tensor

from tangram_engine.checkpoint import DecoderSpec, RopeScaling


def inverse_frequencies(spec: DecoderSpec) -> Tensor:
    """Radians per position of the D/2 pairs, scaled as the checkpoint says. [D/2], float32."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / spec.rope_theta**exponents
    scaling = spec.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow pairs turn `factor` times slower, fast ones as before, a ramp in between.

    Source: `apply_scaling` in llama-models, models/llama3/model.py.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = ramp.clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling.factor)


def cos_sin(spec: DecoderSpec, positions: int, device: torch.device) -> Tensor:
    """Cosines beside sines of the D/2 pairs at all positions. [positions, D], float32."""
    angles = torch.arange(positions).float()[:, None] * inverse_frequencies(spec)
    return torch.cat((angles.cos(), angles.sin()), -1).to(device)


class Rope:
    """Cosines and sines of all positions, computed once in float32.

    The rotation of (a, b) is (a cos - b sin, b cos + a sin). With the sign in the table and the two
    halves of a head swapped by `roll`, that is x * cos + roll(x) * sin: three operations.
    """

    def __init__(self, spec: DecoderSpec, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        cos, sin = cos_sin(spec, positions, torch.device("cpu")).chunk(2, -1)
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)))
        self._table = table[:, :, None].to(device, dtype)  # [2, P, 1, D]

    @property
    def positions(self) -> int:
        """Length of the table."""
        return self._table.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the table lies."""
        return self._table.device

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for `rotate`. Each [T, 1, D]."""
        cos, sin = self._table.index_select(1, positions)
        return cos, sin


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn all heads of all tokens. [T, heads, D]."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
