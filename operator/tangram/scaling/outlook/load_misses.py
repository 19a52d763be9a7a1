"""Requests and misses by the load per replica at which they came: what a predicted capacity is compared with.

Loads are in units of the one that the capacity model predicts for a P99, at points in equal ratios; a reading
between two of them counts for both in part. The points are near each other: the loads of three replicas and
of four must not count as one. Old counts fade, so that another kind of traffic shows.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

_LEAST_LOAD, _RATIO, _POINTS = 1e-4, 1.1, 109
LOADS = tuple(_LEAST_LOAD * _RATIO**place for place in range(_POINTS))  # to 2.9
HALF_LIFE_S = 12 * 3600.0
_LEAST_COUNT = 0.05  # below it a point is empty
_LEAST_PROBABILITY = 1e-9


@dataclass(frozen=True, slots=True)
class LoadMisses:
    """Counts at each of `LOADS`; empty: nothing was counted."""

    requests: tuple[float, ...] = ()
    misses: tuple[float, ...] = ()

    def faded(self, seconds: float) -> "LoadMisses":
        """Return the counts after so much time without a request."""
        share = 0.5 ** (max(seconds, 0.0) / HALF_LIFE_S)
        return LoadMisses(tuple(share * n for n in self.requests), tuple(share * n for n in self.misses))

    def counted(self, load: float, requests: float, missed_share: float) -> "LoadMisses":
        """Return the counts with so many requests at one load."""
        place = min(max(math.log(max(load, _LEAST_LOAD) / _LEAST_LOAD, _RATIO), 0.0), _POINTS - 1.0)
        below = min(int(place), _POINTS - 2)
        counts, misses = list(self.requests or (0.0,) * _POINTS), list(self.misses or (0.0,) * _POINTS)
        for point, weight in ((below, below + 1 - place), (below + 1, place - below)):
            counts[point] += weight * requests
            misses[point] += weight * requests * missed_share
        return LoadMisses(tuple(counts), tuple(misses))

    def within(self, least: float, most: float) -> tuple[float, float]:
        """Return the requests, and the misses among them, at loads from `least` to `most`."""
        places = slice(bisect_left(LOADS, least), bisect_right(LOADS, most))
        return sum(self.requests[places]), sum(self.misses[places])

    def log_likelihood(self, missed_share: Callable[[float], float]) -> float:
        """Return the log-likelihood of the counts if this share of the requests at each load misses."""
        total = 0.0
        for place, count in enumerate(self.requests):
            if count >= _LEAST_COUNT:
                share = min(max(missed_share(LOADS[place]), _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
                missed = self.misses[place]
                total += missed * math.log(share) + (count - missed) * math.log1p(-share)
        return total
