"""Scores and scored rows as people read them."""

from collections.abc import Sequence

from tangram.capacity.accuracy.corrected import Scored
from tangram.capacity.accuracy.score import OVERALL, Score, Scores
from tangram.cli.output import UNVERIFIED_MARK, Column, Row, notes, table, unverified_mark


def show_scores(scores: Scores, correct_by: int) -> None:
    """Print the errors of each combination of model, GPU, engine and precision."""
    unverified = {row.point.key for row in scores.points if row.unverified}
    table([_score_row(score, unverified) for score in scores.scores])
    texts = ["Relative errors, absolute values. P90: nine of ten rows have a smaller error."]
    if correct_by:
        texts.append(
            f"The first {correct_by} rows of each combination correct the others and are not scored."
        )
    if unverified:
        texts.append(
            f"{UNVERIFIED_MARK} The calibration has no measurement of this engine, GPU or precision, or "
            "facts about the GPU are not from a cited source."
        )
    notes(texts)


def _score_row(score: Score, unverified: set[str]) -> Row:
    marked = score.key in unverified or (score.key == OVERALL and bool(unverified))
    row = [
        (Column("MODEL, GPU, ENGINE, PRECISION"), score.key + unverified_mark(marked)),
        (Column("ROWS", right=True), str(score.n)),
    ]
    for name, errors in (("TPOT", score.tpot), ("TTFT", score.ttft)):
        median, p90 = ("-", "-") if errors is None else (f"{errors.median:.1f}", f"{errors.p90:.1f}")
        row += [(Column(f"{name} MEDIAN %", right=True), median), (Column("P90 %", right=True), p90)]
    return row


def show_rows(rows: Sequence[Scored]) -> None:
    """Print each measured row beside its prediction."""
    table([_row(row) for row in rows])
    if any(row.unverified for row in rows):
        notes([f"{UNVERIFIED_MARK} The prediction uses facts or coefficients that are not measured."])


def _row(row: Scored) -> Row:
    point = row.point
    return [
        (Column("LINE", right=True), str(point.line)),
        (Column("MODEL, GPU, ENGINE, PRECISION"), point.key),
        (Column("TP", right=True), str(point.tensor_parallel)),
        (Column("IN", right=True, rank=1), f"{point.input_tokens:g}"),
        (Column("OUT", right=True, rank=1), f"{point.output_tokens:g}"),
        (Column("REQUESTS", right=True), f"{point.concurrency:g}"),
        (Column("TPOT ms", right=True), _milliseconds(point.tpot_s)),
        (Column("PREDICTED", right=True), _milliseconds(row.tpot_s)),
        (Column("TTFT ms", right=True), _milliseconds(point.ttft_s)),
        (Column("PREDICTED", right=True), _milliseconds(row.ttft_s)),
        (Column("BASIS", rank=2), row.basis + unverified_mark(row.unverified)),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"
