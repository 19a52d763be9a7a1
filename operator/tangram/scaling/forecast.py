"""An upper quantile of the load at a later time, from what simple forecasts of the past missed by.

Each base forecast predicts a rate: persistence, exponential averages, a trend, the same time a day and a week
ago. Its errors of the past, in units of the square root of the prediction (counts of independent arrivals
have a variance in proportion to their mean), give the margin that covers a share `quantile` of them. Base
forecasts are averaged with weights by their recent pinball loss, so that where nothing beats persistence the
result is persistence with the trace's own burstiness, and where days repeat it is the day before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

from tangram.scaling.load_history import LoadHistory

AVERAGES_S = (120.0, 300.0, 900.0, 3600.0)  # time constants of exponential averages
TREND_S = 300.0  # time constant of the slope
MOST_TREND = 0.5  # share of the level by which a trend may change it
HALF_LIFE_S = 7200.0  # of the weight of an error
# Beyond a quantile that this many errors exceed they are extrapolated as an exponential tail.
TAIL_COUNT, LEAST_TAIL = 8.0, 0.8
SHARPNESS = 8.0  # weight of a base forecast: exp(-SHARPNESS x relative excess of its loss)
# Before errors are known: an index of dispersion of arrivals in a bin, and a relative error of the level.
PRIOR_DISPERSION, PRIOR_ERROR = 4.0, 0.15
PRIOR_COUNT = 15.0  # errors that the prior counts as


@dataclass(frozen=True, slots=True)
class BaseForecast:
    """One of the forecasts that are averaged. Rates are in requests per second."""

    name: str  # persistence | average 300 s | trend | season 86400 s
    weight: float
    expected: float
    upper: float  # at the quantile


@dataclass(frozen=True, slots=True)
class Forecast:
    """The load at a later time, in requests per second."""

    horizon_s: float
    quantile: float
    expected: float
    upper: float  # that the load exceeds with probability 1 - quantile
    bases: tuple[BaseForecast, ...] = ()


def forecast(history: LoadHistory, rate: float, *, now: float, horizon_s: float, quantile: float) -> Forecast:
    """Return the load `horizon_s` after `now`. `rate` is the one of the last `history.step_s` seconds."""
    steps = max(1, math.ceil(horizon_s / history.step_s - 1e-9))
    margins = _margins(history, steps, quantile)
    last = _filled(history.rates)
    bases = []
    for margin in margins:
        level = _predicted_now(margin.name, history, last, rate, now, horizon_s, steps)
        if level is None:
            continue
        upper = level + margin.errors * math.sqrt(max(level, _floor(history)))
        bases.append(BaseForecast(margin.name, margin.weight, level, max(0.0, upper)))
    total = sum(base.weight for base in bases)
    if not total:
        upper = rate + _prior(rate, history, quantile) * math.sqrt(max(rate, _floor(history)))
        return Forecast(horizon_s, quantile, rate, upper)
    return Forecast(
        horizon_s,
        quantile,
        sum(base.weight * base.expected for base in bases) / total,
        sum(base.weight * base.upper for base in bases) / total,
        tuple(bases),
    )


@dataclass(frozen=True, slots=True)
class _Margin:
    name: str
    errors: float  # quantile of the errors, in square roots of the prediction
    weight: float


def _floor(history: LoadHistory) -> float:
    """One request in a bin: below it a rate has no scale."""
    return 1.0 / history.step_s


@lru_cache(maxsize=1024)
def _margins(history: LoadHistory, steps: int, quantile: float) -> tuple[_Margin, ...]:
    """Return quantile of errors and weight of each base forecast. It changes once per bin."""
    rates = _filled(history.rates)
    floor = _floor(history)
    halves = history.step_s / HALF_LIFE_S
    count = len(rates)
    ages = [0.5 ** ((count - 1 - place) * halves) for place in range(count)]
    margins, losses = [], []
    for name, predictions in _base_predictions(history, rates, steps).items():
        errors, weights, scales = [], [], []
        for place, level in enumerate(predictions):
            target = place + steps
            if level is None or target >= count or history.rates[target] is None:
                continue
            scale = math.sqrt(max(level, floor))
            errors.append((rates[target] - level) / scale)
            weights.append(ages[target])
            scales.append(scale)
        prior = _prior(rates[-1] if rates else 0.0, history, quantile)
        margin = _blended(errors, weights, quantile, prior)
        loss = sum(
            weight * scale * _pinball(error - margin, quantile)
            for error, weight, scale in zip(errors, weights, scales, strict=True)
        )
        total = sum(weights)
        margins.append((name, margin))
        losses.append(loss / total if total else None)
    measured = [loss for loss in losses if loss is not None]
    best = min(measured, default=0.0)
    return tuple(
        _Margin(name, margin, _weight(loss, best))
        for (name, margin), loss in zip(margins, losses, strict=True)
    )


def _weight(loss: float | None, best: float) -> float:
    if loss is None:
        return 0.0
    return math.exp(-SHARPNESS * (loss - best) / best) if best > 0 else float(loss == best)


def _pinball(error: float, quantile: float) -> float:
    return quantile * error if error >= 0 else (quantile - 1) * error


def _prior(rate: float, history: LoadHistory, quantile: float) -> float:
    """Return the margin without measured errors, in square roots of `rate`."""
    level = max(rate, _floor(history))
    deviation = math.sqrt(PRIOR_DISPERSION / history.step_s + PRIOR_ERROR**2 * level)
    return NormalDist().inv_cdf(min(max(quantile, 0.01), 0.9999)) * deviation


def _blended(errors: Sequence[float], weights: Sequence[float], quantile: float, prior: float) -> float:
    """Return the quantile of the errors; with few of them, towards the prior."""
    known = sum(weights) ** 2 / sum(w * w for w in weights) if weights else 0.0
    share = known / (known + PRIOR_COUNT)
    tail = max(LEAST_TAIL, 1 - TAIL_COUNT / known) if known else LEAST_TAIL
    measured = _upper_quantile(errors, weights, quantile, tail) if known else 0.0
    return share * measured + (1 - share) * prior


def _upper_quantile(errors: Sequence[float], weights: Sequence[float], quantile: float, tail: float) -> float:
    """Return the weighted quantile; beyond `tail` by the mean excess over that one (an exponential tail)."""
    ordered = sorted(zip(errors, weights, strict=True))
    total = sum(weights)
    edge = min(quantile, tail) * total
    reached, threshold = 0.0, ordered[-1][0]
    for error, weight in ordered:
        reached += weight
        if reached >= edge:
            threshold = error
            break
    if quantile <= tail:
        return threshold
    excess = sum(weight * (error - threshold) for error, weight in ordered if error > threshold)
    beyond = excess / ((1 - tail) * total)
    return threshold + beyond * math.log((1 - tail) / max(1 - quantile, 1e-6))


def _filled(rates: Sequence[float | None]) -> list[float]:
    """Return the rates with each gap filled by the bin before; gaps at the beginning by the first bin."""
    filled: list[float] = []
    last = next((rate for rate in rates if rate is not None), 0.0)
    for rate in rates:
        last = last if rate is None else rate
        filled.append(last)
    return filled


def _base_predictions(
    history: LoadHistory, rates: Sequence[float], steps: int
) -> dict[str, list[float | None]]:
    """Return what each base forecast predicted at each bin for `steps` bins later."""
    predictions: dict[str, list[float | None]] = {"persistence": list(rates)}
    for seconds in AVERAGES_S:
        predictions[f"average {seconds:.0f} s"] = list(_averages(rates, history.step_s / seconds))
    predictions["trend"] = list(_trends(rates, history.step_s, steps))
    for period_s, season in history.seasons:
        ends = (history.end_s - history.step_s * (len(rates) - 1 - place) for place in range(len(rates)))
        predictions[_season(period_s)] = [
            season.rate_at(end - period_s + steps * history.step_s) for end in ends
        ]
    return predictions


def _predicted_now(
    name: str,
    history: LoadHistory,
    rates: Sequence[float],
    rate: float,
    now: float,
    horizon_s: float,
    steps: int,
) -> float | None:
    """Return what a base forecast predicts now, with the rate since the last bin ended."""
    past = min(max(now - history.end_s, 0.0), history.step_s)
    if name == "persistence" or not rates:
        return rate
    if name == "trend":
        return _trends([*rates, rate], history.step_s, steps)[-1]
    if name.startswith("average"):
        seconds = float(name.split()[1])
        share = 1 - math.exp(-past / seconds)
        return (1 - share) * _averages(rates, history.step_s / seconds)[-1] + share * rate
    period_s, season = next(s for s in history.seasons if _season(s[0]) == name)
    return season.rate_at(now + horizon_s - period_s)


def _season(period_s: float) -> str:
    return f"season {period_s:.0f} s"


def _averages(rates: Sequence[float], step: float) -> list[float]:
    """Return the exponential average after each bin; `step`: a bin in time constants."""
    keep, averages = math.exp(-step), []
    level = rates[0] if rates else 0.0
    for rate in rates:
        level = keep * level + (1 - keep) * rate
        averages.append(level)
    return averages


def _trends(rates: Sequence[float], step_s: float, steps: int) -> list[float]:
    """Return level plus slope for `steps` bins, the change bounded to a share of the level."""
    levels = _averages(rates, step_s / AVERAGES_S[0])
    if not levels:
        return []
    slopes = _averages([0.0, *(after - before for before, after in pairwise(levels))], step_s / TREND_S)
    return [
        level + min(max(steps * slope, -MOST_TREND * level), MOST_TREND * level)
        for level, slope in zip(levels, slopes, strict=True)
    ]
