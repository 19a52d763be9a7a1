"""What a model takes up and how fast it runs: memory, steps, latency under load, sizing, diagnosis. Pure."""

from tangram.capacity.memory.budget import model_length

__all__ = ["model_length"]
