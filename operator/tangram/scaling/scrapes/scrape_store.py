"""Stores scrapes and answers about them by the rules of Prometheus.

A failed scrape ends the series at once by a staleness marker; an instant query looks back five minutes; a
window needs two scrapes for a rate; a target that was removed ends only two scrapes later. Times are stored
in milliseconds.

A target is one engine. Its key is that of its pod, or `pod/engine` where a page shows several.
"""

from collections.abc import Collection, Iterable, Iterator

from tangram.scaling.scrapes.page_layout import PageLayout, Row
from tangram.scaling.scrapes.range_selection import RangeSelection
from tangram.scaling.scrapes.scraped_target import ScrapedTarget

_LOOKBACK_MS = 300_000
# A removed target may come back: its end is stored 1.1 intervals after the first scrape that it lacks.
_END_DELAY = 1.1
ENGINE_MARK = "/"  # parts a pod from its engine in a key


class ScrapeStore:
    """The scrapes of all targets within the retention. Results are by target; one without the series is not
    in them.
    """

    def __init__(
        self,
        layout: PageLayout,
        scrape_interval_s: float = 15.0,
        *,
        retention_s: float = 7200.0,
        major: int = 3,
        slack: float = 2.0,
    ) -> None:
        """`major` is the version of Prometheus; windows of 2 are closed, of 3 left-open. Scrapes older than
        the retention are dropped once their share of it exceeds `slack` - 1.
        """
        self.layout, self.scrape_interval_s = layout, scrape_interval_s
        self._interval_ms = milliseconds(scrape_interval_s)
        self._retention_ms = milliseconds(retention_s)
        self._kept_scrapes = max(1, round(slack * retention_s / scrape_interval_s))
        self._major = major
        self._targets: dict[str, ScrapedTarget] = {}

    def append(
        self, key: str, process: object, row: Row, at: float, absent: frozenset[int] = frozenset()
    ) -> None:
        """Store a successful scrape of a target. `process`: what wrote the page, another one if counters
        began anew; `absent`: the columns that the page lacks.
        """
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = ScrapedTarget(self.layout.gauges)
        at_ms = milliseconds(at)
        target.append(at_ms, process, row, absent)
        if len(target.times_ms) > self._kept_scrapes:
            target.drop_before(at_ms - self._retention_ms)

    def mark_stale(self, key: str, at: float) -> None:
        """End the series of a target that does not answer, until it answers again."""
        target = self._targets.get(key)
        if target is not None:
            target.mark_stale(milliseconds(at))

    def remove(self, key: str, at: float) -> ScrapedTarget | None:
        """Remove a target. Its series end at the scrape that it lacks first, which shows a little later."""
        target = self._targets.get(key)
        self._drop_ended(milliseconds(at))
        if target is None:
            return None
        target.end_ms = max(target.last_ms + self._interval_ms, milliseconds(at))
        target.end_visible_ms = target.end_ms + round(_END_DELAY * self._interval_ms)
        return target

    def retain(self, keys: Collection[str]) -> None:
        """Forget all other targets, with their scrapes."""
        for key in self._targets.keys() - set(keys):
            del self._targets[key]

    # -- queries -------------------------------------------------------------------------------------------

    def instant(self, metric: str, at: float, keys: Iterable[str] | None = None) -> dict[str, float]:
        """Return the newest values of a series."""
        column = self.layout.columns[metric]
        return {key: target.rows[index][column] for key, target, index in self._newest(column, at, keys)}

    def timestamp(self, metric: str, at: float, keys: Iterable[str] | None = None) -> dict[str, float]:
        """Return the times of the newest values of a series."""
        column = self.layout.columns[metric]
        return {key: target.times_ms[index] / 1000 for key, target, index in self._newest(column, at, keys)}

    def select(self, window_s: float, at: float, keys: Iterable[str] | None = None) -> RangeSelection:
        """Return the scrapes within a window, for several functions over it."""
        self.check(at)
        window_ms = milliseconds(window_s)
        if window_ms > self._retention_ms:
            raise ValueError(f"a window of {window_s:g} s is longer than the retention")
        return RangeSelection(self.layout, self._chosen(keys), window_ms, milliseconds(at), self._major)

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

    def check(self, at: float) -> None:
        """Raise where no query is answered at `at`: a store that is always there never does."""

    # -- storage -------------------------------------------------------------------------------------------

    def _newest(
        self, column: int, at: float, keys: Iterable[str] | None
    ) -> Iterator[tuple[str, ScrapedTarget, int]]:
        self.check(at)
        at_ms = milliseconds(at)
        after_ms = at_ms - _LOOKBACK_MS - (self._major < 3)
        for key, target in self._chosen(keys):
            if column in target.absent:
                continue
            index = target.newest(after_ms, at_ms)
            # A page that lacks the series ends it.
            if index is not None and target.rows[index][column] == target.rows[index][column]:
                yield key, target, index

    def _chosen(self, keys: Iterable[str] | None) -> Iterable[tuple[str, ScrapedTarget]]:
        if keys is None:
            return self._targets.items()
        return [(key, self._targets[key]) for key in keys if key in self._targets]

    def _drop_ended(self, at_ms: int) -> None:
        oldest = at_ms - self._retention_ms
        self._targets = {key: t for key, t in self._targets.items() if t.last_ms >= oldest}


def milliseconds(seconds: float) -> int:
    """Return a time as it is stored."""
    return round(seconds * 1000)
