"""The open connections of one port: how many there are, what each may hold, and which is closed for another.

A connection waits as long as it has no complete request; from the end of a head to the end of the answer it
is answered. Where there are too many, the connection that has waited longest is closed, and none that is
answered. While the limit is reached by those that are answered, a few more are accepted, for probes alone.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from .refusals import HEAD_TOO_LARGE, HEAD_TOO_SLOW, RefusalWriter

SWEEP_S = 1.0
LEAST_SPARE, MOST_SPARE = 8, 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What the clients of one port may hold. The defaults are those of the engine's command line."""

    connections: int = 1024
    head_bytes: int = (
        32 << 10
    )  # of a request line and its headers, and of all that is sent ahead of an answer
    header_seconds: float = 10.0  # from the first byte of a request to the end of its headers
    idle_seconds: float = 75.0  # without a request
    stall_seconds: float = 30.0  # without a byte of an answer being taken
    answer_seconds: float = math.inf  # from the end of the headers until the whole answer is taken

    @property
    def spare(self) -> int:
        """How many may wait for a request, or answer a probe, while all others are answered."""
        return min(max(self.connections // 2, LEAST_SPARE), MOST_SPARE)


@dataclass(slots=True)
class _Connection:
    transport: asyncio.Transport
    since: float  # when its wait for a request, or its answer, began
    unanswered: int = 0  # complete requests whose answers have not ended
    is_surplus: bool = False  # answered beyond the limit, and closed after that
    head_bytes: int = 0  # of the next request, as far as its headers have not ended
    head_since: float = 0.0
    ahead_bytes: int = 0  # of all requests that were sent before the answer to an earlier one
    unsent: int = 0
    unsent_since: float = 0.0


class Connections:
    """Every open connection, by its protocol object. Counts what it closes by reason, through `refused`."""

    def __init__(
        self,
        limits: ConnectionLimits,
        refused: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
        writer: RefusalWriter | None = None,
    ) -> None:
        self.limits = limits
        self.refuse = refused
        self.writer = writer or RefusalWriter()
        self._clock = clock
        self._open: dict[object, _Connection] = {}
        self._waiting: OrderedDict[object, None] = OrderedDict()  # the one that waits longest first

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self, coming: int = 0) -> bool:
        """Close the connection that has waited longest where one more, beside `coming`, would be too many.

        False where all of them are being answered.
        """
        most = self.limits.connections
        answered = min(len(self._open) - len(self._waiting), most)
        if len(self._open) + coming < max(most, answered + self.limits.spare):
            return True
        return self.close_longest_waiting()

    def close_longest_waiting(self) -> bool:
        """Close the connection that has waited longest for a request, if one waits."""
        if not self._waiting:
            return False
        key = next(iter(self._waiting))
        if self._open[key].transport.get_write_buffer_size():  # what a probe's client does not take
            self._abort(key, "max_connections")
        else:
            self._end(key, "max_connections")
        return True

    def opened(self, key: object, transport: asyncio.Transport) -> None:
        """Book a new connection, for which `make_room` was asked before."""
        self._open[key] = _Connection(transport, self._clock())
        self._waiting[key] = None

    def closed(self, key: object) -> None:
        """Forget a connection; one that was closed from here is forgotten already."""
        self._open.pop(key, None)
        self._waiting.pop(key, None)

    def received(self, key: object, size: int, *, in_body: bool = False) -> None:
        """Count bytes that completed no head. A connection with too many of them is closed."""
        held = self._open.get(key)
        if held is None or (in_body and held.unanswered <= 1):  # the body of the request that is answered
            return
        if not held.head_bytes:
            held.head_since = self._clock()
        held.head_bytes += size
        self._count_ahead(key, held, size)

    def begun(self, key: object, requests: int, size: int) -> None:
        """Count requests whose heads have arrived, in `size` bytes. They are answered from here on."""
        held = self._open.get(key)
        if held is None:
            return
        held.head_bytes = 0
        if held.unanswered:
            self._count_ahead(key, held, size)
        else:
            self._waiting.pop(key, None)
            held.since, held.ahead_bytes = self._clock(), 0
        held.unanswered += requests

    def is_surplus(self, key: object) -> bool:
        """Whether as many others are answered as the limit says: this one may answer a probe alone."""
        held = self._open.get(key)
        if held is not None and len(self._open) - len(self._waiting) > self.limits.connections:
            held.is_surplus = True
        return held is not None and held.is_surplus

    def ended(self, key: object) -> None:
        """Count the end of an answer. A connection without another request waits from here on."""
        held = self._open.get(key)
        if held is None:
            return
        held.unanswered -= 1
        if held.unanswered <= 1:
            held.ahead_bytes = held.head_bytes
        # What a client has not taken yet counts as being answered, but for a probe beyond the limit.
        if not held.unanswered and (held.is_surplus or not held.transport.get_write_buffer_size()):
            self._wait(key, held)

    def abort(self) -> None:
        """Close every connection at once: with TLS, a close waits for the client."""
        for held in list(self._open.values()):
            held.transport.abort()

    def sweep(self) -> None:
        """Close slow heads, slow answers, clients that take nothing, and connections without a request."""
        now = self._clock()
        for key, held in list(self._open.items()):
            unsent = held.transport.get_write_buffer_size()
            if unsent != held.unsent or not unsent:
                held.unsent, held.unsent_since = unsent, now
            if unsent and now - held.unsent_since >= self.limits.stall_seconds:
                self._abort(key, "slow_reader")
            elif held.unanswered or unsent:
                if now - held.since >= self.limits.answer_seconds:
                    self._abort(key, "slow_answer")
            else:
                self._sweep_waiting(key, held, now)

    def _sweep_waiting(self, key: object, held: _Connection, now: float) -> None:
        if key not in self._waiting:  # its client has taken the rest of an answer
            self._wait(key, held)
        elif held.head_bytes and now - held.head_since >= self.limits.header_seconds:
            self._end(key, "slow_headers", self.writer.raw(HEAD_TOO_SLOW))
        elif now - held.since >= self.limits.idle_seconds:
            self._end(key, "idle")

    def _wait(self, key: object, held: _Connection) -> None:
        held.since = held.head_since = self._clock()
        self._waiting[key] = None

    def _count_ahead(self, key: object, held: _Connection, size: int) -> None:
        held.ahead_bytes += size
        if held.ahead_bytes > self.limits.head_bytes:
            self._end(key, "headers_too_large", b"" if held.unanswered else self.writer.raw(HEAD_TOO_LARGE))

    def _end(self, key: object, reason: str, farewell: bytes = b"") -> None:
        held = self._open[key]
        if farewell:
            held.transport.write(farewell)
        self.closed(key)
        self.refuse(reason)
        held.transport.close()

    def _abort(self, key: object, reason: str) -> None:
        held = self._open[key]
        self.closed(key)
        self.refuse(reason)
        held.transport.abort()
