"""When the whole fleet is planned, where the recommendation is published, and what happens on failures."""

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

from tangram.fleet import (
    Advice,
    FleetSnapshot,
    Intent,
    MIGLayout,
    NodePartition,
    PartitionedGPU,
    PartitionView,
    Pool,
    PoolPolicy,
)
from tangram.kube.retry_delays import RetryDelays, RetrySchedule
from tangram.shell.decide.recommendation_worker import (
    RecommendationResult,
    RecommendationWorker,
    load_recommender,
)
from tangram.shell.lead.lease import NotLeader
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.process import recommendation_loop as module
from tangram.shell.process.observation import Observation, with_unplanned
from tangram.shell.process.recommendation_loop import (
    Debounce,
    LastRecommendation,
    RecommendationInput,
    RecommendationLoop,
    advice_from_status,
    relevant_part,
)
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.fleet import claims, intent, node, shape, snapshot, workload
from tests.support.recommenders import ADVICE, FIGURES, SPEC, dies, hangs, raises, recommends

ONE = intent("one", generation=3)
PLAN_FIGURES = (
    *("cost_dollars_per_hour", "savings_dollars_per_hour", "gap_ratio"),
    *("unmet_llmdeployments", "solve_seconds"),
)


def fleet(*gpus: int) -> FleetSnapshot:
    return snapshot(*(node(f"n{i}", gpu=n) for i, n in enumerate(gpus)))


class Plans:
    """Takes the place of FleetPlans."""

    def __init__(self) -> None:
        self.retries = RetrySchedule()
        self.written: list[tuple[str, str]] = []

    async def write(self, result: RecommendationResult, guard: Callable[[], float]) -> None:
        guard()
        self.written.append((result.name, result.state))


def recommendation_loop(
    recommender: Any = recommends, deadline_s: float = 5.0, settle_s: float = 0.05
) -> Any:
    return RecommendationLoop(
        worker=RecommendationWorker(deadline_s, recommender),
        plans=Plans(),  # type: ignore[arg-type]
        metrics=OperatorMetrics(),
        clock=time.monotonic,
        debounce=Debounce(settle_s, 10 * settle_s),
        idle_s=60.0,
    )


@asynccontextmanager
async def running(loop: RecommendationLoop) -> AsyncIterator[Any]:
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(loop.worker.stop)


async def until(check: Callable[[], Any], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():  # noqa: ASYNC110 - the loop has no event for it
            await asyncio.sleep(0.01)


def leads() -> float:
    return 10.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_changes_trigger_a_plan_when_they_stop_or_after_the_longest_delay(gaps: list[float]) -> None:
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


async def test_a_recommendation_reaches_fleet_plans_statuses_and_metrics() -> None:
    news: list[int] = []
    async with running(replace(recommendation_loop(), changed=lambda: news.append(1))) as loop:
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)

    assert loop.plans.written[0] == ("abc", "Recommended")
    assert loop.advice(ONE, {}) == ADVICE
    assert loop.advice(replace(ONE, generation=4), {}) is None
    assert news == [1]
    value = loop.metrics.registry.get_sample_value
    labels = {"state": "Recommended"}
    assert value("tangram_fleet_plan_savings_dollars_per_hour", labels) == 1.25
    assert value("tangram_fleet_plan_gap_ratio", labels) == pytest.approx(0.0001)
    assert value("tangram_fleet_plan_unmet_llmdeployments", labels) == 1


async def test_an_unchanged_fleet_is_planned_once() -> None:
    async with running(recommendation_loop()) as loop:
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)
        for _ in range(5):
            loop.offer(fleet(8), (ONE,), leads)
            await asyncio.sleep(0.05)
        assert loop.worker.calls == 1


async def test_a_changed_fleet_with_the_same_hash_keeps_its_advice() -> None:
    async with running(recommendation_loop()) as loop:
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)
        loop.offer(fleet(8, 4), (ONE,), leads)
        assert loop.advice(ONE, {}) == ADVICE
        await until(lambda: loop.worker.calls == 2 and loop._last.relevant == loop._input.relevant)
        assert loop.advice(ONE, {}) == ADVICE


