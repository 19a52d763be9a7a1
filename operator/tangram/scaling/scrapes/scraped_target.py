"""The stored scrapes of one target: times, values, staleness markers and restarts of the process."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from tangram.scaling.scrapes.page_layout import Row

_NONE: frozenset[int] = frozenset()


class ScrapedTarget:
    """The series of one target. All have the same times, because one scrape yields all of them."""

    __slots__ = (
        *("_process", "absent", "end_ms", "end_visible_ms", "gauges", "last_ms", "markers_ms", "restarts_ms"),
        *("rows", "sparse", "times_ms"),
    )

    def __init__(self, gauges: int = 0) -> None:
        """`gauges`: how many columns, the first ones, are read over whole windows."""
        self.times_ms: list[int] = []
        self.rows: list[Row] = []
        # The same values as in the rows, side by side: a row of a quarter of an hour ago is in no cache.
        self.gauges = [array("d") for _ in range(gauges)]
        self.absent: frozenset[int] = _NONE  # columns that no page had
        self.sparse: frozenset[int] = _NONE  # columns that some pages had, and others not
        self.last_ms = 0  # when it was scraped last, with or without success
        self.markers_ms: list[int] = []  # first failed scrapes after a successful one, as staleness markers
        self.restarts_ms: list[int] = []  # first scrapes of processes that followed another one
        self.end_ms: int | None = None  # staleness marker of a target that was removed
        self.end_visible_ms = 0  # from then on the marker is stored
        self._process: object = None

    def append(self, at_ms: int, process: object, row: Row, absent: frozenset[int] = _NONE) -> None:
        """Store a scrape of `process`, whose page lacks the columns `absent`.

        Raises `ValueError` if it is too old.
        """
        if self.times_ms:
            if at_ms <= self.times_ms[-1]:
                raise ValueError("scrapes of one target are stored in the order of their times")
            if process is not self._process:
                self.restarts_ms.append(at_ms)
            if absent != self.absent:
                self.sparse |= absent ^ self.absent
                self.absent &= absent
        else:
            self.absent = absent
        self._process = process
        self.times_ms.append(at_ms)
        self.rows.append(row)
        for values, value in zip(self.gauges, row, strict=False):
            values.append(value)
        self.last_ms = at_ms
        self.end_ms = None

    def mark_stale(self, at_ms: int) -> None:
        """Store a scrape that failed; only the first one after a successful one shows."""
        self.last_ms = at_ms
        if self.times_ms and not (self.markers_ms and self.markers_ms[-1] > self.times_ms[-1]):
            self.markers_ms.append(at_ms)

    def values(self, column: int, begin: int, end: int) -> Sequence[float]:
        """Return the values of a series from one scrape to before another, by their indexes."""
        if column < len(self.gauges):
            return self.gauges[column][begin:end]
        return [row[column] for row in self.rows[begin:end]]

    def newest(self, after_ms: int, at_ms: int) -> int | None:
        """Return the index of the scrape that an instant query at `at_ms` sees; it is after `after_ms`."""
        index = bisect_right(self.times_ms, at_ms) - 1
        if index < 0 or self.times_ms[index] <= after_ms:
            return None
        scraped_ms = self.times_ms[index]
        if self.end_ms is not None and self.end_visible_ms <= at_ms and scraped_ms < self.end_ms <= at_ms:
            return None
        if self.markers_ms and bisect_right(self.markers_ms, scraped_ms) < bisect_right(
            self.markers_ms, at_ms
        ):
            return None
        return index

    def within(self, after_ms: int, at_ms: int) -> tuple[int, int]:
        """Return the first index, and the one behind the last, of the scrapes in (after_ms, at_ms]."""
        return bisect_right(self.times_ms, after_ms), bisect_right(self.times_ms, at_ms)

    def restarted(self, after_ms: int, at_ms: int) -> bool:
        """Return whether another process followed between scrapes at these times."""
        restarts = self.restarts_ms
        return bool(restarts) and bisect_right(restarts, after_ms) < bisect_right(restarts, at_ms)

    def drop_before(self, before_ms: int) -> None:
        """Forget the scrapes before a time."""
        kept_from = bisect_left(self.times_ms, before_ms)
        del self.times_ms[:kept_from], self.rows[:kept_from]
        for values in self.gauges:
            del values[:kept_from]
        del self.markers_ms[: bisect_left(self.markers_ms, before_ms)]
        del self.restarts_ms[: bisect_left(self.restarts_ms, before_ms)]
