"""`tangram predict`: scores the model against anybody's measurements, as a table, a document or a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tangram.capacity.accuracy.corrected import Scored
from tangram.capacity.accuracy.points import REQUIRED
from tangram.capacity.accuracy.score import OVERALL, Errors, Score, Scores, score
from tangram.catalog import Architecture, InputError, find_gpu
from tangram.catalog.lookup import nearest
from tangram.cli.options.csv_file import read_csv
from tangram.cli.options.model import named_model
from tangram.cli.options.model_files import read_architecture
from tangram.cli.output import UNVERIFIED_MARK, Column, document, notes, output_option, table
from tangram.cli.predict.scatter import Pair, Panel, draw

SCORE_COLUMNS = (
    Column("MODEL, GPU, ENGINE, PRECISION"),
    Column("ROWS", right=True),
    Column("TPOT MEDIAN %", right=True),
    Column("P90 %", right=True),
    Column("TTFT MEDIAN %", right=True),
    Column("P90 %", right=True),
)
ROW_COLUMNS = (
    Column("LINE", right=True),
    Column("MODEL, GPU, ENGINE, PRECISION"),
    Column("TP", right=True),
    Column("IN", right=True, rank=1),
    Column("OUT", right=True, rank=1),
    Column("REQUESTS", right=True),
    Column("TPOT ms", right=True),
    Column("PREDICTED", right=True),
    Column("TTFT ms", right=True),
    Column("PREDICTED", right=True),
    Column("BASIS", rank=2),
)


@click.command()
@click.argument("points", type=click.Path(path_type=Path))
@click.option(
    "--correct",
    "correct_by",
    metavar="N",
    type=int,
    default=0,
    help="The first N rows of each combination (model, GPU, engine, precision) correct its others and are "
    "not scored.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="PNG", help="Draw predicted against measured."
)
@click.option("--rows", is_flag=True, help="Show every row beside its prediction instead of the scores.")
@output_option
def predict(points: Path, correct_by: int, plot: Path | None, rows: bool, fmt: str) -> None:
    """Score predicted TTFT and TPOT against measured ones.

    POINTS is CSV, gzip or not, with the columns model, gpu, tp, backend, weights_precision, isl, osl,
    concurrency, ttft_ms and tpot_ms, and backend_version where known. A row is the mean of a closed loop at
    that concurrency. The model is a catalog name or the path of a config.json, from where POINTS lies or from
    here. Errors are relative and without sign, in percent.
    """
    found = scored(points, correct_by)
    if plot is not None:
        draw(plot, _panels(found), f"Predicted against measured: {points.name}")
    if fmt != "table":
        document(
            list(map(_row_document if rows else _score_document, found.points if rows else found.scores)), fmt
        )
    elif rows:
        _show_rows(found.points)
    else:
        _show_scores(found, correct_by)


def scored(path: Path, correct_by: int = 0) -> Scores:
    """Read and score a file. Raises `InputError` with file, line and column."""
    rows = read_csv(path, REQUIRED)
    for line, row in enumerate(rows, start=2):
        if row["gpu"] and find_gpu(row["gpu"]) is None:
            problem = f"{row['gpu'][:100]!r} is not in the catalog{nearest(row['gpu'][:100])}"
            raise InputError(f"{path}: line {line}: gpu", f"{problem}; `tangram gpus` lists them")
    try:
        return score(rows, _models(path.parent), correct_by)
    except InputError as error:
        if error.field.startswith("line "):
            raise InputError(f"{path}: {error.field}", error.problem) from None
        raise


def _models(beside: Path) -> Callable[[str], Architecture]:
    """Find models by a path from where the points lie, by a path from here, or by name."""

    def model_of(name: str) -> Architecture:
        try:
            there = (beside / name).exists()
        except (OSError, ValueError):  # longer than a path may be
            there = False
        return read_architecture(beside / name) if there else named_model(name, "model")

    return model_of


def _show_scores(found: Scores, correct_by: int) -> None:
    doubted = {each.point.key for each in found.points if each.unverified}
    table(SCORE_COLUMNS, [_score_row(each, doubted) for each in found.scores])
    below = ["Relative errors without sign; P90: nine of ten rows are better."]
    if correct_by:
        below.append(
            f"The first {correct_by} rows of each combination corrected the others and are not scored."
        )
    if doubted:
        below.append(
            f"{UNVERIFIED_MARK} this engine, GPU or weight format was not measured for the calibration, or "
            "facts about the GPU are recalled."
        )
    notes(below)


def _score_row(each: Score, doubted: set[str]) -> list[str]:
    marked = each.key in doubted or (each.key == OVERALL and bool(doubted))
    cells = [each.key + (UNVERIFIED_MARK if marked else ""), str(each.n)]
    for errors in (each.tpot, each.ttft):
        cells += ["-", "-"] if errors is None else [f"{errors.median:.1f}", f"{errors.p90:.1f}"]
    return cells


def _score_document(each: Any) -> dict[str, Any]:
    return {"key": each.key, "n": each.n, "tpot": _errors(each.tpot), "ttft": _errors(each.ttft)}


def _errors(errors: Errors | None) -> dict[str, float] | None:
    return None if errors is None else {"median": errors.median, "p90": errors.p90}


def _show_rows(found: Sequence[Scored]) -> None:
    table(ROW_COLUMNS, [_row(each) for each in found])
    notes(
        [f"{UNVERIFIED_MARK} rests on facts or coefficients without a measurement."]
        * any(e.unverified for e in found)
    )


def _row(each: Scored) -> list[str]:
    point = each.point
    return [
        str(point.line),
        point.key,
        str(point.tensor_parallel),
        f"{point.input_tokens:g}",
        f"{point.output_tokens:g}",
        f"{point.concurrency:g}",
        _milliseconds(point.tpot_s),
        _milliseconds(each.tpot_s),
        _milliseconds(point.ttft_s),
        _milliseconds(each.ttft_s),
        each.basis + (UNVERIFIED_MARK if each.unverified else ""),
    ]


def _row_document(each: Any) -> dict[str, Any]:
    point = each.point
    return {
        "line": point.line,
        "id": point.name,
        "key": point.key,
        "tp": point.tensor_parallel,
        "isl": point.input_tokens,
        "osl": point.output_tokens,
        "concurrency": point.concurrency,
        "ttft_ms": {"measured": _scaled(point.ttft_s), "predicted": each.ttft_s * 1e3},
        "tpot_ms": {"measured": _scaled(point.tpot_s), "predicted": each.tpot_s * 1e3},
        "basis": str(each.basis),
        "unverified": each.unverified,
    }


def _panels(found: Scores) -> list[Panel]:
    whole = found.scores[-1]
    return [
        _panel("TTFT", whole.ttft, [(e.point.key, e.point.ttft_s, e.ttft_s) for e in found.points]),
        _panel("TPOT", whole.tpot, [(e.point.key, e.point.tpot_s, e.tpot_s) for e in found.points]),
    ]


def _panel(name: str, errors: Errors | None, rows: Sequence[tuple[str, float | None, float]]) -> Panel:
    pairs = [Pair(key, measured * 1e3, predicted * 1e3) for key, measured, predicted in rows if measured]
    if errors is None:
        return Panel(f"{name}: not measured", pairs)
    return Panel(
        f"{name}: median error {errors.median:.0f} %, P90 {errors.p90:.0f} % ({len(pairs):,} rows)", pairs
    )


def _scaled(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"
