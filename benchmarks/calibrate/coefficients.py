"""`coefficients.yaml` of the package: what a fit found, with its confidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml

from benchmarks.calibrate.fit import Fit, fit
from benchmarks.calibrate.points import Column, Points
from benchmarks.calibrate.whole import Bursts
from tangram.catalog import find_gpu

HEADER = """\
# Factors of the step-time model. Written by `python -m benchmarks.calibrate`: do not edit.
# Fields: capacity/steps/step_model.py, Coefficients. error: relative error of TPOT where the fit had to predict what it had not
# seen, in the whole prediction (of a version: other combinations of model, GPU, TP and precision; of an engine: its other versions; of all:
# other engines). burst: share of requests that the measuring clients sent, or the engine kept, in a burst.
# interval: 5 and 95 % of refits on combinations drawn with replacement. Coefficients are not unique:
# only their sum over a step is measured. Source of the points: benchmarks/calibrate/data/README.md.
"""
REFITS = 30
DIGITS = 4


def bootstrap(p: Points, start: Fit) -> dict[str, tuple[float, float]]:
    """5 and 95 % of the common coefficients over refits on combinations drawn with replacement (fixed seed)."""
    random = np.random.default_rng(20260406)
    combinations = sorted(set(p.labels["combination"]))
    found = []
    for _ in range(REFITS):
        drawn = random.choice(len(combinations), len(combinations))
        rows = np.concatenate([np.flatnonzero(p.labels["combination"] == combinations[i]) for i in drawn])
        refit = fit(p.pick(rows), start)
        found.append({**refit.dense.common(), **refit.experts.common()})
    return {
        name: (
            float(np.percentile([each[name] for each in found], 5)),
            float(np.percentile([each[name] for each in found], 95)),
        )
        for name in found[0]
    }


def document(
    p: Points, found: Fit, held: dict[str, Column], interval: dict[str, tuple[float, float]], bursts: Bursts
) -> dict[str, Any]:
    """Everything that the package needs to know. `held`: errors by what was held out."""
    dense = p.labels["kind"] == "dense"
    told = p.labels["told"] == "yes"
    engines = sorted(set(p.labels["engine"]))
    versions = sorted(set(p.labels["version"][told]))

    def entry(key: str, engine: str, version: str, rows: Column, error: Column) -> dict[str, Any]:
        mask = rows & dense if (rows & dense).any() else rows
        values = found.of(engine, version) | {"request_s": bursts.request_s}
        return {
            "key": key,
            "points": int(rows.sum()),
            "error": _percentiles(error[mask]),
            "burst": bursts.of(engine, version),
            "coefficients": {name: _rounded(value) for name, value in values.items()},
        }

    everything = np.ones(len(p), dtype=bool)
    return {
        "measured": {
            "gpus": sorted(
                {board.sku for name in set(p.labels["gpu"][told]) if (board := find_gpu(str(name)))}
            ),
            "precisions": sorted({*map(str, set(p.labels["precision"])), "fp16"}),
            "other_gpu_error": _percentiles(held["gpu"][dense]),
        },
        "all": entry("all", "", "", everything, held["engine"])
        | {"interval": {name: [_rounded(low), _rounded(high)] for name, (low, high) in interval.items()}},
        "engines": {
            str(name): entry(str(name), str(name), "", p.labels["engine"] == name, held["version"])
            for name in engines
        },
        "versions": {
            _key(str(name)): entry(
                _key(str(name))
                if _key(str(name)) != str(name).split("|")[0]
                else f"{_key(str(name))} (version not told)",
                str(name).split("|")[0],
                str(name),
                p.labels["version"] == name,
                held["combination"],
            )
            for name in versions
        },
    }


def text(document: dict[str, Any]) -> str:
    """The file's text; the same document gives the same bytes."""
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=110, default_flow_style=None)


def _key(label: str) -> str:
    engine, version = label.split("|")
    return f"{engine} {version}".strip()


def _percentiles(error: Column) -> dict[str, float]:
    return {"p50": round(float(np.median(error)), 3), "p90": round(float(np.percentile(error, 90)), 3)}


def _rounded(value: float) -> float:
    """To four digits: more would differ between machines."""
    return float(f"{value:.{DIGITS}g}")
