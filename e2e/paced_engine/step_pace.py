"""Steps at a pace.

A tiny model's steps end early on a CPU, and the rest of their time is slept: a core or two carry several
replicas whose latencies are those of the given pace, whatever the cores are. The pace is a variable of the
container's environment, which the image sets; no field of an LLMDeployment reaches it.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tangram_engine.config import EngineConfig
from tangram_engine.messages import StepStats, TokenOutput
from tangram_engine.serve.worker import Engine, llm_engine
from tangram_engine.start_error import StartError

logger = logging.getLogger(__name__)

VARIABLE = "TANGRAM_STEP_PACE_MS"
LATE = 1.05  # a step that lasts longer than so many times its paced time is late
_REPORT_STEPS = 100  # between two lines of the log

Step = Callable[[], tuple[list[TokenOutput], StepStats]]


@dataclass(frozen=True, slots=True)
class StepPace:
    """The seconds that steps last."""

    step_s: float  # of each step
    decode_s: float  # more for each sequence that decodes
    prompt_token_s: float  # more for each prompt token

    @classmethod
    def parse(cls, text: str) -> "StepPace":
        """Read `MS,MS_PER_DECODE,MS_PER_PROMPT_TOKEN`. Raises StartError."""
        try:
            values = [float(part) / 1e3 for part in text.split(",")]
        except ValueError:
            values = []
        if len(values) != 3 or not all(math.isfinite(value) and value >= 0 for value in values):
            raise StartError(
                f"{VARIABLE} is {text!r}: three numbers of milliseconds are needed, of a step, per decoding "
                "sequence and per prompt token, for example 80,2,0.5"
            )
        return cls(*values)

    def seconds(self, decodes: int, prompt_tokens: int) -> float:
        """Return how long a step lasts."""
        return self.step_s + self.decode_s * decodes + self.prompt_token_s * prompt_tokens


class PacedStep:
    """A step that returns when its paced time is over.

    The log says every hundred steps how many have been late: with many of them, the replica is slower than
    its pace, and what was measured is void.
    """

    def __init__(
        self,
        step: Step,
        pace: StepPace,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step, self._pace, self._clock, self._sleep = step, pace, clock, sleep
        self.steps = self.late = 0
        self.paced_s = self.real_s = 0.0
        logger.warning(
            "steps are paced, for benchmarks: %g ms, %g ms per decoding sequence, %g ms per prompt token",
            1e3 * pace.step_s,
            1e3 * pace.decode_s,
            1e3 * pace.prompt_token_s,
        )

    def __call__(self) -> tuple[list[TokenOutput], StepStats]:
        """Compute one step and wait; one without tokens returns at once."""
        begin = self._clock()
        outputs, stats = self._step()
        if not stats.batch_tokens:
            return outputs, stats
        paced_s = self._pace.seconds(stats.batch_tokens - stats.prompt_tokens, stats.prompt_tokens)
        remaining_s = begin + paced_s - self._clock()
        if remaining_s > 0:
            self._sleep(remaining_s)
        real_s = self._clock() - begin
        self._count(paced_s, real_s)
        return outputs, replace(stats, step_seconds=real_s)

    def _count(self, paced_s: float, real_s: float) -> None:
        self.steps += 1
        self.late += real_s > LATE * paced_s
        self.paced_s += paced_s
        self.real_s += real_s
        if self.steps % _REPORT_STEPS == 0:
            counts = self.steps, self.late, self.real_s, self.paced_s
            logger.info("paced steps: %d, %d late, %.2f s instead of %.2f s", *counts)


def paced_engine(config: EngineConfig) -> Engine:
    """Build the engine at the pace that the environment sets. Raises StartError.

    A pace that cannot be read, or none, is refused, and so is a GPU, which has a pace of its own.
    """
    pace = StepPace.parse(os.environ.get(VARIABLE, ""))
    engine = llm_engine(config)
    device = engine.info.device
    if device.startswith("cuda"):
        raise StartError(f"{VARIABLE} slows an engine on a CPU, for benchmarks; this one is on {device}")
    engine.step = PacedStep(engine.step, pace)
    return engine
