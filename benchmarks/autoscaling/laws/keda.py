"""KEDA with a Prometheus trigger. Source: kedacore/keda, pkg/scalers/prometheus_scaler.go and its
documents.

KEDA hands the value of a query to an HPA that it generates (AverageValue, defaults of autoscaling/v2),
which asks for it every 15 s. KEDA itself scales between zero and one replica, by a poll every 30 s, and to
zero after 300 s without a value above zero. An empty result counts as 0 unless `ignoreNullValues` is false;
then it is an error, as a Prometheus that does not answer is in any case. An error changes nothing, as no
`fallback` is set.
"""

from benchmarks.autoscaling.laws.hpa import average_value
from benchmarks.autoscaling.laws.signals import total
from tangram.scaling.queries import WAITING
from tangram.simulator.controllers import ControllerView, hpa_behavior
from tangram.simulator.controllers.hpa_behavior import HPAStabilizer
from tangram.simulator.metrics import PrometheusDown

_POLL_S = 30.0
_COOLDOWN_S = 300.0


class KEDAOnPrometheus:
    """A ScaledObject on the requests that wait."""

    interval_s = hpa_behavior.SYNC_S

    def __init__(self, knob: float = 5.0, *, ignore_null_values: bool = True) -> None:
        """`knob` is the threshold: waiting requests per replica."""
        self.knob = knob
        self._ignore_null_values = ignore_null_values
        self._stabilizer = HPAStabilizer()
        self._polled: float | None = None
        self._polled_at: float | None = None
        self._active_at: float | None = None

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        if self._polled_at is None or view.now - self._polled_at >= _POLL_S:
            self._polled, self._polled_at = self._value(view), view.now
            if self._polled or self._active_at is None:
                self._active_at = view.now
        if view.replicas == 0:
            return 1 if self._polled else 0
        value = self._value(view)
        if value is None:
            return view.replicas
        if view.min_replicas == 0 and self._is_idle(view.now):
            return 0
        desired = average_value(value, self.knob, view.replicas)
        return max(1, self._stabilizer.replicas(view, desired))

    def _is_idle(self, now: float) -> bool:
        """Return whether polls have read 0 for the cooldown."""
        return self._polled == 0 and self._active_at is not None and now - self._active_at >= _COOLDOWN_S

    def _value(self, view: ControllerView) -> float | None:
        """Return the value of the query; None: an error."""
        try:
            waiting = total(view.metrics.instant(WAITING))
        except PrometheusDown:
            return None
        return 0.0 if waiting is None and self._ignore_null_values else waiting
