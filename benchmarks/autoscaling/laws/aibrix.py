"""AIBrix' APA on the use of the KV cache. Source: vllm-project/aibrix, pkg/controller/podautoscaler.

Law: r = mean use per replica / target. Above 1.1: ceil(n * r), at most twice n. Below 0.9: ceil(n * r), at
least half of n, rounded down. Else n stays. Fewer replicas only after a cooldown of 300 s, in which the
highest recommendation counts. AIBrix reads the pages of the pods itself; here they are scraped. A metric
that cannot be read changes nothing.
"""

import math

from tangram.scaling.queries import KV_USAGE
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import PrometheusDown

_TOLERANCE = 0.1
_MOST_UP, _MOST_DOWN = 2.0, 2.0  # factors of one decision
_COOLDOWN_S = 300.0


class AIBrixPodAutoscaler:
    """The APA on the use of the KV cache."""

    interval_s = 10.0

    def __init__(self, knob: float = 0.5) -> None:
        """`knob` is the target share of the KV cache in use."""
        self.knob = knob
        self._recommended: list[tuple[float, int]] = []

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            usage = view.metrics.instant(KV_USAGE)
        except PrometheusDown:
            return view.replicas
        if not usage:
            return view.replicas
        desired = self._recommend(view.replicas, sum(usage.values()) / len(usage))
        lately = [n for n in self._recommended if n[0] > view.now - _COOLDOWN_S]
        self._recommended = [*lately, (view.now, desired)]
        if desired >= view.replicas:
            return desired
        return min(view.replicas, max(n for _, n in self._recommended))

    def _recommend(self, replicas: int, usage: float) -> int:
        ratio = usage / self.knob
        if ratio > 1 + _TOLERANCE:
            return min(math.ceil(replicas * ratio), math.ceil(replicas * _MOST_UP))
        if ratio < 1 - _TOLERANCE:
            return max(math.ceil(replicas * ratio), math.floor(replicas / _MOST_DOWN))
        return replicas
