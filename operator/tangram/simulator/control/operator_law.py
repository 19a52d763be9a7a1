"""The scaling law of the operator, on simulated readings.

History and mixture are made here, not by the operator's `LoadOutlooks`: the mean lengths are those of ten
minutes, the operator's of five, and before the first scrape no arrival is zero arrivals.
"""

from collections.abc import Callable
from dataclasses import replace

from tangram.fleet import Intent, Objective
from tangram.scaling import (
    RejectedSample,
    Sample,
    ScalingDecision,
    ScalingMemory,
    ScalingParams,
    classify,
    decide,
)
from tangram.scaling.outlook import mixture
from tangram.scaling.outlook.load_history import LoadHistory, extended
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.queries import ANSWER_LENGTH, PROMPT_LENGTH, RECEIVED
from tangram.scaling.scrapes import read_sample
from tangram.simulator.controllers.controller import ControllerView
from tangram.simulator.metrics import PrometheusDown

CapacityOf = Callable[[float, float], ReplicaCapacity | None]
"""Takes mean tokens of prompts and of answers; returns what one replica carries of them, None: unknown."""

_MIXTURE_S = 600.0  # window of the mean lengths


class OperatorLaw:
    """`tangram.scaling` as a controller. `knob`: the share of requests that may miss an objective."""

    name = "tangram"

    def __init__(
        self,
        intent: Intent,
        capacity_of: CapacityOf,
        knob: float | None = None,
        *,
        params: ScalingParams | None = None,
        start_s: float | None = None,
    ) -> None:
        """`start_s`: P90 of start times that were measured before; None: the law measures."""
        self.params = params or ScalingParams(60.0, 15.0, 30.0, 300.0)
        self.knob = 1 - intent.objectives.strictest_percentile / 100 if knob is None else knob
        self.interval_s = 15.0
        self.decisions: list[ScalingDecision] = []
        self._intent = intent if knob is None else _within(intent, knob)
        self._capacity_of, self._start_s = capacity_of, start_s
        self._memory = ScalingMemory()
        self._sample: Sample | None = None
        self._history = LoadHistory(0.0)
        traffic = intent.traffic
        self._mixture = mixture.rounded(
            traffic.input_tokens.mean if traffic.input_tokens else 1024.0,
            traffic.output_tokens.mean if traffic.output_tokens else 256.0,
        )

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        problem = self._read(view)
        signal = classify(self._sample, problem, ready=view.ready, params=self.params, now=view.now)
        decision = decide(
            self._memory,
            params=self.params,
            intent=self._intent,
            current=view.replicas,
            ready=view.ready,
            signal=signal,
            now=view.now,
            existing=view.ready + view.starting,
            outlook=self._outlook(view),
        )
        self._memory = decision.memory
        if decision.replicas != decision.previous:
            self.decisions.append(decision)
        return decision.replicas

    def _read(self, view: ControllerView) -> str:
        """Read the metrics; say why that failed."""
        try:
            reading = read_sample(
                view.metrics, self._intent.objectives, self.params.window_s, quantiles=False
            )
            self._extend_history(view)
        except PrometheusDown:
            return "Prometheus does not answer"
        if isinstance(reading, RejectedSample):
            return reading.reason
        arrived = sum(view.metrics.increase(RECEIVED, self.params.window_s).values())
        self._sample = replace(reading, arrived=arrived)
        return ""

    def _extend_history(self, view: ControllerView) -> None:
        step_s = self._history.step_s
        end_s = view.now // step_s * step_s
        if end_s <= self._history.end_s or end_s != view.now:
            return
        arrived = view.metrics.increase(RECEIVED, step_s)
        rate = sum(arrived.values()) / step_s if arrived else None
        self._history = extended(self._history, rate, end_s)

    def _outlook(self, view: ControllerView) -> LoadOutlook | None:
        capacity = self._capacity_of(*self._measured_mixture(view))
        return None if capacity is None else LoadOutlook(self._history, capacity, self._start_s)

    def _measured_mixture(self, view: ControllerView) -> mixture.Mixture:
        """Return the mean tokens of prompts and of answers; those of the spec while none are counted."""
        try:
            prompt, answer = self._mean(view, PROMPT_LENGTH), self._mean(view, ANSWER_LENGTH)
        except PrometheusDown:
            return self._mixture
        if prompt is not None and answer is not None:
            self._mixture = mixture.rounded(prompt, answer)
        return self._mixture

    def _mean(self, view: ControllerView, histogram: str) -> float | None:
        count = sum(view.metrics.increase(f"{histogram}_count", _MIXTURE_S).values())
        if count < self.params.min_samples:
            return None
        return sum(view.metrics.increase(f"{histogram}_sum", _MIXTURE_S).values()) / count


def _within(intent: Intent, budget: float) -> Intent:
    """Return the intent with this share of requests that may miss each objective."""

    def changed(objective: Objective | None) -> Objective | None:
        # A percentile with decimals: the API has whole ones alone, the law takes any.
        return None if objective is None else replace(objective, percentile=100 * (1 - budget))  # type: ignore[arg-type]

    return replace(intent, ttft=changed(intent.ttft), tpot=changed(intent.tpot))
