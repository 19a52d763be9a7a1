"""Scaling laws by name, for one LLMDeployment. What a law has to know beforehand comes from the capacity
model, as if it had been measured: the operator's law knows each shape, the others the first one alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from tangram.catalog import InputError
from tangram.fleet import Intent, Lengths, Shape, replicas_for
from tangram.scaling.outlook.mixture_capacity import MixtureCapacity
from tangram.simulator.cluster.engine_setups import EngineSetup, EngineSetups
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import (
    AIBrixPodAutoscaler,
    CapacityFacts,
    Controller,
    DynamoLoad,
    DynamoThroughput,
    HPAOnQueue,
    HPAOnUtilisation,
    KEDAOnPrometheus,
    KnativePodAutoscaler,
    LatencySaturation,
    QueueModel,
    StaticReplicas,
    WVASaturation,
    WVATokens,
    capacity_facts,
)

START_TIME_P90 = 1.3  # over the mean: the operator's law forecasts over the P90 of starts


@dataclass(frozen=True)
class LawKnowledge:
    """What scaling laws may know about an LLMDeployment before a run."""

    intent: Intent
    engine: EngineSetup  # on the shape of its first replicas
    prompts: Lengths
    answers: Lengths
    price_per_hour: float  # of one replica
    start_s: float  # mean
    engines: EngineSetups | None = None  # of other shapes; None: it runs on one

    @cached_property
    def capacity(self) -> MixtureCapacity:
        """The capacity of a replica by the mixture of its requests."""
        return self._capacity(self.engine)

    @cached_property
    def capacity_on(self) -> Callable[[Shape], MixtureCapacity | None]:
        """The same on any shape, computed once for each; None: it does not fit."""
        return cache(self._capacity_on)

    def _capacity_on(self, shape: Shape) -> MixtureCapacity | None:
        if shape == self.engine.shape:
            return self.capacity
        if self.engines is None:
            return None
        try:
            return self._capacity(self.engines.setup(self.intent.uid, shape))
        except InputError:
            return None

    def _capacity(self, engine: EngineSetup) -> MixtureCapacity:
        return MixtureCapacity(
            engine.steps, engine.limits, self.prompts, self.answers, self.intent.objectives
        )

    @cached_property
    def profile(self) -> CapacityFacts:
        """The profile of a replica. Raises `InputError` if it meets the objectives at no rate."""
        engine = self.engine
        try:
            return capacity_facts(
                engine.steps,
                engine.limits,
                self.prompts,
                self.answers,
                self.intent.objectives,
                price_per_hour=self.price_per_hour,
                start_s=self.start_s,
            )
        except ValueError as error:
            raise InputError(f"LLMDeployment {self.intent.name}", f"{error} on {engine.shape}") from None

    def replicas_for(self, requests_per_second: float) -> int:
        """Return the fewest replicas that carry a rate within the objectives, at least one."""
        return max(1, replicas_for(requests_per_second, self.profile.requests_per_second))


def _operator_law(knowledge: LawKnowledge, knob: float | None) -> Controller:
    traffic = replace(
        knowledge.intent.traffic, input_tokens=knowledge.prompts, output_tokens=knowledge.answers
    )
    intent = replace(knowledge.intent, traffic=traffic)
    start_s = START_TIME_P90 * knowledge.start_s
    return OperatorLaw(intent, knowledge.capacity_on, knob, start_s=start_s)


def _static(knowledge: LawKnowledge, knob: float | None) -> Controller:
    if knob is None or knob != int(knob) or not 0 <= knob <= knowledge.intent.max_replicas:
        most = knowledge.intent.max_replicas
        raise InputError("static", f"needs a number of replicas up to {most}, the most that are allowed")
    return StaticReplicas(knob)


def _of_metrics(law: Callable[..., Controller]) -> Callable[[LawKnowledge, float | None], Controller]:
    return lambda _, knob: law() if knob is None else law(knob)


def _of_profile(law: Callable[..., Controller]) -> Callable[[LawKnowledge, float | None], Controller]:
    return lambda knowledge, knob: law(knowledge.profile) if knob is None else law(knowledge.profile, knob)


def _hpa_on_running(knowledge: LawKnowledge, knob: float | None) -> Controller:
    most = knowledge.engine.limits.max_running
    return HPAOnUtilisation(max_running=most) if knob is None else HPAOnUtilisation(knob, max_running=most)


_LAWS: Mapping[str, Callable[[LawKnowledge, float | None], Controller]] = {
    "tangram": _operator_law,
    "static": _static,
    "hpa-queue": _of_metrics(HPAOnQueue),
    "hpa-kv": _of_metrics(HPAOnUtilisation),
    "hpa-running": _hpa_on_running,
    "keda": _of_metrics(KEDAOnPrometheus),
    "knative": _of_profile(KnativePodAutoscaler),
    "aibrix-apa": _of_metrics(AIBrixPodAutoscaler),
    "wva-v1": _of_metrics(WVASaturation),
    "wva-v2": _of_profile(WVATokens),
    "queue-model": _of_profile(QueueModel),
    "dynamo-throughput": _of_profile(DynamoThroughput),
    "dynamo-load": _of_profile(DynamoLoad),
    "llm-d-slo": _of_profile(LatencySaturation),
}
LAW_NAMES = tuple(_LAWS)


def law_by_name(name: str, knowledge: LawKnowledge, knob: float | None = None) -> Controller:
    """Return a law, new for one run; `knob` None: its published default. Raises `InputError`."""
    if name not in _LAWS:
        raise InputError("law", f"{name!r} is none of {', '.join(LAW_NAMES)}")
    return _LAWS[name](knowledge, knob)
