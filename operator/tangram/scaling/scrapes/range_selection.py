"""Functions of PromQL over one window: `increase`, `rate`, `avg_over_time`, `max_over_time`.

`extrapolatedRate` in Prometheus' promql/functions.go is the source of the formula. The increase between the
first and the last sample is extrapolated to the bounds of the window if the samples reach close to them, else
by half the mean distance of two samples; never to before the point where the counter was zero.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from tangram.scaling.scrapes.page_layout import PageLayout, Row
from tangram.scaling.scrapes.scraped_target import ScrapedTarget

# Samples are close to a bound of the window if their distance is less than this many mean distances.
_CLOSE = 1.1

CounterName = tuple[str, float | None]
"""A counter; or a histogram, and the edge of one of its buckets."""


@dataclass(slots=True)
class SampledInterval:
    """At least two scrapes of one target within a window, and how far they are extrapolated. Seconds."""

    key: str
    first: Row
    last: Row
    between: list[Row] | None  # all of them if the process restarted, so that counters were reset
    sampled_s: float  # from the first to the last
    to_start_s: float  # extrapolated before the first
    to_end_s: float  # extrapolated behind the last
    zero_below_s: float  # a counter that was zero less long ago than this is extrapolated to that point
    absent: frozenset[int]  # columns that the target lacks

    def increase(self, column: int) -> float:
        """Return what PromQL's `increase` returns for the counter in a column."""
        return self.increases(lambda row: (row[column],))[0]

    def increases(self, select: Callable[[Row], Sequence[float]]) -> list[float]:
        """Return the increase of each counter that `select` takes from a row."""
        sampled_s, to_end_s, zero_below_s = self.sampled_s, self.to_end_s, self.zero_below_s
        factor = (sampled_s + self.to_start_s + to_end_s) / sampled_s
        starts = select(self.first)
        differences = list(map(operator.sub, select(self.last), starts))
        if self.between is not None:
            rows = list(map(select, self.between))
            differences = [
                difference + _lost_by_resets([row[place] for row in rows])
                for place, difference in enumerate(differences)
            ]
        return [
            0.0
            if difference <= 0
            else difference * factor
            if (since_zero_s := sampled_s * (start / difference)) >= zero_below_s
            else difference * ((sampled_s + since_zero_s + to_end_s) / sampled_s)
            for start, difference in zip(starts, differences, strict=True)
        ]


def _lost_by_resets(values: list[float]) -> float:
    lost, before = 0.0, values[0]
    for value in values:
        if value < before:
            lost += before
        before = value
    return lost


