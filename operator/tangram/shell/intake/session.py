"""The HTTP session of kopf: it only reads, in bounded parts, and survives what tenants write into objects.

A tenant may nest the field sets of an object's managedFields so deep that Python's JSON parser fails; kopf
would end at each LIST. Its responses are parsed by `tangram.kube.response_body` instead, which drops them.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from tangram.kube.client import FIRST_REFUSAL
from tangram.kube.credentials import Credentials, ssl_context
from tangram.kube.response_body import parse_json, read_limited, watch_lines

MOST_UNHANDLED = 200  # events that are read ahead of the handlers
LONGEST_PAUSE_S = 5.0  # until handlers have caught up; an event that kopf dropped is never handled
WATCH_PAUSE_S = 1.0  # after the end of a watch: kopf begins the next one at once


@dataclass(slots=True)
class WatchBacklog:
    """The number of watch events that kopf has read and not handled yet: kopf itself sets no limit."""

    unhandled: int = 0

    async def wait_for_room(self) -> None:
        """Wait until handlers have caught up, at most LONGEST_PAUSE_S."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LONGEST_PAUSE_S
        while self.unhandled >= MOST_UNHANDLED:
            if loop.time() > until:
                self.unhandled = 0
            await asyncio.sleep(0.01)


class BoundedContent:
    """The body of a response: read whole within a limit, or line by line."""

    def __init__(self, stream: aiohttp.StreamReader, backlog: WatchBacklog) -> None:
        self._stream, self._backlog = stream, backlog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self) -> bytes:
        """Return the body. Raises `aiohttp.ClientPayloadError` where it is too large."""
        return bytes(await read_limited(self._stream))

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        """Yield the lines of a watch, each with its end."""
        try:
            async for line in watch_lines(self._stream):
                await self._backlog.wait_for_room()
                self._backlog.unhandled += b'"type":"BOOKMARK"' not in line[:40]
                yield readable(line) + b"\n"
        except aiohttp.ClientError:
            await asyncio.sleep(WATCH_PAUSE_S)
            raise
        await asyncio.sleep(WATCH_PAUSE_S)


def readable(line: bytes) -> bytes:
    """Return an event that `json.loads` can read, without the field sets that nest too deep for it. Raises
    RecursionError for other JSON that does.
    """
    try:
        json.loads(line)
    except RecursionError:
        return json.dumps(parse_json(line)).encode()
    return line


def kopf_session(credentials: Credentials, backlog: WatchBacklog) -> aiohttp.ClientSession:
    """Return a session that only reads, follows no redirect, and sends the token as it is at each request."""

    class BoundedResponse(aiohttp.ClientResponse):
        """A response that is read by our own limits and parser."""

        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            self.content = BoundedContent(self.content, backlog)  # type: ignore[assignment]
            return self

        async def json(self, **_options: Any) -> Any:
            return parse_json(await self.read())

    async def only_reads(
        request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if request.method != "GET":
            raise RuntimeError(f"kopf must not write: {request.method} {request.url.path}")
        if token := credentials.token():
            request.headers["Authorization"] = f"Bearer {token}"
        response = await send(request)
        if FIRST_REFUSAL <= response.status < 400:
            response.close()
            raise aiohttp.ClientConnectionError(f"a redirect of {request.url.path}")
        return response

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=ssl_context(credentials) or True, limit=0),
        # A small stream cannot become a large one.
        headers={"Accept-Encoding": "identity", "User-Agent": "tangram-operator-kopf"},
        middlewares=(only_reads,),
        response_class=BoundedResponse,
        trust_env=False,
    )
