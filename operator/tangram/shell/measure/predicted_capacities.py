"""What one replica of an LLMDeployment carries, predicted by the capacity model: once per shape and spec."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing import Rejection
from tangram.capacity.sizing.assessment_cache import assessment_cache
from tangram.catalog import InputError
from tangram.eligibility.shapes.bundled_engine import on_bundled_engine
from tangram.eligibility.shapes.runtimes import on_runtime
from tangram.eligibility.shapes.serving_requirements import UNLOADED_RPS, requirements_of
from tangram.fleet import CheckpointFacts, EngineRuntime, Intent, Shape
from tangram.scaling.outlook.mixture_capacity import MixtureCapacity
from tangram.shell.snapshot.start_times import StartTimes


@dataclass(frozen=True, slots=True)
class CapacityInputs:
    """What a round has for all LLMDeployments."""

    facts: Mapping[str, CheckpointFacts] = field(default_factory=dict)  # of their checkpoints, by UID
    start_s: StartTimes = field(default_factory=dict)  # P90 by UID and shape
    runtimes: Mapping[str, EngineRuntime] = field(default_factory=dict)  # by name, without the bundled engine


class PredictedCapacities:
    """The capacity of a replica by UID of the LLMDeployment and shape, of its last spec."""

    def __init__(self) -> None:
        self._capacities: dict[tuple[str, Shape], tuple[object, MixtureCapacity | None]] = {}

    def of(self, intent: Intent, shape: Shape, inputs: CapacityInputs) -> MixtureCapacity | None:
        """Return the capacity of one replica by mixture; None: unknown checkpoint, or it does not fit."""
        facts = inputs.facts.get(intent.uid)
        if facts is None:
            return None
        runtime = inputs.runtimes.get(shape.runtime)
        coefficients = None if runtime is None else runtime.coefficients
        key = (intent.rendered_generation, intent.traffic, facts.digest, coefficients)
        computed = self._capacities.get((intent.uid, shape))
        if computed is None or computed[0] != key:
            computed = self._capacities[intent.uid, shape] = key, _capacity_of(intent, facts, shape, runtime)
        return computed[1]

    def retain(self, uids: Iterable[str]) -> None:
        """Forget all other LLMDeployments."""
        kept = set(uids)
        self._capacities = {key: found for key, found in self._capacities.items() if key[0] in kept}


def _capacity_of(
    intent: Intent, facts: CheckpointFacts, shape: Shape, runtime: EngineRuntime | None
) -> MixtureCapacity | None:
    """Return the capacity of one replica by mixture, None where the model does not fit."""
    try:
        architecture = architecture_from_facts(facts)
        requirements = requirements_of(intent, architecture)
        on_its_runtime = (
            on_bundled_engine(requirements) if runtime is None else on_runtime(requirements, runtime)
        )
        request = on_its_runtime.request
        fitted = assessment_cache(architecture, replace(request, rps=UNLOADED_RPS)).fit(shape)
    except InputError:
        return None
    if isinstance(fitted, Rejection):
        return None
    return MixtureCapacity(fitted.model, fitted.limits, request.prompts, request.answers, intent.objectives)
