"""One placement at a time, in a worker process, from the newest fleet."""

import asyncio
import logging
from collections.abc import Callable

from tangram.admission import Review, ReviewedFleet
from tangram.shell.decide.placement_worker import PlacementWorker
from tangram.shell.decide.worker import WorkerFailed

log = logging.getLogger(__name__)

WARM_S = 60.0  # between two looks whether the process runs: its start takes longer than an answer may


class Placements:
    """Asks the worker. Reviews that wait for their turn leave at their time limit; a placement that was begun
    is finished, and the next one begins after it.
    """

    def __init__(self, worker: PlacementWorker, fleet: Callable[[], ReviewedFleet | None]) -> None:
        self._worker, self._fleet = worker, fleet
        self._turn = asyncio.Lock()
        self._begun: asyncio.Task[tuple[str, ...]] | None = None

    async def run(self) -> None:
        """Keep the process running until cancelled."""
        while True:
            async with self._turn:
                await self._finished()
                try:
                    await self._worker.prepare()
                except WorkerFailed as failure:
                    log.warning("no process for placements at `kubectl apply`: %s", failure)
            await asyncio.sleep(WARM_S)

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
