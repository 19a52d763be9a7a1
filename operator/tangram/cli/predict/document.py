"""Scores and scored rows as JSON and YAML show them. Times in milliseconds, errors in percent."""

from typing import Any

from tangram.capacity.accuracy.corrected import Scored
from tangram.capacity.accuracy.score import Errors, Score


def score_document(score: Score) -> dict[str, Any]:
    """Return the errors of one combination of model, GPU, engine and precision."""
    return {"key": score.key, "n": score.n, "tpot": _errors(score.tpot), "ttft": _errors(score.ttft)}


def _errors(errors: Errors | None) -> dict[str, float] | None:
    return None if errors is None else {"median": errors.median, "p90": errors.p90}


def row_document(row: Scored) -> dict[str, Any]:
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
        "ttft_ms": {"measured": _milliseconds(point.ttft_s), "predicted": row.ttft_s * 1e3},
        "tpot_ms": {"measured": _milliseconds(point.tpot_s), "predicted": row.tpot_s * 1e3},
        "basis": str(row.basis),
        "unverified": row.unverified,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
