"""Read measured rows of a CSV file: a benchmark at fixed concurrency per row."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tangram.catalog import InputError, find_gpu

REQUIRED = ("model", "gpu", "tp", "backend", "weights_precision", "isl", "osl", "concurrency")
MOST_TOKENS = 10_000_000  # of a prompt or an answer
MOST_REQUESTS = 100_000


@dataclass(frozen=True, slots=True)
class Point:
    """One row. Times in seconds, None where the row has none."""

    line: int
    name: str
    model: str
    gpu: str  # as written
    sku: str
    tensor_parallel: int
    engine: str
    version: str | None
    precision: str
    input_tokens: float
    output_tokens: float
    concurrency: float
    ttft_s: float | None
    tpot_s: float | None

    @property
    def key(self) -> str:
        """The combination that scores are given for: model, GPU, engine, precision."""
        return f"{self.model}, {self.gpu}, {self.engine}, {self.precision}"

    @property
    def deployment(self) -> tuple[int, str]:
        """What rows of one combination differ in beside the load: tensor parallelism and engine version."""
        return self.tensor_parallel, self.version or ""


def points(rows: Iterable[Mapping[str, str | None]]) -> Iterator[Point]:
    """Read rows. Optional columns: id, backend_version, and one of ttft_ms and tpot_ms."""
    for line, row in enumerate(rows, start=2):
        if missing := [name for name in REQUIRED if row.get(name) is None]:
            raise InputError(f"line {line}", f"column {missing[0]} is missing")
        yield _point(_Row(line, row))


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of text; errors name line and column."""

    line: int
    row: Mapping[str, str | None]

    def text(self, column: str) -> str:
        return (self.row.get(column) or "").strip()

    def words(self, column: str) -> str:
        if not (text := self.text(column)):
            raise self.wrong(column, "is empty")
        return text

    def number(self, column: str, most: float = math.inf) -> float:
        text = self.words(column)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{text!r} is not a number") from None
        if not (0 < value < math.inf and value <= most):
            limit = "" if most == math.inf else f" of at most {most:,.0f}"
            raise self.wrong(column, f"{text!r} is not a positive number{limit}")
        return value

    def whole(self, column: str, most: int) -> int:
        value = self.number(column, most)
        if value != int(value):
            raise self.wrong(column, f"{self.text(column)!r} is not a whole number")
        return int(value)

    def seconds(self, column: str) -> float | None:
        return self.number(column) / 1e3 if self.text(column) else None

    def wrong(self, column: str, problem: str) -> InputError:
        return InputError(f"line {self.line}: {column}", problem)


def _point(row: _Row) -> Point:
    gpu = row.words("gpu")
    board = find_gpu(gpu)
    if board is None:
        raise row.wrong("gpu", f"{gpu!r} is not in the catalog; `tangram gpus` lists it")
    version = row.row.get("backend_version")
    ttft, tpot = row.seconds("ttft_ms"), row.seconds("tpot_ms")
    if ttft is None and tpot is None:
        raise row.wrong("tpot_ms", "is empty and so is ttft_ms: nothing was measured")
    return Point(
        line=row.line,
        name=row.text("id"),
        model=row.words("model"),
        gpu=gpu,
        sku=board.sku,
        tensor_parallel=row.whole("tp", 1024),
        engine=row.words("backend").lower(),
        version=None if version is None else version.strip(),
        precision=row.words("weights_precision"),
        input_tokens=row.number("isl", MOST_TOKENS),
        output_tokens=row.number("osl", MOST_TOKENS),
        concurrency=row.number("concurrency", MOST_REQUESTS),
        ttft_s=ttft,
        tpot_s=tpot,
    )
