"""Measured points as columns of numbers: data-sheet quantities per row, by the package's own footprint."""

from __future__ import annotations

import csv
import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.memory.footprint import Footprint, footprint
from tangram.capacity.steps.calibration import kv_precision
from tangram.capacity.steps.step_model import narrow
from tangram.catalog import find_gpu, known_model

Column = NDArray[np.float64]
DATA = Path(__file__).parent / "data"
MEASURED = DATA / "measured_ttft_tpot.csv.gz"
SPLITWISE = DATA / "splitwise_a100_h100_llama2-70b.csv.gz"
COMBINATION = ("model", "gpu", "tp", "backend", "backend_version", "weights_precision")


@dataclass(frozen=True)
class Points:
    """Rows of one file with what each of them loads. Columns are float64, labels are strings."""

    rows: list[dict[str, str]]
    loads: list[tuple[Footprint, Hardware]]
    labels: dict[str, NDArray[np.str_]]
    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def take(self, mask: NDArray[np.bool_]) -> Points:
        """The rows where `mask` is true."""
        return self.pick(np.flatnonzero(mask))

    def pick(self, rows: NDArray[np.int64]) -> Points:
        """Rows by number; a row may come twice."""
        return Points(
            [self.rows[i] for i in rows],
            [self.loads[i] for i in rows],
            {name: values[rows] for name, values in self.labels.items()},
            {name: values[rows] for name, values in self.columns.items()},
        )


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measured(rows: list[dict[str, str]] | None = None) -> Points:
    """The closed-loop table. `batch` is the decoding requests that the row itself implies (see `_batch`)."""
    rows = read(MEASURED) if rows is None else rows
    loads = [_load(row) for row in rows]
    columns = _quantities(loads) | {
        "input": _column(rows, "isl"),
        "output": _column(rows, "osl"),
        "concurrency": _column(rows, "concurrency"),
        "ttft": _column(rows, "ttft_ms") / 1e3,
        "tpot": _column(rows, "tpot_ms") / 1e3,
    }
    columns["mean"] = np.array([0.9 if _ranged(row) else 1.0 for row in rows])
    columns["batch"] = _batch(columns)
    return Points(rows, loads, _labels(rows), columns)


def _labels(rows: list[dict[str, str]]) -> dict[str, NDArray[np.str_]]:
    def text(*names: str) -> NDArray[np.str_]:
        return np.array(["|".join(row[name] for name in names) for row in rows])

    return {
        "combination": text(*COMBINATION),
        "model": text("model"),
        "gpu": text("gpu"),
        "engine": text("backend"),
        "version": text("backend", "backend_version"),
        "precision": text("weights_precision"),
        "told": np.array([_load_is_told(row) for row in rows]),
        "kind": np.array(
            [
                "ep" if _expert_parallel(row) else ("moe" if row["model"].startswith("gpt-oss") else "dense")
                for row in rows
            ]
        ),
    }


def _load_is_told(row: dict[str, str]) -> str:
    """Ids of ten rows (`..._agg_4000x1000_c_tp1_...`) leave the concurrency empty: the column is a guess."""
    return "no" if re.search(r"_c_tp\d", row["id"]) else "yes"


def _ranged(row: dict[str, str]) -> bool:
    """InferenceMAX draws lengths from 80 to 100 % of the nominal ones."""
    return bool(re.match(r"2026_0[34]_", row["id"]))


def _expert_parallel(row: dict[str, str]) -> bool:
    found = re.search(r"_ep(\d+)_", row["id"])
    return bool(found and int(found[1]) > 1)


def _batch(columns: dict[str, Column]) -> Column:
    """Little's law: of `concurrency` requests those decode that are past their first token.

    It needs no model of the queue, so a fit of step times on it does not have to believe in one.
    """
    decoding = columns["output"] * columns["tpot"]
    share = decoding / (decoding + columns["ttft"])
    batch: Column = np.maximum(columns["concurrency"] * share, 1.0)
    return batch


def _column(rows: list[dict[str, str]], name: str) -> Column:
    return np.array([float(row[name] or "nan") for row in rows])


def _load(row: dict[str, str]) -> tuple[Footprint, Hardware]:
    board, model = find_gpu(row["gpu"]), known_model(row["model"])
    if board is None or model is None:
        raise ValueError(f"{row['id']}: {row['gpu']} or {row['model']} is not in the catalog")
    on, weights = hardware(board.sku), row["weights_precision"]
    kv = kv_precision(row["backend"], weights)
    return footprint(model, weights, kv, int(row["tp"]), on), on


def _quantities(loads: list[tuple[Footprint, Hardware]]) -> dict[str, Column]:
    """What `StepModel` reads of a footprint and its hardware, one column each; layers of up to two windows."""

    def of(value: object) -> Column:
        return np.array([value(foot, on) for foot, on in loads], dtype=np.float64)  # type: ignore[operator]

    columns = {
        "dense": of(lambda f, _: f.dense_read_bytes),
        "expert": of(lambda f, _: f.expert_read_bytes),
        "experts": of(lambda f, _: f.experts),
        "chosen": of(lambda f, _: f.experts_per_token),
        "linear": of(lambda f, _: f.linear_flops_per_token),
        "head": of(lambda f, _: f.head_flops_per_token),
        "layers": of(lambda f, _: f.layers),
        "vector": of(lambda f, _: f.all_reduce_bytes_per_token),
        "ranks": of(lambda f, _: f.tensor_parallel),
        "bandwidth": of(lambda _, on: on.bandwidth),
        "link": of(lambda _, on: on.link_bandwidth),
        "nvlink": of(lambda _, on: on.nvlink),
        "flops_16": of(lambda _, on: on.flops_16),
        "flops": of(lambda f, on: on.flops_of(f.compute) or on.flops_16),
        "narrow": of(lambda f, _: narrow(f)),
        "bits": of(lambda f, _: {"fp8": 8, "int8": 8, "fp4": 4}.get(f.compute, 16)),
    }
    for part in (0, 1):
        for name, attribute in (("kv", "kv"), ("pairs", "attention_flops")):
            pick = [
                (getattr(foot, attribute)[part] if part < len(getattr(foot, attribute)) else (0.0, None))
                for foot, _ in loads
            ]
            columns[f"{name}{part}"] = np.array([each[0] for each in pick], dtype=np.float64)
            columns[f"{name}{part}_window"] = np.array([each[1] or np.inf for each in pick], dtype=np.float64)
    return columns
