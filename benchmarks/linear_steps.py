"""Step times a person can check by hand."""

from dataclasses import dataclass

from tangram.capacity.memory.footprint import Footprint
from tangram.capacity.steps.step_model import StepTime


@dataclass(frozen=True)
class LinearSteps:
    """A fixed time per step, and one per decoding request, context token and prompt token. Seconds."""

    step: float = 1.0
    sequence: float = 0.0
    context: float = 0.0  # per decoding request and token of context
    prompt: float = 0.0  # per prompt token
    windows: tuple[int, ...] = ()

    @property
    def footprint(self) -> Footprint:
        """A model of which only the attention windows are looked at."""
        kv = tuple((1, window) for window in (*self.windows, None))
        return Footprint(1, len(kv), 1, 1, 1, 1, 0, 0, 0, kv, 1.0, 1.0, ((1.0, None),), "bf16", 2)

    def step_s(
        self, decode: float, context: float, prefill_tokens: float = 0, prefill_context: float = 0
    ) -> StepTime:
        """Return a step whose time is all launches."""
        read = sum(min(context, window) for window in self.windows) + context
        seconds = self.step + decode * (self.sequence + self.context * read) + self.prompt * prefill_tokens
        return StepTime(0.0, 0.0, 0.0, seconds, 0.0)
