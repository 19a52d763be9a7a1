"""Replicas by a queueing model that is fitted online, as llm-d's Workload Variant Autoscaler counts them.

Source: llm-d/llm-d-workload-variant-autoscaler, guide and code of its QueueingModelAnalyzer. Law:
ceil(rate / rate*), with rate* the highest at which the model's mean TTFT and mean time between tokens meet
the objectives. The rate is that of requests that are sent to replicas, over one minute. Every 60 s; missing
metrics, and a minute without requests, change nothing.

Published, too: the coefficients begin at a guess from the first reading, not at a profile; a replica has the
slots of its engine (`--max-num-seqs`), however many its KV cache holds.

The autoscaler has a factor of about 3 between a P95 and a mean; `knob` is the share of the objectives that
means may take, so 1/3 stands for it.
"""

import math

from benchmarks.autoscaling.laws.capacity_profile import CapacityFacts
from benchmarks.autoscaling.laws.fitted_models.queueing_analyzer import QueueingAnalyzer, StepCoefficients
from benchmarks.autoscaling.laws.fitted_models.step_filter import StepFilter, guessed_coefficients
from benchmarks.autoscaling.laws.signals import increase, mean
from tangram.scaling.queries import ITL, RECEIVED, TTFT
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import PrometheusDown
from tangram.simulator.metrics.page_layout import ANSWER_LENGTH, PROMPT_LENGTH

_WINDOW_S = 60.0
_FITTED_QUEUE_BATCHES = 10  # of the model that is compared with readings: ten batches may wait
_SIZED_QUEUE = 100  # of the model that gives the highest rate


class QueueModel:
    """The queueing model for one variant."""

    interval_s = 60.0

    def __init__(self, facts: CapacityFacts, knob: float = 1.0) -> None:
        """`knob` is the share of the objectives that the means may take."""
        self.knob = knob
        self._facts = facts
        self.filter: StepFilter | None = None  # None: before the first reading

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            sent = increase(view.metrics, RECEIVED, _WINDOW_S)
            latency = mean(view.metrics, TTFT, _WINDOW_S), mean(view.metrics, ITL, _WINDOW_S)
            inputs = mean(view.metrics, PROMPT_LENGTH, _WINDOW_S)
            outputs = mean(view.metrics, ANSWER_LENGTH, _WINDOW_S)
        except PrometheusDown:
            return view.replicas
        if not sent or not inputs or not outputs:
            return view.replicas
        rate = sent / _WINDOW_S
        ttft, itl = latency
        if ttft and itl:
            self._learn(rate / max(1, view.ready), ttft, itl, inputs, outputs)
        if self.filter is None:
            return view.replicas
        highest = self._highest_rate(self.filter.estimate, inputs, outputs)
        return max(1, math.ceil(rate / highest)) if highest > 0 else view.replicas

    def _learn(self, rate_each: float, ttft: float, itl: float, inputs: float, outputs: float) -> None:
        """Correct the coefficients by one reading, unless the model has no answer at its rate."""

        def model(fitted: StepCoefficients) -> QueueingAnalyzer:
            most_waiting = _FITTED_QUEUE_BATCHES * self._facts.max_running
            return QueueingAnalyzer(fitted, self._facts.max_running, most_waiting, inputs, outputs)

        if self.filter is None:
            self.filter = StepFilter(guessed_coefficients(ttft, itl, inputs, outputs))
        if rate_each <= model(self.filter.estimate).most_rate:
            self.filter.update((ttft, itl), lambda fitted: model(fitted).latency(rate_each))

    def _highest_rate(self, fitted: StepCoefficients, inputs: float, outputs: float) -> float:
        objectives = self._facts.objectives
        ttft_s = objectives.ttft.seconds * self.knob if objectives.ttft else math.inf
        itl_s = objectives.tpot.seconds * self.knob if objectives.tpot else math.inf
        model = QueueingAnalyzer(fitted, self._facts.max_running, _SIZED_QUEUE, inputs, outputs)
        return model.highest_rate(ttft_s, itl_s)
