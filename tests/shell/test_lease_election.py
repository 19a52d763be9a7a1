"""The election of the leader, which alone may write, with a fake clock."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.kube.client import ApiError
from tangram.shell.lead.lease import Elector, LeaseTimes, NotLeader, TermGuard

TIMES = LeaseTimes(lease_s=15, renew_deadline_s=10, renew_every_s=2)
START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class Server:
    """A Lease object with optimistic locking, and a clock."""

    def __init__(self) -> None:
        self.now, self.lease, self.version, self.down = 0.0, None, 0, False
        self.latency_s = 0.0

    async def get(self, _kind: Any, _namespace: str, _name: str) -> Any:
        self._answer()
        return None if self.lease is None else {**self.lease, "metadata": dict(self.lease["metadata"])}

    async def create(self, _kind: Any, obj: Any, *, manager: str, guard: Any) -> Any:
        self._answer()
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "")
        return self._store(obj)

    async def replace(self, _kind: Any, obj: Any, *, manager: str, guard: Any) -> Any:
        self._answer()
        if (
            self.lease is None
            or obj["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]
        ):
            raise ApiError(409, "Conflict", "")
        return self._store(obj)

    def _answer(self) -> None:
        self.now += self.latency_s
        if self.down:
            raise ApiError(0, "Unreachable", "down")

    def _store(self, obj: Any) -> Any:
        self.version += 1
        self.lease = {
            **obj,
            "metadata": {**obj["metadata"], "resourceVersion": str(self.version), "uid": "u"},
        }
        return self.lease


def candidate(server: Server, name: str) -> Elector:
    return Elector(
        server,  # type: ignore[arg-type]
        namespace="n",
        name="l",
        identity=name,
        times=TIMES,
        clock=lambda: server.now,
        now=lambda: START + server.now,
    )


async def step(elector: Elector) -> None:
    try:
        await elector.step()
    except ApiError:
        elector._lease = None


async def test_the_first_candidate_creates_the_lease_and_the_second_waits() -> None:
    server = Server()
    first, second = candidate(server, "a"), candidate(server, "b")

    await step(first)
    await step(second)

    assert first.leading
    assert not second.leading
    with pytest.raises(NotLeader):
        second.guard()


async def test_the_right_to_write_counts_from_before_the_renewal_was_sent() -> None:
    server = Server()
    server.latency_s = 3.0
    elector = candidate(server, "a")

    await step(elector)  # read at 3, sent at 3, answered at 6

    assert elector.guard() == pytest.approx(10 - 3)


async def test_a_leader_that_cannot_renew_stops_before_another_may_lead() -> None:
    server = Server()
    first, second = candidate(server, "a"), candidate(server, "b")
    await step(first)
    await step(second)

    server.now = 9.9
    assert first.leading
    server.now = 10.0
    assert not first.leading
    await step(second)
    assert not second.leading

    server.now = 15.0
    await step(second)
    assert second.leading
    await step(first)
    assert not first.leading


async def test_a_renewal_restarts_the_wait_of_a_follower() -> None:
    server = Server()
    first, second = candidate(server, "a"), candidate(server, "b")
    for server.now in (0.0, 8.0, 16.0):
        await step(first)
        await step(second)

    assert first.leading
    assert not second.leading


async def test_a_released_lease_is_taken_at_once() -> None:
    server = Server()
    first, second = candidate(server, "a"), candidate(server, "b")
    await step(first)
    await step(second)

    await first.release()
    await step(second)

    assert not first.leading
    assert second.leading


async def test_a_follower_waits_exactly_until_the_lease_expires() -> None:
    server = Server()
    first, second = candidate(server, "a"), candidate(server, "b")
    await step(first)
    await step(second)

    server.now = 14.0
    assert second.election.wait_s(second._lease, server.now) == pytest.approx(1.0)


async def test_a_lost_answer_to_an_own_renewal_is_not_another_leader() -> None:
    server = Server()
    elector = candidate(server, "a")
    await step(elector)
    server._store(elector.election.record(server.lease, START))  # written, answer lost

    await step(elector)  # conflict: version unknown
    await step(elector)

    assert elector.leading


async def test_an_invalid_lease_is_taken_over() -> None:
    server = Server()
    server._store({"metadata": {"name": "l", "namespace": "n"}, "spec": {"holderIdentity": None}})
    elector = candidate(server, "a")

    await step(elector)

    assert elector.leading


async def test_a_decision_of_an_earlier_term_is_not_written() -> None:
    """The first is suspended (SIGSTOP) while the second leads, acts and releases the Lease."""
    server = Server()
    verdicts: list[bool] = []
    first, second = candidate(server, "a"), candidate(server, "b")
    first._changed = verdicts.append
    await step(first)
    first._notice()
    guard = TermGuard(first)
    guard.begin()
    await step(second)
    server.now = 16.0
    await step(second)
    assert second.leading
    await second.release()

    await step(first)  # takes it back in one step, before anyone looked

    assert first.leading
    with pytest.raises(NotLeader, match="taken again"):
        guard()
    first._notice()
    assert verdicts == [True, True]  # the new term is reported though no loss was observed
    assert guard.begin() == 2
    assert guard() > 0


async def test_a_renewal_in_time_keeps_the_term_and_a_late_one_begins_another() -> None:
    server = Server()
    elector = candidate(server, "a")
    await step(elector)
    server.now = 9.0
    await step(elector)
    assert elector.term == 1

    server.now = 25.0
    await step(elector)
    assert (elector.leading, elector.term) == (True, 2)


async def test_a_fraction_of_a_second_of_the_lease_duration_counts() -> None:
    server = Server()
    elector = candidate(server, "a")
    elector.election.times = LeaseTimes(lease_s=2.4, renew_deadline_s=2.0, renew_every_s=0.5)
    await step(elector)

    assert server.lease["spec"]["leaseDurationSeconds"] == 3


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "down", "up", "wait"]), st.floats(0.1, 6.0)), max_size=60)
)
async def test_no_two_candidates_may_write_at_one_instant(script: list[tuple[str, float]]) -> None:
    server = Server()
    electors = {"a": candidate(server, "a"), "b": candidate(server, "b")}
    for what, wait in script:
        server.now += wait
        if what in electors:
            await step(electors[what])
        elif what != "wait":
            server.down = what == "down"
        assert not (electors["a"].leading and electors["b"].leading)
