"""The footprint and cache of a measured deployment: it ran, so formats that do not fit are replaced."""

from contextlib import suppress
from dataclasses import replace

from tangram.capacity.hardware import Hardware
from tangram.capacity.memory.budget import memory_budget
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.memory.footprint import Footprint, footprint
from tangram.capacity.steps.calibration import kv_precision
from tangram.catalog import Architecture, InputError
from tangram.catalog.models.precision import precision

# What engines do where a format cannot be had: weights in 8 bits are unpacked to 16 on a GPU that does not
# multiply them, and checkpoints that would be cut within a block are padded when they are made.
_INSTEAD = {
    "int4": ("int4_channel",),
    "int4_gptq": ("int4_gptq_channel",),
    "int8_gptq": ("int8_gptq_channel",),
    "fp8": ("int8_gptq_channel",),
    "fp8_block": ("fp8", "int8_gptq_channel"),
    "nvfp4": ("int4_channel",),
    "mxfp4": ("int4_channel",),
}
UTILISATIONS = (0.9, 0.98)  # of memory: the default, and a higher one where that is too little


def served(architecture: Architecture, weights: str, engine: str, ranks: int, on: Hardware) -> Footprint:
    """Return the footprint of what ran. Raises `InputError` where no engine could have run it."""
    form = precision(weights).name
    try:
        return footprint(architecture, form, kv_precision(engine, form), ranks, on)
    except InputError:
        for name in _INSTEAD.get(form, ()):
            with suppress(InputError):
                return footprint(architecture, name, kv_precision(engine, name), ranks, on)
        raise


def kv_tokens(foot: Footprint, on: Hardware, limits: EngineSettings) -> int:
    """Return how many tokens the KV cache held: at least those of one request, since requests were served."""
    for share in UTILISATIONS:
        tokens = memory_budget(foot, on, replace(limits, utilisation=share)).kv_tokens
        if tokens >= limits.max_model_len:
            return tokens
    return limits.max_model_len
