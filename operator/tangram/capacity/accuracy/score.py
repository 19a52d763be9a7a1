"""Predicted against measured TTFT and TPOT: what `tangram predict POINTS.csv` prints.

A row is a benchmark at fixed concurrency (a closed loop). The first rows of a combination can serve as live
samples that correct the others (`corrected`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tangram.capacity.accuracy.as_served import kv_tokens, served
from tangram.capacity.accuracy.corrected import Scored, corrected
from tangram.capacity.accuracy.points import Point, points
from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.load.closed_loop import closed_loop
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.steps.calibration import Calibrated, coefficients_for
from tangram.capacity.steps.engines import engine
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import Architecture, InputError

OVERALL = "overall"
UNKNOWN_ERROR = 0.3  # of the data sheet alone

ModelOf = Callable[[str], Architecture]  # by name or path; raises InputError


@dataclass(frozen=True, slots=True)
class Errors:
    """Percentiles of relative errors, in percent."""

    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Score:
    """Errors over the rows of one key. None where no row of it has a measurement."""

    key: str
    n: int
    tpot: Errors | None
    ttft: Errors | None


@dataclass(frozen=True, slots=True)
class Scores:
    """By key in order of appearance, `overall` last; and the rows they are of."""

    scores: tuple[Score, ...]
    points: tuple[Scored, ...]


def score(rows: Iterable[Mapping[str, str | None]], model_of: ModelOf, correct_by: int = 0) -> Scores:
    """Score all rows, in file order; the header is line 1.

    `correct_by`: the first so many rows of each combination (model, GPU, engine, precision; whatever their TP
    and version) correct the rest and are not scored.
    Raises `InputError` naming line and column of what cannot be read, or if nothing is left to score.
    """
    if correct_by < 0:
        raise InputError("--correct", f"must be 0 or more, not {correct_by}")
    predicted = tuple(_predicted(points(rows), model_of))
    if not predicted:
        raise InputError("points", "the file has no rows")
    scored = corrected(predicted, correct_by)
    if not scored:
        raise InputError(
            "--correct", f"no combination has more than {correct_by} rows: nothing is left to score"
        )
    by_key: dict[str, list[Scored]] = {}
    for row in scored:
        by_key.setdefault(row.point.key, []).append(row)
    scores = [_score(key, group) for key, group in by_key.items()]
    return Scores((*scores, _score(OVERALL, scored)), tuple(scored))


def predict(point: Point, architecture: Architecture, calibrated: Calibrated | None = None) -> Scored:
    """Predict one row. Raises `InputError` where the model cannot be split or computed like that."""
    on = hardware(point.sku, ranks=point.tensor_parallel)
    calibration = calibrated or coefficients_for(
        point.engine, point.version, point.precision, point.sku, point.model
    )
    foot = served(architecture, point.precision, point.engine, point.tensor_parallel, on)
    model = StepModel(foot, on, calibration.coefficients)
    lengths = point.input_tokens, point.output_tokens
    loop = closed_loop(model, _limits(model, point), *lengths, point.concurrency, calibration.burst)
    ttft = loop.ttft_s + calibration.coefficients.request_s
    return Scored(
        point,
        ttft,
        loop.tpot_s,
        calibration.basis,
        calibration.unverified or bool(on.unverified),
        calibration.error_p50 or UNKNOWN_ERROR,
    )


def _limits(model: StepModel, point: Point) -> EngineLimits:
    """Return limits as benchmarks set them: as many running requests as are outstanding."""
    running = max(1, math.ceil(point.concurrency))
    batched = max(step_tokens(point.engine, model.hardware), running)
    length = math.ceil(point.input_tokens + point.output_tokens)
    limits = EngineSettings(max_model_len=length, max_running=running, max_batched_tokens=batched)
    held = kv_tokens(model.footprint, model.hardware, limits)
    return EngineLimits(max_running=running, max_batched_tokens=batched, kv_tokens=held)


def step_tokens(name: str, on: Hardware) -> int:
    """Tokens of one step by default: vLLM takes 2,048 on GPUs below 70 GiB and on every A100, else 8,192."""
    small = on.memory_mib < 70 * 1024 or on.sku.startswith("A100")
    return 2048 if engine(name).name == "vllm" and small else 8192


def _predicted(read_points: Iterable[Point], model_of: ModelOf) -> Iterator[Scored]:
    models: dict[str, Architecture] = {}
    for point in read_points:
        try:
            if point.model not in models:
                models[point.model] = model_of(point.model)
            yield predict(point, models[point.model])
        except InputError as error:
            raise InputError(f"line {point.line}: {error.field}", error.problem) from None


def _score(key: str, rows: Sequence[Scored]) -> Score:
    tpot = [row.tpot_error for row in rows if row.tpot_error is not None]
    ttft = [row.ttft_error for row in rows if row.ttft_error is not None]
    return Score(key, len(rows), _errors(tpot), _errors(ttft))


def _errors(errors: Sequence[float]) -> Errors | None:
    if not errors:
        return None
    return Errors(100 * _percentile(errors, 0.5), 100 * _percentile(errors, 0.9))


def _percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest, as numpy does."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])