@pytest.mark.parametrize(("recommender", "why"), [(hangs, "deadline"), (dies, "died"), (raises, "raised")])
async def test_a_failure_is_counted_logged_once_and_removes_old_advice(
    recommender: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop = recommendation_loop(recommender, deadline_s=0.3)
    loop._retry_delays = RetryDelays(0.05, 0.05)
    failures = "tangram_advice_failures_total"
    with caplog.at_level(logging.INFO):
        async with running(loop):
            loop.offer(fleet(8), (ONE,), leads)
            count = loop.metrics.registry.get_sample_value
            await until(lambda: (count(failures, {"why": why}) or 0) >= 2)

    assert loop.advice(ONE, {"placement": {"plan": "old"}, "observedGeneration": 3}) is None
    assert loop.plans.written == []
    assert len([r for r in caplog.records if "no recommendation" in r.getMessage()]) == 1


async def test_an_idle_recommendation_process_ends() -> None:
    async with running(replace(recommendation_loop(), idle_s=0.2)) as loop:
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)
        await until(lambda: not loop.worker.running)
        loop.offer(fleet(4), (ONE,), leads)
        await until(lambda: loop.worker.calls == 2)


async def test_an_operator_that_lost_the_lease_plans_and_writes_no_more() -> None:
    async with running(recommendation_loop()) as loop:
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)
        loop.stop_leading()
        await until(lambda: not loop.worker.running)
        assert (
            loop.metrics.registry.get_sample_value(
                "tangram_fleet_plan_unmet_llmdeployments", {"state": "Recommended"}
            )
            is None
        )


@pytest.mark.parametrize("figure", PLAN_FIGURES)
def test_an_empty_recommendation_clears_the_metrics_of_the_fleet_plan(figure: str) -> None:
    metrics, labels = OperatorMetrics(), {"state": "Recommended"}
    result = RecommendationResult("abc", SPEC, FIGURES, better=True, advice=())
    metrics.show_fleet_plan(result)
    assert metrics.registry.get_sample_value(f"tangram_fleet_plan_{figure}", labels) is not None

    metrics.show_fleet_plan(replace(result, spec=SPEC | {"totalDeployments": 0}))

    assert metrics.registry.get_sample_value(f"tangram_fleet_plan_{figure}", labels) is None


async def test_a_recommendation_of_an_earlier_term_waits_for_the_same_fleet_in_this_term() -> None:
    def lost() -> float:
        raise NotLeader("another term")

    async with running(recommendation_loop()) as loop:
        loop.offer(fleet(8), (ONE,), lost)
        await until(lambda: loop.pool_use() is not None)
        assert loop.plans.written == []
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)
        assert loop.worker.calls == 1


async def test_a_bug_in_writing_is_logged_once_and_the_loop_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> float:
        raise KeyError("bug")

    async with running(recommendation_loop()) as loop:
        for _ in range(3):
            loop.offer(fleet(8), (ONE,), broken)
            await until(lambda: loop.pool_use() is not None)
            await asyncio.sleep(0.1)
        loop.offer(fleet(8), (ONE,), leads)
        await until(lambda: loop.plans.written)

    assert len([r for r in caplog.records if "KeyError" in r.getMessage()]) == 1


def test_a_long_solve_is_followed_by_a_longer_pause() -> None:
    assert module.pause_s(2.0) == 0.0
    assert module.pause_s(30.0) == 120.0

    loop = recommendation_loop()
    loop._paused_until = 100.0
    loop.debounce.changed(1.0)
    assert loop._due_at() == 100.0


def test_before_the_first_recommendation_the_recorded_advice_is_used() -> None:
    before = {
        "observedGeneration": 3,
        "placement": {
            "plan": "abc",
            "because": ["all GPUs are taken"],
            "relaxations": [{"dimension": "GPUs", "text": "add one L4"}],
        },
    }

    assert advice_from_status(ONE, before) == replace(ADVICE, saves_per_hour=0.0)
    assert advice_from_status(replace(ONE, generation=4), before) is None
    assert advice_from_status(ONE, {"observedGeneration": 3}) is None


