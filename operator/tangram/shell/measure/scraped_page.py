"""From the lines of an engine's metrics page to a row of the scrape store. Pure.

Only the series that the operator reads count; other lines are dropped before anything is parsed. A page comes
from a pod, so nothing about it is believed: a line that is no series, a value that no engine has, or a series
that is there twice makes the page unusable, and no other page.

A pod shows the same series in the same order each time. What the lines of its last page showed is remembered,
so that of the next page their values alone are parsed. Every line is compared: where one differs, each is
identified.
"""

import math
import operator
from array import array
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlencode

from prometheus_client.parser import text_string_to_metric_families

from tangram.scaling.queries import (
    ANSWER_LENGTH,
    ITL,
    KV_USAGE,
    OTHER_DIALECTS,
    PREVIOUS_NAMES,
    PROMPT_LENGTH,
    RUNNING,
    TPOT,
    TTFT,
    WAITING,
)
from tangram.scaling.scrapes.page_layout import GAUGES, READ_BY_OPERATOR

# Without one of these, the law counts by another metric, or checks an objective less exactly.
_EXPECTED = (RUNNING, WAITING, KV_USAGE, TTFT, TPOT, ITL, PROMPT_LENGTH, ANSWER_LENGTH)
MOST_ENGINES = 16  # of a page: a pod that serves with data parallelism shows several
_MOST_KNOWN = 50_000  # series whose labels are known; those of 200 LLMDeployments are some 20,000
_LONGEST_KNOWN = 500  # characters
_MOST_ABSENT = 1000  # sets of columns; versions of the engine have one each
_MOST_REMEMBERED = 2**16  # bytes of the series of a page; an engine has some 10,000
_LARGEST = 1e15  # no counter of an engine reaches it
_QUOTED_CHARS = 60
# Of series whose labels are parsed at once: some milliseconds. A whole page of new ones may take 0.4 s.
SLICE_BYTES = 2**14


class PageProblem(Exception):
    """A metrics page that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineValues:
    """What one engine shows on a page."""

    row: "array[float]"  # by `READ_BY_OPERATOR`; NaN where the page lacks the series
    absent: frozenset[int]  # the columns that it lacks

    def lacking(self) -> tuple[str, ...]:
        """Return the metrics that the scaling law reads and the page lacks, in vLLM's names."""
        columns = READ_BY_OPERATOR.columns
        return tuple(
            name for name in _EXPECTED if columns.get(name, columns.get(f"{name}_count")) in self.absent
        )

    def fell_below(self, before: "EngineValues") -> bool:
        """Return whether a counter is lower than before, so that another process counts."""
        first = len(GAUGES)  # gauges come first
        return any(map(operator.lt, islice(self.row, first, None), islice(before.row, first, None)))


@dataclass(frozen=True, slots=True)
class _Series:
    model_name: str
    engine: str
    column: int
    is_previous: bool = False  # by another name than vLLM's present one
    is_part: bool = False  # one of several that add up: SGLang parts streamed requests from others


# Of each metric: what previous versions of the engine, or other engines, call it.
_OTHER_NAMES = {
    name: (
        *((PREVIOUS_NAMES[name],) if name in PREVIOUS_NAMES else ()),
        *(other for names in OTHER_DIALECTS.values() for other in names.get(name, ())),
    )
    for name in _EXPECTED
}


def _columns() -> dict[str, tuple[int, bool]]:
    """Return the column of each plain series, and whether its name is a previous one."""
    layout, columns = READ_BY_OPERATOR, {}
    for metric, column in layout.columns.items():
        columns[metric] = (column, False)
        name, mark, part = metric.rpartition("_")
        columns |= dict.fromkeys(_OTHER_NAMES.get(metric, ()), (column, True))
        if mark and part in ("count", "sum"):
            columns |= {f"{other}_{part}": (column, True) for other in _OTHER_NAMES.get(name, ())}
    return columns


