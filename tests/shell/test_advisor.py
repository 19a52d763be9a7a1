"""When the whole fleet is thought about, what is made of it, and what happens when that fails."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import FleetSnapshot, Intent
from tangram.shell.api_server.retry_delays import RetryDelays, RetrySchedule
from tangram.shell.decide.recommending import AdviceWorker, Advised, the_adviser
from tangram.shell.lead.lease import NotLeader
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.process import advisor as module
from tangram.shell.process.advisor import Advisor, Debounce, essence, told_before
from tests.support.advisers import ADVICE, advises, dies, hangs, raises
from tests.support.fleet import claims, intent, node, shape, snapshot, workload

ONE = intent("one", generation=3)


def fleet(*gpus: int) -> FleetSnapshot:
    return snapshot(*(node(f"n{i}", gpu=n) for i, n in enumerate(gpus)))


class Plans:
    """Takes the place of FleetPlans."""

    def __init__(self) -> None:
        self.retries = RetrySchedule()
        self.written: list[tuple[str, str]] = []

    async def write(self, wanted: Advised, guard: Callable[[], float]) -> None:
        guard()
        self.written.append((wanted.name, wanted.state))


def advisor(adviser: Any = advises, deadline_s: float = 5.0, settle_s: float = 0.05) -> Any:
    return Advisor(
        worker=AdviceWorker(deadline_s, adviser),
        plans=Plans(),  # type: ignore[arg-type]
        metrics=OperatorMetrics(),
        clock=time.monotonic,
        debounce=Debounce(settle_s, 10 * settle_s),
        idle_s=60.0,
    )


@asynccontextmanager
async def running(one: Advisor) -> AsyncIterator[Any]:
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(one.worker.stop)


async def until(check: Callable[[], Any], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():  # noqa: ASYNC110 - polled from outside, as a person would
            await asyncio.sleep(0.01)


def leads() -> float:
    return 10.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_changes_are_acted_on_once_they_cease_and_never_much_later_than_the_first(gaps: list[float]) -> None:
    debounce, now = Debounce(5.0, 30.0), 0.0
    first = last = None
    for gap in gaps:
        now += gap
        due = debounce.due_at()
        if due is not None and now >= due:
            assert due == min(last + 5.0, first + 30.0)
            debounce.clear()
            first = None
        debounce.changed(now)
        first, last = now if first is None else first, now

    assert debounce.due_at() == min(last + 5.0, first + 30.0)


async def test_what_is_recommended_reaches_fleet_plans_statuses_and_metrics() -> None:
    news: list[int] = []
    async with running(replace(advisor(), news=lambda: news.append(1))) as one:
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)

    assert one.plans.written[0] == ("abc", "Recommended")
    assert one.advice(ONE, {}) == ADVICE
    assert one.advice(replace(ONE, generation=4), {}) is None
    assert news == [1]
    value = one.metrics.registry.get_sample_value
    told = {"state": "Recommended"}
    assert value("tangram_fleet_plan_savings_dollars_per_hour", told) == 1.25
    assert value("tangram_fleet_plan_gap_ratio", told) == pytest.approx(0.0001)
    assert value("tangram_fleet_plan_unmet_llmdeployments", told) == 1


async def test_the_same_fleet_is_thought_about_once() -> None:
    async with running(advisor()) as one:
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)
        for _ in range(5):
            one.offer(fleet(8), (ONE,), leads)
            await asyncio.sleep(0.05)
        assert one.worker._asked == 1


async def test_a_changed_fleet_with_the_same_hash_keeps_its_advice() -> None:
    async with running(advisor()) as one:
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)
        one.offer(fleet(8, 4), (ONE,), leads)
        assert one.advice(ONE, {}) == ADVICE
        await until(lambda: one.worker._asked == 2 and one._answer.essence == one._latest.essence)
        assert one.advice(ONE, {}) == ADVICE


@pytest.mark.parametrize(("adviser", "why"), [(hangs, "deadline"), (dies, "died"), (raises, "raised")])
async def test_a_failure_is_counted_told_once_and_takes_old_advice_away(
    adviser: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = advisor(adviser, deadline_s=0.3)
    one._backoff = RetryDelays(0.05, 0.05)
    failures = "tangram_advice_failures_total"
    with caplog.at_level(logging.INFO):
        async with running(one):
            one.offer(fleet(8), (ONE,), leads)
            count = one.metrics.registry.get_sample_value
            await until(lambda: (count(failures, {"why": why}) or 0) >= 2)

    assert one.advice(ONE, {"placement": {"plan": "old"}, "observedGeneration": 3}) is None
    assert one.plans.written == []
    assert len([r for r in caplog.records if "no recommendation" in r.getMessage()]) == 1


async def test_a_process_that_has_nothing_to_do_ends() -> None:
    async with running(replace(advisor(), idle_s=0.2)) as one:
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)
        await until(lambda: not one.worker.running)
        one.offer(fleet(4), (ONE,), leads)
        await until(lambda: one.worker._asked == 2)


async def test_who_no_longer_leads_thinks_and_writes_no_more() -> None:
    async with running(advisor()) as one:
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)
        one.dismiss()
        await until(lambda: not one.worker.running)
        assert (
            one.metrics.registry.get_sample_value(
                "tangram_fleet_plan_unmet_llmdeployments", {"state": "Recommended"}
            )
            is None
        )


async def test_what_another_term_thought_is_not_written_until_this_one_sees_the_same_fleet() -> None:
    def lost() -> float:
        raise NotLeader("another term")

    async with running(advisor()) as one:
        one.offer(fleet(8), (ONE,), lost)
        await until(lambda: one.ready)
        assert one.plans.written == []
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)
        assert one.worker._asked == 1


async def test_a_bug_in_writing_is_told_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise KeyError("bug")

    async with running(advisor()) as one:
        for _ in range(3):
            one.offer(fleet(8), (ONE,), broken)
            await until(lambda: one.ready)
            await asyncio.sleep(0.1)
        one.offer(fleet(8), (ONE,), leads)
        await until(lambda: one.plans.written)

    assert len([r for r in caplog.records if "KeyError" in r.getMessage()]) == 1


def test_thinking_that_takes_long_rests_longer() -> None:
    assert module.rest_s(2.0) == 0.0
    assert module.rest_s(30.0) == 120.0

    one = advisor()
    one._rested_at = 100.0
    one.debounce.changed(1.0)
    assert one._due_at() == 100.0


def test_before_the_first_thought_the_status_says_what_was_advised() -> None:
    before = {
        "observedGeneration": 3,
        "placement": {
            "plan": "abc",
            "because": ["all GPUs are taken"],
            "relaxations": [{"dimension": "GPUs", "text": "add one L4"}],
        },
    }

    assert told_before(ONE, before) == replace(ADVICE, saves_per_hour=0.0)
    assert told_before(replace(ONE, generation=4), before) is None
    assert told_before(ONE, {"observedGeneration": 3}) is None


def test_readiness_is_no_reason_to_think_again() -> None:
    def seen(available: int) -> FleetSnapshot:
        one = workload(ONE, shape(), 2, available=available)
        return snapshot(node("n", gpu=8), workloads=(one,), claims=claims(ONE, shape(), "n", 2))

    assert essence(seen(0), (ONE,)) == essence(seen(2), (ONE,))
    assert essence(seen(0), (ONE,)) != essence(seen(0), (replace(ONE, priority=5),))


def test_the_real_function_answers_once_for_equal_inputs() -> None:
    advise = the_adviser()
    one: Intent = intent("one")
    found = advise(fleet(1), (one,), 60.0, "")

    assert found is not None
    assert found.name == found.spec["inputsHash"]
    assert advise(fleet(1), (one,), 60.0, found.inputs_hash) is None
