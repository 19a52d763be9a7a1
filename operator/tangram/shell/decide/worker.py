"""A function in a process of its own, with a deadline: what hangs or dies there takes nothing else with
it.
"""

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
# Each start that took too long doubles the next one's time: begun anew within the same time, it never ends
# where the CPU is short (the chart requests a tenth of a core).
LONGEST_START_S = 120.0

Load = Callable[[], Callable[..., Any]]
"""Returns the function to run. It imports what only the worker should pay for, and must be picklable."""


class WorkerFailed(Exception):  # an outcome that callers handle
    """No answer came out; `why` is deadline, died or raised."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Worker:
    """One worker process, started when needed and replaced when it fails. One question at a time.

    Questions are numbered: an answer to an earlier one is never taken for the present one's.
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
        self._asked = 0
        self.took_s = 0.0  # the last question, without the start of the process

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    async def ask(self, *question: object) -> Any:
        """Return what the function makes of `question`. Raises WorkerFailed after the deadline, when the
        worker dies or does not start, or when the function raises.
        """
        raised, answer = await asyncio.to_thread(self._answer, question)
        if raised:
            raise WorkerFailed("raised", answer)
        return answer

    def stop(self) -> None:
        """Kill the worker; what it held is free again. The next question starts another."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is not None:
            process.kill()
            process.join(5)
            process.close()

    def _answer(self, question: tuple[object, ...]) -> tuple[bool, Any]:
        """Ask the worker; after any failure there is none, so that the next question meets a new one."""
        try:
            if self._process is None or not self._process.is_alive():
                self._start()
            return self._ask(question)
        except WorkerFailed:
            self.stop()
            raise

    def _start(self) -> None:
        self.stop()
        self._pipe, child = self._context.Pipe()
        self._process = self._context.Process(
            target=work, args=(child, self._load, self._niceness), name=f"tangram-{self.name}", daemon=True
        )
        self._process.start()
        child.close()
        seconds = self._start_within_s
        self._start_within_s = max(seconds, min(2 * seconds, LONGEST_START_S))
        with self._within(seconds, f"the {self.name} process did not start within {seconds:g} s"):
            self._pipe.recv()
        self._start_within_s = self.start_s

    def _ask(self, question: tuple[object, ...]) -> tuple[bool, Any]:
        assert self._pipe is not None  # noqa: S101 - _start made it
        self._asked += 1
        began = time.monotonic()
        try:
            with self._within(self.deadline_s, f"no {self.name} within {self.deadline_s:g} s"):
                self._pipe.send((self._asked, question))
                while True:
                    number, raised, answer = self._pipe.recv()
                    if number == self._asked:
                        return raised, answer
        finally:
            self.took_s = time.monotonic() - began

    @contextlib.contextmanager
    def _within(self, seconds: float, late: str) -> Iterator[None]:
        """Kill the worker after `seconds`: that ends a send, too, which has no timeout of its own."""
        process = self._process
        watchdog = threading.Timer(seconds, _kill, (process,))
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


def _kill(process: Any) -> None:
    with contextlib.suppress(ValueError):  # closed in the meantime
        process.kill()


def work(pipe: Connection, load: Load, niceness: int) -> None:
    """Answer questions until the parent is gone. Runs in the worker process."""
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    os.nice(niceness)
    function = load()
    pipe.send("ready")
    while True:
        try:
            number, question = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((number, False, function(*question)))
        except Exception:  # noqa: BLE001 - a bug of ours: told to the parent, counted and logged there
            with contextlib.suppress(OSError):  # the parent is gone: the next recv says so
                pipe.send((number, True, traceback.format_exc()))
