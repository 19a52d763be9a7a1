"""The engines of a simulation: step times and limits of one replica, by LLMDeployment and shape."""

from collections.abc import Iterable
from dataclasses import dataclass

from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.memory.budget import model_length
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing.assess import Assessor, FittingShape
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.steps.decode_runs import DecodeTimes
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.eligibility.shapes.bundled_engine import on_bundled_engine
from tangram.eligibility.shapes.serving_requirements import requirements_of
from tangram.fleet import CheckpointFacts, Intent, Shape


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One replica of an LLMDeployment on a shape."""

    shape: Shape
    steps: StepModel
    limits: EngineLimits
    times: DecodeTimes  # of decode steps, shared by all replicas
    max_model_len: int
    request_s: float  # of a request outside of steps, part of its TTFT

    def idle_latency_s(self, input_tokens: int, output_tokens: int) -> tuple[float, float]:
        """Return TTFT and TPOT of a request that is alone on the replica, with nothing cached."""
        ttft, done = self.request_s, 0
        while done < input_tokens:
            chunk = min(self.limits.max_batched_tokens, input_tokens - done)
            ttft += self.steps.prefill_s(chunk, done)
            done += chunk
        gaps = output_tokens - 1
        if not gaps:
            return ttft, 0.0
        _, seconds = self.times.run(1, input_tokens + 1.0, gaps, float("inf"))
        return ttft, seconds / gaps


class EngineSetups:
    """Engines computed so far. Raises `InputError` for an LLMDeployment that its model cannot serve."""

    def __init__(self, served: Iterable[tuple[Intent, CheckpointFacts]], prices: Prices) -> None:
        self._setups: dict[tuple[str, Shape], EngineSetup] = {}
        self._requests: dict[str, tuple[Assessor, SizingRequest, int]] = {}
        for intent, facts in served:
            architecture = architecture_from_facts(facts)
            requirements = on_bundled_engine(requirements_of(intent, architecture))
            length = model_length(facts, intent.max_model_len)
            self._requests[intent.uid] = Assessor(architecture, prices), requirements.request, length

    def max_model_len(self, owner_uid: str) -> int:
        """Return the tokens of the longest request, prompt and answer together."""
        return self._requests[owner_uid][2]

    def setup(self, owner_uid: str, shape: Shape) -> EngineSetup:
        """Return the engine of a shape. Raises `InputError` where the model does not fit."""
        key = owner_uid, shape
        if key not in self._setups:
            fitted, length = self._fitted(owner_uid, shape), self.max_model_len(owner_uid)
            model = fitted.model
            times, outside_s = DecodeTimes(model), model.coefficients.request_s
            self._setups[key] = EngineSetup(shape, model, fitted.limits, times, length, outside_s)
        return self._setups[key]

    def _fitted(self, owner_uid: str, shape: Shape) -> FittingShape:
        assessor, request, _ = self._requests[owner_uid]
        fitted = assessor.fit(shape, request)
        if not isinstance(fitted, FittingShape):
            raise InputError(str(shape), fitted.message)
        return fitted
