"""The planner's process: its deadline, its death, its replacement."""

import os
import time

import pytest

from tangram.fleet import FleetSnapshot, Plan
from tangram.shell.planning import PlanFailed, PlanWorker

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
async def test_a_plan_that_fails_is_told_and_the_next_one_comes(planner, why: str) -> None:
    worker = PlanWorker(0.5, planner)
    try:
        with pytest.raises(PlanFailed) as failure:
            await worker.plan(SNAPSHOT, (), 1)
        assert failure.value.why == why
        assert await worker.plan(SNAPSHOT, (), 2) == Plan()
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
