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
    if scaling.kind == "yarn":
        return _yarn(frequencies, scaling, spec)
    return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow pairs turn `factor` times slower, fast ones as before, a ramp in between.

    Source: `apply_scaling` in llama-models, models/llama3/model.py.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = ramp.clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling.factor)


def _yarn(frequencies: Tensor, scaling: RopeScaling, spec: DecoderSpec) -> Tensor:
    """YaRN: pairs that turn rarely in the original context turn `factor` times slower, a ramp over the pairs.

    Source: `_compute_yarn_parameters` in transformers, modeling_rope_utils.py (https://arxiv.org/abs/2309.00071).
    """
    original, last = scaling.original_max_position_embeddings, spec.head_dim - 1

    def pair(turns: float) -> float:
        """The pair, as a fraction too, that turns so often in the original context."""
        return spec.head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.rope_theta))

    first, end = pair(scaling.high_freq_factor), pair(scaling.low_freq_factor)
    if scaling.whole_pairs:
        first, end = math.floor(first), math.ceil(end)
    first, end = max(first, 0), min(end, last)
    width = end - first or 0.001
    slow = ((torch.arange(len(frequencies)).float() - first) / width).clamp(0.0, 1.0)
    return frequencies / scaling.factor * slow + frequencies * (1.0 - slow)


def _score_amplitude(spec: DecoderSpec) -> float:
    """By what queries and keys are multiplied, so that their products are scaled as the checkpoint says.

    Attention itself multiplies scores by D ** -0.5.
    """
    return 1.0 if spec.attention_scale is None else math.sqrt(spec.attention_scale * math.sqrt(spec.head_dim))


def cos_sin(spec: DecoderSpec, positions: int, device: torch.device) -> Tensor:
    """Cosines beside sines of the D/2 pairs at all positions, scaled. [positions, D], float32."""
    angles = torch.arange(positions).float()[:, None] * inverse_frequencies(spec)
    scaling = spec.rope_scaling
    amplitude = _score_amplitude(spec) * (1.0 if scaling is None else scaling.attention_factor)
    return torch.cat((angles.cos(), angles.sin()), -1).mul_(amplitude).to(device)


def unrotated(spec: DecoderSpec, device: torch.device) -> Tensor:
    """`cos_sin` of any position in a layer that does not rotate: angles of 0. [1, D], float32."""
    half = torch.full((1, spec.head_dim // 2), _score_amplitude(spec))
    return torch.cat((half, torch.zeros_like(half)), -1).to(device)


class Rope:
    """Cosines and sines of all positions, computed once in float32.

    The rotation of (a, b) is (a cos - b sin, b cos + a sin). With the sign in the table and the two
    halves of a head swapped by `roll`, that is x * cos + roll(x) * sin: three operations.
    """

    def __init__(self, spec: DecoderSpec, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        cpu = torch.device("cpu")
        self._table = _signed(cos_sin(spec, positions, cpu)).to(device, dtype)  # [2, P, 1, D]
        self.unrotated: tuple[Tensor, Tensor] | None = None
        """What `at` gives for a layer that does not rotate, of a model that has one. Each [1, 1, D]."""
        if spec.unrotated_layers:
            cos, sin = _signed(unrotated(spec, cpu)).to(device, dtype)
            self.unrotated = cos, sin

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


def _signed(table: Tensor) -> Tensor:
    """[P, D] cosines beside sines -> [2, P, 1, D] cosines, and sines with the sign of `rotate`."""
    cos, sin = table.chunk(2, -1)
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)))[:, :, None]


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn all heads of all tokens. [T, heads, D]."""
    cos, sin = rotation
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
