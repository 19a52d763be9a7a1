"""Replicas by a queueing model that is fitted online, as llm-d's inferno optimizer counts them.

Source: llm-d-incubation/inferno-autoscaler (the SLO engine of the Workload Variant Autoscaler). Law:
ceil(rate / rate*), with rate* the highest at which the model's mean TTFT and mean time between tokens meet
the objectives. The rate is that of answers that ended, over one minute, as WVA reads it. Every 60 s;
missing metrics change nothing.

WVA has a factor of about 3 between a P95 and a mean; `knob` is the share of the objectives that means may
take, so 1/3 stands for it.
"""

import math

from tangram.scaling.queries import ITL, TTFT
from tangram.simulator.controllers.controller import CapacityFacts, ControllerView
from tangram.simulator.controllers.fitted_models.queueing_analyzer import QueueingAnalyzer, StepCoefficients
from tangram.simulator.controllers.fitted_models.step_filter import StepFilter
from tangram.simulator.controllers.signals import increase, mean
from tangram.simulator.metrics import PrometheusDown
from tangram.simulator.metrics.page_layout import ANSWER_LENGTH, PROMPT_LENGTH, SUCCESS

_WINDOW_S = 60.0


class QueueModel:
    """The queueing model for one variant."""

    name = "queue-model"
    interval_s = 60.0

    def __init__(self, facts: CapacityFacts, knob: float = 1.0) -> None:
        """`knob` is the share of the objectives that the means may take."""
        self.knob = knob
        self._facts = facts
        self.filter = StepFilter(coefficients_of(facts))

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            ended = increase(view.metrics, SUCCESS, _WINDOW_S)
            latency = mean(view.metrics, TTFT, _WINDOW_S), mean(view.metrics, ITL, _WINDOW_S)
            inputs = mean(view.metrics, PROMPT_LENGTH, _WINDOW_S) or self._facts.input_tokens
            outputs = mean(view.metrics, ANSWER_LENGTH, _WINDOW_S) or self._facts.output_tokens
        except PrometheusDown:
            return view.replicas
        if ended is None:
            return view.replicas
        rate = ended / _WINDOW_S
        ttft, itl = latency
        if rate > 0 and ttft and itl:
            rate_each = rate / max(1, view.ready)
            self.filter.update(
                (ttft, itl), lambda fitted: self._analyzer(fitted, inputs, outputs).latency(rate_each)
            )
        highest = self._highest_rate(inputs, outputs)
        return max(1, math.ceil(rate / highest)) if highest > 0 else view.replicas

    def _analyzer(self, fitted: StepCoefficients, inputs: float, outputs: float) -> QueueingAnalyzer:
        return QueueingAnalyzer(fitted, self._facts.max_running, inputs, outputs)

    def _highest_rate(self, inputs: float, outputs: float) -> float:
        objectives = self._facts.objectives
        ttft_s = objectives.ttft.seconds * self.knob if objectives.ttft else math.inf
        itl_s = objectives.tpot.seconds * self.knob if objectives.tpot else math.inf
        return self._analyzer(self.filter.estimate, inputs, outputs).highest_rate(ttft_s, itl_s)


def coefficients_of(facts: CapacityFacts) -> StepCoefficients:
    """Return the coefficients that a profile of one replica gives: where the fit begins."""
    context, prompt, batch = (
        facts.input_tokens + facts.output_tokens / 2,
        facts.input_tokens,
        facts.max_running,
    )
    alone_s = facts.step_s(1, context, 0)
    per_prompt_token_s = (facts.step_s(1, context, prompt) - alone_s) / prompt
    per_context_token_s = (facts.step_s(batch, context, 0) - alone_s) / ((batch - 1) * context)
    return StepCoefficients(alone_s, per_prompt_token_s, per_context_token_s)
