"""Functions of PromQL over one window: `increase`, `rate`, `avg_over_time`, `max_over_time`.

`extrapolatedRate` in Prometheus' promql/functions.go is the source of the formula. The increase between the
first and the last sample is extrapolated to the bounds of the window if the samples reach close to them, else
by half the mean distance of two samples; never to before the point where the counter was zero.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tangram.scaling.scrapes.page_layout import PageLayout, Row
from tangram.scaling.scrapes.scraped_target import ScrapedTarget

# Samples are close to a bound of the window if their distance is less than this many mean distances.
_CLOSE = 1.1


@dataclass(frozen=True, slots=True)
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

    def increase(self, column: int) -> float:
        """Return what PromQL's `increase` returns for the counter in a column."""
        first = self.first[column]
        difference = self.last[column] - first
        if self.between is not None:
            difference += _lost_by_resets(self.between, column)
        if difference <= 0:
            return 0.0
        to_start_s = self.sampled_s * (first / difference)
        if to_start_s >= self.zero_below_s:
            to_start_s = self.to_start_s
        return difference * ((self.sampled_s + to_start_s + self.to_end_s) / self.sampled_s)

    def increases(self, columns: range) -> list[float]:
        """Return the increases of the buckets in `columns`. Many are equal: empty buckets add nothing."""
        increases: list[float] = []
        before: tuple[float, float] | None = None
        for column in columns:
            ends = self.first[column], self.last[column]
            is_equal = ends == before and self.between is None
            increases.append(increases[-1] if is_equal else self.increase(column))
            before = ends
        return increases


def _lost_by_resets(rows: list[Row], column: int) -> float:
    lost, before = 0.0, rows[0][column]
    for row in rows:
        if row[column] < before:
            lost += before
        before = row[column]
    return lost


class RangeSelection:
    """The scrapes of some targets within one window: a range vector. Results are by target."""

    __slots__ = (
        *("_after_ms", "_at_ms", "_complete", "_intervals", "_layout", "_major", "_partial", "_shared"),
        *("_targets", "_window_s"),
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
        self._targets = list(targets)
        self._complete = [(key, t) for key, t in self._targets if not (t.absent or t.sparse)]
        self._partial = [(key, t) for key, t in self._targets if t.absent or t.sparse]
        self._window_s = window_ms / 1000
        # Prometheus 3 leaves out a sample at the very start of a window, Prometheus 2 does not.
        self._after_ms = at_ms - window_ms - (major < 3)
        self._at_ms = at_ms
        self._major = major
        self._intervals: list[SampledInterval] | None = None  # of complete targets
        self._shared: dict[str, SampledInterval | None] = {}  # of partial targets, by key

    def increase(self, metric: str) -> dict[str, float]:
        """Return the increase of a counter over the window, of targets with two scrapes or more.

        It is summed over the series of the metric that a target has.
        """
        first, *others = self._layout.columns[metric]
        total = self._increase(first)
        for column in others:
            for key, value in self._increase(column).items():
                total[key] = total.get(key, 0.0) + value
        return total

    def rate(self, metric: str) -> dict[str, float]:
        """Return the increase of a counter per second."""
        return {key: value / self._window_s for key, value in self.increase(metric).items()}

    def bucket(self, histogram: str, edge: float) -> dict[str, float]:
        """Return the increase of the bucket of a histogram that ends at `edge`."""
        return self._increase(self._layout.bucket_column(histogram, edge))

    def buckets(self, histogram: str) -> dict[str, list[float]]:
        """Return the increase of each bucket of a histogram; the last one is that of +Inf.

        A bucket that a target lacks is NaN; a target without any is left out.
        """
        columns = self._layout.bucket_columns(histogram)
        buckets: dict[str, list[float]] = {}
        for interval in self._sampled():
            buckets[interval.key] = interval.increases(columns)
        for key, target in self._partial:
            each = [self._series_interval(key, target, column) for column in columns]
            if any(each):
                buckets[key] = [
                    math.nan if interval is None else interval.increase(column)
                    for interval, column in zip(each, columns, strict=True)
                ]
        return buckets

    def avg_over_time(self, metric: str) -> dict[str, float]:
        """Return the mean of a gauge, of targets with one scrape or more."""
        return {key: sum(values) / len(values) for key, values in self._values(metric)}

    def max_over_time(self, metric: str) -> dict[str, float]:
        """Return the largest value of a gauge, of targets with one scrape or more."""
        return {key: max(values) for key, values in self._values(metric)}

    def _increase(self, column: int) -> dict[str, float]:
        increases = {interval.key: interval.increase(column) for interval in self._sampled()}
        for key, target in self._partial:
            interval = self._series_interval(key, target, column)
            if interval is not None:
                increases[key] = interval.increase(column)
        return increases

    def _values(self, metric: str) -> Iterable[tuple[str, list[float]]]:
        column = self._layout.column(metric)
        for key, target in self._targets:
            begin, end = target.within(self._after_ms, self._at_ms)
            values = [row[column] for row in target.rows[begin:end]]
            if column in target.absent or column in target.sparse:
                values = [value for value in values if not math.isnan(value)]
            if values:
                yield key, values

    def _sampled(self) -> list[SampledInterval]:
        """Return the intervals of the targets whose pages lack no series: all their series share one."""
        if self._intervals is None:
            intervals = (self._interval(key, target) for key, target in self._complete)
            self._intervals = [interval for interval in intervals if interval is not None]
        return self._intervals

    def _series_interval(self, key: str, target: ScrapedTarget, column: int) -> SampledInterval | None:
        """Return the interval of one series of a target whose pages lack some."""
        if column in target.absent:
            return None
        if column not in target.sparse:
            if key not in self._shared:
                self._shared[key] = self._interval(key, target)
            return self._shared[key]
        begin, end = target.within(self._after_ms, self._at_ms)
        scrapes = zip(target.times_ms[begin:end], target.rows[begin:end], strict=True)
        having = [(at_ms, row) for at_ms, row in scrapes if not math.isnan(row[column])]
        series = ScrapedTarget()
        series.times_ms, series.rows = [at_ms for at_ms, _ in having], [row for _, row in having]
        series.restarts_ms = target.restarts_ms
        return self._interval(key, series)

    def _interval(self, key: str, target: ScrapedTarget) -> SampledInterval | None:
        begin, end = target.within(self._after_ms, self._at_ms)
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
        )
