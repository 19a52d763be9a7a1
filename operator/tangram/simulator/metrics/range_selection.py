"""Functions of PromQL over one window: `increase`, `rate`, `avg_over_time`, `max_over_time`.

`extrapolatedRate` in Prometheus' promql/functions.go is the source of the formula. The increase between the
first and the last sample is extrapolated to the bounds of the window if the samples reach close to them, else
by half the mean distance of two samples; never to before the point where the counter was zero.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tangram.simulator.metrics.page_layout import COLUMN, EDGES, FIRST_BUCKET, Row, bucket_column
from tangram.simulator.metrics.scraped_target import ScrapedTarget

# Samples are close to a bound of the window if their distance is less than this many mean distances.
_CLOSE = 1.1


@dataclass(frozen=True, slots=True)
class SampledInterval:
    """At least two scrapes of one pod within a window, and how far they are extrapolated. Seconds."""

    pod: str
    first: Row
    last: Row
    between: list[Row] | None  # all of them if the container restarted, so that counters were reset
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
    """The scrapes of some pods within one window: a range vector. Results are by pod."""

    __slots__ = ("_after_ms", "_at_ms", "_intervals", "_major", "_targets", "_window_s")

    def __init__(
        self, targets: Iterable[tuple[str, ScrapedTarget]], window_ms: int, at_ms: int, major: int
    ) -> None:
        self._targets = list(targets)
        self._window_s = window_ms / 1000
        # Prometheus 3 leaves out a sample at the very start of a window, Prometheus 2 does not.
        self._after_ms = at_ms - window_ms - (major < 3)
        self._at_ms = at_ms
        self._major = major
        self._intervals: list[SampledInterval] | None = None

    def increase(self, metric: str) -> dict[str, float]:
        """Return the increase of a counter over the window, of pods with two scrapes or more."""
        return self._increase(COLUMN[metric])

    def rate(self, metric: str) -> dict[str, float]:
        """Return the increase of a counter per second."""
        return {pod: value / self._window_s for pod, value in self.increase(metric).items()}

    def bucket(self, histogram: str, edge: float) -> dict[str, float]:
        """Return the increase of the bucket of a histogram that ends at `edge`."""
        return self._increase(bucket_column(histogram, edge))

    def buckets(self, histogram: str) -> dict[str, list[float]]:
        """Return the increase of each bucket of a histogram; the last one is that of +Inf."""
        first = FIRST_BUCKET[histogram]
        columns = range(first, first + len(EDGES[histogram]) + 1)
        return {interval.pod: interval.increases(columns) for interval in self._sampled()}

    def avg_over_time(self, metric: str) -> dict[str, float]:
        """Return the mean of a gauge, of pods with one scrape or more."""
        return {pod: sum(values) / len(values) for pod, values in self._values(metric)}

    def max_over_time(self, metric: str) -> dict[str, float]:
        """Return the largest value of a gauge, of pods with one scrape or more."""
        return {pod: max(values) for pod, values in self._values(metric)}

    def _increase(self, column: int) -> dict[str, float]:
        return {interval.pod: interval.increase(column) for interval in self._sampled()}

    def _values(self, metric: str) -> Iterable[tuple[str, list[float]]]:
        column = COLUMN[metric]
        for pod, target in self._targets:
            begin, end = target.within(self._after_ms, self._at_ms)
            if begin < end:
                yield pod, [row[column] for row in target.rows[begin:end]]

    def _sampled(self) -> list[SampledInterval]:
        if self._intervals is None:
            intervals = (self._interval(pod, target) for pod, target in self._targets)
            self._intervals = [interval for interval in intervals if interval is not None]
        return self._intervals

    def _interval(self, pod: str, target: ScrapedTarget) -> SampledInterval | None:
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
            pod=pod,
            first=target.rows[begin],
            last=target.rows[end - 1],
            between=target.rows[begin:end] if target.restarted(first_ms, last_ms) else None,
            sampled_s=sampled_s,
            to_start_s=to_start_s,
            to_end_s=to_end_s if to_end_s < close_s else mean_s / 2,
            zero_below_s=zero_below_s,
        )
