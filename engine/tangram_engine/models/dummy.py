"""Random weights for benchmarks: the shapes of a config.json, the values of no model."""

import math

import torch
from torch import Tensor

from tangram_engine.checkpoint import DecoderSpec, expected_shapes
from tangram_engine.models.weights import TensorSource

# As real weights are initialised: activations stay finite, and the GPU draws the power of real work.
STD = 0.02


def dummy_source(spec: DecoderSpec, dtype: torch.dtype, device: torch.device, seed: int) -> TensorSource:
    """Norms are 1, biases 0, all else is normal: the same for the same seed, on devices of one kind.

    The standard deviation is `STD`. What is added to the residual stream (the output and down projections) is
    scaled by 1 / sqrt(2 x layers), as in GPT-2 and its successors: the stream does not grow with the depth.
    """
    shapes = dict(expected_shapes(spec))
    generator = torch.Generator(device).manual_seed(seed)
    deep = STD / math.sqrt(2 * spec.layers)

    def source(name: str) -> Tensor:
        shape = shapes[name]
        if "norm." in name:
            return torch.ones(shape, dtype=dtype, device=device)
        if name.endswith(".bias"):
            return torch.zeros(shape, dtype=dtype, device=device)
        std = deep if name.endswith(("o_proj.weight", "down_proj.weight")) else STD
        return torch.empty(shape, dtype=dtype, device=device).normal_(0.0, std, generator=generator)

    return source
