"""aiohttp's connection, booked with `Connections` from its first to its last byte."""

import asyncio
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from .connections import Connections
from .refusals import broken_http

# Bytes of one read. What a read brings is handled at one go: with asyncio's 256 KiB, four clients that send
# chunks of one byte delay a probe by 0.8 s.
RECEIVE_BYTES = 32 << 10


class HTTPConnection(web.RequestHandler):
    """One client's connection. aiohttp parses it; what it holds is counted here."""

    __slots__ = ("_booked", "_connections", "_payload")

    def __init__(self, connections: Connections, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self._booked = 0  # requests whose heads have arrived, as far as `connections` was told
        self._payload: StreamReader = EMPTY_PAYLOAD  # the body of the newest request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Book the connection."""
        self._connections.opened(self, cast("asyncio.Transport", transport))
        cast("Any", transport).max_size = RECEIVE_BYTES
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, then count it: to a head, to a body, or to requests ahead of an answer."""
        in_body = not self._payload.is_eof()
        super().data_received(data)
        # Empty where aiohttp parses again what it held back.
        if not self._book(len(data)) and data:
            self._connections.received(self, len(data), in_body=in_body)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._connections.closed(self)
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer, and count its end."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._book(0)  # aiohttp parses what followed a declined upgrade now
            self._connections.ended(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, and end where the client has left: neither is an error of this server."""
        if isinstance(exc, ConnectionError):
            raise exc
        if isinstance(exc, HttpProcessingError):
            return self._connections.writer.response(broken_http(exc))
        return super().handle_error(request, status, exc, message)

    def _book(self, size: int) -> bool:
        """Book the requests whose heads have arrived; False where there is none."""
        requests = self._request_count - self._booked
        if not requests:
            return False
        self._booked = self._request_count
        self._payload = self._messages[-1][1]
        self._connections.begun(self, requests, size)
        return True
