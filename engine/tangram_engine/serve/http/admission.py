"""How much of clients is held before their requests are understood: connections, header and body bytes.

Sequences are bounded later, once a body says how many there are (see `lifecycle`). The bound on connections
is kept by closing the one that has waited longest for a request; while every one of them is being answered,
a few spare connections answer probes and metrics alone.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import unavailable

SPARE_CONNECTIONS = 16  # for probes and metrics, while every other connection is being answered
FREE_BODY_BYTES = 64 << 10  # of each body: small requests are served while large ones fill the limit
HEADER_LIMIT = 32 << 10  # bytes of a request line and its headers
SWEEP_S = 1.0

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_END_OF_HEADERS = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What clients may hold at once. The defaults are those of the command line."""

    connections: int = 1024
    body_bytes: int = 256 << 20  # in flight, beside FREE_BODY_BYTES of each request
    header_seconds: float = 10.0  # from the first byte of a request to the end of its headers
    body_seconds: float = 20.0  # from the end of the headers to the end of the body
    idle_seconds: float = 75.0  # without a request
    stall_seconds: float = 30.0  # without a byte of an answer being taken


@dataclass(slots=True)
class _Connection:
    transport: asyncio.Transport
    since: float  # when its wait for a request began, or the wait of what it has not read
    spare: bool = False
    answering: bool = False
    head_bytes: int = 0  # of the next request, as far as its headers have not ended
    head_since: float = 0.0
    head_ended: bool = False  # what comes now is a body
    tail: bytes = b""  # the last bytes of the head, where its end may be cut
    unsent: int = 0
    unsent_since: float = 0.0


class Connections:
    """Every open connection, by its protocol object. Counts what it closes by reason, through `refused`."""

    def __init__(
        self,
        limits: AdmissionLimits,
        refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self.refuse = refused
        self._clock = clock
        self._open: dict[object, _Connection] = {}
        self._waiting: OrderedDict[object, None] = OrderedDict()  # the one that waits longest first
        self._spare = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, key: object, transport: asyncio.Transport) -> None:
        """Book a new connection; another is closed where there would be too many."""
        spare = False
        if len(self._open) - self._spare >= self._limits.connections and not self._close_longest_waiting():
            spare = True
            if self._spare >= SPARE_CONNECTIONS:
                self._abort(next(key for key, held in self._open.items() if held.spare), "max_connections")
            self._spare += 1
        self._open[key] = _Connection(transport, self._clock(), spare=spare)
        self._waiting[key] = None

    def closed(self, key: object) -> None:
        """Forget a connection; one that was closed from here is forgotten already."""
        held = self._open.pop(key, None)
        self._waiting.pop(key, None)
        if held is not None and held.spare:
            self._spare -= 1

    def received(self, key: object, data: bytes) -> bool:
        """Count bytes of headers. False when they are too many; the connection is then closed."""
        held = self._open.get(key)
        if held is None:
            return False
        if held.head_ended:
            return True
        joined = held.tail + data
        if not held.answering and _END_OF_HEADERS in joined:
            held.head_ended, held.head_bytes, held.tail = True, 0, b""
            return True
        if held.head_bytes == 0:
            held.head_since = self._clock()
        held.head_bytes += len(data)
        held.tail = joined[-len(_END_OF_HEADERS) + 1 :]
        if held.head_bytes <= HEADER_LIMIT:
            return True
        self._end(key, "headers_too_large", b"" if held.answering else _TOO_LARGE)
        return False

    @contextmanager
    def answering(self, key: object) -> Iterator[bool]:
        """Hold a connection for one request. True where it may only be a probe."""
        held = self._open.get(key)
        if held is None:  # closed a moment ago; nothing that is answered now arrives
            yield False
            return
        held.answering, held.head_bytes, held.tail = True, 0, b""
        self._waiting.pop(key, None)
        try:
            yield held.spare
        finally:
            held.answering = False
            held.since = held.head_since = self._clock()
            if key in self._open:
                self._waiting[key] = None

    def body_read(self, key: object) -> None:
        """Count what a client sends from here on as the head of its next request."""
        held = self._open.get(key)
        if held is not None:
            held.head_ended = False

    def sweep(self) -> None:
        """Close what is slow: headers, clients that read nothing, and connections without a request."""
        now = self._clock()
        limits = self._limits
        for key, held in list(self._open.items()):
            unsent = held.transport.get_write_buffer_size()
            if unsent != held.unsent or not unsent:
                held.unsent, held.unsent_since = unsent, now
            if unsent and now - held.unsent_since >= limits.stall_seconds:
                self._abort(key, "slow_reader")
            elif held.answering or unsent:
                continue
            elif held.head_bytes and now - held.head_since >= limits.header_seconds:
                self._end(key, "slow_headers", _TOO_SLOW)
            elif now - held.since >= limits.idle_seconds:
                self._end(key, "idle")

    def _close_longest_waiting(self) -> bool:
        for key in self._waiting:
            held = self._open[key]
            begun = held.spare or held.head_ended or held.transport.get_write_buffer_size()
            if not begun:
                self._end(key, "max_connections")
                return True
        return False

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


class BodyBytes:
    """Bytes of request bodies in flight, from their arrival to the end of their request."""

    def __init__(self, limit: int, refused: Callable[[str], None]) -> None:
        self._limit = limit
        self._refused = refused
        self.in_flight = 0  # bytes beyond the free part of each body

    @contextmanager
    def hold(self) -> Iterator["HeldBytes"]:
        """Room for one body, given back at the end of the context."""
        held = HeldBytes(self)
        try:
            yield held
        finally:
            self.in_flight -= held.charged

    def charge(self, count: int) -> None:
        """Take more bytes. Raises APIError (503) when there is no room."""
        if self.in_flight + count > self._limit:
            self._refused("max_body_bytes")
            raise unavailable(
                f"The server holds {self._limit} bytes of large bodies, which is its limit. Please retry.",
                "too_many_body_bytes",
                close=True,
            )
        self.in_flight += count


class HeldBytes:
    """What one body holds."""

    def __init__(self, bodies: BodyBytes) -> None:
        self._bodies = bodies
        self._size = 0
        self.charged = 0

    def add(self, count: int) -> None:
        """Book bytes that arrived. Raises APIError (503) when there is no room for them."""
        self._size += count
        more = max(self._size - FREE_BODY_BYTES, 0) - self.charged
        self._bodies.charge(more)
        self.charged += more
