"""Send a whole reply, or a stream of server-sent events.

OpenAI's older APIs have a `data:` line per JSON object, then `[DONE]`; the others have events with names.
"""

import asyncio

from aiohttp import hdrs, web

from tangram_engine.serve.generation import Hold

_LAST_WORDS_S = 1.0
_POLL_S = 0.01


async def send_whole(request: web.Request, response: web.StreamResponse) -> None:
    """Send a complete response. When this is cancelled (a time limit), the connection ends with it."""
    try:
        await response.prepare(request)
        await response.write_eof()
        await _taken(request)
    except asyncio.CancelledError:
        _cut(request)
        raise


async def _taken(request: web.Request) -> None:
    """Return when the kernel has everything: what this process still holds dies with it, and costs memory."""
    # Polled, because aiohttp keeps for itself the callbacks by which the transport would tell.
    while request.transport is not None and request.transport.get_write_buffer_size():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


class EventStream:
    """A response that begins with its first event, so that earlier errors still have their own status."""

    def __init__(
        self, request: web.Request, headers: dict[str, str], *, close: bool, named: bool = False
    ) -> None:
        self._request = request
        self._named = named  # values are whole events with their names
        self._protocol = request.protocol
        self._open = False
        self._ended = False
        self._chunked = False
        self._first = b""  # the events that the response begins with
        self.sent = 0  # events so far
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

    def send(self, *values: bytes) -> Hold:
        """Send one event per value, in one write; returns what to await before the next, if anything.

        Past aiohttp's writer, which takes as long as the system call. Raises ConnectionError.
        """
        self.sent += len(values)
        data = b"".join(values) if self._named else b"data: " + b"\n\ndata: ".join(values) + b"\n\n"
        if not self._open:
            self._first = data
            return self.flush
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return self.flush if self._protocol.writing_paused else None

    async def flush(self) -> None:
        """Return when the client has taken enough for the next events."""
        writer = await self.response.prepare(self._request)
        self._open = True
        self._chunked = hdrs.TRANSFER_ENCODING in self.response.headers
        if self._first:
            first, self._first = self._first, b""
            await self.response.write(first)
        if writer is not None:
            await writer.drain()

    async def done(self) -> None:
        """The end, which OpenAI's older APIs mark."""
        self._ended = True
        await self.response.write_eof(b"" if self._named else b"data: [DONE]\n\n")
        await _taken(self._request)

    async def fail(self, error: bytes) -> None:
        """The error as the last event. A client that does not read is disconnected."""
        if self._ended:  # nothing may follow the end
            _cut(self._request)
            return
        self.response.force_close()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                self.send(error)
                await self.done()
        except TimeoutError:
            _cut(self._request)
