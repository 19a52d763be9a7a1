"""Whether the server takes requests, from start to the end of its drain; and how many it holds."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from tangram_engine.serve.http.errors import overloaded, too_many_sequences, unavailable


class State(Enum):
    """Ready means: send me traffic. Accepting means: what comes is served."""

    STARTING = "starting"  # not ready, refuses: the engine is loading
    SERVING = "serving"  # ready, accepts
    LEAVING = "leaving"  # not ready, still accepts: load balancers have not noticed yet
    DRAINING = "draining"  # not ready, refuses; what runs finishes
    FAILED = "failed"  # not ready, refuses; about to exit


_REFUSALS = {
    State.STARTING: ("The model is still loading.", "not_ready"),
    State.DRAINING: ("This replica is shutting down.", "draining"),
    State.FAILED: ("The engine process failed.", "engine_died"),
}


class Lifecycle:
    """The state, the requests being answered and the sequences they hold in the engine."""

    def __init__(self, sequence_limit: int) -> None:
        self.state = State.STARTING
        self.hung: str | None = None  # why the engine counts as hung
        self.active = 0  # HTTP requests for tokens
        self._sequences = 0
        self._sequence_limit = sequence_limit
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """What /ready answers."""
        return self.state is State.SERVING and self.hung is None

    @property
    def leaving(self) -> bool:
        """Whether connections should be given up after their answer."""
        return self.state in {State.LEAVING, State.DRAINING, State.FAILED}

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold one accepted request: the drain waits for it. Raises APIError when none is accepted."""
        if self.state in _REFUSALS:
            raise unavailable(*_REFUSALS[self.state])
        if self.hung is not None:
            raise unavailable(self.hung, "engine_hung")
        self.active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if self.active == 0:
                self._idle.set()

    @contextmanager
    def sequences(self, count: int) -> Iterator[None]:
        """Hold places for `count` sequences. Raises APIError (429) when there are not so many."""
        if count > self._sequence_limit:
            raise too_many_sequences(self._sequence_limit)
        if self._sequences + count > self._sequence_limit:
            raise overloaded(self._sequence_limit)
        self._sequences += count
        try:
            yield
        finally:
            self._sequences -= count

    async def wait_idle(self, limit_s: float) -> None:
        """Return when no request is held any more, or after the limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    async def drain(self, accept_seconds: float) -> None:
        """Not ready at once; refuse after `accept_seconds`; return when the last request has its answer."""
        self.state = State.LEAVING
        await asyncio.sleep(accept_seconds)
        self.state = State.DRAINING
        await self._idle.wait()
