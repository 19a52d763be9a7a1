"""What a scaling law may ask Prometheus: about the pods of its LLMDeployment, at one instant."""

from collections.abc import Collection

from tangram.simulator.metrics.prometheus import SimulatedPrometheus
from tangram.simulator.metrics.range_selection import RangeSelection


class MetricsView:
    """A simulated Prometheus, for some pods at one instant. Each method raises `PrometheusDown` in an outage.

    Results are by pod; a pod without the series is not in them.
    """

    __slots__ = ("_prometheus", "_selections", "at", "pods")

    def __init__(self, prometheus: SimulatedPrometheus, pods: Collection[str], at: float) -> None:
        self.pods = tuple(pods)
        self.at = round(at, 3)  # queries have milliseconds
        self._prometheus = prometheus
        self._selections: dict[float, RangeSelection] = {}

    @property
    def scrape_interval_s(self) -> float:
        """Return the seconds between two scrapes."""
        return self._prometheus.scrape_interval_s

    def instant(self, metric: str) -> dict[str, float]:
        """Return the newest values of a series."""
        return self._prometheus.instant(metric, self.at, self.pods)

    def timestamp(self, metric: str) -> dict[str, float]:
        """Return the times of the newest values of a series."""
        return self._prometheus.timestamp(metric, self.at, self.pods)

    def over(self, window_s: float) -> RangeSelection:
        """Return the scrapes within the window that ends now."""
        selection = self._selections.get(window_s)
        if selection is None:
            selection = self._prometheus.select(window_s, self.at, self.pods)
            self._selections[window_s] = selection
        return selection

    def increase(self, metric: str, window_s: float) -> dict[str, float]:
        """Return the increase of a counter over a window."""
        return self.over(window_s).increase(metric)

    def rate(self, metric: str, window_s: float) -> dict[str, float]:
        """Return the increase of a counter per second over a window."""
        return self.over(window_s).rate(metric)

    def avg_over_time(self, metric: str, window_s: float) -> dict[str, float]:
        """Return the mean of a gauge over a window."""
        return self.over(window_s).avg_over_time(metric)

    def max_over_time(self, metric: str, window_s: float) -> dict[str, float]:
        """Return the largest value of a gauge over a window."""
        return self.over(window_s).max_over_time(metric)

    def buckets(self, histogram: str, window_s: float) -> dict[str, list[float]]:
        """Return the increase of each bucket of a histogram over a window, cumulative, +Inf last."""
        return self.over(window_s).buckets(histogram)
