"""From the lines of an engine's metrics page to a row of the scrape store. Pure.

Only the series that the operator reads count; other lines are dropped before anything is parsed. A page comes
from a pod, so nothing about it is believed: a line that is no series, a value that no engine has, or a series
that is there twice makes the page unusable, and no other page.
"""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from prometheus_client.parser import text_string_to_metric_families

from tangram.scaling.queries import PREVIOUS_NAMES, REJECTED
from tangram.scaling.scrapes.page_layout import GAUGES, MOST_REASONS, READ_BY_OPERATOR

MOST_ENGINES = 16  # of a page: a pod that serves with data parallelism shows several
_MOST_KNOWN = 50_000  # series whose labels are known; those of 200 LLMDeployments are some 20,000
_LONGEST_KNOWN = 500  # characters
_LARGEST = 1e15  # no counter of an engine reaches it
_QUOTED_CHARS = 60


class PageProblem(Exception):
    """A metrics page that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineValues:
    """What one engine shows on a page."""

    row: "array[float]"  # by `READ_BY_OPERATOR`; NaN where the page lacks the series
    absent: frozenset[int]  # the columns that it lacks

    def fell_below(self, before: "EngineValues") -> bool:
        """Return whether a counter is lower than before, so that another process counts."""
        first = len(GAUGES)  # gauges come first
        return any(map(float.__lt__, islice(self.row, first, None), islice(before.row, first, None)))


@dataclass(frozen=True, slots=True)
class _Series:
    model_name: str
    engine: str
    column: int
    reason: str | None = None  # of rejections: each has a column of its own
    is_previous: bool = False  # by the name that the metric had in previous versions of the engine


def _columns() -> dict[str, tuple[int, bool]]:
    """Return the column of each plain series, and whether its name is a previous one."""
    layout, columns = READ_BY_OPERATOR, {}
    previous = {name: (before, True) for name, before in PREVIOUS_NAMES.items()}
    for metric, series in layout.columns.items():
        columns[metric] = (series[0], False)
        name, mark, part = metric.rpartition("_")
        if metric in previous:
            columns[previous[metric][0]] = (series[0], True)
        elif mark and part in ("count", "sum") and name in previous:
            columns[f"{previous[name][0]}_{part}"] = (series[0], True)
    return columns


def _buckets() -> dict[str, tuple[str, bool]]:
    """Return the histogram of each name of buckets, and whether the name is a previous one."""
    buckets = {f"{name}_bucket": (name, False) for name, edges in READ_BY_OPERATOR.edges.items() if edges}
    for name, before in PREVIOUS_NAMES.items():
        if f"{name}_bucket" in buckets:
            buckets[f"{before}_bucket"] = (name, True)
    return buckets


_COLUMNS, _BUCKETS = _columns(), _buckets()
_WANTED = tuple(f"{name}{{".encode() for name in (*_COLUMNS, *_BUCKETS))
_WIDTH = READ_BY_OPERATOR.width
_EMPTY = array("d", [math.nan]) * _WIDTH
_ALL = frozenset(range(_WIDTH))


def is_wanted(line: bytes) -> bool:
    """Return whether a line of a page shows a series that the operator reads."""
    return line.startswith(_WANTED)


class PageParser:
    """Parses pages. The same series come again with each scrape: their labels are parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Series | None] = {}

    def parse(
        self, lines: Iterable[bytes], model_name: str, reasons: dict[str, int]
    ) -> dict[str, EngineValues]:
        """Return the values of a page by engine: of series that carry `model_name`.

        `reasons` are the columns of the reasons of rejections on earlier pages of the same pod, which new
        ones are added to. Raises PageProblem.
        """
        rows: dict[str, array[float]] = {}
        previous: list[tuple[array[float], int, float]] = []
        filled: dict[str, set[int]] = {}
        for line in lines:
            end = line.rfind(b"}") + 1
            text = line[:end]
            series = self._known[text] if text in self._known else self._identify(text)
            if series is None or series.model_name != model_name:
                continue
            row = rows.get(series.engine)
            if row is None:
                if len(rows) == MOST_ENGINES:
                    raise PageProblem(f"its page shows more than {MOST_ENGINES} engines")
                row, filled[series.engine] = array("d", _EMPTY), set()
                rows[series.engine] = row
            value = _value(text, line[end:])
            if series.is_previous:
                previous.append((row, series.column, value))
                continue
            column = series.column
            if series.reason is not None:
                column += _place(series.reason, reasons)
            if column in filled[series.engine]:
                raise PageProblem(f"its page shows a series twice: {_quoted(text)}")
            row[column] = value
            filled[series.engine].add(column)
        for row, column, value in previous:
            if math.isnan(row[column]):
                row[column] = value
        if not rows:
            raise PageProblem(f"its page has no metrics of the model {model_name!r}")
        return {
            engine: EngineValues(row, frozenset(c for c in _ALL - filled[engine] if math.isnan(row[c])))
            for engine, row in rows.items()
        }

    def _identify(self, text: bytes) -> _Series | None:
        series = _series(text)
        if len(text) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[text] = series
        return series


def _series(text: bytes) -> _Series | None:
    """Return what a series is, None where the operator does not read it."""
    try:
        (family,) = text_string_to_metric_families(f"{text.decode()} 0\n")
        (sample,) = family.samples
    except Exception as error:  # the parser raises whatever its text leads to
        raise PageProblem(f"its page has a line that is no series: {_quoted(text)}") from error
    labels = sample.labels
    model_name, engine = labels.get("model_name", ""), labels.get("engine", "")
    if sample.name in _BUCKETS:
        histogram, is_previous = _BUCKETS[sample.name]
        try:
            column = READ_BY_OPERATOR.bucket_column(histogram, float(labels.get("le", "")))
        except ValueError:  # another edge, or +Inf, which is the count
            return None
        return _Series(model_name, engine, column, is_previous=is_previous)
    if sample.name not in _COLUMNS:
        return None
    column, is_previous = _COLUMNS[sample.name]
    reason = labels.get("reason", "") if sample.name == REJECTED else None
    return _Series(model_name, engine, column, reason, is_previous)


def _place(reason: str, reasons: dict[str, int]) -> int:
    if reason not in reasons:
        if len(reasons) == MOST_REASONS:
            raise PageProblem(f"its page shows more than {MOST_REASONS} reasons of rejections")
        reasons[reason] = len(reasons)
    return reasons[reason]


def _value(text: bytes, rest: bytes) -> float:
    parts = rest.split(None, 2)
    if not 1 <= len(parts) <= 2:  # a value, and its time
        raise PageProblem(f"its page has a line without a value: {_quoted(text)}")
    try:
        value = math.nan if b"_" in parts[0] else float(parts[0])  # Python parts digits by it
    except ValueError:
        value = math.nan
    if not 0 <= value <= _LARGEST:  # NaN fails here too
        shown = parts[0][:_QUOTED_CHARS].decode(errors="replace")
        raise PageProblem(f"its page shows {shown!r} for {_quoted(text)}, which cannot be")
    return value


def _quoted(text: bytes) -> str:
    return repr(text[:_QUOTED_CHARS].decode(errors="replace"))
