"""Which share of requests misses an objective on one replica, by its load."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.scaling.outlook.miss_curve import MissCurve, Rates, miss_curve

# Where fewer requests than this, as a share of the rate at a percentile, meet the strictest one, loads count
# in units of the former.
_LEAST_REFERENCE = 0.25
# A prediction that is wrong by a factor of ten may as well be wrong by a thousand: it is of other hardware.
_FAR, _FARTHER = math.log(10.0), 0.1


class CapacityCorrection(NamedTuple):
    """How a replica differs from what is predicted; the default does not."""

    trusted_share: float = 1.0  # of each predicted load, that a replica really carries
    load_spread: float = 0.0  # deviation of the logarithm of the load within a minute (`miss_curve`)
    unavoidable_share: float = 0.0  # of requests: they miss at any load, so more replicas do not help

    def distance(self, prior: "CapacityCorrection") -> float:
        """Return 1 for a factor of e of the share, a spread of 1, or that some requests miss at any load."""
        newly = (self.unavoidable_share > 0) != (prior.unavoidable_share > 0)
        ratio = abs(math.log(self.trusted_share / prior.trusted_share))
        ratio = min(ratio, _FAR + _FARTHER * (ratio - _FAR))
        return ratio + abs(self.load_spread - prior.load_spread) + newly


AS_PREDICTED = CapacityCorrection()


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """The highest loads at which given shares of requests meet both objectives, by the capacity model.

    `rates` has (percentile, requests per second), the strictest first: 99, 95, 90, 50. A rate of 0: even a
    nearly idle replica misses them more often.
    """

    rates: Rates
    correction: CapacityCorrection = AS_PREDICTED
    idle_ttft: tuple[tuple[float, float], ...] = ()  # milliseconds of a nearly idle replica by percentile
    without_ttft: "ReplicaCapacity | None" = None  # by the TPOT objective alone; None: there is none
    # Of a replica of another shape behind the same Service: at each load the weaker of the two counts.
    beside: "ReplicaCapacity | None" = None
    _curve: MissCurve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_curve", miss_curve(self.rates, self.correction.load_spread))

    def rate_at(self, percentile: float) -> float:
        """Return the highest load at which `percentile` per cent of the requests meet the objectives, without
        those that miss them at any load.
        """
        own = self.correction.trusted_share * self._curve.rate_at(percentile)
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
        """Return the share of requests that miss an objective at `rate` requests per second, 0 to 1."""
        share, _, least = self.correction
        own = least + (1 - least) * self._curve.missed_share(rate / share)
        return own if self.beside is None else max(own, self.beside.missed_share(rate))

    def corrected(self, correction: CapacityCorrection) -> "ReplicaCapacity":
        """Return the capacity of a replica that differs so from this one; a share is one of this one's."""
        beside = None if self.beside is None else self.beside.corrected(correction)
        share = correction.trusted_share * self.correction.trusted_share
        return ReplicaCapacity(self.rates, correction._replace(trusted_share=share), beside=beside)
