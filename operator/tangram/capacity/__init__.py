"""What a shape can carry. First version: does the model fit, and how fast can it be at best."""

from tangram.capacity.memory import MemoryFit, memory_fit, model_length
from tangram.capacity.step import tpot_bound_ms

__all__ = ["MemoryFit", "memory_fit", "model_length", "tpot_bound_ms"]
