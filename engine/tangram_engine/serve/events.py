"""Server-sent events: one `data:` line per JSON object, `[DONE]` at the end."""

import asyncio
from typing import Any

from aiohttp import web

from .errors import APIError
from .jsonio import dumps

_LAST_WORDS_S = 1.0


class EventStream:
    """A response that begins with its first event, so that earlier errors still have their own status."""

    def __init__(self, request: web.Request, headers: dict[str, str], *, close: bool) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                **headers,
            }
        )
        if close:
            self.response.force_close()

    @property
    def started(self) -> bool:
        """Whether the status line is out."""
        return self.response.prepared

    async def send(self, *values: Any) -> None:
        """Send one event per value, in one write."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(b"".join(b"data: " + dumps(value) + b"\n\n" for value in values))

    async def done(self) -> None:
        """The end, as OpenAI marks it."""
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def fail(self, error: APIError) -> None:
        """The error as the last event. A client that does not read is disconnected."""
        self.response.force_close()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self.send(error.body())
                await self.done()
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
