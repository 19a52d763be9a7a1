"""What may be asked about the pods of an LLMDeployment, at one instant."""

from collections.abc import Collection

from tangram.scaling.scrapes.range_selection import RangeSelection
from tangram.scaling.scrapes.scrape_store import ScrapeStore


class MetricsView:
    """The scrapes of some targets at one instant. A method raises where the store does (`ScrapeStore.check`).

    Results are by target; one without the series is not in them.
    """

    __slots__ = ("_selections", "_store", "at", "keys")

    def __init__(self, store: ScrapeStore, keys: Collection[str], at: float) -> None:
        self.keys = tuple(keys)
        self.at = round(at, 3)  # queries have milliseconds
        self._store = store
        self._selections: dict[float, RangeSelection] = {}

    @property
    def scrape_interval_s(self) -> float:
        """Return the seconds between two scrapes."""
        return self._store.scrape_interval_s

    def edges(self, histogram: str) -> tuple[float, ...]:
        """Return the upper bounds of the buckets of a histogram, without +Inf."""
        return self._store.layout.edges[histogram]

    def instant(self, metric: str) -> dict[str, float]:
        """Return the newest values of a series."""
        return self._store.instant(metric, self.at, self.keys)

    def timestamp(self, metric: str) -> dict[str, float]:
        """Return the times of the newest values of a series."""
        return self._store.timestamp(metric, self.at, self.keys)

    def over(self, window_s: float) -> RangeSelection:
        """Return the scrapes within the window that ends now."""
        selection = self._selections.get(window_s)
        if selection is None:
            selection = self._store.select(window_s, self.at, self.keys)
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
