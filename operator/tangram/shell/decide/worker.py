"""Call a function in a process of its own, with a deadline, so that a hang or crash stays in that process."""

import asyncio
import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

START_S = 30.0  # a new worker imports the solver before it answers the first time
# After each start that took too long, the next one may take twice as long: with the same limit a start would
# never succeed on a busy node (the chart requests a tenth of a core).
LONGEST_START_S = 120.0

Load = Callable[[], Callable[..., Any]]
"""Returns the function to call. It imports what only the worker process needs, and must be picklable."""


class WorkerFailed(Exception):  # an outcome that callers handle
    """The worker returned no result; `why` is deadline, died or raised."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Worker:
    """One worker process, started when needed and replaced when it fails. One call at a time.

    Calls are numbered, so that a late result of an earlier call is never taken for that of the present one.
    """

    def __init__(
        self, name: str, deadline_s: float, load: Load, *, start_s: float = START_S, niceness: int = 0
    ) -> None:
        self.name, self.deadline_s, self.start_s = name, deadline_s, start_s
        self._load, self._niceness = load, niceness
        self._context = multiprocessing.get_context("spawn")
        self._start_within_s = start_s
        self._process: Any = None
        self._pipe: Connection | None = None
        self.calls = 0
        self.took_s = 0.0  # duration of the last call, without the start of the process

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    async def call(self, *args: object) -> Any:
        """Return what the function returns for `args`. Raises WorkerFailed after the deadline, when the
        worker dies or does not start, or when the function raises.
        """
        raised, result = await asyncio.to_thread(self._call, args)
        if raised:
            raise WorkerFailed("raised", result)
        return result

    def stop(self) -> None:
        """Kill the worker and free its memory. The next call starts another; one in flight fails."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is not None:
            process.kill()
            # Not closed: a call in flight may wait for the same process, and the thread that did not get its
            # exit code would still take it for a running one, which `close` refuses.
            process.join(5)

    def _call(self, args: tuple[object, ...]) -> tuple[bool, Any]:
        """Call the worker. After a failure it is stopped, so that the next call starts a new one."""
        try:
            if self._process is None or not self._process.is_alive():
                self._start()
            return self._send(args)
        except WorkerFailed:
            self.stop()
            raise

    def _start(self) -> None:
        self.stop()
        self._pipe, child = self._context.Pipe()
        process = self._context.Process(
            target=work, args=(child, self._load, self._niceness), name=f"tangram-{self.name}", daemon=True
        )
        process.start()
        self._process = process
        child.close()
        seconds = self._start_within_s
        self._start_within_s = max(seconds, min(2 * seconds, LONGEST_START_S))
        with self._within(seconds, f"the {self.name} process did not start within {seconds:g} s"):
            self._pipe.recv()
        self._start_within_s = self.start_s

    def _send(self, args: tuple[object, ...]) -> tuple[bool, Any]:
        """Return whether the function raised, and its result or the trace."""
        assert self._pipe is not None  # noqa: S101 - _start made it
        self.calls += 1
        began = time.monotonic()
        try:
            with self._within(self.deadline_s, f"no {self.name} within {self.deadline_s:g} s"):
                self._pipe.send((self.calls, args))
                while True:
                    number, raised, result = self._pipe.recv()
                    if number == self.calls:
                        return raised, result
        finally:
            self.took_s = time.monotonic() - began

    @contextlib.contextmanager
    def _within(self, seconds: float, late: str) -> Iterator[None]:
        """Kill the worker after `seconds`, which also ends a blocked send."""
        process = self._process
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.daemon = True
        due = time.monotonic() + seconds
        watchdog.start()
        try:
            yield
        except (EOFError, OSError) as error:
            if time.monotonic() >= due:
                raise WorkerFailed("deadline", late) from error
            process.join(1)
            died = f"the {self.name} process died (exit code {process.exitcode})"
            raise WorkerFailed("died", died) from error
        finally:
            watchdog.cancel()


def work(pipe: Connection, load: Load, niceness: int) -> None:
    """Answer calls until the parent process is gone. Runs in the worker process."""
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when this one ends
    os.nice(niceness)
    function = load()
    pipe.send("ready")
    while True:
        try:
            number, args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((number, False, function(*args)))
        except Exception:  # noqa: BLE001 - a bug of ours: the parent process counts and logs it
            with contextlib.suppress(OSError):  # the parent is gone: the next recv fails
                pipe.send((number, True, traceback.format_exc()))
