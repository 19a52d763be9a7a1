"""What ends the wait for the next round: a change of an object, its time, or the end of the process."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

LEAST_S = 1.0  # between the starts of two rounds that changes begin


class RoundTrigger:
    """Waits for the next round. Threads and signal handlers may call `change` and `stop`.

    The queue is one that a signal handler may write to while the same thread reads it; an Event is not.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, least_s: float = LEAST_S) -> None:
        self.is_stopping = False
        self._clock, self._least_s = clock, least_s
        self._signals: SimpleQueue[None] = SimpleQueue()
        self._not_before = float("-inf")

    def change(self) -> None:
        """Begin a round as soon as it may begin."""
        if self._signals.empty():  # one is enough
            self._signals.put(None)

    def stop(self) -> None:
        """End the process after the round that is under way."""
        self.is_stopping = True
        self._signals.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for a change, or that long; return whether there was a change."""
        changed = self._next_signal(seconds)
        if changed:
            while not self.is_stopping and (left := self._not_before - self._clock()) > 0:
                self._next_signal(left)  # what changes until then is seen by the same round
            self._not_before = self._clock() + self._least_s
        return changed

    def _next_signal(self, seconds: float) -> bool:
        try:
            self._signals.get(timeout=max(seconds, 0.0))
        except Empty:
            return False
        return True
