"""aiohttp's connections under the limits of `admission`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web

from .admission import SWEEP_S, Connections
from .errors import APIError, unavailable

EarlyHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
EarlyRefusal = Callable[[web.BaseRequest, APIError], None]
# Open to all, and on spare connections.
PROBES = frozenset({"/health", "/ready", "/ping", "/metrics", "/version"})
_BACKLOG = 1024
# Bytes of one read. What a read brings is handled at one go: with asyncio's 256 KiB, four clients that send
# chunks of one byte delay a probe by 0.8 s.
_RECEIVE_BYTES = 32 << 10


class _CountedConnection(web.RequestHandler):
    """One client's connection, booked from its first to its last byte."""

    __slots__ = ("_connections",)

    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connections.opened(self, cast("asyncio.Transport", transport))
        cast("Any", transport).max_size = _RECEIVE_BYTES
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        # Empty where aiohttp parses again what it held back.
        if not data or self._connections.received(self, data):
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.closed(self)
        super().connection_lost(exc)


class Listener:
    """The port: accepts connections, sweeps the slow ones, and hands requests to the application."""

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        refused: EarlyRefusal = lambda request, error: None,
        **options: Any,
    ) -> None:
        self._server = server
        self._connections = connections
        self._options = options
        server.request_handler = before_routing(server.request_handler, connections, refused)

    async def start(self, host: str, port: int) -> None:
        """Accept from here on."""
        loop = asyncio.get_running_loop()
        self._socket = await loop.create_server(
            lambda: _CountedConnection(self._connections, self._server, loop=loop, **self._options),
            host,
            port,
            backlog=_BACKLOG,
        )
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Accept no more; what is open goes on."""
        self._sweeping.cancel()
        self._socket.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._connections.sweep()


def before_routing(handle: EarlyHandler, connections: Connections, refused: EarlyRefusal) -> EarlyHandler:
    """What is settled before aiohttp routes a request or, on `Expect: 100-continue`, invites its body.

    `refused` is called for each request that is answered here with an error.
    """

    def refuse(request: web.BaseRequest, error: APIError) -> web.Response:
        refused(request, error)
        return error.response()

    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        with connections.answering(request.protocol) as only_probes:
            if not request.can_read_body:
                connections.body_read(request.protocol)
            if only_probes and request.path not in PROBES:
                connections.refuse("max_connections")
                return refuse(
                    request,
                    unavailable(
                        "Every connection of this server is in use.", "too_many_connections", close=True
                    ),
                )
            # aiohttp's own refusal quotes the header, and fails when that is not UTF-8.
            if request.headers.get("Expect", "100-continue").lower() != "100-continue":
                return refuse(
                    request, APIError(417, "Only 100-continue can be expected.", code="expectation_failed")
                )
            response = await handle(request)
            if not response.prepared and not request.content.at_eof():
                response.force_close()  # the rest of the body would have to be read as if it were headers
            return response

    return guarded
