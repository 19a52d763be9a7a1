"""Calls of the API server from rounds, which wait for the driver and therefore are not asynchronous."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tangram.kube.client import ApiClient
from tangram.kube.credentials import Credentials

FIELD_MANAGER = "tangram-agent"
DEADLINE_S = 10.0  # for one call
CLOSE_S = 5.0  # for the end of all calls
_Result = TypeVar("_Result")
log = logging.getLogger(__name__)


class ApiThread:
    """An `ApiClient` in an event loop of its own. Any other thread may call it; close it at the end."""

    def __init__(self, credentials: Credentials, deadline_s: float = DEADLINE_S) -> None:
        """Raise OSError or ValueError for certificates that cannot be read."""
        self._started: Future[ApiClient] = Future()
        self._loop, self._stopped = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(credentials, deadline_s), name="api", daemon=True
        )
        self._thread.start()
        self.client = self._started.result()

    def call(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Return the result of a call of `client`, or raise what it raises."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin work that goes on beside calls until `close`."""
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_log_failure)

    def close(self) -> None:
        """End all calls and connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(CLOSE_S)

    def _run(self, credentials: Credentials, deadline_s: float) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(credentials, deadline_s))

    async def _serve(self, credentials: Credentials, deadline_s: float) -> None:
        try:
            client = ApiClient(credentials, user_agent=FIELD_MANAGER, timeout_s=deadline_s)
        except (OSError, ValueError) as error:
            self._started.set_exception(error)
            return
        self._started.set_result(client)
        try:
            await self._stopped.wait()
        finally:
            await client.close()


def _log_failure(work: Future[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.critical("work beside the rounds ended", exc_info=error)
