"""Run placements for `kubectl apply` in a process of their own, of the lowest priority of the operator's."""

import time
from collections.abc import Callable
from typing import Any

from tangram.admission import Review, ReviewedFleet
from tangram.shell.decide.worker import START_S, Worker

NICENESS = 10  # planning comes first
EDITS_S = 0.4  # for edits with which a model that gets no device would run
DEADLINE_S = 10.0  # the answer is late after a second; a solver that hangs ends here

PlacementFunction = Callable[[Review, ReviewedFleet | None], tuple[str, ...]]
"""Takes the fleet where it is another than that of the last call."""


def load_placements() -> PlacementFunction:
    """Return the function. The imports are here, so that only the worker process loads them."""
    from tangram.admission import placement_warnings  # noqa: PLC0415
    from tangram.packing import solve  # noqa: F401, PLC0415 - loaded before the first time limit runs

    held: list[ReviewedFleet] = []

    def warnings(review: Review, fleet: ReviewedFleet | None) -> tuple[str, ...]:
        until = time.monotonic() + EDITS_S
        if fleet is not None:
            held[:] = [fleet]
        return placement_warnings(review, held[0], lambda: time.monotonic() >= until)

    return warnings


class PlacementWorker(Worker):
    """The worker process of placements. It keeps the last fleet, which is large."""

    def __init__(
        self, load: Callable[[], PlacementFunction] = load_placements, start_s: float = START_S
    ) -> None:
        super().__init__("placement", DEADLINE_S, load, start_s=start_s, niceness=NICENESS)
        self._held: ReviewedFleet | None = None  # by the process

    @property
    def holds_fleet(self) -> bool:
        """Whether the process runs and has made a placement."""
        return self._held is not None and self._process.is_alive()

    async def warnings(self, review: Review, fleet: ReviewedFleet) -> tuple[str, ...]:
        """Return the warnings. Raises WorkerFailed."""
        warnings: tuple[str, ...] = await self.call(review, fleet)
        return warnings

    def stop(self) -> None:
        """Kill the process."""
        self._held = None
        super().stop()

    def _send(self, args: tuple[object, ...]) -> tuple[bool, Any]:
        review, fleet = args
        assert isinstance(fleet, ReviewedFleet)  # noqa: S101 - as `warnings` calls it
        answer = super()._send((review, None if fleet is self._held else fleet))
        self._held = fleet
        return answer
