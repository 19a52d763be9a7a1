"""The HorizontalPodAutoscaler on a share of each pod. Source: Kubernetes, autoscaling/v2.

Law: ceil(pods * mean / target). Every 15 s, tolerance 10 %, up at once by at most the larger of 100 % and 4
pods per 15 s, down to the highest recommendation of 300 s. A metric that cannot be read changes nothing.
"""

from tangram.simulator.controllers import hpa_behavior
from tangram.simulator.controllers.controller import ControllerView
from tangram.simulator.controllers.hpa_behavior import HPAStabilizer
from tangram.simulator.metrics import PrometheusDown


class HPAOnUtilisation:
    """An HPA with a target share of each pod, such as of the requests that it may run at a time."""

    interval_s = hpa_behavior.SYNC_S

    def __init__(self, metric: str, whole: float, knob: float | None = None) -> None:
        """`whole` is the value of `metric` in a pod that is used in full; `knob` is the target share."""
        self.knob = 0.7 if knob is None else knob
        self._metric, self._whole = metric, whole
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
