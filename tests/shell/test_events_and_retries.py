"""Events are posted once; the retry delay of a broken object grows."""

from typing import Any

from tangram.fleet import EventNote
from tangram.kube.client import ApiError
from tangram.kube.kinds import DEPLOYMENTS
from tangram.kube.retry_delays import RetryDelays, RetrySchedule
from tangram.kube.store import Store
from tangram.shell.report.events import SERIES_WINDOW_S, EventRecorder
from tangram.shell.watch.expectations import OWN_WRITE_TIMEOUT_S, Expectations

OBJECT = {"metadata": {"name": "chat", "namespace": "ns", "uid": "u"}}
NOTE = EventNote("Warning", "NotFound", "no such directory")


class Api:
    """Keeps what was posted."""

    def __init__(self) -> None:
        self.created: list[Any] = []
        self.merged: list[Any] = []
        self.fails = False

    async def create(self, _kind: Any, obj: Any, **_: Any) -> Any:
        if self.fails:
            raise ApiError(403, "Forbidden", "no")
        self.created.append(obj)
        return obj

    async def merge(self, _kind: Any, _namespace: str, name: str, patch: Any, **_: Any) -> Any:
        self.merged.append((name, patch))
        return patch


def recorder(api: Api, clock: list[float]) -> EventRecorder:
    return EventRecorder(api, lambda: 10.0, "operator-1", lambda: clock[0])  # type: ignore[arg-type]


async def test_a_repeated_event_is_counted_in_a_series() -> None:
    api, clock = Api(), [1000.0]
    events = recorder(api, clock)
    await events.record(OBJECT, NOTE)
    clock[0] += 60
    await events.record(OBJECT, NOTE)
    await events.record(OBJECT, EventNote("Normal", "Inspected", "fine"))

    assert [event["reason"] for event in api.created] == ["NotFound", "Inspected"]
    ((name, patch),) = api.merged
    assert name == api.created[0]["metadata"]["name"]
    assert patch["series"]["count"] == 2


async def test_an_event_after_the_window_is_posted_anew() -> None:
    api, clock = Api(), [1000.0]
    events = recorder(api, clock)
    await events.record(OBJECT, NOTE)
    clock[0] += SERIES_WINDOW_S + 1
    await events.record(OBJECT, NOTE)

    assert len(api.created) == 2


async def test_an_event_that_cannot_be_posted_stops_nothing() -> None:
    api = Api()
    api.fails = True
    await recorder(api, [0.0]).record(OBJECT, NOTE)


def test_retry_delays_grow_reset_on_success_and_state_the_next_attempt() -> None:
    retries = RetrySchedule()
    instants = [retries.record_failure("a", 100.0) for _ in range(7)]

    assert instants == [101.0, 102.0, 105.0, 110.0, 130.0, 130.0, 130.0]
    assert retries.blocked("a", 129.0)
    assert not retries.blocked("b", 100.0)
    assert retries.next_due(100.0) == 130.0
    retries.record_success("a")
    assert not retries.blocked("a", 100.0)
    assert retries.record_failure("a", 0.0) == 1.0


def test_the_retry_after_of_a_server_is_respected() -> None:
    assert RetrySchedule().record_failure("a", 0.0, at_least_s=20.0) == 20.0


def test_backoff_is_jittered_bounded_and_endless() -> None:
    backoff = RetryDelays(0.5, 10.0)
    delays = [backoff.next_s() for _ in range(5000)]

    assert 0.25 <= delays[0] <= 0.5
    assert all(5.0 <= delay <= 10.0 for delay in delays[10:])
    assert len(set(delays)) > 100


def test_an_expectation_is_met_by_the_mirror_or_expires() -> None:
    store = Store(lambda obj: obj)
    store.replace([], 5)
    expectations = Expectations(lambda _kind, _namespace: store)
    meta = {"namespace": "ns", "name": "d", "uid": "u", "resourceVersion": "7"}
    expectations.expect_write(DEPLOYMENTS, {"metadata": meta}, now=0.0)
    assert len(expectations.open()) == 1

    store.upsert({"metadata": meta})
    assert expectations.open() == ()

    expectations.expect_deletion(DEPLOYMENTS, ("ns", "d"), "u", now=10.0)
    assert len(expectations.open()) == 1
    assert expectations.overdue(10.0 + OWN_WRITE_TIMEOUT_S - 0.1) == ()
    assert len(expectations.overdue(10.0 + OWN_WRITE_TIMEOUT_S)) == 1
    assert expectations.open() == ()
