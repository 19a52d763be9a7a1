"""Decode steps of one batch, many at a time.

While the batch stays the same, only its context grows, and step times are linear in it between two attention
windows: their sum has a closed form, so the simulation leaps over the steps in which nothing happens.
"""

import math
from bisect import bisect_right
from typing import Protocol

from tangram.capacity.memory.footprint import Footprint
from tangram.capacity.steps.step_model import StepTime

FAR = 1e6  # tokens beyond the last attention window, to measure a slope over


class Steps(Protocol):
    """What the simulation asks of a step-time model (`StepModel` is one)."""

    @property
    def footprint(self) -> Footprint:
        """The model; its attention windows are where step times bend."""
        ...

    def __hash__(self) -> int:
        """A model is a value: what is computed of it may be kept."""
        ...

    def step_s(
        self, decode: float, context: float, prefill_tokens: float = 0, prefill_context: float = 0
    ) -> StepTime:
        """Time of one mixed step."""
        ...


class DecodeTimes:
    """Times of decode steps: a line over the context between two attention windows, per batch size."""

    def __init__(self, model: Steps) -> None:
        self.model = model
        self.breaks = sorted({float(window) for _, window in model.footprint.kv if window})
        self.lines: dict[tuple[int, int], tuple[float, float]] = {}

    def run(self, batch: int, context: float, most: int, until: float) -> tuple[int, float]:
        """Return (steps, seconds): as many steps as end `until` seconds from now, at least 1, at most `most`.

        `context` is the mean of the first step; each step adds one token.
        """
        steps, seconds = 0, 0.0
        while steps < most and (not steps or seconds < until):
            piece = bisect_right(self.breaks, context)
            inside = most - steps
            if piece < len(self.breaks):
                inside = min(inside, math.ceil(self.breaks[piece] - context))
            base, slope = self._line(batch, piece)
            first = base + slope * context
            count = _steps_until(first, slope, inside, until - seconds)
            seconds += count * first + slope * count * (count - 1) / 2
            steps += count
            context += count
        return steps, seconds

    def _line(self, batch: int, piece: int) -> tuple[float, float]:
        if (batch, piece) not in self.lines:
            low = self.breaks[piece - 1] if piece else 0.0
            high = self.breaks[piece] if piece < len(self.breaks) else low + FAR
            start = self.model.step_s(batch, low).total
            slope = (self.model.step_s(batch, high).total - start) / (high - low)
            self.lines[batch, piece] = start - slope * low, slope
        return self.lines[batch, piece]


def _steps_until(first: float, slope: float, most: int, seconds: float) -> int:
    """Steps, at least 1, until `seconds` have passed if the first takes `first` and each `slope` longer."""
    if most * first + slope * most * (most - 1) / 2 <= seconds:
        return most
    linear = first - slope / 2
    root = 2 * seconds / (linear + math.sqrt(max(0.0, linear * linear + 2 * slope * seconds)))
    return max(1, min(most, math.ceil(root)))
