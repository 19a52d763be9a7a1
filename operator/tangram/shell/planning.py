"""`plan()` in a process of its own, with a deadline: a solver that hangs or dies takes nothing else with
it.
"""

import asyncio
import logging
import multiprocessing
import traceback
from collections.abc import Callable
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
    """One worker process, started when needed and replaced when it fails."""

    def __init__(self, deadline_s: float, planner: Callable[[], PlanFunction] = the_planner) -> None:
        self.deadline_s = deadline_s
        self._planner = planner
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None

    async def plan(
        self, snapshot: FleetSnapshot, intents: tuple[Intent | InvalidIntent, ...], now: float
    ) -> Plan:
        """Return the plan. Raises PlanFailed after the deadline, when the worker dies, or when `plan()`
        raises.
        """
        if self._process is None or not self._process.is_alive():
            await asyncio.to_thread(self._start)
        try:
            answer = await asyncio.to_thread(self._ask, (snapshot, intents, now))
        except (EOFError, OSError) as error:
            code = self._process.exitcode
            self.stop()
            raise PlanFailed("died", f"the planning process died (exit code {code})") from error
        except PlanFailed:
            self.stop()
            raise
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

    def _start(self) -> None:
        self.stop()
        self._pipe, child = self._context.Pipe()
        self._process = self._context.Process(
            target=work, args=(child, self._planner), name="tangram-plan", daemon=True
        )
        self._process.start()
        child.close()
        if not self._pipe.poll(START_S) or self._pipe.recv() != "ready":
            raise PlanFailed("died", f"the planning process did not start within {START_S:.0f} s")

    def _ask(self, question: object) -> object:
        assert self._pipe is not None  # noqa: S101 - _start made it
        self._pipe.send(question)
        if not self._pipe.poll(self.deadline_s):
            raise PlanFailed("deadline", f"no plan within {self.deadline_s:g} s")
        return self._pipe.recv()


def work(pipe: Connection, planner: Callable[[], PlanFunction]) -> None:
    """Answer questions until the parent is gone. Runs in the worker process."""
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    plan = planner()
    pipe.send("ready")
    while True:
        try:
            snapshot, intents, now = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(plan(snapshot, intents, now))
        except Exception:  # noqa: BLE001 - a bug of ours: told to the parent, counted and logged there
            pipe.send(traceback.format_exc())
