"""The share of requests that misses an objective, by the load of a replica.

The capacity model predicts it for a steady load. Within a minute a load varies: the misses at a mean load are
those of the loads within it, each weighed by the requests that come at it. With a lognormal distribution of
spread s around the mean, the logarithm of the load at which a request comes is normal with deviation s around
that of the mean plus s^2/2. So for a spread the curve is smoothed along the logarithm of the load: some
requests miss at a load that is carried on average, and not all at one that is not.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import mul

Rates = tuple[tuple[float, float], ...]
"""Percentiles, the strictest first, and the highest load in requests per second at which so many per cent of
the requests meet the objectives."""

MOST_SPREAD = 0.9  # a little more than recorded traffic has
_LEAST_SPREAD = 0.05  # less than the ratio of two points: as good as steady
_STEEPEST = 60.0  # of the logarithm of the share, by the load over the highest load with hardly any miss
# Points of a smoothed curve, in equal ratios around the load at which half of the requests miss.
_STEP, _BELOW, _ABOVE = 0.06, 116, 32  # from a thousandth to 6.8 times
_ROUNDING = 1e-6
_DEVIATIONS = 4.0  # of the normal distribution that are counted on each side


class MissCurve:
    """For one spread; loads are in requests per second."""

    def __init__(self, rates: Rates, spread: float = 0.0) -> None:
        """`spread`: deviation of the logarithm of the load within a minute; 0: it is steady."""
        self._rates = rates
        self._loads = [load for _, load in rates]
        self._pieces = _pieces(rates)
        self._least_load = (rates[-1][1] or 1.0) * math.exp(-_BELOW * _STEP)
        self._most_load = self._load(_BELOW + _ABOVE - _ROUNDING)
        self._shares = self._smoothed(spread) if spread > _LEAST_SPREAD else None

    def missed_share(self, load: float) -> float:
        """Return the share at one mean load, 0 to 1."""
        if self._shares is None:
            return self._steady(load)
        if load <= self._least_load:
            return self._shares[0]
        if load >= self._most_load:
            return self._shares[-1]
        place = math.log(load / self._least_load) / _STEP
        below = int(place)
        first, second = self._shares[below], self._shares[below + 1]
        return first + (place - below) * (second - first)

    def rate_at(self, percentile: float) -> float:
        """Return the highest load at which `percentile` per cent of the requests meet the objectives; the
        next percentile of `rates` below counts.
        """
        reached, rate = next((pair for pair in self._rates if pair[0] <= percentile), self._rates[-1])
        if self._shares is None:
            return rate
        missed = 1 - reached / 100
        place = bisect_left(self._shares, missed)
        if place == 0:
            return min(rate, self._least_load)
        if place == len(self._shares):
            return rate
        first, second = self._shares[place - 1], self._shares[place]
        return min(rate, self._load(place - 1 + (missed - first) / (second - first)))

    def _steady(self, load: float) -> float:
        """Return the share at a steady load.

        Its logarithm is linear in the load between two percentiles, and beyond them as steep.
        """
        place = min(max(bisect_left(self._loads, load), 1), len(self._pieces))
        first, second, below, width = self._pieces[place - 1]
        return math.exp(min(0.0, first + (second - first) * (load - below) / width))

    def _smoothed(self, spread: float) -> Sequence[float]:
        reach = math.ceil(_DEVIATIONS * spread / _STEP)
        weights = [math.exp(-((offset * _STEP / spread) ** 2) / 2) for offset in range(-reach, reach + 1)]
        shift, total = spread**2 / 2 / _STEP, sum(weights)
        points = range(-reach, _BELOW + _ABOVE + reach + 1)
        steady = [self._steady(self._load(point + shift)) for point in points]
        return array(
            "d",
            (
                sum(map(mul, weights, steady[first : first + len(weights)])) / total
                for first in range(_BELOW + _ABOVE + 1)
            ),
        )

    def _load(self, place: float) -> float:
        return self._least_load * math.exp(place * _STEP)


@lru_cache(maxsize=8192)
def miss_curve(rates: Rates, spread: float) -> MissCurve:
    """Return the curve for one spread, as it was computed before."""
    return MissCurve(rates, spread)


def _pieces(rates: Rates) -> list[tuple[float, float, float, float]]:
    """Return the logarithms of the shares at both ends of each piece, its lower load, and its width."""
    scale = rates[0][1] or next((rate for _, rate in rates if rate), 0.0)
    pieces = []
    for (low, below), (high, above) in pairwise(rates):
        first, second = math.log(1 - low / 100), math.log(1 - high / 100)
        width = max(above - below, (second - first) * scale / _STEEPEST, 1e-12)
        pieces.append((first, second, below, width))
    return pieces
