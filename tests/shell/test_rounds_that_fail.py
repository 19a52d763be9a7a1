"""The delay of failed rounds grows; a term begins once; an event without a change starts no round."""

import asyncio
import logging
from typing import Any

import pytest

from tangram.kube.client import ApiError, Listing
from tangram.kube.kinds import PODS
from tangram.kube.mirror import Mirror, MirrorSource
from tangram.kube.retry_delays import RetryDelays, RetrySchedule
from tangram.shell.decide.worker import WorkerFailed
from tangram.shell.lead.lease import NotLeader
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.process.reconcile_loop import LoopHeartbeat, Reconciler


def reconciler(loop: type[Reconciler] = Reconciler, **parts: Any) -> Any:
    nothing: Any = None
    names = [
        "mirrors",
        "elector",
        "guard",
        "worker",
        "writer",
        "observer",
        "reporter",
        "recommendations",
        "expectations",
        "faults",
    ]
    return loop(
        **dict.fromkeys(names, nothing)
        | {
            "retries": RetrySchedule(),
            "metrics": OperatorMetrics(),
            "tick_s": 15.0,
            "clock": lambda: 0.0,
            "now": lambda: 0.0,
            "heartbeat": LoopHeartbeat(0.0),
        }
        | parts
    )


class Script(Reconciler):
    """A loop whose rounds end as the test says."""

    results: list[Any]

    async def _round(self) -> bool:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return bool(result)


def script(*results: Any) -> tuple[Script, list[float]]:
    failing_reconciler = reconciler(Script)
    waits: list[float] = []

    class Noted(RetryDelays):
        def next_s(self) -> float:
            waits.append(RetryDelays.next_s(self))
            return 0.0

    failing_reconciler._retry_delays = Noted(1.0, 30.0)
    Script.results = list(results)
    return failing_reconciler, waits


FAILURES = [
    WorkerFailed("raised", "Traceback\nValueError: a bug"),
    ApiError(500, "Boom", "no"),
    ValueError("a bug"),
    False,
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: type(f).__name__)
async def test_the_delay_of_failed_rounds_grows_until_one_completes(failure: Any) -> None:
    failing_reconciler, waits = script(*[failure] * 8, True, failure)
    for _ in range(10):
        await failing_reconciler._turn()

    assert 0.5 <= waits[0] <= 1.0
    assert all(15.0 <= wait <= 30.0 for wait in waits[5:8])
    assert 0.5 <= waits[8] <= 1.0
    assert len(waits) == 9


async def test_a_round_without_the_lease_ends_and_is_not_retried() -> None:
    failing_reconciler, waits = script(NotLeader("gone"))
    await failing_reconciler._turn()

    assert waits == []


async def test_a_repeated_failure_is_logged_with_its_trace_once(caplog: pytest.LogCaptureFixture) -> None:
    failure = WorkerFailed("raised", "Traceback\n  many lines\nValueError: a bug")
    failing_reconciler, _ = script(failure, failure, True, failure)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            await failing_reconciler._turn()

    assert ["many lines" in record.getMessage() for record in caplog.records] == [True, False, True]


class Steps(Reconciler):
    """A loop that records only the beginning of terms."""

    begun: list[int]

    async def _begin_term(self, term: int) -> None:
        self.begun.append(term)
        if self.begun.count(term) == 1 and term == 2:
            raise ApiError(500, "Boom", "no")
        self._term = term

    async def _settled(self) -> bool:
        return False


async def test_each_term_begins_with_fresh_lists_even_after_an_unnoticed_end() -> None:
    terms = [1, 1, 2, 2, 2]

    class Guard:
        def begin(self) -> int:
            return terms.pop(0)

    failing_reconciler = reconciler(Steps, guard=Guard())
    Steps.begun = []
    for _ in range(5):
        await failing_reconciler._turn()

    assert Steps.begun == [1, 2, 2]  # the second could not be begun at first


async def test_a_forbidden_watch_lists_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real_sleep(0)
        if len(waits) == 8:
            raise asyncio.CancelledError

    class Api:
        async def list(self, *_: Any) -> Listing:
            return Listing([], "5")

        async def watch(self, *_: Any, **__: Any) -> Any:
            raise ApiError(403, "Forbidden", "watch is not allowed")
            yield

    mirror = Mirror(Api(), MirrorSource(PODS, lambda obj: obj), changed=lambda: None, clock=lambda: 0.0)  # type: ignore[arg-type]

    async def no_checks() -> None:
        await asyncio.Event().wait()

    mirror._check_drift = no_checks  # type: ignore[method-assign]
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await mirror.run()

    assert waits[-1] >= 5.0, waits


@pytest.mark.parametrize("turns", range(6))
async def test_a_loop_that_is_ended_as_it_is_woken_ends(turns: int) -> None:
    """`asyncio.wait_for` of Python 3.11 loses a cancellation that comes just after its result."""
    idle = reconciler()
    waiting = asyncio.create_task(idle._wait())
    await asyncio.sleep(0.01)

    idle.mark_dirty()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=5)

    assert waiting.cancelled()


async def test_a_loop_waits_no_longer_than_until_a_layout_can_be_changed() -> None:
    class Executor:
        def next_due(self) -> float:
            return 0.02

    waiting = asyncio.create_task(reconciler(executor=Executor())._wait())
    await asyncio.wait([waiting], timeout=5)  # a third of a tick

    assert waiting.done()
