"""The distribution of the load at a later time, from what simple forecasts of the past missed by.

Each base forecast predicts a rate: persistence, exponential averages, a trend, the same time a day and a week
ago. The quantiles of its errors of the past, in units of the square root of the prediction (counts of
independent arrivals have a variance in proportion to their mean), are added to it. Base forecasts are
averaged with weights by their recent pinball loss, so that where nothing beats persistence the result is
persistence with the trace's own burstiness, and where days repeat it is the day before.

An error counts by how near the level at which it was made is to the present one: a leap from silence says
what may follow silence, and nothing about the load that came with it. At a level that is new the present rate
is assumed to stay.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import attrgetter
from statistics import NormalDist
from typing import NamedTuple

from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.tenth_steps import STEP

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
NEW_LEVEL_COUNT = 4.0  # errors at a level, until which it is also assumed that the present rate stays
# The deviation of the logarithm of a ratio of levels whose errors count for each other. So many requests in
# a bin are added to both, because ratios of few requests are chance.
SAME_LEVEL, LEVEL_REQUESTS = math.log(2.0), 4.0

# Quantiles of the load that stand for its distribution, with the probability of each.
DISTRIBUTION = (
    *((0.05, 0.1), (0.2, 0.2), (0.4, 0.2), (0.6, 0.2), (0.775, 0.15)),
    *((0.9, 0.1), (0.9625, 0.025), (0.9825, 0.015), (0.995, 0.01)),
)
_QUANTILES = tuple(quantile for quantile, _ in DISTRIBUTION)
_LEAST_WEIGHT = 1e-9  # of an error at any other level
_JUDGED = 6  # the place of the quantile by whose loss base forecasts are weighted


@dataclass(frozen=True, slots=True)
class BaseForecast:
    """One of the forecasts that are averaged. Rates are in requests per second."""

    name: str  # persistence | average 300 s | trend | season 86400 s
    weight: float
    expected: float  # without its error
    upper: float  # at the quantile by which it is weighted


@dataclass(frozen=True, slots=True)
class Forecast:
    """The load at a later time, in requests per second."""

    horizon_s: float
    expected: float
    rates: tuple[float, ...]  # at the quantiles of `DISTRIBUTION`, ascending
    bases: tuple[BaseForecast, ...] = ()

    @property
    def upper(self) -> float:
        """The rate that is exceeded once in forty times."""
        return self.rates[_JUDGED]

    @property
    def certain(self) -> "Forecast":
        """The expected load, at most the highest rate, as if no other could come."""
        rate = min(self.expected, self.rates[-1])
        return Forecast(self.horizon_s, self.expected, (rate,) * len(self.rates))

    def times(self, factor: float) -> "Forecast":
        """Return the forecast of so many times the load."""
        return Forecast(self.horizon_s, factor * self.expected, tuple(factor * rate for rate in self.rates))

    def mean_of(self, function: Callable[[float], float]) -> float:
        """Return the expectation of a function of the load."""
        if self.rates[0] == self.rates[-1]:  # ascending: all are equal
            return function(self.rates[0])
        pairs = zip(self.rates, DISTRIBUTION, strict=True)
        return sum(share * function(rate) for rate, (_, share) in pairs)


def forecast(history: LoadHistory, rate: float, *, now: float, horizon_s: float) -> Forecast:
    """Return the load `horizon_s` after `now`. `rate` is the one of the last `history.step_s` seconds."""
    steps = max(1, math.ceil(horizon_s / history.step_s - 1e-9))
    floor = _floor(history)
    assumed = _assumed(history, rate)
    margins, known = _margins(history, steps, _level_step(history, rate))
    bases: list[BaseForecast] = []
    quantiles: list[tuple[float, ...]] = []
    for margin in margins:
        level = _predicted_now(margin.base, history, rate, now, horizon_s, steps)
        if level is None or not margin.weight:
            continue
        scale = math.sqrt(max(level, floor))
        rates = tuple(max(0.0, level + error * scale) for error in margin.errors)
        bases.append(BaseForecast(margin.base.name, margin.weight, level, rates[_JUDGED]))
        quantiles.append(rates)
    total = sum(base.weight for base in bases)
    if not total:
        return Forecast(horizon_s, rate, assumed)
    share = min(1.0, known / NEW_LEVEL_COUNT)
    averaged = (
        share / total * sum(base.weight * rates[place] for base, rates in zip(bases, quantiles, strict=True))
        + (1 - share) * assumed[place]
        for place in range(len(_QUANTILES))
    )
    learned = sum(base.weight * base.expected for base in bases) / total
    expected = share * learned + (1 - share) * rate
    return Forecast(horizon_s, expected, tuple(accumulate(averaged, max)), tuple(bases))


@dataclass(frozen=True, slots=True)
class _Base:
    """A base forecast of the past, and what it takes to predict once more without the past."""

    name: str
    predictions: Sequence[float | None]  # at each bin, for the horizon
    average: tuple[float, float] | None = None  # time constant, and the value after the last bin
    trend: tuple[float, float] | None = None  # level and slope after the last bin
    season: tuple[float, LoadHistory] | None = None  # period, and the bins of one period ago


@dataclass(frozen=True, slots=True)
class _Margin:
    base: _Base
    errors: tuple[float, ...]  # quantiles of the errors, in square roots of the prediction
    weight: float


def _floor(history: LoadHistory) -> float:
    """One request in a bin: below it a rate has no scale."""
    return 1.0 / history.step_s


@lru_cache(maxsize=1024)
def _levels(history: LoadHistory) -> Sequence[float]:
    """Return the average after each bin by which levels are compared. It changes once per bin."""
    return _averages(_filled(history.rates), history.step_s / AVERAGES_S[0])


def _level_step(history: LoadHistory, rate: float) -> int:
    """Return the step of a tenth of the present level, the average by which levels are compared."""
    levels = _levels(history)
    level = _averaged(levels[-1], rate, history.step_s / AVERAGES_S[0]) if levels else rate
    return round(math.log(level + LEVEL_REQUESTS * _floor(history), STEP))


@lru_cache(maxsize=1024)
def _margins(history: LoadHistory, steps: int, level_step: int) -> tuple[tuple[_Margin, ...], float]:
    """Return quantiles of errors at such a level and the weight of each base forecast, and the number of
    errors that these rest on. They change with the level, and once per bin.
    """
    rates = _filled(history.rates)
    floor = _floor(history)
    halves = history.step_s / HALF_LIFE_S
    count = len(rates)
    ages = [0.5 ** ((count - 1 - place) * halves) for place in range(count)]
    alike = [
        _alike(math.log(level + LEVEL_REQUESTS * floor) - level_step * math.log(STEP))
        for level in _levels(history)
    ]
    priors = [_prior(rates[-1] if rates else 0.0, history, quantile) for quantile in _QUANTILES]
    margins, losses, known = [], [], 0.0
    for base in _bases(history, rates, steps):
        errors = []
        for place, level in enumerate(base.predictions):
            target = place + steps
            if level is None or target >= count or history.rates[target] is None:
                continue
            scale = math.sqrt(max(level, floor))
            came = rates[target] if target == 0 else (rates[target] + rates[target - 1]) / 2
            errors.append(_Error((came - level) / scale, ages[target], scale, alike[place]))
        at_level = [error.at_level for error in errors]
        known = max(known, sum([error.weight for error in at_level]))
        quantiles = _error_quantiles(at_level, priors)
        margins.append((base, quantiles))
        losses.append(_loss(errors, quantiles[_JUDGED], _QUANTILES[_JUDGED]))
    best = min((loss for loss in losses if loss is not None), default=0.0)
    return tuple(
        _Margin(base, quantiles, _weight(loss, best))
        for (base, quantiles), loss in zip(margins, losses, strict=True)
    ), known


def _alike(log_ratio: float) -> float:
    """Return what an error counts whose level differs so from the present one: 1 at the same level."""
    return math.exp(-((log_ratio / SAME_LEVEL) ** 2) / 2) + _LEAST_WEIGHT


class _Error(NamedTuple):
    """What a base forecast missed by at one time."""

    value: float  # in square roots of the prediction
    weight: float
    scale: float  # the square root of the prediction
    alike: float  # how near its level is to the present one

    @property
    def at_level(self) -> "_Error":
        """The error with the weight that it has at the present level."""
        value, weight, scale, alike = self
        return _Error(value, weight * alike, scale, alike)


_ALIKE = attrgetter("alike")


def _loss(errors: Sequence[_Error], margin: float, quantile: float) -> float | None:
    """Return the mean pinball loss in requests per second, None without errors."""
    total = sum([error.weight for error in errors])
    if not total:
        return None
    losses = [weight * scale * _pinball(value - margin, quantile) for value, weight, scale, _ in errors]
    return sum(losses) / total


def _weight(loss: float | None, best: float) -> float:
    if loss is None:
        return 0.0
    return math.exp(-SHARPNESS * (loss - best) / best) if best > 0 else float(loss == best)


def _pinball(error: float, quantile: float) -> float:
    return quantile * error if error >= 0 else (quantile - 1) * error


def _assumed(history: LoadHistory, rate: float) -> tuple[float, ...]:
    """Return the quantiles of the load at a level of which no errors are known: about the present rate."""
    scale = math.sqrt(max(rate, _floor(history)))
    return tuple(max(0.0, rate + _prior(rate, history, quantile) * scale) for quantile in _QUANTILES)


def _prior(rate: float, history: LoadHistory, quantile: float) -> float:
    """Return the margin without measured errors, in square roots of `rate`."""
    level = max(rate, _floor(history))
    deviation = math.sqrt(PRIOR_DISPERSION / history.step_s + PRIOR_ERROR**2 * level)
    return NormalDist().inv_cdf(min(max(quantile, 0.01), 0.9999)) * deviation


def _error_quantiles(errors: Sequence[_Error], priors: Sequence[float]) -> tuple[float, ...]:
    """Return the quantiles of the errors; with few of them, towards the priors."""
    if not errors:
        return tuple(priors)
    ordered = sorted(errors)
    weights = [error.weight for error in ordered]
    total = sum(weights)
    nearest = min(1.0, max(map(_ALIKE, errors)))
    independent = nearest * total**2 / sum([weight**2 for weight in weights])
    share = independent / (independent + PRIOR_COUNT)
    tail = max(LEAST_TAIL, 1 - TAIL_COUNT / max(independent, TAIL_COUNT))
    edges = [min(quantile, tail) * total for quantile in _QUANTILES]
    sums = list(accumulate(weights))
    last = len(ordered) - 1
    values = [ordered[min(bisect_left(sums, edge), last)].value for edge in edges]
    threshold = ordered[min(bisect_left(sums, tail * total), last)].value
    excess = sum([e.weight * (e.value - threshold) for e in ordered if e.value > threshold])
    beyond = excess / ((1 - tail) * total)
    measured = (
        value if quantile <= tail else threshold + beyond * math.log((1 - tail) / (1 - quantile))
        for quantile, value in zip(_QUANTILES, values, strict=True)
    )
    return tuple(share * value + (1 - share) * prior for value, prior in zip(measured, priors, strict=True))


def _filled(rates: Sequence[float | None]) -> list[float]:
    """Return the rates with each gap filled by the bin before; gaps at the beginning by the first bin."""
    filled: list[float] = []
    last = next((rate for rate in rates if rate is not None), 0.0)
    for rate in rates:
        last = last if rate is None else rate
        filled.append(last)
    return filled


def _bases(history: LoadHistory, rates: Sequence[float], steps: int) -> list[_Base]:
    """Return the base forecasts, with what each predicted at each bin for `steps` bins later."""
    step_s = history.step_s
    levels = _averages(rates, step_s / AVERAGES_S[0])
    slopes = _averages(_changes(levels), step_s / TREND_S)
    ends = [history.end_s - step_s * (len(rates) - 1 - place) for place in range(len(rates))]
    bases = [_Base("persistence", rates)]
    for seconds in AVERAGES_S:
        averages = _averages(rates, step_s / seconds)
        last = (seconds, averages[-1]) if averages else None
        bases.append(_Base(f"average {seconds:.0f} s", averages, average=last))
    trends = [_extrapolated(level, slope, steps) for level, slope in zip(levels, slopes, strict=True)]
    bases.append(_Base("trend", trends, trend=(levels[-1], slopes[-1]) if rates else None))
    bases += [
        _Base(
            f"season {period_s:.0f} s",
            [season.rate_at(end - period_s + steps * step_s) for end in ends],
            season=(period_s, season),
        )
        for period_s, season in history.seasons
    ]
    return bases


def _predicted_now(
    base: _Base, history: LoadHistory, rate: float, now: float, horizon_s: float, steps: int
) -> float | None:
    """Return what a base forecast predicts now, with the rate since the last bin ended."""
    if not history.rates:
        return rate
    if base.season is not None:
        period_s, season = base.season
        return season.rate_at(now + horizon_s - period_s)
    if base.trend is not None:
        level, slope = base.trend
        risen = _averaged(level, rate, history.step_s / AVERAGES_S[0])
        return _extrapolated(risen, _averaged(slope, risen - level, history.step_s / TREND_S), steps)
    if base.average is not None:
        seconds, average = base.average
        past = min(max(now - history.end_s, 0.0), history.step_s)
        share = 1 - math.exp(-past / seconds)
        return (1 - share) * average + share * rate
    return rate


def _averaged(level: float, rate: float, step: float) -> float:
    """Return an exponential average after one more bin of `step` time constants."""
    keep = math.exp(-step)
    return keep * level + (1 - keep) * rate


def _averages(rates: Sequence[float], step: float) -> list[float]:
    """Return the exponential average after each bin; `step`: a bin in time constants."""
    keep, averages = math.exp(-step), []
    level = rates[0] if rates else 0.0
    for rate in rates:
        level = keep * level + (1 - keep) * rate
        averages.append(level)
    return averages


def _changes(levels: Sequence[float]) -> list[float]:
    """Return the change of each level against the one before; none of the first."""
    return [0.0, *(after - before for before, after in pairwise(levels))] if levels else []


def _extrapolated(level: float, slope: float, steps: int) -> float:
    """Return level plus slope for `steps` bins, the change bounded to a share of the level."""
    return level + min(max(steps * slope, -MOST_TREND * level), MOST_TREND * level)