class RangeSelection:
    """The scrapes of some targets within one window: a range vector. Results are by target."""

    __slots__ = (
        *("_at_ms", "_intervals", "_layout", "_major", "_shared", "_sparse", "_targets", "_window_s"),
    )

    def __init__(
        self,
        layout: PageLayout,
        targets: Iterable[tuple[str, ScrapedTarget]],
        window_ms: int,
        at_ms: int,
        major: int,
    ) -> None:
        self._layout = layout
        self._window_s = window_ms / 1000
        # Prometheus 3 leaves out a sample at the very start of a window, Prometheus 2 does not.
        after_ms = at_ms - window_ms - (major < 3)
        self._targets = [(key, target, *target.within(after_ms, at_ms)) for key, target in targets]
        self._sparse = [(key, t, begin, end) for key, t, begin, end in self._targets if t.sparse]
        self._at_ms = at_ms
        self._major = major
        self._intervals: list[SampledInterval] | None = None  # of targets that are not sparse
        self._shared: dict[str, SampledInterval | None] = {}  # of sparse targets, by key

    def increase(self, metric: str) -> dict[str, float]:
        """Return the increase of a counter over the window, of targets with two scrapes or more."""
        return self.increases(((metric, None),))[0]

    def increases(self, counters: tuple[CounterName, ...]) -> list[dict[str, float]]:
        """Return the increase of each counter. Several at once are cheaper than one by one."""
        results: list[dict[str, float]] = [{} for _ in counters]
        absent = None
        for interval in self._sampled():
            if interval.absent is not absent:  # most targets lack the same
                absent = interval.absent
                select, places = _selection(self._layout, counters, absent)
            for place, value in zip(places, interval.increases(select), strict=True):
                results[place][interval.key] = value
        for sparse in self._sparse:
            for result, counter in zip(results, counters, strict=True):
                column = _column(self._layout, counter)
                series = self._series_interval(*sparse, column)
                if series is not None:
                    result[sparse[0]] = series.increase(column)
        return results

    def rate(self, metric: str) -> dict[str, float]:
        """Return the increase of a counter per second."""
        return {key: value / self._window_s for key, value in self.increase(metric).items()}

    def bucket(self, histogram: str, edge: float) -> dict[str, float]:
        """Return the increase of the bucket of a histogram that ends at `edge`."""
        return self.increases(((histogram, edge),))[0]

    def buckets(self, histogram: str) -> dict[str, list[float]]:
        """Return the increase of each bucket of a histogram; the last one is that of +Inf.

        A bucket that a target lacks is NaN; a target without any is left out.
        """
        columns = self._layout.bucket_columns(histogram)
        buckets: dict[str, list[float]] = {}
        for interval in self._sampled():
            if interval.absent.isdisjoint(columns):
                buckets[interval.key] = interval.increases(itemgetter(slice(columns.start, columns.stop)))
            else:
                each = [None if column in interval.absent else interval for column in columns]
                _add_buckets(buckets, interval.key, each, columns)
        for sparse in self._sparse:
            each = [self._series_interval(*sparse, column) for column in columns]
            _add_buckets(buckets, sparse[0], each, columns)
        return buckets

    def avg_over_time(self, metric: str) -> dict[str, float]:
        """Return the mean of a gauge, of targets with one scrape or more."""
        return {key: sum(values) / len(values) for key, values in self._values(metric)}

    def max_over_time(self, metric: str) -> dict[str, float]:
        """Return the largest value of a gauge, of targets with one scrape or more."""
        return {key: max(values) for key, values in self._values(metric)}

    def _values(self, metric: str) -> Iterable[tuple[str, Sequence[float]]]:
        column = self._layout.columns[metric]
        for key, target, begin, end in self._targets:
            values = target.values(column, begin, end)
            if column in target.absent or column in target.sparse:
                values = [value for value in values if not math.isnan(value)]
            if values:
                yield key, values

    def _sampled(self) -> list[SampledInterval]:
        """Return the intervals of the targets of which each page had the same series: all share one."""
        if self._intervals is None:
            intervals = (self._interval(*place) for place in self._targets if not place[1].sparse)
            self._intervals = [interval for interval in intervals if interval is not None]
        return self._intervals

    def _series_interval(
        self, key: str, target: ScrapedTarget, begin: int, end: int, column: int
    ) -> SampledInterval | None:
        """Return the interval of one series of a sparse target."""
        if column in target.absent:
            return None
        if column not in target.sparse:
            if key not in self._shared:
                self._shared[key] = self._interval(key, target, begin, end)
            return self._shared[key]
        scrapes = zip(target.times_ms[begin:end], target.rows[begin:end], strict=True)
        having = [(at_ms, row) for at_ms, row in scrapes if not math.isnan(row[column])]
        series = ScrapedTarget()
        series.times_ms, series.rows = [at_ms for at_ms, _ in having], [row for _, row in having]
        series.restarts_ms = target.restarts_ms
        return self._interval(key, series, 0, len(having))

    def _interval(self, key: str, target: ScrapedTarget, begin: int, end: int) -> SampledInterval | None:
        if end - begin < 2:
            return None
        first_ms, last_ms = target.times_ms[begin], target.times_ms[end - 1]
        sampled_s = (last_ms - first_ms) / 1000
        mean_s = sampled_s / (end - begin - 1)
        close_s = _CLOSE * mean_s
        to_start_s = self._window_s - (self._at_ms - first_ms) / 1000
        to_end_s = (self._at_ms - last_ms) / 1000
        zero_below_s = to_start_s
        if to_start_s >= close_s:
            to_start_s = mean_s / 2
            zero_below_s = to_start_s if self._major >= 3 else close_s
        return SampledInterval(
            key=key,
            first=target.rows[begin],
            last=target.rows[end - 1],
            between=target.rows[begin:end] if target.restarted(first_ms, last_ms) else None,
            sampled_s=sampled_s,
            to_start_s=to_start_s,
            to_end_s=to_end_s if to_end_s < close_s else mean_s / 2,
            zero_below_s=zero_below_s,
            absent=target.absent,
        )


def _add_buckets(
    buckets: dict[str, list[float]],
    key: str,
    intervals: Sequence[SampledInterval | None],
    columns: Sequence[int],
) -> None:
    """Add the increase of each bucket of a target that lacks some of them, unless it lacks all."""
    if any(intervals):
        buckets[key] = [
            math.nan if interval is None else interval.increase(column)
            for interval, column in zip(intervals, columns, strict=True)
        ]


def _column(layout: PageLayout, counter: CounterName) -> int:
    metric, edge = counter
    return layout.columns[metric] if edge is None else layout.bucket_column(metric, edge)


@lru_cache(maxsize=1024)
def _selection(
    layout: PageLayout, counters: tuple[CounterName, ...], absent: frozenset[int]
) -> tuple[Callable[[Row], Sequence[float]], tuple[int, ...]]:
    """Return what takes some counters from a row, but for absent columns, and the places of those."""
    columns = [_column(layout, counter) for counter in counters]
    places = tuple(place for place, column in enumerate(columns) if column not in absent)
    present = [columns[place] for place in places]
    if len(present) > 1:
        return itemgetter(*present), places
    return lambda row: [row[column] for column in present], places
