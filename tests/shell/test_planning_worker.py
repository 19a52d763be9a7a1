"""The planner's process: its deadline, its death, its replacement."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time

import pytest

from tangram.fleet import FleetSnapshot, Plan
from tangram.shell.decide.plan_worker import PlanWorker
from tangram.shell.decide.worker import WorkerFailed, work

SNAPSHOT = FleetSnapshot(engine_image="e")


def plans():
    return lambda _snapshot, _intents, _now: Plan()


def hangs():
    return lambda _snapshot, _intents, now: time.sleep(60) if now == 1 else Plan()


def dies():
    return lambda _snapshot, _intents, now: os._exit(9) if now == 1 else Plan()


def raises():
    def plan(_snapshot, _intents, now):
        if now == 1:
            raise ValueError("a bug")
        return Plan()

    return plan


@pytest.mark.parametrize(("planner", "why"), [(hangs, "deadline"), (dies, "died"), (raises, "raised")])
async def test_a_failed_plan_is_reported_and_the_next_one_follows(planner, why: str) -> None:
    worker = PlanWorker(0.5, planner)
    try:
        with pytest.raises(WorkerFailed) as failure:
            await worker.plan(SNAPSHOT, (), 1)
        assert failure.value.why == why
        assert await worker.plan(SNAPSHOT, (), 2) == Plan()
    finally:
        worker.stop()


async def test_a_slowly_starting_process_gets_more_time_at_each_attempt() -> None:
    worker = PlanWorker(60, plans, start_s=0.01)
    try:
        with pytest.raises(WorkerFailed, match=r"did not start within 0\.01 s"):
            await worker.plan(SNAPSHOT, (), 2)
        for _ in range(15):
            with contextlib.suppress(WorkerFailed):
                new_plan = await worker.plan(SNAPSHOT, (), 2)
                break
        assert new_plan == Plan()
    finally:
        worker.stop()


async def test_the_worker_is_kept_between_plans() -> None:
    worker = PlanWorker(5, plans)
    try:
        await worker.plan(SNAPSHOT, (), 1)
        first = worker._process.pid
        await worker.plan(SNAPSHOT, (), 2)
        assert worker._process.pid == first
    finally:
        worker.stop()


async def test_a_worker_stops_when_another_thread_has_read_its_exit_code() -> None:
    worker = PlanWorker(5, plans)
    try:
        await worker.plan(SNAPSHOT, (), 1)
        pid = worker._process.pid
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, pid, 0)  # what a call in flight does when its pipe breaks

        worker.stop()

        assert await worker.plan(SNAPSHOT, (), 2) == Plan()
    finally:
        worker.stop()


def starts_slowly():
    time.sleep(60)
    return plans()


def cannot_start():
    os._exit(7)


def takes_nothing():
    """A worker that reports ready and never reads: a call stays in the pipe."""
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
    return plans()


@pytest.mark.parametrize(("planner", "why"), [(starts_slowly, "deadline"), (cannot_start, "died")])
async def test_a_worker_that_does_not_start_is_killed_and_reported(planner, why: str) -> None:
    worker = PlanWorker(5, planner, start_s=5 if why == "died" else 0.3)
    with pytest.raises(WorkerFailed) as failure:
        await worker.plan(SNAPSHOT, (), 1)

    assert failure.value.why == why
    assert worker._process is None


async def test_a_call_that_the_worker_does_not_read_ends_at_the_deadline() -> None:
    worker = PlanWorker(1.5, takes_nothing)
    started = await asyncio.to_thread(worker._start)
    assert started is None
    await asyncio.sleep(0.3)
    huge = FleetSnapshot(engine_image="e" * 2**22)
    begun = time.monotonic()
    with pytest.raises(WorkerFailed) as failure:
        await worker.plan(huge, (), 1)

    assert failure.value.why == "deadline"
    assert time.monotonic() - begun < 10


class LatePipe:
    """A pipe that still holds the result of an earlier call."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool, Plan]] = [(1, False, Plan(actions=("old",)))]  # type: ignore[arg-type]

    def send(self, call: tuple) -> None:
        self.answers.append((call[0], False, Plan()))

    def recv(self) -> tuple[int, bool, Plan]:
        return self.answers.pop(0)


def test_the_result_of_an_earlier_call_is_ignored() -> None:
    worker = PlanWorker(5, plans)
    worker._pipe, worker._process, worker.calls = LatePipe(), multiprocessing.Process(), 1  # type: ignore[assignment]

    assert worker._send((SNAPSHOT, (), 2.0)) == (False, Plan())


def test_a_worker_exits_silently_when_its_operator_is_killed(monkeypatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    operators_end, workers_end = multiprocessing.Pipe()
    operators_end.send((1, ()))

    work(workers_end, lambda: operators_end.close, 0)

    assert operators_end.closed
