"""Predictions where no fit has been: other GPUs, other models, engines of other years."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from benchmarks.calibrate.points import DATA, SPLITWISE, Column, read
from tangram.capacity.accuracy.corrected import Scored
from tangram.capacity.accuracy.points import points
from tangram.capacity.accuracy.score import predict
from tangram.capacity.hardware import hardware
from tangram.capacity.memory.footprint import footprint
from tangram.capacity.steps.calibration import (
    Calibrated,
    CalibrationSample,
    coefficients_for,
    correct,
)
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import find_gpu, known_model

PUBLISHED = DATA / "published.csv"
OUTSIDE = DATA / "out_of_distribution.csv"


def published(
    calibrated: Calibrated | None = None, path: Path = PUBLISHED
) -> list[tuple[dict[str, str], Scored]]:
    """Each published number beside what the package predicts."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row, point in zip(rows, points(rows), strict=True):
        model = known_model(point.model)
        if model is None:
            raise ValueError(f"{point.model} is not in the catalog")
        found.append((row, predict(point, model, calibrated)))
    return found


def splitwise(gpu: str, after: int = 0) -> tuple[Column, Column, Column]:
    """Llama-2-70B on an engine of 2023: relative errors of token times and of prompt times, and token biases.

    `after`: so many rows per TP correct the rest. Prompts are those of single requests (batches were computed one
    prompt after the other, in some rows).
    """
    found = coefficients_for()
    model, board = known_model("Llama-2-70B"), find_gpu(gpu)
    if model is None or board is None:
        raise ValueError(gpu)
    on = hardware(board.sku)
    token, prompt = [], []
    for ranks in ("2", "4", "8"):
        rows = [row for row in read(SPLITWISE) if row["gpu"] == gpu and row["tp"] == ranks]
        steps = StepModel(footprint(model, "bf16", "bf16", int(ranks), on), on, found.coefficients)
        pairs = []
        for row in rows:
            length, answer, batch = (float(row[name]) for name in ("prompt_tokens", "output_tokens", "batch"))
            predicted = steps.decode_s(batch, length + answer / 2).total
            pairs.append((float(row["token_time_ms"]) / 1e3, predicted))
            if batch == 1:
                prompt.append(steps.prefill_s(length) / (float(row["prompt_time_ms"]) / 1e3))
        factor = correct([CalibrationSample(*pair) for pair in pairs[:after]], found.error_p50 or 0.0).factor
        token += [predicted * factor / measured for measured, predicted in pairs[after:]]
    return np.abs(np.array(token) - 1), np.abs(np.array(prompt) - 1), np.log(np.array(token))