def planned_for(advice: Advice, policy: PoolPolicy = PoolPolicy.RECOMMEND) -> tuple[Any, Observation]:
    """A loop that has recommended to cut a GPU for `ONE`, and the observation of that fleet."""
    gpu = PartitionedGPU("GPU-0", MIGLayout(), "H100-80GB-SXM")
    seen = replace(
        snapshot(replace(node("n0", gpu=1), labels=(("pool", "x"),))),
        pools=(Pool("x", (("pool", "x"),), policy=policy, backend="nvml"),),
        partition=PartitionView((NodePartition("n0", "nvml", gpus=(gpu,)),)),
    )
    loop, part = replace(recommendation_loop(), longest_wait_s=90.0), relevant_part(seen, (ONE,))
    result = RecommendationResult(
        "abc", SPEC, FIGURES, True, ((ONE.uid, advice),), planned=frozenset({ONE.uid})
    )
    loop._input = RecommendationInput(seen, (ONE,), leads, part)
    loop._last = LastRecommendation(part, {ONE.uid: ONE.generation}, result, dict(result.advice))
    return loop, Observation(0.0, MirrorView(), (ONE,), (ONE,), {}, {}, seen)


def test_a_new_model_waits_for_consent_to_a_cut_that_is_for_it_until_its_deadline() -> None:
    loop, _ = planned_for(replace(ADVICE, recut_gpus=frozenset({"GPU-0"})))

    waits = [loop.unplanned((ONE,), now, frozenset({"GPU-0"})) for now in (10.0, 60.0)]

    assert waits == [((ONE.uid, 100.0),)] * 2  # the deadline is that of the first round


@pytest.mark.parametrize(
    ("gpus", "waiting", "generation"),
    [
        (("GPU-0",), (), 3),  # rejected, failed or overtaken
        (("GPU-0",), ("GPU-1",), 3),  # of another plan
        ((), ("GPU-0",), 3),  # the fleet has no plan for it
        (("GPU-0",), ("GPU-0",), 2),  # the plan is about another generation of it
    ],
)
def test_a_model_waits_for_no_plan_that_is_not_to_come(
    gpus: tuple[str, ...], waiting: tuple[str, ...], generation: int
) -> None:
    loop, _ = planned_for(replace(ADVICE, recut_gpus=frozenset(gpus)))
    loop._last = replace(loop._last, generations={ONE.uid: generation})

    assert loop.unplanned((ONE,), 10.0, frozenset(waiting)) == ()


@pytest.mark.parametrize("policy", list(PoolPolicy))
def test_a_new_model_waits_for_a_plan_wherever_one_may_cut_gpus(policy: PoolPolicy) -> None:
    _, observed = planned_for(ADVICE, policy)

    waiting = with_unplanned(observed, ((ONE.uid, 90.0),)).snapshot.partition.unplanned

    assert bool(waiting) == (policy is not PoolPolicy.IGNORE)


def test_a_change_of_readiness_triggers_no_new_recommendation() -> None:
    def with_available(available: int) -> FleetSnapshot:
        running = workload(ONE, shape(), 2, available=available)
        return snapshot(node("n", gpu=8), workloads=(running,), claims=claims(ONE, shape(), "n", 2))

    assert relevant_part(with_available(0), (ONE,)) == relevant_part(with_available(2), (ONE,))
    assert relevant_part(with_available(0), (ONE,)) != relevant_part(
        with_available(0), (replace(ONE, priority=5),)
    )


def test_recommend_returns_nothing_for_equal_inputs() -> None:
    recommend = load_recommender()
    owner: Intent = intent("one")
    result = recommend(fleet(1), (owner,), 60.0, "")

    assert result is not None
    assert result.name == result.spec["inputsHash"]
    assert recommend(fleet(1), (owner,), 60.0, result.name) is None
