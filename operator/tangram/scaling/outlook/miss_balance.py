"""What was expected to miss and what missed: whether the margin for another load may be given back.

Requests are expected to miss at the expected load, and more of them because another load may come. Where far
fewer miss than expected, and the error budget is far from spent, only their ratio of that margin is kept.
What the expected load leads to stays: the fit of the capacity knows it. Misses that are not expected widen no
margin: for them there are that fit, and the forecast.
"""

from typing import NamedTuple

HALF_LIFE_S = 2 * 3600.0
LEAST_KEPT = 0.2
_UNSURE = 20.0  # misses that are added to both: a few minutes without any prove nothing
_SPENT = 0.8  # of the error budget, from which on nothing is given back


class MissBalance(NamedTuple):
    """Requests and misses of the last hours. A leap of the load counts in the budget, not in the ratio."""

    requests: float = 0.0
    missed: float = 0.0
    settled_missed: float = 0.0  # while the load was settled
    settled_expected: float = 0.0

    def faded(self, seconds: float) -> "MissBalance":
        """Return the counts after so much time without a request."""
        share = 0.5 ** (max(seconds, 0.0) / HALF_LIFE_S)
        return MissBalance(*(share * count for count in self))

    def counted(self, requests: float, missed_share: float, expected_share: float | None) -> "MissBalance":
        """Return the counts with so many requests. `expected_share` is None while the load is not settled."""
        missed = requests * missed_share
        settled, expected = (0.0, 0.0) if expected_share is None else (missed, requests * expected_share)
        added = (requests, missed, settled, expected)
        return MissBalance(*(count + more for count, more in zip(self, added, strict=True)))

    def margin_kept(self, budget: float) -> float:
        """Return the share of the margin to keep beside an error budget, 1 at most."""
        if self.missed + _UNSURE > _SPENT * budget * self.requests:
            return 1.0
        ratio = (self.settled_missed + _UNSURE) / (self.settled_expected + _UNSURE)
        return min(max(ratio, LEAST_KEPT), 1.0)


NONE_COUNTED = MissBalance()
