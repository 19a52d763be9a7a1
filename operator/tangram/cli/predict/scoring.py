"""Predict every row of a CSV file of measurements and score the predictions."""

import os
from collections.abc import Callable
from pathlib import Path

from tangram.capacity.accuracy.points import REQUIRED
from tangram.capacity.accuracy.score import Scores, score
from tangram.catalog import Architecture, InputError
from tangram.catalog.lookup import gpu_of_name
from tangram.cli.options.csv_file import read_csv
from tangram.cli.options.model import named_model
from tangram.cli.options.model_files import read_architecture


def scores_of_file(path: Path, correct_by: int = 0) -> Scores:
    """Return the scores of a file. Raises `InputError` with file, line and column."""
    rows = read_csv(path, REQUIRED)
    for line, row in enumerate(rows, start=2):
        if row["gpu"]:
            gpu_of_name(row["gpu"], f"{path}: line {line}: gpu")
    try:
        return score(rows, _model_reader(path.parent), correct_by)
    except InputError as error:
        if error.field.startswith("line "):
            raise InputError(f"{path}: {error.field}", error.problem) from None
        raise


def _model_reader(folder: Path) -> Callable[[str], Architecture]:
    """Return a function that reads a model by a path in `folder`, else as `--model` does."""

    def model_of(name: str) -> Architecture:
        path = folder / name
        is_in_folder = os.path.exists(path)  # noqa: PTH110 - Path.exists raises for a name that is too long
        return read_architecture(path) if is_in_folder else named_model(name, "model")

    return model_of
