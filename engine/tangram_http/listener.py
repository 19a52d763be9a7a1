"""The port: accepts connections, sweeps the slow ones, and hands requests to the application."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, web

from . import refusals
from .connections import SWEEP_S, Connections
from .http_connection import HTTPConnection
from .refusals import EarlyRefusal

EarlyHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[web.BaseRequest, EarlyRefusal], web.Response]
ACCEPTED_AT_ONCE = 8  # then the connections that are open already have their turn
ACCEPT_PAUSE_S = 0.1  # after a failure of accept, which lasts until a descriptor is free
ROOM_PAUSE_S = 0.01  # while every connection is being answered
LOG_EVERY_S = 60.0
_VERSIONS = (HttpVersion10, HttpVersion11)

logger = logging.getLogger(__name__)


class Listener:
    """Accepts the connections of one listening socket, under the limits of `connections`.

    Where accept fails for want of a descriptor, the connection that has waited longest is closed, accepting
    pauses, and the log says so once a minute. Asyncio's own servers log a trace for each failure instead, up
    to a thousand in one turn of the loop.
    """

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        probes: Collection[str] = (),
        refuse: Refuse | None = None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        """Take the paths that are answered beyond the limit, too, and what answers early refusals."""
        self._server = server
        self._connections = connections
        self._clock = clock
        self._logged_at: float | None = None
        head_bytes = connections.limits.head_bytes
        self._options = {"max_line_size": head_bytes, "max_field_size": head_bytes, **options}
        server.request_handler = before_routing(server.request_handler, connections, probes, refuse)

    async def start(self, listening: socket.socket) -> None:
        """Accept from here on. The socket is closed with the listener."""
        self._socket = listening
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._sweep())]

    async def close(self) -> None:
        """Accept no more; what is open goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._connections.sweep()

    async def _accept(self) -> None:
        """Accept a few connections at a time: the next few push none out whose request can be read by now."""
        while True:
            opening: list[asyncio.Task[None]] = []
            client: socket.socket | None = await self._client()
            while client is not None:
                await self._room(client, len(opening))
                opening.append(asyncio.create_task(self._open(client)))
                client = self._next_client() if len(opening) < ACCEPTED_AT_ONCE else None
            await asyncio.gather(*opening)

    async def _client(self) -> socket.socket:
        """Return the next connection, however long that takes."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._socket)
            except ConnectionError:  # the client has left already
                continue
            except OSError as error:
                self._connections.close_longest_waiting()
                self._log(error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
            else:
                return client

    def _next_client(self) -> socket.socket | None:
        try:
            client, _ = self._socket.accept()
        except OSError:  # none is there; what else is wrong, the next call says, too
            return None
        return client

    async def _room(self, client: socket.socket, coming: int) -> None:
        """Return when there is room for `client`; until then the next ones queue in the kernel."""
        try:
            while not self._connections.make_room(coming):  # noqa: ASYNC110 (probes are answered within turns)
                await asyncio.sleep(ROOM_PAUSE_S)
        except asyncio.CancelledError:
            client.close()
            raise

    async def _open(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: HTTPConnection(self._connections, self._server, loop=loop, **self._options), client
            )
        except OSError:
            client.close()

    def _log(self, error: OSError) -> None:
        now = self._clock()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            logger.warning("no connection could be accepted, the longest waiting is closed: %s", error)


def before_routing(
    handle: EarlyHandler,
    connections: Connections,
    probes: Collection[str],
    refuse: Refuse | None = None,
) -> EarlyHandler:
    """Settle what comes before aiohttp routes a request or, on `Expect: 100-continue`, invites its body."""

    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        is_surplus = connections.is_surplus(request.protocol)
        refusal = _refusal(request, connections.limits.head_bytes)
        if refusal is None and is_surplus and request.path not in probes:
            connections.refuse("max_connections")
            refusal = refusals.ALL_IN_USE
        if refusal is not None:
            return connections.writer.response(refusal) if refuse is None else refuse(request, refusal)
        response = await handle(request)
        # The rest of a body would have to be read as if it were a head.
        if not response.prepared and (is_surplus or not request.content.at_eof()):
            response.force_close()
        return response

    return guarded


def _refusal(request: web.BaseRequest, most_head_bytes: int) -> EarlyRefusal | None:
    """Return why a request is refused whatever it asks for (RFC 9112, sections 2.3 and 6.1)."""
    codings = [value.strip().lower() for value in request.headers.getall("Transfer-Encoding", [])]
    # aiohttp's own refusal quotes the header, and fails when that is not UTF-8.
    expected = request.headers.get("Expect", "100-continue").lower()
    found = (
        (request.version not in _VERSIONS, refusals.UNKNOWN_VERSION),
        (bool(codings) and request.version == HttpVersion10, refusals.CHUNKED_1_0),
        (codings not in ([], ["chunked"]), refusals.UNKNOWN_CODING),
        (_head_bytes(request) > most_head_bytes, refusals.HEAD_TOO_LARGE),
        (expected != "100-continue", refusals.UNKNOWN_EXPECTATION),
    )
    return next((refusal for is_so, refusal in found if is_so), None)


def _head_bytes(request: web.BaseRequest) -> int:
    """The bytes of a request line and its headers, each with the end of its line, and of the empty line."""
    line = len(request.method) + len(request.raw_path) + len("  HTTP/1.1\r\n")
    fields = sum(len(name) + len(value) + len(": \r\n") for name, value in request.raw_headers)
    return line + fields + len("\r\n")
