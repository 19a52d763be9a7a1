"""Which connection waits, which one is closed for another, and what each may hold: on a clock of the test."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from tangram_http.connections import ConnectionLimits, Connections

HEAD = 32 << 10


@dataclass
class FakeTransport(asyncio.Transport):
    written: bytes = b""
    unsent: int = 0
    end: str = ""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def get_write_buffer_size(self) -> int:
        return self.unsent


@dataclass
class Desk:
    """Connections on a clock that the test sets."""

    limits: ConnectionLimits
    now: float = 0.0
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connections = Connections(self.limits, self.reasons.append, lambda: self.now)
        self.transports: dict[Any, FakeTransport] = {}

    def open(self, *keys: Any) -> None:
        for key in keys:
            assert self.connections.make_room()
            self.transports[key] = FakeTransport()
            self.connections.opened(key, self.transports[key])

    def begin(self, *keys: Any, size: int = 100) -> None:
        for key in keys:
            self.connections.begun(key, 1, size)

    def answer(self, *keys: Any) -> None:
        self.begin(*keys)
        for key in keys:
            self.connections.ended(key)

    def ended(self) -> list[Any]:
        return [key for key, transport in self.transports.items() if transport.end]

    def after(self, seconds: float) -> list[Any]:
        self.now += seconds
        self.connections.sweep()
        return self.ended()


@pytest.fixture
def desk() -> Desk:
    limits = ConnectionLimits(connections=16, header_seconds=10, idle_seconds=75, stall_seconds=30)
    assert limits.spare == 8
    return Desk(limits)


def test_beyond_the_limit_the_connection_that_waits_longest_is_closed(desk: Desk) -> None:
    desk.open(*range(10_000))
    assert len(desk.connections) == 16
    assert desk.ended() == list(range(9_984))
    assert desk.reasons == ["max_connections"] * 9_984


def test_a_connection_waits_from_its_last_answer_on_not_from_its_beginning(desk: Desk) -> None:
    desk.open(*range(16))
    desk.answer(0)
    desk.open("new")
    assert desk.ended() == [1]


def test_half_a_head_does_not_keep_a_connection_from_being_closed_for_another(desk: Desk) -> None:
    desk.open(*range(16))
    desk.connections.received(0, 100)
    desk.open("new")
    assert desk.ended() == [0]


def test_a_connection_that_is_answered_is_not_closed_for_another(desk: Desk) -> None:
    desk.open(*range(16))
    desk.begin(*range(8))
    desk.open(*range(100, 200))
    assert not {*range(8)} & {*desk.ended()}
    assert len(desk.connections) == 16


def test_while_all_are_answered_a_few_more_wait_and_answer_probes_alone(desk: Desk) -> None:
    desk.open(*range(16))
    desk.begin(*range(16))
    assert not any(desk.connections.is_surplus(key) for key in range(16))
    desk.open(*range(100, 1000))
    assert len(desk.connections) == 16 + 8
    desk.begin(*range(992, 1000))
    assert all(desk.connections.is_surplus(key) for key in range(992, 1000))
    assert not desk.connections.make_room()
    assert not {*range(16)} & {*desk.ended()}
    desk.connections.ended(3)
    desk.open("new")  # instead of the one that waits now
    assert 3 in desk.ended()


def test_a_probe_beyond_the_limit_whose_answer_is_not_taken_makes_room_at_once(desk: Desk) -> None:
    desk.open(*range(16))
    desk.begin(*range(16))
    desk.open(*range(100, 108))
    desk.begin(*range(100, 108))
    assert desk.connections.is_surplus(101)
    for key in (101, 5):
        desk.transports[key].unsent = 1000
        desk.connections.ended(key)
    desk.open("probe")
    assert desk.ended() == [101]
    assert desk.transports[101].end == "aborted"
    desk.begin("probe")
    assert not desk.connections.make_room()


def test_an_idle_connection_is_closed_and_one_that_is_answered_is_not(desk: Desk) -> None:
    desk.open("a", "b")
    desk.begin("a")
    assert desk.after(74) == []
    assert desk.after(1) == ["b"]
    assert desk.after(1000) == ["b"]
    desk.connections.ended("a")
    assert desk.after(74) == ["b"]
    assert desk.after(1) == ["a", "b"]


def test_a_client_that_takes_the_rest_of_an_answer_waits_from_then_on(desk: Desk) -> None:
    desk.open(*range(16))
    desk.begin(0)
    desk.transports[0].unsent = 1000
    desk.connections.ended(0)
    desk.open("new")
    assert desk.ended() == [1]
    desk.transports[0].unsent = 0
    desk.after(1)
    desk.open(*range(100, 115))
    assert 0 not in desk.ended()
    desk.open("newest")
    assert desk.ended()[0] == 0


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_head_that_comes_byte_by_byte_is_ended_in_time(answers: int, desk: Desk) -> None:
    desk.open("a")
    desk.answer(*["a"] * answers)
    assert desk.after(20) == []
    for _ in range(9):
        desk.connections.received("a", 1)
        assert desk.after(1) == []
    desk.connections.received("a", 1)
    assert desk.after(1) == ["a"]
    assert desk.transports["a"].written.startswith(b"HTTP/1.1 408 ")
    assert desk.reasons == ["slow_headers"]


@pytest.mark.parametrize("answers", [0, 1, 3])
@pytest.mark.parametrize("piece", [1, 100, HEAD])
def test_a_head_is_bounded_in_bytes(piece: int, answers: int, desk: Desk) -> None:
    desk.open("a")
    desk.answer(*["a"] * answers)
    for _ in range(HEAD // piece):
        desk.connections.received("a", piece)
    assert not desk.ended()
    desk.connections.received("a", piece)
    assert desk.transports["a"].written.startswith(b"HTTP/1.1 431 ")
    assert desk.reasons == ["headers_too_large"]


def test_requests_that_are_sent_ahead_of_an_answer_are_bounded_together(desk: Desk) -> None:
    desk.open("a")
    desk.begin("a", size=30_000)
    for _ in range(32):
        desk.begin("a", size=1 << 10)
    assert not desk.ended()
    desk.begin("a", size=1)
    assert desk.ended() == ["a"]
    assert desk.transports["a"].written == b""  # it would look like the answer to another request


def test_a_client_that_keeps_one_request_ahead_is_never_closed(desk: Desk) -> None:
    desk.open("a")
    desk.begin("a")
    for _ in range(1000):
        desk.begin("a", size=1000)
        desk.connections.ended("a")
    desk.connections.ended("a")
    assert desk.after(20) == []


def test_a_body_is_no_head_but_that_of_a_later_request_counts_as_sent_ahead(desk: Desk) -> None:
    desk.open("one", "two")
    desk.begin("one", "two", "two")
    for key in ("one", "two"):
        desk.connections.received(key, HEAD + 1, in_body=True)
    assert desk.ended() == ["two"]
    desk.connections.ended("one")  # refused; the rest of its body is read and dropped
    desk.connections.received("one", HEAD + 1, in_body=True)
    assert desk.ended() == ["two"]


def test_a_client_that_reads_nothing_is_cut_and_a_slow_one_is_not(desk: Desk) -> None:
    desk.open("stalled", "slow")
    desk.begin("stalled", "slow")
    for unsent in range(10_000, 9_900, -1):
        desk.transports["stalled"].unsent = 10_000
        desk.transports["slow"].unsent = unsent
        desk.after(1)
    assert desk.ended() == ["stalled"]
    assert desk.transports["stalled"].end == "aborted"
    assert desk.reasons == ["slow_reader"]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_whole_answer_is_bounded_in_time_where_a_limit_says_so(is_sent: bool) -> None:
    desk = Desk(ConnectionLimits(answer_seconds=20))
    assert ConnectionLimits().answer_seconds == math.inf
    desk.open("a")
    desk.begin("a")
    desk.transports["a"].unsent = 100
    if is_sent:
        desk.connections.ended("a")
    for _ in range(19):
        desk.transports["a"].unsent -= 1
        assert desk.after(1) == []
    desk.transports["a"].unsent -= 1
    assert desk.after(1) == ["a"]
    assert desk.reasons == ["slow_answer"]


def test_what_is_closed_is_forgotten_whatever_follows(desk: Desk) -> None:
    desk.open("a")
    desk.begin("a")
    desk.connections.closed("a")
    desk.begin("a")
    desk.connections.received("a", 1 << 20)
    assert not desk.connections.is_surplus("a")
    desk.connections.ended("a")
    desk.connections.closed("a")
    assert len(desk.connections) == 0
    assert not desk.connections.close_longest_waiting()
