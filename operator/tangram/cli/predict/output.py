"""What `tangram predict` prints: a row for each combination, or for each measured row beside its prediction.

Times in milliseconds, errors in percent.
"""

from collections.abc import Sequence
from typing import Any

from tangram.capacity.accuracy.corrected import Scored
from tangram.capacity.accuracy.score import OVERALL, Scores
from tangram.cli.output import ANY, UNVERIFIED_MARK, Column, Row, notes, table, unverified_mark


def measured_row(row: Scored) -> dict[str, Any]:
    """Return one measured row with its prediction."""
    point = row.point
    return {
        "line": point.line,
        "id": point.name,
        "key": point.key,
        "tp": point.tensor_parallel,
        "isl": point.input_tokens,
        "osl": point.output_tokens,
        "concurrency": point.concurrency,
        "ttft_ms": _latency(point.ttft_s, row.ttft_s),
        "tpot_ms": _latency(point.tpot_s, row.tpot_s),
        "basis": str(row.basis),
        "unverified": row.unverified,
    }


def _latency(measured_s: float | None, predicted_s: float) -> dict[str, float | None]:
    return {"measured": None if measured_s is None else measured_s * 1e3, "predicted": predicted_s * 1e3}


def show_rows(rows: Sequence[Row]) -> None:
    """Print each measured row beside its prediction."""
    table(_ROW_COLUMNS, rows)
    if any(row["unverified"] for row in rows):
        notes([f"{UNVERIFIED_MARK} The prediction uses facts or coefficients that are not measured."])


_ROW_COLUMNS = (
    Column("LINE", "line", right=True),
    Column("MODEL, GPU, ENGINE, PRECISION", "key"),
    Column("TP", "tp", right=True),
    Column("IN", "isl", "g", right=True, rank=1),
    Column("OUT", "osl", "g", right=True, rank=1),
    Column("REQUESTS", "concurrency", "g", right=True),
    Column("TPOT ms", lambda row: row["tpot_ms"]["measured"], ".4g", right=True),
    Column("PREDICTED", lambda row: row["tpot_ms"]["predicted"], ".4g", right=True),
    Column("TTFT ms", lambda row: row["ttft_ms"]["measured"], ".4g", right=True),
    Column("PREDICTED", lambda row: row["ttft_ms"]["predicted"], ".4g", right=True),
    Column("BASIS", "basis", mark=ANY, rank=2),
)


def show_scores(scores: Scores, correct_by: int) -> None:
    """Print the errors of each combination of model, GPU, engine and precision."""
    unverified = {row.point.key for row in scores.points if row.unverified}
    if unverified:
        unverified.add(OVERALL)
    key = Column(
        "MODEL, GPU, ENGINE, PRECISION", lambda score: score.key + unverified_mark(score.key in unverified)
    )
    table((key, *_SCORE_COLUMNS), scores.scores)
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


_SCORE_COLUMNS = (
    Column("ROWS", lambda score: score.n, right=True),
    Column("TPOT MEDIAN %", lambda score: score.tpot and score.tpot.median, ".1f", right=True),
    Column("P90 %", lambda score: score.tpot and score.tpot.p90, ".1f", right=True),
    Column("TTFT MEDIAN %", lambda score: score.ttft and score.ttft.median, ".1f", right=True),
    Column("P90 %", lambda score: score.ttft and score.ttft.p90, ".1f", right=True),
)
