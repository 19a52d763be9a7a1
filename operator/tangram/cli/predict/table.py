"""Scores and scored rows as people read them."""

from collections.abc import Sequence

from tangram.capacity.accuracy.corrected import Scored
from tangram.capacity.accuracy.score import OVERALL, Score, Scores
from tangram.cli.output import UNVERIFIED_MARK, Column, notes, table

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


def show_scores(scores: Scores, correct_by: int) -> None:
    """Print the errors of each combination of model, GPU, engine and precision."""
    unverified = {row.point.key for row in scores.points if row.unverified}
    table(SCORE_COLUMNS, [_score_row(score, unverified) for score in scores.scores])
    texts = ["Relative errors, absolute values. P90: nine of ten rows have a smaller error."]
    if correct_by:
        texts.append(
            f"The first {correct_by} rows of each combination correct the others and are not scored."
        )
    if unverified:
        texts.append(
            f"{UNVERIFIED_MARK} The calibration has no measurement of this engine, GPU or weight format, or "
            "facts about the GPU are not from a cited source."
        )
    notes(texts)


def _score_row(score: Score, unverified: set[str]) -> list[str]:
    marked = score.key in unverified or (score.key == OVERALL and bool(unverified))
    cells = [score.key + (UNVERIFIED_MARK if marked else ""), str(score.n)]
    for errors in (score.tpot, score.ttft):
        cells += ["-", "-"] if errors is None else [f"{errors.median:.1f}", f"{errors.p90:.1f}"]
    return cells


def show_rows(rows: Sequence[Scored]) -> None:
    """Print each measured row beside its prediction."""
    table(ROW_COLUMNS, [_row(row) for row in rows])
    if any(row.unverified for row in rows):
        notes([f"{UNVERIFIED_MARK} The prediction uses facts or coefficients that are not measured."])


def _row(row: Scored) -> list[str]:
    point = row.point
    return [
        str(point.line),
        point.key,
        str(point.tensor_parallel),
        f"{point.input_tokens:g}",
        f"{point.output_tokens:g}",
        f"{point.concurrency:g}",
        _milliseconds(point.tpot_s),
        _milliseconds(row.tpot_s),
        _milliseconds(point.ttft_s),
        _milliseconds(row.ttft_s),
        row.basis + (UNVERIFIED_MARK if row.unverified else ""),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"
