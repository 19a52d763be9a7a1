"""Requests and misses by the load per replica at which they came: what a predicted capacity is compared with.

Loads are in units of the one that the capacity model predicts for a P99. They are classed in equal ratios;
each class has the mean load of its requests: counts at the middle of a class, or shared by two, would make
misses rise more slowly with the load than they do. Old counts fade, so that another kind of traffic shows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_LEAST_LOAD, _RATIO, _CLASSES = 1e-4, 1.1, 109  # to 2.9; the loads of three replicas and of four differ
HALF_LIFE_S = 12 * 3600.0
_LEAST_COUNT = 0.05  # below it a class is empty
_LEAST_PROBABILITY = 1e-9
_OVERLOAD = 0.5  # predicted share of misses from which on a load counts as more than a replica carries


def _kept_share(seconds: float) -> float:
    """Return the share of old counts that is left after so much time."""
    return float(0.5 ** (max(seconds, 0.0) / HALF_LIFE_S))


class MissedRequests(NamedTuple):
    """Requests, and those that missed an objective, whatever the load was; old counts fade."""

    requests: float = 0.0
    misses: float = 0.0
    seconds: float = 0.0  # in which they were counted

    def counted(self, requests: float, missed_share: float, seconds: float) -> "MissedRequests":
        """Return the counts with the requests of so many seconds more."""
        kept = _kept_share(seconds)
        return MissedRequests(
            kept * self.requests + requests,
            kept * self.misses + requests * missed_share,
            kept * self.seconds + seconds,
        )

    def share(self, assumed: float, seconds: float, misses: float) -> float:
        """Return the share that missed, after requests of so many seconds, or of so many misses if these are
        more, of which a share of `assumed` missed.
        """
        of_time = self.requests / self.seconds * seconds if self.seconds else 0.0
        before = max(of_time, misses / assumed)
        return (self.misses + assumed * before) / (self.requests + before)


@dataclass(frozen=True, slots=True)
class LoadMisses:
    """Counts, and mean loads, by class; empty: nothing was counted."""

    requests: tuple[float, ...] = ()
    misses: tuple[float, ...] = ()
    loads: tuple[float, ...] = ()

    def faded(self, seconds: float) -> "LoadMisses":
        """Return the counts after so much time without a request."""
        share = _kept_share(seconds)
        requests, misses = (tuple(share * n for n in counts) for counts in (self.requests, self.misses))
        return LoadMisses(requests, misses, self.loads)

    def counted(self, load: float, requests: float, missed_share: float) -> "LoadMisses":
        """Return the counts with so many requests, more than none, at one load."""
        place = round(math.log(max(load, _LEAST_LOAD) / _LEAST_LOAD, _RATIO))
        place = min(place, _CLASSES - 1)
        counts, misses, loads = (
            list(numbers or (0.0,) * _CLASSES) for numbers in (self.requests, self.misses, self.loads)
        )
        counts[place] += requests
        misses[place] += requests * missed_share
        loads[place] += requests / counts[place] * (load - loads[place])
        return LoadMisses(tuple(counts), tuple(misses), tuple(loads))

    def occupied(self) -> "LoadMisses":
        """Return the classes that are not empty: what many curves are compared with."""
        counts = zip(self.requests, self.misses, self.loads, strict=True)
        classes = [counted for counted in counts if counted[0] >= _LEAST_COUNT]
        return LoadMisses(*zip(*classes, strict=True))

    def lowest(self, least: float) -> tuple[float, float, float]:
        """Return `least` requests at the lowest loads, the misses among them, and the highest of these loads:
        whole classes, all if there are fewer requests.
        """
        requests = misses = highest = 0.0
        for count, missed, load in zip(self.requests, self.misses, self.loads, strict=True):
            if requests >= least:
                break
            requests, misses, highest = requests + count, misses + missed, max(highest, load)
        return requests, misses, highest

    def requests_from(self, load: float) -> float:
        """Return the requests at this load and higher ones."""
        return sum(count for count, mean in zip(self.requests, self.loads, strict=True) if mean >= load)

    def log_likelihood(self, missed_share: Callable[[float], float], least: float = -math.inf) -> float:
        """Return the log-likelihood of the counts if this share of the requests at each load misses. Where it
        is below `least`, any number below that: each class lowers it.

        Beyond what a replica carries a queue grows: how many requests miss depends on how long it has grown.
        So a share above `_OVERLOAD` explains fewer misses as well as the share that was counted.
        """
        total, most = 0.0, 1 - _LEAST_PROBABILITY
        for count, missed, load in zip(self.requests, self.misses, self.loads, strict=True):
            if total < least:
                break
            if count >= _LEAST_COUNT:
                highest = max(_OVERLOAD, min(missed / count, most))
                share = min(max(missed_share(load), _LEAST_PROBABILITY), highest)
                total += missed * math.log(share) + (count - missed) * math.log(1 - share)
        return total
