"""A share of one core for one thread: a flood of requests takes no more from the operator's other threads."""

from collections.abc import Callable


class ProcessorShare:
    """Says whether the thread may begin more work. It uses `share` of a core in the long run, and `burst_s`
    seconds of a core at once after it was idle.
    """

    def __init__(
        self, share: float, burst_s: float, clock: Callable[[], float], used_s: Callable[[], float]
    ) -> None:
        """`used_s` returns the seconds of a processor that the thread has used."""
        self._share, self._burst_s, self._clock, self._used_s = share, burst_s, clock, used_s
        self._left_s, self._at, self._used_at = burst_s, clock(), used_s()

    def has_left(self) -> bool:
        """Say whether the share is not used up. Call it in the thread."""
        now, used = self._clock(), self._used_s()
        earned = (now - self._at) * self._share - (used - self._used_at)
        # A debt is forgiven after a while, too: what one request costs is bounded.
        self._left_s = max(-self._burst_s, min(self._burst_s, self._left_s + earned))
        self._at, self._used_at = now, used
        return self._left_s > 0
