"""One placement at a time, in a worker process, from the newest fleet."""

import asyncio
import logging
from collections.abc import Callable

from tangram.admission import Review, ReviewedFleet
from tangram.kube.retry_delays import RetryDelays
from tangram.shell.decide.placement_worker import PlacementWorker
from tangram.shell.decide.worker import WorkerFailed

log = logging.getLogger(__name__)

CHECK_S = 1.0  # between two looks whether the process is ready: its first placement is late for an answer
WARM_UP_RETRY_S = (15.0, 900.0)  # first and longest delay after failures
# Of no checkpoint that is known: what others need is computed, and kept by the process.
WARM_UP = Review(
    operation="CREATE",
    plural="llmdeployments",
    namespace="warm-up",
    name="warm-up",
    body={
        "metadata": {"name": "warm-up", "namespace": "warm-up"},
        "spec": {"model": {"uri": "image:///warm-up"}},
    },
)


class Placements:
    """Asks the worker. Reviews that wait for their turn leave at their time limit; a placement that was begun
    is finished, and the next one begins after it.
    """

    def __init__(self, worker: PlacementWorker, fleet: Callable[[], ReviewedFleet | None]) -> None:
        self._worker, self._fleet = worker, fleet
        self._turn = asyncio.Lock()
        self._begun: asyncio.Task[tuple[str, ...]] | None = None

    async def run(self) -> None:
        """Keep the process running, with a fleet, until cancelled."""
        delays = RetryDelays(*WARM_UP_RETRY_S)
        while True:
            try:
                if not self._worker.holds_fleet:
                    await self.warnings(WARM_UP)
                delays.reset()
                await asyncio.sleep(CHECK_S)
            except WorkerFailed as failure:
                log.warning("no placements at `kubectl apply`: %s", failure)
                await asyncio.sleep(delays.next_s())
            except Exception:  # of a fleet that cannot be observed: the operator goes on
                log.exception("no placements at `kubectl apply`")
                await asyncio.sleep(delays.next_s())

    async def warnings(self, review: Review) -> tuple[str, ...]:
        """Return what one placement says about a review. Raises WorkerFailed. Cancel it to leave."""
        async with self._turn:
            await self._finished()
            fleet = self._fleet()
            if fleet is None:
                return ()
            self._begun = asyncio.create_task(self._worker.warnings(review, fleet))
            return await asyncio.shield(self._begun)

    async def _finished(self) -> None:
        """Wait for the placement whose review has left."""
        if self._begun is not None:
            await asyncio.wait({self._begun})
            self._begun.exception()  # it has no reader
            self._begun = None
