"""Run kopf in a thread and event loop of its own, and again after a fault.

When kopf ends, it cancels every task of its event loop that is younger than itself. Its own loop has none of
the operator's tasks: planning and the Lease go on, and the mirrors' own LISTs stand in for its events.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from tangram.kube.credentials import Credentials
from tangram.kube.kinds import Kind
from tangram.kube.retry_delays import RetryDelays
from tangram.shell.intake.mirror import IntakeMirror

log = logging.getLogger(__name__)

RESTART_S = (1.0, 60.0)  # first and longest delay after faults of kopf
STABLE_S = 120.0  # after a longer run, a fault counts as the first one
STOP_S = 5.0  # for kopf to end; then its thread ends with the process

KopfStart = Callable[[], Coroutine[Any, Any, None]]
"""Runs kopf until it fails or is cancelled."""

KopfRun = Callable[[frozenset[Kind], asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]
"""The same for these kinds, beside this event loop of the operator."""


def intake_of(credentials: Credentials, mirrors: Collection[IntakeMirror]) -> KopfRun:
    """Return what runs the kopf that feeds these mirrors."""

    async def run(kinds: frozenset[Kind], mirrors_loop: asyncio.AbstractEventLoop) -> None:
        from tangram.shell.intake.handlers import run_kopf  # noqa: PLC0415 - kopf loads slowly

        await run_kopf(credentials, kinds, mirrors, mirrors_loop)

    return run


class KopfThread:
    """One run of kopf. `ended` has its fault as text, empty where it was stopped."""

    def __init__(self, start: KopfStart, name: str = "kopf") -> None:
        self.ended = concurrent.futures.Future[str]()
        self._start, self._stopping = start, threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        # A daemon: the end of the process does not wait for it.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def stop(self) -> None:
        """Request the end, from any thread."""
        self._stopping.set()
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _run(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except BaseException as error:  # noqa: BLE001 - also CancelledError and SystemExit are faults of kopf
            fault = f"{type(error).__name__}: {error}"
        else:
            fault = "it ended by itself"
        self.ended.set_result("" if self._stopping.is_set() else fault)

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._start())
        if self._stopping.is_set():
            self._task.cancel()
        await self._task


class KopfSupervisor:
    """Keeps kopf running for the kinds that can be listed. Run `run()` as a task, then await `end()`."""

    def __init__(
        self,
        kopf: KopfRun,
        mirrors: Collection[IntakeMirror],
        *,
        check_s: float,
        clock: Callable[[], float],
        restarted: Callable[[], None],
        name: str = "kopf",
    ) -> None:
        """`mirrors` are of the kinds that kopf serves. `name` is that of its thread."""
        self._kopf, self._mirrors, self._check_s = kopf, mirrors, check_s
        self._clock, self._restarted, self._name = clock, restarted, name
        self._thread: KopfThread | None = None

    async def run(self) -> None:
        """Run kopf until cancelled. Its faults are counted, and delay its next start."""
        delays = RetryDelays(*RESTART_S)
        for mirror in self._mirrors:
            await mirror.wait_synced()
        try:
            while True:
                began = self._clock()
                fault = await self._run_once()
                if self._clock() - began > STABLE_S:
                    delays.reset()
                if fault:
                    delay = delays.next_s()
                    log.error("%s ended: %s; starting it again in %.1f s", self._name, fault[:1000], delay)
                    self._restarted()
                    await asyncio.sleep(delay)
        finally:
            if self._thread is not None:
                self._thread.stop()

    @property
    def ended(self) -> bool:
        """Whether no kopf runs."""
        return self._thread is None or self._thread.ended.done()

    async def end(self) -> None:
        """Wait until kopf has ended, at most STOP_S."""
        if self._thread is not None:
            await asyncio.wait({asyncio.wrap_future(self._thread.ended)}, timeout=STOP_S)

    async def _run_once(self) -> str:
        """Run kopf until it ends, or until other kinds can be listed; return its fault."""
        kinds = self._available()
        if not kinds:
            await asyncio.sleep(self._check_s)
            return ""
        loop = asyncio.get_running_loop()
        self._thread = thread = KopfThread(lambda: self._kopf(kinds, loop), self._name)
        ended = asyncio.wrap_future(thread.ended)
        while not ended.done() and self._available() == kinds:
            await asyncio.wait({ended}, timeout=self._check_s)
        if not ended.done():
            log.info("%s starts again: other kinds are available", self._name)
            thread.stop()
            await self.end()
            return ""
        return ended.result()

    def _available(self) -> frozenset[Kind]:
        """Return the kinds that the API server serves, and that the operator may list."""
        return frozenset(mirror.source.kind for mirror in self._mirrors if not mirror.unavailable)
