"""A Prometheus server that scrapes simulated engines: what it stores, and what its queries return.

It keeps to the rules of a real one: a failed scrape ends the series at once by a staleness marker; an instant
query looks back five minutes; a window needs two scrapes for a rate; a target that was removed ends only two
scrapes later. Times are stored in milliseconds.
"""

from collections.abc import Iterable, Iterator

from tangram.simulator.metrics.engine_page import EnginePage
from tangram.simulator.metrics.page_layout import COLUMN
from tangram.simulator.metrics.range_selection import RangeSelection
from tangram.simulator.metrics.scraped_target import ScrapedTarget

_LOOKBACK_MS = 300_000
# A removed target may come back: its end is stored 1.1 intervals after the first scrape that it lacks.
_END_DELAY = 1.1
_PRUNE_AT = 2  # retentions


class PrometheusDown(Exception):
    """A query that Prometheus does not answer."""


class SimulatedPrometheus:
    """A Prometheus server and its storage. Results are by pod; a pod without the series is not in them."""

    def __init__(
        self, scrape_interval_s: float = 15.0, *, retention_s: float = 7200.0, major: int = 3
    ) -> None:
        """`major` is the version of Prometheus; windows of 2 are closed, of 3 left-open."""
        self.scrape_interval_s = scrape_interval_s
        self._interval_ms = _milliseconds(scrape_interval_s)
        self._retention_ms = _milliseconds(retention_s)
        self._kept_scrapes = max(1, round(_PRUNE_AT * retention_s / scrape_interval_s))
        self._major = major
        self._targets: dict[str, ScrapedTarget] = {}
        self._outages: list[tuple[float, float]] = []

    # -- scrapes -------------------------------------------------------------------------------------------

    def scrape(self, pod: str, page: EnginePage, at: float) -> None:
        """Store a successful scrape of a pod. It is lost during an outage."""
        if self.is_down(at):
            return
        target = self._targets.get(pod)
        if target is None:
            target = self._targets[pod] = ScrapedTarget()
        at_ms = _milliseconds(at)
        target.append(at_ms, page, page.scrape())
        if len(target.times_ms) > self._kept_scrapes:
            target.drop_before(at_ms - self._retention_ms)

    def failed_scrape(self, pod: str, at: float) -> None:
        """End the series of a pod that does not answer, until it answers again."""
        target = self._targets.get(pod)
        if target is not None and not self.is_down(at):
            target.mark_stale(_milliseconds(at))

    def forget(self, pod: str, at: float) -> None:
        """Remove a target. Its series end at the scrape that it lacks first, which shows a little later.

        A Prometheus that restarts meanwhile does not know the target any more: its series end by lookback.
        """
        target = self._targets.get(pod)
        self._drop_ended(_milliseconds(at))
        if target is None or self.is_down(at):
            return
        target.end_ms = max(target.last_ms + self._interval_ms, _milliseconds(at))
        target.end_visible_ms = target.end_ms + round(_END_DELAY * self._interval_ms)
        if self.is_down(target.end_visible_ms / 1000):
            target.end_ms = None

    def outage(self, begin_s: float, end_s: float) -> None:
        """Let queries fail and scrapes be lost from `begin_s` until before `end_s`."""
        self._outages.append((begin_s, end_s))

    def is_down(self, at: float) -> bool:
        """Return whether an outage covers `at`."""
        return any(begin_s <= at < end_s for begin_s, end_s in self._outages)

    # -- queries -------------------------------------------------------------------------------------------

    def instant(self, metric: str, at: float, pods: Iterable[str] | None = None) -> dict[str, float]:
        """Return the newest values of a series."""
        column = COLUMN[metric]
        return {pod: target.rows[index][column] for pod, target, index in self._newest(at, pods)}

    def timestamp(self, metric: str, at: float, pods: Iterable[str] | None = None) -> dict[str, float]:
        """Return the times of the newest values of a series."""
        if metric not in COLUMN:
            raise KeyError(metric)
        return {pod: target.times_ms[index] / 1000 for pod, target, index in self._newest(at, pods)}

    def select(self, window_s: float, at: float, pods: Iterable[str] | None = None) -> RangeSelection:
        """Return the scrapes within a window, for several functions over it."""
        self._check(at)
        window_ms = _milliseconds(window_s)
        if window_ms > self._retention_ms:
            raise ValueError(f"a window of {window_s:g} s is longer than the retention")
        return RangeSelection(self._chosen(pods), window_ms, _milliseconds(at), self._major)

    def increase(self, metric: str, window_s: float, at: float) -> dict[str, float]:
        """Return the increase of a counter over a window."""
        return self.select(window_s, at).increase(metric)

    def rate(self, metric: str, window_s: float, at: float) -> dict[str, float]:
        """Return the increase of a counter per second over a window."""
        return self.select(window_s, at).rate(metric)

    def avg_over_time(self, metric: str, window_s: float, at: float) -> dict[str, float]:
        """Return the mean of a gauge over a window."""
        return self.select(window_s, at).avg_over_time(metric)

    def max_over_time(self, metric: str, window_s: float, at: float) -> dict[str, float]:
        """Return the largest value of a gauge over a window."""
        return self.select(window_s, at).max_over_time(metric)

    def buckets(self, histogram: str, window_s: float, at: float) -> dict[str, list[float]]:
        """Return the increase of each bucket of a histogram over a window, cumulative, +Inf last."""
        return self.select(window_s, at).buckets(histogram)

    # -- storage -------------------------------------------------------------------------------------------

    def _newest(self, at: float, pods: Iterable[str] | None) -> Iterator[tuple[str, ScrapedTarget, int]]:
        self._check(at)
        at_ms = _milliseconds(at)
        after_ms = at_ms - _LOOKBACK_MS - (self._major < 3)
        for pod, target in self._chosen(pods):
            index = target.newest(after_ms, at_ms)
            if index is not None:
                yield pod, target, index

    def _check(self, at: float) -> None:
        if self.is_down(at):
            raise PrometheusDown(f"no answer at {at:g} s")

    def _chosen(self, pods: Iterable[str] | None) -> Iterable[tuple[str, ScrapedTarget]]:
        if pods is None:
            return self._targets.items()
        return [(pod, self._targets[pod]) for pod in pods if pod in self._targets]

    def _drop_ended(self, at_ms: int) -> None:
        oldest = at_ms - self._retention_ms
        self._targets = {pod: t for pod, t in self._targets.items() if t.last_ms >= oldest}


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
