"""Coefficients of the step-time model for an engine, their certainty, and their correction by live samples.

`coefficients.yaml` is written by `python -m benchmarks.calibrate` from published measurements. Its entries
form a chain of fallbacks: a version that was measured, else its engine, else what all engines have in common.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any

from tangram.capacity.steps.engines import EngineVersion, aged, year
from tangram.capacity.steps.engines import engine as engine_of
from tangram.capacity.steps.step_model import Coefficients
from tangram.catalog import InputError
from tangram.catalog.models.precision import precision as precision_of
from tangram.catalog.reading.packaged_yaml import packaged_yaml

ROOFLINE = "roofline"  # as the name of an engine: the data sheet itself


class Basis(StrEnum):
    """The measurements behind the coefficients of an engine, best first."""

    VERSION = "version"  # this engine at this version was measured
    ENGINE = "engine"  # other versions of it were
    ALL = "all"  # other engines were
    ROOFLINE = "roofline"  # nothing: the data sheet, which is a bound


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Coefficients, and the measurements behind them."""

    coefficients: Coefficients
    basis: Basis
    key: str  # what was measured: "vllm 0.18.0", "vllm", "all"
    points: int  # measurements behind it
    error_p50: float | None  # relative TPOT error where it had to predict what it had not seen (0.1: 10 %);
    error_p90: float | None  # None: nothing is known of it
    unverified: bool  # this engine, GPU or weight format was never measured
    burst: float = 0.0  # share of requests that the benchmarks behind it sent, or the engine kept, in a burst


@cache
def load() -> Mapping[str, Any]:
    """Return the calibration that is shipped with this package."""
    document: Mapping[str, Any] = packaged_yaml("tangram.capacity", "coefficients.yaml")
    return document


@lru_cache(maxsize=1024)
def coefficients_for(
    engine: str | None = None,
    version: str | None = None,
    precision: str | None = None,
    gpu: str | None = None,
    model: str | None = None,  # not used yet
) -> Calibrated:
    """Return the best known coefficients.

    `version` is "" for measurements without one. `gpu` is a SKU and `precision` a weight format; both only
    decide whether the result is marked as unverified. So is an engine with an unknown name; without a name
    the result is for all engines. Engine "roofline": the data sheet. Versions of 2023 and 2024 have a larger
    overhead than was measured since (`engines.aged`).
    """
    engine_version = engine_of(engine, version)
    if engine_version.name == ROOFLINE:
        return Calibrated(Coefficients(), Basis.ROOFLINE, ROOFLINE, 0, None, None, unverified=True)
    document = load()
    basis, entry = _entry(document, engine_version)
    measured, age = document["measured"], year(engine_version)
    is_measured = (gpu is None or gpu in measured["gpus"]) and (
        precision is None or _name_of(precision) in measured["precisions"]
    )
    unseen = {} if gpu is None or gpu in measured["gpus"] else measured["other_gpu_error"]
    return Calibrated(
        aged(Coefficients(**entry["coefficients"]), age),
        basis,
        entry["key"] if age is None else f"{entry['key']}, slowed to {age}",
        entry["points"],
        max(entry["error"]["p50"], unseen.get("p50", 0.0)),
        max(entry["error"]["p90"], unseen.get("p90", 0.0)),
        unverified=(basis is Basis.ALL and bool(engine_version.name)) or not is_measured or age is not None,
        burst=entry["burst"],
    )


def _entry(document: Mapping[str, Any], engine_version: EngineVersion) -> tuple[Basis, Mapping[str, Any]]:
    name, version = engine_version
    if version is not None and (entry := document["versions"].get(f"{name} {version}".strip())):
        return Basis.VERSION, entry
    if entry := document["engines"].get(name):
        return Basis.ENGINE, entry
    return Basis.ALL, document["all"]


def kv_precision(engine: str | None, weights: str) -> str:
    """Return the default format of the KV cache: fp8 beside fp8 and nvfp4 weights, else 16 bits.

    So did TensorRT-LLM and vLLM in the campaigns behind the calibration, as Little's law shows on their rows.
    """
    return "fp8" if _name_of(weights) in {"fp8", "nvfp4"} else "bf16"


def _name_of(weights: str) -> str:
    try:
        return precision_of(weights).name
    except InputError:
        return weights


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """One measurement beside its prediction, in the same unit."""

    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Correction:
    """How measurements of one deployment (one replica shape, one engine version) correct its predictions.

    How far it holds for other deployments, and for first-token times at other loads, is decided by
    `accuracy.corrected`.
    """

    factor: float = 1.0  # what a prediction is to be multiplied with
    samples: int = 0


# Spread of log(measured / predicted) within one combination: between concurrencies and lengths, not repeats.
# The first samples are of loads alike: half of its square they have in common, and no number averages it out.
SAMPLE_SPREAD = 0.07
COMMON_SPREAD = 0.07
# A median of errors without sign is 0.67 standard deviations of errors with one.
SIGMAS_OF_MEDIAN = 1.48


def correct(samples: Iterable[CalibrationSample], expected_error: float, doubt: float = 1.0) -> Correction:
    """Return the factor that the samples support: none without samples, most of their deviation with three.

    `expected_error`: median error of such predictions (`Calibrated.error_p50`): where they are usually right,
    a few samples that disagree count less. `doubt`: how much further than those of TPOT the samples stray,
    beside how far the predictions do. It is the posterior mean of a log-normal factor; a part per concurrency
    was tried and did not help. Samples that are not positive numbers are ignored.
    """
    logs = [
        math.log(sample.measured / sample.predicted)
        for sample in samples
        if 0 < sample.measured < math.inf and 0 < sample.predicted < math.inf
    ]
    if not logs or expected_error <= 0:
        return Correction()
    spread = SIGMAS_OF_MEDIAN * expected_error
    within = (COMMON_SPREAD**2 + SAMPLE_SPREAD**2 / len(logs)) * doubt**2
    believed = sum(logs) / len(logs) * spread**2 / (spread**2 + within)
    return Correction(math.exp(believed), len(logs))
