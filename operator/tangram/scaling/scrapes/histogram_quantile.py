"""`histogram_quantile` of PromQL. Source: `bucketQuantile` in Prometheus' promql/quantile.go."""

import math
from bisect import bisect_left
from collections.abc import Sequence

_SMALL_DELTA = 1e-12  # buckets that differ by less are equal but for rounding


def histogram_quantile(quantile: float, edges: Sequence[float], counts: Sequence[float]) -> float:
    """Return the quantile (0 to 1) of a histogram, interpolated inside a bucket; NaN without observations.

    `counts` are cumulative: one for each upper bound in `edges`, and one for +Inf.
    """
    rising = _rising(counts)
    if not rising[-1] > 0:
        return math.nan
    rank = quantile * rising[-1]
    index = bisect_left(rising, rank, hi=len(edges))
    if index == len(edges):
        return edges[-1]
    below = rising[index - 1] if index else 0.0
    start = edges[index - 1] if index else 0.0
    return start + (edges[index] - start) * ((rank - below) / (rising[index] - below))


def _rising(counts: Sequence[float]) -> list[float]:
    """Return the counts without decreases: each bucket is extrapolated by itself."""
    rising = [counts[0]]
    for count in counts[1:]:
        before = rising[-1]
        is_equal = abs(count - before) <= _SMALL_DELTA * (abs(count) + abs(before))
        rising.append(before if count < before or is_equal else count)
    return rising
