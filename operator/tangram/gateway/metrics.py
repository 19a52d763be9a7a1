"""The metrics of a picker. The number of series is fixed: none carries a text of a client."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class GatewayMetrics:
    """Counts what a picker decides."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.registry = registry = CollectorRegistry()
        self._clock = clock
        self._requests = Counter(
            "tangram_gateway_requests_total",
            "Requests by what became of them: routed to a replica, or why they were answered without one.",
            ("result",),
            registry=registry,
        )
        self._decisions = Histogram(
            "tangram_gateway_decision_seconds",
            "Time in which a replica was chosen, reading the body included.",
            buckets=BUCKETS_S,
            registry=registry,
        )

    def count(self, result: str) -> None:
        """Count a request by its result."""
        self._requests.labels(result).inc()

    def show(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a value of the moment as a gauge."""
        Gauge(name, text, registry=self.registry).set_function(value)

    @contextmanager
    def decision(self) -> Iterator[None]:
        """Time one decision within a block."""
        began = self._clock()
        try:
            yield
        finally:
            self._decisions.observe(self._clock() - began)
