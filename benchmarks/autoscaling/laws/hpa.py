"""The HorizontalPodAutoscaler on external metrics. Source: Kubernetes, autoscaling/v2.

Law: ceil(sum / target) for a queue, with the behaviour of `tangram.simulator.controllers.hpa_behavior`. A
metric that cannot be read changes nothing.
"""

import math

from benchmarks.autoscaling.laws.signals import total
from tangram.scaling.queries import WAITING
from tangram.simulator.controllers import Controller, ControllerView, hpa_behavior
from tangram.simulator.controllers.hpa_behavior import HPABehavior, HPAStabilizer
from tangram.simulator.metrics import PrometheusDown


class HPAOnQueue:
    """An HPA on the requests that wait, as an external metric with a target per replica."""

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
        desired = average_value(waiting, self.knob, view.replicas)
        return self._stabilizer.replicas(view, desired)


class HPAOnDesiredReplicas:
    """An HPA on the desired replicas of another law, published as a metric with an AverageValue of 1.

    Steps of less than 10 % are inside the tolerance of the HPA: above ten replicas it ignores single ones.
    """

    interval_s = hpa_behavior.SYNC_S

    def __init__(self, law: Controller, behavior: HPABehavior) -> None:
        self._law = law
        self._stabilizer = HPAStabilizer(behavior)
        self._desired: int | None = None
        self._decided_at: float | None = None

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas; the other law decides at its own interval."""
        if self._decided_at is None or view.now - self._decided_at >= self._law.interval_s:
            self._desired, self._decided_at = self._law.decide(view), view.now
        desired = average_value(self._desired or 0, 1.0, view.replicas)
        return self._stabilizer.replicas(view, desired)


def average_value(amount: float, target: float, replicas: int) -> int:
    """Return the recommendation for an external metric with a target of type AverageValue."""
    if replicas < 1:
        return replicas  # an HPA does nothing at zero
    if hpa_behavior.is_tolerated(amount / (target * replicas)):
        return replicas
    return math.ceil(amount / target)
