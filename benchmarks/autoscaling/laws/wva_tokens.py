"""Saturation analysis of llm-d's Workload Variant Autoscaler, version 2: tokens instead of replicas.

Source: llm-d/llm-d-workload-variant-autoscaler. Capacity of a replica: the lower of 80 % of its KV tokens
and of the tokens that were in use while requests waited (mean of the last 10 such readings); before there
was one, N * (I + O/2) with N = min(token budget * O / (I + O), sequences). Demand: tokens in use and those
of requests that wait. Replicas are added for demand / 0.85 above the capacity of all, and removed for
capacity of the ready ones above demand / 0.70. Every 60 s; missing metrics change nothing.

Simplified: one variant, one class of answer lengths; no queue in a router and no prefix cache.
"""

import math
from collections import deque
from statistics import fmean

from benchmarks.autoscaling.laws.capacity_profile import CapacityFacts
from benchmarks.autoscaling.laws.signals import mean
from benchmarks.autoscaling.laws.wva_saturation import LOOP_S
from tangram.scaling.queries import KV_USAGE, WAITING
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import PrometheusDown
from tangram.simulator.metrics.page_layout import ANSWER_LENGTH, PROMPT_LENGTH

_KV_SHARE = 0.8
_BAND = 0.15  # between the shares at which replicas are added and removed
_READINGS = 10
_LENGTHS_S = 300.0


class WVATokens:
    """WVA, version 2, for one variant."""

    interval_s = LOOP_S

    def __init__(self, facts: CapacityFacts, knob: float = 0.85) -> None:
        """`knob` is the share of the capacity above which replicas are added."""
        self.knob = knob
        self._facts = facts
        self._saturated: deque[float] = deque(maxlen=_READINGS)

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            usage, queues = view.metrics.instant(KV_USAGE), view.metrics.instant(WAITING)
            inputs, outputs = self._lengths(view)
        except PrometheusDown:
            return view.replicas
        if not usage:
            return view.replicas
        in_use = {pod: share * self._facts.kv_tokens for pod, share in usage.items()}
        self._saturated += [tokens for pod, tokens in in_use.items() if queues.get(pod, 0.0) > 0]
        capacity = self._capacity(inputs, outputs)
        demand = sum(in_use.values()) + inputs * sum(queues.values())
        required = demand / self.knob - capacity * view.replicas
        if required > 0:
            return view.replicas + math.ceil(required / capacity)
        spare = capacity * view.ready - demand / (self.knob - _BAND)
        return max(1, view.replicas - max(0, math.floor(spare / capacity)))

    def _capacity(self, inputs: float, outputs: float) -> float:
        facts = self._facts
        batch = min(facts.max_batched_tokens * outputs / (inputs + outputs), facts.max_running)
        limit = fmean(self._saturated) if self._saturated else batch * (inputs + outputs / 2)
        return max(1.0, min(_KV_SHARE * facts.kv_tokens, limit))

    def _lengths(self, view: ControllerView) -> tuple[float, float]:
        inputs = mean(view.metrics, PROMPT_LENGTH, _LENGTHS_S)
        outputs = mean(view.metrics, ANSWER_LENGTH, _LENGTHS_S)
        return inputs or self._facts.input_tokens, outputs or self._facts.output_tokens