def _buckets() -> dict[str, tuple[str, bool]]:
    """Return the histogram of each name of buckets, and whether the name is a previous one."""
    buckets = {f"{name}_bucket": (name, False) for name, edges in READ_BY_OPERATOR.edges.items() if edges}
    for name, others in _OTHER_NAMES.items():
        if f"{name}_bucket" in buckets:
            buckets |= {f"{other}_bucket": (name, True) for other in others}
    return buckets


_COLUMNS, _BUCKETS = _columns(), _buckets()
_NAMES = (*_BUCKETS, *_COLUMNS)  # most lines are buckets
_WANTED = tuple(f"{name}{{".encode() for name in _NAMES)
_WIDTH = READ_BY_OPERATOR.width
_ALL = frozenset(range(_WIDTH))


# Engines that know the parameter send no other series: a quarter of the page.
QUERY = urlencode([("name[]", name) for name in _NAMES if ":" in name and not name.startswith("sglang:")])


def is_wanted(line: bytes) -> bool:
    """Return whether a line of a page shows a series that the operator reads."""
    return line.startswith(_WANTED)


def wanted_lines(text: bytes) -> list[bytes]:
    """Return the lines that show series that the operator reads."""
    return [line for line in text.split(b"\n") if line.startswith(_WANTED)]


@dataclass(frozen=True, slots=True)
class _Engine:
    """Where the values of one engine are among those of its page, and what it lacks."""

    name: str
    row: Callable[[Sequence[float]], Sequence[float]]  # of the values, and one NaN behind them
    absent: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the lines of a page show."""

    model_name: str
    series: Sequence[bytes]  # of each line: its text before the last brace
    read: Sequence[int]  # the lines that show the model
    engines: Sequence[_Engine]
    addends: Sequence[tuple[int, int]] = ()  # places of values: to the first one the second is added


@dataclass(slots=True)
class _EnginePlaces:
    """Where the values of engines are among those that are read of a page."""

    lines: list[int] = field(default_factory=list)  # that show the model
    places: dict[str, dict[int, int]] = field(default_factory=dict)  # by engine and column
    previous: list[tuple[str, int, int]] = field(default_factory=list)  # (engine, column, place)
    parts: dict[tuple[str, int], int] = field(default_factory=dict)  # the first place by engine and column
    addends: list[tuple[int, int]] = field(default_factory=list)  # to the first place the second is added

    def add(self, line: int, series: _Series, text: bytes) -> None:
        """Add the series of a line. Raises PageProblem."""
        if series.engine not in self.places:
            if len(self.places) == MOST_ENGINES:
                raise PageProblem(f"its page shows more than {MOST_ENGINES} engines")
            self.places[series.engine] = {}
        place = len(self.lines)
        self.lines.append(line)
        if (
            series.is_part
            and (first := self.parts.setdefault((series.engine, series.column), place)) != place
        ):
            self.addends.append((first, place))
        elif series.is_previous:
            self.previous.append((series.engine, series.column, place))
        elif self.places[series.engine].setdefault(series.column, place) != place:
            raise PageProblem(f"its page shows a series twice: {_quoted(text)}")

    def by_engine(self) -> dict[str, dict[int, int]]:
        """Return the places by engine and column; by a previous name only where the present one is not."""
        for engine, column, place in self.previous:
            self.places[engine].setdefault(column, place)
        return self.places


@dataclass(slots=True)
class PodPages:
    """What is remembered of the pages of a pod."""

    layout: _Layout | None = None


class PageParser:
    """Parses pages. Several pods show the same series: their labels are parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, _Series | None]] = {}
        self._absent: dict[frozenset[int], frozenset[int]] = {}  # one object for what many pages lack

    def parse(self, lines: Iterable[bytes], model_name: str, pages: PodPages) -> dict[str, EngineValues]:
        """Return the values of a page at once. See `slices`."""
        slices = self.slices(lines, model_name, pages)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                page: dict[str, EngineValues] = end.value
                return page

    def slices(
        self, lines: Iterable[bytes], model_name: str, pages: PodPages
    ) -> Generator[None, None, dict[str, EngineValues]]:
        """Return the values of a page by engine, of series that carry `model_name`; yield between slices.

        `pages` are earlier ones of the same pod; this one is added. Raises PageProblem.
        """
        parts = [line.rpartition(b"}") for line in lines]
        series, layout = [part[0] for part in parts], pages.layout
        if layout is None or layout.series != series or layout.model_name != model_name:
            layout = yield from self._layout(parts, model_name)
            is_small = sum(map(len, series)) <= _MOST_REMEMBERED
            pages.layout = layout if is_small else None
        if not layout.engines:
            raise PageProblem(f"its page has no metrics of the model {model_name!r}")
        values = [*_values([parts[line] for line in layout.read]), math.nan]
        for first, place in layout.addends:
            values[first] += values[place]
        return {
            engine.name: EngineValues(array("d", engine.row(values)), engine.absent)
            for engine in layout.engines
        }

    def _layout(
        self, parts: Iterable[tuple[bytes, bytes, bytes]], model_name: str
    ) -> Generator[None, None, _Layout]:
        """Return what the lines of a page show."""
        identified_bytes = 0
        texts: list[bytes] = []
        places = _EnginePlaces()
        for line, (shown, brace, _) in enumerate(parts):
            identified = self._known.get(shown)
            if identified is None:
                if identified_bytes >= SLICE_BYTES:
                    yield
                    identified_bytes = 0
                identified_bytes += len(shown)
                identified = self._identify(shown, brace)
            text, series = identified
            texts.append(text)
            if series is not None and series.model_name == model_name:
                places.add(line, series, text + brace)
        columns_by_engine = places.by_engine()
        nan_place = len(places.lines)
        engines = [
            _Engine(
                engine,
                operator.itemgetter(*(columns.get(column, nan_place) for column in range(_WIDTH))),
                self._shared(_ALL.difference(columns)),
            )
            for engine, columns in columns_by_engine.items()
        ]
        return _Layout(model_name, texts, places.lines, engines, places.addends)

    def _shared(self, absent: frozenset[int]) -> frozenset[int]:
        if len(self._absent) >= _MOST_ABSENT:
            self._absent.clear()
        return self._absent.setdefault(absent, absent)

    def _identify(self, text: bytes, brace: bytes) -> tuple[bytes, _Series | None]:
        identified = text, _series(text + brace)
        if len(text) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[text] = identified
        return identified


