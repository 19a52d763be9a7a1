"""The distribution of prompt and answer lengths, from the API to the step simulation."""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

# Where only a mean is known, a tenth of all lengths are longer than this many times it.
USUAL_P90 = 2.0
# Of a lognormal distribution with P90 = 2 x mean: exp(1.2816 s - s^2 / 2) = 2, the smaller root.
USUAL_SIGMA = 0.7754
# P90 / mean = exp(z s - s^2 / 2) with z = 1.2816 is largest at s = z: exp(z^2 / 2) = 2.2737. What has a
# longer tail is no lognormal distribution: it has to be counted.
MOST_P90 = 2.27
MOST_CLASSES = 256  # different lengths that are kept apart; of more, those within 3 % of each other are one
_CLASS_RATIO = 1.03

_NORMAL = NormalDist()
_Z90 = _NORMAL.inv_cdf(0.9)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts or of answers, in tokens: lognormal with this mean and P90, or as they were counted.

    Where P90 is the mean, all are alike. P90 lies between the mean and `MOST_P90` times the mean.
    """

    mean: float
    p90: float  # a tenth of all are longer
    counts: tuple[tuple[float, int], ...] = ()  # (tokens, requests), the shortest first; empty: lognormal

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm, where lengths are lognormal."""
        return _sigma(self.p90 / self.mean) if self.mean > 0 else 0.0

    @property
    def cv2(self) -> float:
        """Squared coefficient of variation: what runs is 1 + this times as long as what arrives."""
        if not self.counts:
            return math.exp(self.sigma**2) - 1
        total = sum(count for _, count in self.counts)
        return sum(count * (tokens / self.mean - 1) ** 2 for tokens, count in self.counts) / total

    def quantile(self, share: float) -> float:
        """Return the length in tokens that this share of all (between 0 and 1) does not exceed."""
        if not self.counts:
            sigma = self.sigma
            return self.mean * math.exp(sigma * _NORMAL.inv_cdf(share) - sigma * sigma / 2)
        sums = _sums(self.counts)
        return self.counts[min(bisect_left(sums, share * sums[-1]), len(sums) - 1)][0]


def around(mean: float) -> Lengths:
    """Return lengths of which only the mean is known: P90 is taken as twice that."""
    return Lengths(float(mean), USUAL_P90 * mean)


def with_mean(usual: Lengths, mean: float) -> Lengths:
    """Return lognormal lengths of another mean, whose P90 is in proportion, at most twice the mean.

    Lognormal lengths of a larger P90 vary too much: at 2.27 times the mean by a squared coefficient of
    variation of 3.5. Of seven recorded distributions with a P90 of twice the mean or more, six have 0.6 to
    1.7.
    """
    return Lengths(mean, mean * min(max(usual.p90 / usual.mean, 1.0), USUAL_P90))


def fixed(tokens: float) -> Lengths:
    """Return lengths that are all alike."""
    return Lengths(float(tokens), float(tokens))


def counted(pairs: Iterable[tuple[float, int]]) -> Lengths:
    """Return lengths as counted: pairs of tokens and requests, in any order.

    Raises `ValueError` where there is no request.
    """
    totals: dict[float, int] = {}
    for tokens, count in pairs:
        if count > 0:
            totals[float(tokens)] = totals.get(float(tokens), 0) + count
    if not totals:
        raise ValueError("there is no length in it")
    classes = sorted(totals.items())
    if len(classes) > MOST_CLASSES:
        classes = list(_together(classes))
    total = sum(count for _, count in classes)
    mean = sum(tokens * count for tokens, count in classes) / total
    lengths = Lengths(mean, mean, tuple(classes))
    return Lengths(mean, lengths.quantile(0.9), lengths.counts)


def _together(classes: list[tuple[float, int]]) -> Iterable[tuple[float, int]]:
    """Merge lengths within 3 % of each other into their mean, which keeps the mean of all."""
    group: list[tuple[float, int]] = []
    for tokens, count in classes:
        if group and tokens > group[0][0] * _CLASS_RATIO:
            yield _merged(group)
            group = []
        group.append((tokens, count))
    yield _merged(group)


def _merged(group: list[tuple[float, int]]) -> tuple[float, int]:
    count = sum(requests for _, requests in group)
    return sum(tokens * requests for tokens, requests in group) / count, count


@lru_cache(maxsize=64)
def _sums(counts: tuple[tuple[float, int], ...]) -> tuple[int, ...]:
    return tuple(accumulate(count for _, count in counts))


@lru_cache(maxsize=4096)
def _sigma(ratio: float) -> float:
    """Return the smaller root of exp(z s - s^2 / 2) = ratio: beyond z is the other, for no real traffic."""
    if ratio == USUAL_P90:
        return USUAL_SIGMA
    ratio = min(max(ratio, 1.0), MOST_P90)
    return _Z90 - math.sqrt(_Z90 * _Z90 - 2 * math.log(ratio))
