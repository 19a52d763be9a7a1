"""Knative's KPA on concurrency. Source: knative/serving, pkg/autoscaler/scaling/autoscaler.go.

Law: ceil(concurrency / target) over a stable window of 60 s. If ceil(concurrency / target) over a panic
window of 6 s is twice the ready replicas or more, the larger of both counts, and replicas are not removed
for a stable window. At most a thousand times the ready replicas, at least half of them. Every 2 s; target
70 % of the concurrency that one replica is made for.

Simplified: Knative's activator and queue proxies push concurrency each second. Here it is read from
scrapes: the mean over the stable window, and the newest scrape for the panic window, which is shorter than
the time between two scrapes. A Prometheus that does not answer holds the replicas, where Knative would go
on.
"""

import math

from benchmarks.autoscaling.laws.capacity_profile import CapacityFacts
from benchmarks.autoscaling.laws.signals import total
from tangram.scaling.queries import RUNNING, WAITING
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import PrometheusDown

_STABLE_S = 60.0
_PANIC_THRESHOLD = 2.0
_MOST_UP, _MOST_DOWN = 1000.0, 2.0


class KnativePodAutoscaler:
    """The KPA on the requests that run or wait."""

    interval_s = 2.0

    def __init__(self, facts: CapacityFacts, knob: float = 0.7) -> None:
        """`knob` is the target as a share of the concurrency at which a replica meets its objectives."""
        self.knob = knob
        self._target = knob * facts.running_requests
        self._panic_since: float | None = None
        self._panic_replicas = 0

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            window = view.metrics.over(_STABLE_S)
            stable = _both(window.avg_over_time(RUNNING), window.avg_over_time(WAITING))
            newest = _both(view.metrics.instant(RUNNING), view.metrics.instant(WAITING))
        except PrometheusDown:
            return view.replicas
        if stable is None or newest is None:
            return view.replicas
        ready = max(1, view.ready)
        desired, panicked = self._replicas(stable, ready), self._replicas(newest, ready)
        if math.ceil(newest / self._target) / ready >= _PANIC_THRESHOLD:
            if self._panic_since is None:
                self._panic_replicas = 0
            self._panic_since = view.now
        elif self._panic_since is not None and view.now - self._panic_since > _STABLE_S:
            self._panic_since = None
        if self._panic_since is None:
            return desired
        self._panic_replicas = max(self._panic_replicas, desired, panicked)
        return self._panic_replicas

    def _replicas(self, concurrency: float, ready: int) -> int:
        most, least = math.ceil(_MOST_UP * ready), math.floor(ready / _MOST_DOWN)
        return min(max(math.ceil(concurrency / self._target), least), most)


def _both(running: dict[str, float], waiting: dict[str, float]) -> float | None:
    parts = [part for part in (total(running), total(waiting)) if part is not None]
    return sum(parts) if parts else None
