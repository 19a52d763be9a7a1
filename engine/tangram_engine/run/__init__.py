"""The steps themselves: memory, attention, and the engine that ties scheduler, model and sampler together."""

from tangram_engine.run.engine import LLMEngine
from tangram_engine.run.memory import OutOfMemory

__all__ = ["LLMEngine", "OutOfMemory"]
