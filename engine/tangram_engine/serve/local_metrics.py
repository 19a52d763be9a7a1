"""Metrics that one thread writes: a value costs a fifth of what the client library takes for its locks."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry


class LocalCounter(Collector):
    """A counter with one set of labels; add to `value`."""

    def __init__(self, name: str, text: str, labels: dict[str, str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, labels
        self.value = 0
        registry.register(self)

    def describe(self) -> Iterator[CounterMetricFamily]:
        """See prometheus_client: by the names of the series a page is restricted to some."""
        yield CounterMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See prometheus_client."""
        family = CounterMetricFamily(self._name, self._text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), float(self.value))
        yield family


class LocalHistogram(Collector):
    """Cumulative buckets with one set of labels, as Prometheus reads them."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: dict[str, str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = [float(bound) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self._sum = 0.0
        registry.register(self)

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """See prometheus_client."""
        yield HistogramMetricFamily(self._name, self._text)

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """See prometheus_client."""
        family = HistogramMetricFamily(self._name, self._text, labels=tuple(self._labels))
        names = [*map(repr, self._bounds), "+Inf"]
        counts = map(float, accumulate(self._counts))
        family.add_metric(tuple(self._labels.values()), list(zip(names, counts, strict=True)), self._sum)
        yield family
