"""The engine process audits its books while nothing arrives, and leaves off as soon as something does."""

import queue
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tangram_engine.frames import FrameReader
from tangram_engine.messages import FRAME_LIMIT, Add, Message, Ping, Pong, decode
from tangram_engine.sample.params import SamplingParams
from tangram_engine.schedule.request import Request
from tangram_engine.serve.worker import _next_message

REQUEST = Add(Request("a", (1, 2), SamplingParams(max_tokens=1), arrival=0.0))


@dataclass
class Arrivals:
    """An engine whose audit has a thousand slices; `during` has the message that arrives in one of them."""

    during: dict[int, Message]
    inbox: "queue.SimpleQueue[Message]" = field(default_factory=queue.SimpleQueue)
    slices: int = 0

    def audit_slices(self) -> Iterator[None]:
        for number in range(1000):
            self.slices += 1
            if number in self.during:
                self.inbox.put(self.during[number])
            yield


def next_message(engine: Any) -> tuple[Message, list[Message]]:
    """What ends the wait, and what was answered before that."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        message = _next_message(engine, theirs, engine.inbox)
        theirs.shutdown(socket.SHUT_WR)
        return message, [*map(decode, FrameReader(FRAME_LIMIT).feed(ours.makefile("rb").read()))]


def test_a_request_that_arrives_during_the_audit_waits_for_one_slice() -> None:
    engine = Arrivals({3: REQUEST})

    assert next_message(engine) == (REQUEST, [])
    assert engine.slices == 4


def test_a_heartbeat_during_the_audit_is_answered_and_the_audit_goes_on() -> None:
    engine = Arrivals({3: Ping(7), 999: REQUEST})

    assert next_message(engine) == (REQUEST, [Pong(7)])
    assert engine.slices == 1000


def test_every_silence_begins_an_audit_of_its_own() -> None:
    engine = Arrivals({3: REQUEST})

    next_message(engine)
    next_message(engine)

    assert engine.slices == 8
