"""A GPU so slow that a core or two of this machine carry several replicas on it: the pace of its steps, the calibration
by which the capacity model predicts them, and a recorded load that fits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing.assess import Assessor, FittingShape
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.steps import calibration
from tangram.capacity.steps.step_model import Coefficients, StepModel
from tangram.catalog.prices import Prices
from tangram.fleet import CheckpointFacts, Shape
from tangram.simulator.traffic.trace import Trace

SHAPE = Shape("H100-80GB-SXM", "1g.10gb")  # what the stand-in of the node offers
REQUEST_S = 0.01  # of a request outside of steps


@dataclass(frozen=True, slots=True)
class Pace:
    """How long steps last, in milliseconds."""

    step_ms: float = 100.0
    decode_ms: float = 3.0  # more for each sequence that decodes
    prompt_token_ms: float = 0.75  # more for each prompt token

    def __str__(self) -> str:
        """As the engine reads it."""
        return f"{self.step_ms:g},{self.decode_ms:g},{self.prompt_token_ms:g}"


@dataclass(frozen=True, slots=True)
class Load:
    """Which part of a trace is replayed, and how it is made to fit the tiny model."""

    minutes: float = 12.0
    slower: float = 3.0  # by which arrivals are spread
    shorter: float = 10.0  # by which prompts and answers are divided
    longest_prompt: int = 400  # tokens; the tiny model holds 1,024 of prompt and answer
    longest_answer: int = 200


def requests_of(trace: Trace, load: Load) -> tuple[SimulatedRequest, ...]:
    """Return the requests of the replay."""

    def tokens(recorded: int, longest: int) -> int:
        return min(longest, max(2, round(recorded / load.shorter)))

    return tuple(
        SimulatedRequest(
            round(request.arrival_s * load.slower, 3),
            tokens(request.input_tokens, load.longest_prompt),
            tokens(request.output_tokens, load.longest_answer),
        )
        for request in trace.requests
        if request.arrival_s * load.slower < 60 * load.minutes
    )


def step_model(facts: CheckpointFacts) -> StepModel:
    """Return the step times of the model on `SHAPE` by the calibration of the moment."""
    fitted = Assessor(architecture_from_facts(facts), Prices()).fit(SHAPE, SizingRequest(100, 20, 1.0))
    if not isinstance(fitted, FittingShape):
        raise TypeError(fitted.message)
    return fitted.model


def calibration_at(pace: Pace, facts: CheckpointFacts) -> dict[str, Any]:
    """Return a calibration by which steps on `SHAPE` have the pace. Raises ValueError where they cannot have it.

    A prompt token takes its matrix products; a sequence that decodes takes these, those of the head, and an overhead.
    """
    model = step_model(facts)
    foot = model.footprint
    factor = pace.prompt_token_ms / 1e3 * model.flops / foot.linear_flops_per_token
    head_s = foot.head_flops_per_token * factor / model.hardware.flops_16
    sequence_s = (pace.decode_ms - pace.prompt_token_ms) / 1e3 - head_s
    if sequence_s < 0:
        raise ValueError(f"{pace}: a sequence that decodes takes longer than a prompt token and the head")
    paced = Coefficients(
        compute_16=factor, step_s=pace.step_ms / 1e3, sequence_s=sequence_s, request_s=REQUEST_S
    )
    shipped = calibration.load()
    of_all = {**shipped["all"], "key": "paced", "coefficients": asdict(paced)}
    return {"measured": shipped["measured"], "all": of_all, "engines": {}, "versions": {}}
