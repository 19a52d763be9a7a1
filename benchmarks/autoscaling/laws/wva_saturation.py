"""Saturation analysis of llm-d's Workload Variant Autoscaler, version 1 (its default).

Source: llm-d/llm-d-workload-variant-autoscaler, docs/saturation-analyzer.md. A replica is saturated at 80 %
of its KV cache or 5 waiting requests, by the peaks of one minute. A replica is added if the others have
less than 10 % of the cache or 3 requests to spare, on average, and none is starting. One is removed if the
load of all that are not saturated, spread over one less, leaves both to spare, and there are two of them.
Every 60 s. Its chart has an HPA behind it with 240 s of stabilisation in both directions (`behind_hpa`).
Missing metrics change nothing.
"""

from benchmarks.autoscaling.laws.hpa import HPAOnDesiredReplicas
from tangram.scaling.queries import KV_USAGE, WAITING
from tangram.simulator.controllers import Controller, ControllerView
from tangram.simulator.controllers.hpa_behavior import HPABehavior
from tangram.simulator.metrics import PrometheusDown

LOOP_S = 60.0
_PEAK_S = 60.0
_SATURATED_QUEUE = 5.0
_SPARE_KV, _SPARE_QUEUE = 0.1, 3.0


def behind_hpa(law: Controller) -> HPAOnDesiredReplicas:
    """Return `law` behind the HPA of WVA's chart."""
    return HPAOnDesiredReplicas(law, HPABehavior(up_window_s=240.0, down_window_s=240.0))


class WVASaturation:
    """WVA, version 1, for one variant."""

    interval_s = LOOP_S

    def __init__(self, knob: float = 0.8) -> None:
        """`knob` is the share of the KV cache from which on a replica is saturated."""
        self.knob = knob

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        try:
            window = view.metrics.over(_PEAK_S)
            usage, queues = window.max_over_time(KV_USAGE), window.max_over_time(WAITING)
        except PrometheusDown:
            return view.replicas
        if not usage:
            return view.replicas
        pages = [(kv, queues.get(pod, 0.0)) for pod, kv in usage.items()]
        open_pages = [(kv, queue) for kv, queue in pages if kv < self.knob and queue < _SATURATED_QUEUE]
        if not self._is_spare(open_pages, len(open_pages)):
            return view.replicas if view.starting else view.replicas + 1
        if len(open_pages) >= 2 and self._is_spare(open_pages, len(open_pages) - 1):
            return view.replicas - 1
        return view.replicas

    def _is_spare(self, pages: list[tuple[float, float]], replicas: int) -> bool:
        """Return whether the load of `pages`, spread over `replicas`, leaves enough of both to spare."""
        if not replicas:
            return False
        kv = sum(page[0] for page in pages) / replicas
        queue = sum(page[1] for page in pages) / replicas
        return self.knob - kv >= _SPARE_KV and _SATURATED_QUEUE - queue >= _SPARE_QUEUE