def _series(text: bytes) -> _Series | None:
    """Return what a series is, None where the operator does not read it."""
    try:
        (family,) = text_string_to_metric_families(f"{text.decode()} 0\n")
        (sample,) = family.samples
    except Exception as error:  # the parser raises whatever its text leads to
        raise PageProblem(f"its page has a line that is no series: {_quoted(text)}") from error
    labels = sample.labels
    model_name, engine = labels.get("model_name", ""), labels.get("engine", "")
    is_part = "is_streaming" in labels
    if sample.name in _BUCKETS:
        histogram, is_previous = _BUCKETS[sample.name]
        try:
            column = READ_BY_OPERATOR.bucket_column(histogram, float(labels.get("le", "")))
        except ValueError:  # another edge, or +Inf, which is the count
            return None
        return _Series(model_name, engine, column, is_previous, is_part)
    if sample.name not in _COLUMNS:
        return None
    column, is_previous = _COLUMNS[sample.name]
    return _Series(model_name, engine, column, is_previous, is_part)


def _values(parts: Sequence[tuple[bytes, bytes, bytes]]) -> list[float]:
    """Return the value of each line. What is not plainly a number within bounds is looked at by itself."""
    rests = [rest for _, _, rest in parts]
    try:
        values = list(map(float, rests))
        are_numbers = b"_" not in b"".join(rests) and not math.isnan(sum(values))
    except ValueError:
        are_numbers = False
    if are_numbers and min(values) >= 0 and max(values) <= _LARGEST:
        return values
    return [_value(text + brace, rest) for text, brace, rest in parts]


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
