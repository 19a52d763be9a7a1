"""The time per token of an engine as a straight line over its KV tokens in use, by its latest readings."""

from collections import deque
from itertools import chain

_READINGS, _BUCKETS = 64, 16
_FEWEST = 2


class StepRegression:
    """Least squares over the latest 64 readings, in 16 buckets of load, so that rare loads are not
    forgotten.
    """

    def __init__(self, kv_tokens: float) -> None:
        self._bucket_tokens = kv_tokens / _BUCKETS
        most = _READINGS // _BUCKETS
        self._buckets: list[deque[tuple[float, float]]] = [deque(maxlen=most) for _ in range(_BUCKETS)]

    def add(self, tokens: float, seconds: float) -> None:
        """Store one reading."""
        bucket = min(_BUCKETS - 1, int(tokens / self._bucket_tokens))
        self._buckets[bucket].append((tokens, seconds))

    def estimate(self, tokens: float) -> float | None:
        """Return the expected seconds per token; None before there are two readings."""
        readings = list(chain.from_iterable(self._buckets))
        if len(readings) < _FEWEST:
            return None
        mean_x = sum(x for x, _ in readings) / len(readings)
        mean_y = sum(y for _, y in readings) / len(readings)
        spread = sum((x - mean_x) ** 2 for x, _ in readings)
        if not spread:
            return mean_y
        slope = sum((x - mean_x) * (y - mean_y) for x, y in readings) / spread
        return max(0.0, mean_y + max(0.0, slope) * (tokens - mean_x))
