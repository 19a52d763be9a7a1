"""Rows of a benchmark: each within its seconds, written down at once, and none that ends the others.

GPU time is short. So a row that fails leaves its error, a row that takes too long is ended, what a machine lacks
skips its row with a line, and a row that breaks the CUDA context, hangs or keeps the device's memory lets the process
start again behind it.
"""

import faulthandler
import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.engine.predictions import OFF, Prediction

LEAST_SECONDS = 2.0  # a row is not begun with less
HANGS_AFTER_S = 30.0  # beyond its seconds; then the process ends


class Unavailable(Exception):
    """What the row needs is not there: a package, a device, or a part of the engine."""


class RowTimeout(BaseException):
    """The row's seconds are over. A BaseException: no handler in the engine may swallow it."""


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """What a row gives: a number with its unit ("tok/s", "us", "GB/s", ...; "" without a number), and details.

    `details["note"]` is printed in the table, the others are only kept.
    """

    value: float | None
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One line of the table. `run` gets the seconds that it may take and should do with less."""

    name: str
    seconds: float
    run: Callable[[float], MeasuredValue]
    prediction: str | None = None  # name in predictions.json; None: nothing was predicted


@dataclass(frozen=True, slots=True)
class RowResult:
    """What is written down of a row."""

    name: str
    status: str  # ok | skipped | failed | out of time | hung
    seconds: float
    value: float | None = None
    unit: str = ""
    wire: float | None = None
    predicted: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return self.value / self.predicted if self.value and self.predicted else None

    @property
    def of_wire(self) -> float | None:
        """Share of the limit that was reached, for rates and for times alike."""
        if not self.value or not self.wire:
            return None
        return self.wire / self.value if self.unit == "us" else self.value / self.wire

    @property
    def off(self) -> bool:
        """Whether the profile has to explain the row before anything is tuned."""
        return self.ratio is not None and abs(self.ratio - 1) > OFF


class ResultFile:
    """One stage's results, written again before and after each row; those of a former process are kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.title = ""
        self.results: list[RowResult] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            held = json.loads(path.read_text())
            self.title = held["title"]
            self.results = [RowResult(**row) for row in held["rows"]]

    @property
    def spent(self) -> float:
        """Seconds of all rows."""
        return sum(result.seconds for result in self.results)

    def begin(self, name: str, seconds: float) -> None:
        """Write down that a row runs: it stays so if the process does not come back from it."""
        self.results.append(RowResult(name, "hung", seconds, error="the process ended inside this row"))
        self._write()

    def finish(self, result: RowResult) -> None:
        """Put the result in the place of what `begin` wrote."""
        self.results[-1] = result
        self._write()

    def _write(self) -> None:
        draft = self._path.with_suffix(".part")
        text = json.dumps(
            {"title": self.title, "rows": list(map(asdict, self.results))}, indent=1, default=str
        )
        draft.write_text(text + "\n")
        draft.replace(self._path)  # a reader sees the former file or the whole new one


def run_rows(
    rows: Sequence[BenchmarkRow],
    file: ResultFile,
    seconds: float,
    predictions: dict[str, Prediction],
    broken: Callable[[], bool],
) -> bool:
    """Run the rows that the file does not hold yet. False where the device broke: the process has to start again."""
    end = time.monotonic() + seconds - file.spent
    done = {result.name for result in file.results}
    for row in rows:
        if row.name in done:
            continue
        left = min(row.seconds, end - time.monotonic())
        file.begin(row.name, left)
        file.finish(_with_prediction(_run(row, left), predictions.get(row.prediction or "")))
        print(line(file.results[-1]), flush=True)
        if file.results[-1].status in ("failed", "out of time") and broken():
            return False
    return True


def _run(row: BenchmarkRow, left: float) -> RowResult:
    if left < LEAST_SECONDS:
        return RowResult(row.name, "skipped", 0.0, error="the stage's seconds are over")
    begin = time.monotonic()

    def result(status: str, error: str = "") -> RowResult:
        return RowResult(row.name, status, round(time.monotonic() - begin, 3), error=error)

    try:
        with time_limit(left):
            found = row.run(left)
    except Unavailable as missing:
        return result("skipped", str(missing))
    except RowTimeout:
        return result("out of time", f"ended after {left:.0f} s\n{traceback.format_exc()[-3000:]}")
    except Exception as error:  # noqa: BLE001  (the next row goes on, whatever this one met)
        return result("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}")
    spent = round(time.monotonic() - begin, 3)
    return RowResult(row.name, "ok", spent, found.value, found.unit, details=found.details)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise RowTimeout in the main thread once the seconds are over, again and again until the block is left."""

    def ring(_signal: int, _frame: object) -> None:
        raise RowTimeout

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    # Python's handlers run between byte codes: a kernel that never ends is waited for inside one.
    faulthandler.dump_traceback_later(seconds + HANGS_AFTER_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _with_prediction(result: RowResult, prediction: Prediction | None) -> RowResult:
    if prediction is None or (result.unit and result.unit != prediction.unit):
        return result
    values = {name: getattr(result, name) for name in RowResult.__slots__}
    return RowResult(**values | {"wire": prediction.wire, "predicted": prediction.predicted})


TITLES = ("measured", "unit", "predicted", "ratio", "of limit", "s")
_LINE = "{:<46}{:>12} {:<9}{:>11}{:>7}{:>9}{:>7}  {}"


def line(result: RowResult) -> str:
    """One row of the table; OFF marks what is further than a quarter from its prediction."""
    note = f"{'OFF ' * result.off}{result.details.get('note', '')}"
    if result.error:
        note = result.error.splitlines()[0][:90]
    if result.status != "ok":
        note = f"{result.status}: {note}"
    cells = (
        _number(result.value),
        result.unit,
        _number(result.predicted),
        f"{result.ratio:.2f}" if result.ratio else "-",
        f"{result.of_wire:.0%}" if result.of_wire else "-",
        f"{result.seconds:.1f}",
    )
    return _LINE.format(result.name, *cells, note).rstrip()


def table(results: Sequence[RowResult]) -> Iterator[str]:
    """The whole stage, printed last: what comes back of a remote command is its end."""
    yield _LINE.format("row", *TITLES, "").rstrip()
    yield from map(line, results)
    off = [result.name for result in results if result.off]
    if off:
        yield f"more than {OFF:.0%} off their prediction, explain from the profile first: {', '.join(off)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
