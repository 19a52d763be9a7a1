"""llm-d's guide "SLO-aware autoscaling with KEDA and predicted latency".

Source: llm-d/llm-d, guides/workload-autoscaling/README.slo-aware.md. s is the larger of P90 TTFT and P90
TPOT (over one minute, each over its objective), 0 without traffic, at most 2, then the mean of 45 s at 15
s. Above 0.55 the ask is n + ceil(n * (s * c / 0.55 - 1)), where c, ready over ordered replicas, leaves out
what starts already; below 0.40 it is n - floor(n * (1 - s / 0.40)). An HPA (AverageValue 1) limits it: up
by the larger of 100 % and 4 pods per 60 s after 30 s of stabilisation, down by one pod per 120 s after 180
s.

The router's predictor is not simulated: the guide's fallback, measured latency, is. Series that are missing
read as no traffic, as in the guide; a Prometheus that does not answer changes nothing.
"""

import math
from collections import deque

from benchmarks.autoscaling.laws.capacity_profile import CapacityFacts
from benchmarks.autoscaling.laws.hpa import average_value
from tangram.scaling.queries import TPOT, TTFT
from tangram.scaling.scrapes import MetricsView
from tangram.scaling.scrapes.histogram_quantile import histogram_quantile
from tangram.simulator.controllers import ControllerView
from tangram.simulator.controllers.hpa_behavior import HPABehavior, HPAStabilizer
from tangram.simulator.metrics import PrometheusDown
from tangram.simulator.metrics.page_layout import EDGES

_QUANTILE = 0.9
_RATE_S, _SMOOTHING_S = 60.0, 45.0
_CLAMP = 2.0
_DOWN_OVER_UP = 0.40 / 0.55  # the lower threshold over the upper one
_BEHAVIOR = HPABehavior(
    up_window_s=30.0, up_period_s=60.0, down_window_s=180.0, down_pods=1, down_period_s=120.0
)


class LatencySaturation:
    """Latency over its objectives, through KEDA's formula and HPA."""

    interval_s = 15.0

    def __init__(self, facts: CapacityFacts, knob: float = 0.55) -> None:
        """`knob` is the saturation above which replicas are added."""
        self.knob = knob
        limits = (TTFT, facts.objectives.ttft), (TPOT, facts.objectives.tpot)
        self._limits = [(histogram, objective.seconds) for histogram, objective in limits if objective]
        self._samples: deque[tuple[float, float]] = deque()
        self._stabilizer = HPAStabilizer(_BEHAVIOR)

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            raw = max((_p90(view.metrics, name) / limit_s for name, limit_s in self._limits), default=0.0)
        except PrometheusDown:
            return view.replicas
        self._samples.append((view.now, min(raw, _CLAMP)))
        while self._samples[0][0] <= view.now - _SMOOTHING_S:
            self._samples.popleft()
        saturation = sum(value for _, value in self._samples) / len(self._samples)
        asked = max(0, self._ask(saturation, view.replicas, view.ready))
        return self._stabilizer.replicas(view, average_value(asked, 1.0, view.replicas))

    def _ask(self, saturation: float, replicas: int, ready: int) -> int:
        lower = self.knob * _DOWN_OVER_UP
        if saturation > self.knob:
            credit = ready / replicas if 0 < ready < replicas else 1.0
            return replicas + math.ceil(replicas * (saturation * credit / self.knob - 1))
        if saturation < lower:
            return replicas - math.floor(replicas * (1 - saturation / lower))
        return replicas


def _p90(metrics: MetricsView, histogram: str) -> float:
    """Return the P90 of the last minute; 0 without traffic."""
    counts = metrics.buckets(histogram, _RATE_S).values()
    if not counts:
        return 0.0
    totals = [sum(pods) for pods in zip(*counts, strict=True)]
    quantile = histogram_quantile(_QUANTILE, EDGES[histogram], totals)
    return 0.0 if math.isnan(quantile) else quantile
