"""`plan()` in a process of its own, with a deadline: a solver that hangs or dies takes nothing else with
it.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from tangram.fleet import FleetSnapshot, Intent, InvalidIntent, Plan

log = logging.getLogger(__name__)

START_S = 30.0  # a new worker imports the solver before it answers the first time

PlanFunction = Callable[[FleetSnapshot, tuple[Intent | InvalidIntent, ...], float], Plan]


class PlanFailed(Exception):  # an outcome that the loop handles: the last plan stands
    """No plan came out; `why` is deadline, died or raised."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


def the_planner() -> PlanFunction:
    """Return the planner (imported here, so that only the worker pays for it)."""
    from tangram.planner import plan  # noqa: PLC0415

    function: PlanFunction = plan
    return function


class PlanWorker:
    """One worker process, started when needed and replaced when it fails.

    Questions are numbered: an answer to an earlier one is never taken for the plan.
    """

    def __init__(
        self, deadline_s: float, planner: Callable[[], PlanFunction] = the_planner, start_s: float = START_S
    ) -> None:
        self.deadline_s, self.start_s = deadline_s, start_s
        self._planner = planner
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None
        self._asked = 0

    async def plan(
        self, snapshot: FleetSnapshot, intents: tuple[Intent | InvalidIntent, ...], now: float
    ) -> Plan:
        """Return the plan. Raises PlanFailed after the deadline, when the worker dies or does not start, or
        when `plan()` raises.
        """
        answer = await asyncio.to_thread(self._answer, (snapshot, intents, now))
        if isinstance(answer, str):
            raise PlanFailed("raised", answer)
        assert isinstance(answer, Plan)  # noqa: S101 - our own process, our own type
        return answer

    def stop(self) -> None:
        """Kill the worker."""
        process, self._process = self._process, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is not None:
            process.kill()
            process.join(5)
            process.close()

    def _answer(self, question: tuple[object, ...]) -> object:
        """Ask the worker; after any failure there is none, so that the next question meets a new one."""
        try:
            if self._process is None or not self._process.is_alive():
                self._start()
            return self._ask(question)
        except PlanFailed:
            self.stop()
            raise

    def _start(self) -> None:
        self.stop()
        self._pipe, child = self._context.Pipe()
        self._process = self._context.Process(
            target=work, args=(child, self._planner), name="tangram-plan", daemon=True
        )
        self._process.start()
        child.close()
        with self._within(self.start_s, f"the planning process did not start within {self.start_s:g} s"):
            self._pipe.recv()

    def _ask(self, question: tuple[object, ...]) -> object:
        assert self._pipe is not None  # noqa: S101 - _start made it
        self._asked += 1
        with self._within(self.deadline_s, f"no plan within {self.deadline_s:g} s"):
            self._pipe.send((self._asked, *question))
            while True:
                number, answer = self._pipe.recv()
                if number == self._asked:
                    return answer

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
                raise PlanFailed("deadline", late) from error
            process.join(1)
            raise PlanFailed("died", f"the planning process died (exit code {process.exitcode})") from error
        finally:
            watchdog.cancel()


def _kill(process: Any) -> None:
    with contextlib.suppress(ValueError):  # closed in the meantime
        process.kill()


def work(pipe: Connection, planner: Callable[[], PlanFunction]) -> None:
    """Answer questions until the parent is gone. Runs in the worker process."""
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    plan = planner()
    pipe.send("ready")
    while True:
        try:
            number, snapshot, intents, now = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((number, plan(snapshot, intents, now)))
        except Exception:  # noqa: BLE001 - a bug of ours: told to the parent, counted and logged there
            pipe.send((number, traceback.format_exc()))
