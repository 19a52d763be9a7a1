"""What happens at which instant of a simulation. At one instant, the first that was added happens first."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Happening = Callable[[float], None]


class EventQueue:
    """Functions to call at instants, in their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Happening]] = []
        self._number = count()

    def add(self, at: float, happening: Happening) -> None:
        """Let `happening` be called with `at`."""
        heappush(self._heap, (at, next(self._number), happening))

    @property
    def next_at(self) -> float:
        """The instant of the next call; infinite: there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def call_next(self) -> None:
        """Call what is next."""
        at, _, happening = heappop(self._heap)
        happening(at)
