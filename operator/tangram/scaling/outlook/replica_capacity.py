"""Which share of requests misses an objective on one replica, by its load."""

import math
from bisect import bisect_left
from dataclasses import dataclass

# Where fewer requests than this, as a share of the rate at a percentile, meet the strictest one, loads count
# in units of the former.
_LEAST_REFERENCE = 0.25
_STEEPEST = 60.0  # of the logarithm of the share, by the load over the highest load with hardly any miss


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """The highest loads at which given shares of requests meet both objectives, by the capacity model.

    `rates` has (percentile, requests per second), the strictest first: 99, 95, 90, 50. A rate of 0: even a
    nearly idle replica misses them more often.
    """

    rates: tuple[tuple[float, float], ...]
    sharpness: float = 1.0  # exponent of the share of misses
    unavoidable_share: float = 0.0  # of requests: they miss whatever the load is
    idle_ttft: tuple[tuple[float, float], ...] = ()  # milliseconds of a nearly idle replica by percentile
    without_ttft: "ReplicaCapacity | None" = None  # by the TPOT objective alone; None: there is none
    # Of a replica of another shape behind the same Service: at each load the weaker of the two counts.
    beside: "ReplicaCapacity | None" = None

    def rate_at(self, percentile: float) -> float:
        """Return the highest load at which `percentile` per cent of the requests meet the objectives."""
        own = next((rate for known, rate in self.rates if known <= percentile), self.rates[-1][1])
        return own if self.beside is None else min(own, self.beside.rate_at(percentile))

    def idle_ttft_ms(self, percentile: float) -> float | None:
        """Return the TTFT that so many per cent of the requests have at most on a nearly idle replica, None
        where it is not predicted.
        """
        return next((ms for known, ms in self.idle_ttft if known <= percentile), None)

    def reference_percentile(self, percentile: float) -> float:
        """Return the percentile in whose highest load other loads are counted: the strictest, or `percentile`
        where hardly any load meets the strictest.
        """
        strictest, rate = self.rates[0]
        return strictest if rate >= _LEAST_REFERENCE * self.rate_at(percentile) else percentile

    def missed_share(self, rate: float) -> float:
        """Return the share of requests that miss an objective at `rate` requests per second, 0 to 1.

        The logarithm of the share is linear in the load between two percentiles, and beyond them as steep.
        """
        loads = [load for _, load in self.rates]
        place = min(max(bisect_left(loads, rate), 1), len(loads) - 1)
        first, second, below, width = self._piece(place)
        by_load = math.exp(self.sharpness * min(0.0, first + (second - first) * (rate - below) / width))
        own = self.unavoidable_share + (1 - self.unavoidable_share) * by_load
        return own if self.beside is None else max(own, self.beside.missed_share(rate))

    def _piece(self, place: int) -> tuple[float, float, float, float]:
        """Return the logarithms of the shares at both ends of a piece, its lower load, and its width."""
        (low, below), (high, above) = self.rates[place - 1], self.rates[place]
        first, second = math.log(1 - low / 100), math.log(1 - high / 100)
        scale = self.rates[0][1] or next((rate for _, rate in self.rates if rate), 0.0)
        return first, second, below, max(above - below, (second - first) * scale / _STEEPEST, 1e-12)

    def load_at(self, missed: float) -> float:
        """Return the load at which the share `missed`, above 0, misses: the inverse of `missed_share`."""
        shares = [1 - percentile / 100 for percentile, _ in self.rates]
        place = min(max(bisect_left(shares, missed), 1), len(shares) - 1)
        first, second, below, width = self._piece(place)
        return max(0.0, below + width * (math.log(missed) - first) / (second - first))

    def scaled(
        self, share: float, sharpness: float = 1.0, unavoidable_share: float = 0.0
    ) -> "ReplicaCapacity":
        """Return the capacity of a replica that carries this share of each load, with this exponent."""
        rates = ((percentile, share * rate) for percentile, rate in self.rates)
        beside = None if self.beside is None else self.beside.scaled(share, sharpness, unavoidable_share)
        return ReplicaCapacity(tuple(rates), sharpness, unavoidable_share, beside=beside)
