"""Whether the engine process still goes round its loop: pings that it answers between two steps."""

from collections.abc import Callable

INTERVAL_S = 1.0
_PARTS = 4  # of the limit, at least: a hang is noticed at most a quarter later than it could be


class Heartbeat:
    """Sends a ping per interval and counts the intervals that pass without its answer.

    Only one ping is on its way, so a hung engine's socket does not fill. Silence is counted in ticks, not
    read off a clock: when this process stands still (a paused machine), that is not taken for the engine's.
    """

    def __init__(self, ping: Callable[[int], None], limit_s: float) -> None:
        self._ping = ping
        self._sent = self._answered = self._missed = 0
        self.limit_s = limit_s
        self.interval_s = min(INTERVAL_S, limit_s / _PARTS)

    @property
    def silent_s(self) -> float:
        """Seconds without an answer; 0 while answers come within the interval."""
        return self._missed * self.interval_s

    @property
    def hung(self) -> bool:
        """Whether the engine is silent for longer than a step may take."""
        return self.silent_s > self.limit_s

    def tick(self) -> None:
        """Call once an interval."""
        if self._answered == self._sent:
            self._sent += 1
            self._ping(self._sent)
        else:
            self._missed += 1

    def answer(self, number: int) -> None:
        """The engine has answered ping `number`. Raises ValueError for one that was not sent."""
        if number != self._sent:
            raise ValueError(f"the engine answered ping {number}, not {self._sent}")
        self._answered = number
        self._missed = 0
