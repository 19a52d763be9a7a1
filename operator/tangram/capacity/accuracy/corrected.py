"""Scored rows, and how the first rows of a combination correct the others: `tangram predict --correct N`.

A combination (model, GPU, engine, precision) holds several deployments, which differ in tensor parallelism
and engine version. A row is corrected by samples of its own deployment as a running replica would be
(`calibration.correct`); where there are none, by those of its neighbours, by a share of their correction.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tangram.capacity.accuracy.points import Point
from tangram.capacity.steps.calibration import Basis, CalibrationSample, correct

# Share of a correction that deployments have in common, chosen on rows held out
# (benchmarks/calibrate/REPORT.md).
SAME_VERSION = 0.75
OTHER_VERSION = 0.25
# First-token times of few requests measure prompts, not queues: one sample corrects by these factors at
# most, counts half as much as one of TPOT, and less with every request beyond those of the samples.
TTFT_FACTORS = (0.7, 1.5)
TTFT_DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Scored:
    """A row beside its prediction, corrected or not."""

    point: Point
    ttft_s: float
    tpot_s: float
    basis: Basis
    unverified: bool
    expected_error: float  # of TPOT, relative, median

    @property
    def ttft_error(self) -> float | None:
        """Relative error without sign (0.1: 10 %), None where nothing was measured."""
        return _error(self.ttft_s, self.point.ttft_s)

    @property
    def tpot_error(self) -> float | None:
        """Likewise of TPOT."""
        return _error(self.tpot_s, self.point.tpot_s)


def corrected(rows: Sequence[Scored], count: int) -> list[Scored]:
    """Leave the first `count` rows of each combination out and correct the others by them, in their order."""
    if not count:
        return list(rows)
    samples: dict[str, list[Scored]] = {}
    rest = []
    for row in rows:
        first = samples.setdefault(row.point.key, [])
        if len(first) < count:
            first.append(row)
        else:
            rest.append(row)
    return [_corrected(row, samples[row.point.key]) for row in rest]


def _corrected(row: Scored, samples: Sequence[Scored]) -> Scored:
    near, share = _nearest(row, samples)
    expected = row.expected_error
    tpot = correct(_samples((scored.point.tpot_s, scored.tpot_s) for scored in near), expected)
    first = _samples((scored.point.ttft_s, scored.ttft_s) for scored in near)
    ttft = correct(map(_bounded, first), expected, TTFT_DOUBT)
    most = max(scored.point.concurrency for scored in near)
    within = min(1.0, most / row.point.concurrency)
    return replace(
        row, tpot_s=row.tpot_s * tpot.factor**share, ttft_s=row.ttft_s * ttft.factor ** (share * within)
    )


def _nearest(row: Scored, samples: Sequence[Scored]) -> tuple[Sequence[Scored], float]:
    """Return the samples nearest to a row, and the share of their correction that holds for it."""
    own = [sample for sample in samples if sample.point.deployment == row.point.deployment]
    if own:
        return own, 1.0
    same = [sample for sample in samples if sample.point.version == row.point.version]
    return (same, SAME_VERSION) if same else (samples, OTHER_VERSION)


def _samples(pairs: Iterable[tuple[float | None, float]]) -> list[CalibrationSample]:
    return [CalibrationSample(measured, predicted) for measured, predicted in pairs if measured is not None]


def _bounded(sample: CalibrationSample) -> CalibrationSample:
    low, high = TTFT_FACTORS
    ratio = min(high, max(low, sample.measured / sample.predicted))
    return CalibrationSample(ratio, 1.0) if math.isfinite(ratio) else sample


def _error(predicted: float, measured: float | None) -> float | None:
    return None if measured is None else abs(predicted / measured - 1)
