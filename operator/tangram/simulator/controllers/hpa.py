"""The HorizontalPodAutoscaler on metrics of engines. Source: Kubernetes, autoscaling/v2.

Laws: ceil(sum / target) for a queue, ceil(pods * mean / target) for a utilisation. Every 15 s, tolerance 10
%, up at once by at most the larger of 100 % and 4 pods per 15 s, down to the highest recommendation of 300
s. A metric that cannot be read changes nothing.
"""

from tangram.scaling.queries import KV_USAGE, RUNNING, WAITING
from tangram.simulator.controllers import hpa_behavior
from tangram.simulator.controllers.controller import Controller, ControllerView
from tangram.simulator.controllers.hpa_behavior import HPABehavior, HPAStabilizer
from tangram.simulator.controllers.signals import total
from tangram.simulator.metrics import PrometheusDown


class HPAOnQueue:
    """An HPA on the requests that wait, as an external metric with a target per replica."""

    name = "hpa-queue"
    interval_s = hpa_behavior.SYNC_S

    def __init__(self, knob: float = 5.0) -> None:
        """`knob` is the target: waiting requests per replica."""
        self.knob = knob
        self._stabilizer = HPAStabilizer()

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            waiting = total(view.metrics.instant(WAITING))
        except PrometheusDown:
            return view.replicas
        if waiting is None:
            return view.replicas
        desired = hpa_behavior.average_value(waiting, self.knob, view.replicas)
        return self._stabilizer.replicas(view, desired)


class HPAOnUtilisation:
    """An HPA on a share of each pod: of its KV cache, or of the requests that it may run at a time."""

    interval_s = hpa_behavior.SYNC_S

    def __init__(self, knob: float = 0.7, *, max_running: int | None = None) -> None:
        """`knob` is the target share: of the KV cache, or of `max_running` requests where it is given."""
        self.knob = knob
        self.name = "hpa-kv" if max_running is None else "hpa-running"
        self._metric, self._whole = (KV_USAGE, 1) if max_running is None else (RUNNING, max_running)
        self._stabilizer = HPAStabilizer()

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            values = [value / self._whole for value in view.metrics.instant(self._metric).values()]
        except PrometheusDown:
            return view.replicas
        desired = hpa_behavior.utilisation(
            values, self.knob, replicas=view.replicas, ready=view.ready, starting=view.starting
        )
        return view.replicas if desired is None else self._stabilizer.replicas(view, desired)


class HPAOnDesiredReplicas:
    """An HPA on the desired replicas of another law, published as a metric with an AverageValue of 1.

    Steps of less than 10 % are inside the tolerance of the HPA: above ten replicas it ignores single ones.
    """

    interval_s = hpa_behavior.SYNC_S

    def __init__(self, law: Controller, behavior: HPABehavior) -> None:
        self.name = f"{law.name}-hpa"
        self.knob = law.knob
        self._law = law
        self._stabilizer = HPAStabilizer(behavior)
        self._desired: int | None = None
        self._decided_at: float | None = None

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas; the other law decides at its own interval."""
        if self._decided_at is None or view.now - self._decided_at >= self._law.interval_s:
            self._desired, self._decided_at = self._law.decide(view), view.now
        desired = hpa_behavior.average_value(self._desired or 0, 1.0, view.replicas)
        return self._stabilizer.replicas(view, desired)
