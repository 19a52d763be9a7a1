"""Small pages for programs: probes of a kubelet, metrics for Prometheus."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from .connections import ConnectionLimits, Connections
from .listener import Listener
from .tls_listener import TLSListener, TLSPort

# A kubelet and a few scrapers; each of them is answered in milliseconds.
PAGE_LIMITS = ConnectionLimits(
    connections=32, head_bytes=16 << 10, header_seconds=5.0, stall_seconds=10.0, answer_seconds=20.0
)
_LINGER_S = 1.0  # in which the rest of a body is read that no page wants
MAX_HEADERS = 64
_LOOP_SHARE = 0.1


class CachedPage:
    """A page that is made at most once in `max_age_s`, however many clients ask for it.

    `snapshot` is called in the event loop, so that no page shows half of a change. It returns the function
    that makes the page, which runs in a thread, while the loop answers probes. Where snapshots take long,
    pages are kept longer, so that the loop spends a tenth of its time on them at most.
    """

    def __init__(
        self,
        snapshot: Callable[[], Callable[[], bytes]],
        max_age_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot, self._max_age_s, self._clock = snapshot, max_age_s, clock
        self._page = b""
        self._is_old_at: float | None = None
        self._making: asyncio.Task[None] | None = None

    async def read(self) -> bytes:
        """Return the page, made anew if it is old."""
        if self._making is None and self._is_old():
            self._making = asyncio.create_task(self._make())
        if self._making is not None:
            await asyncio.shield(self._making)  # a client that leaves ends it for no other
        return self._page

    def _is_old(self) -> bool:
        return self._is_old_at is None or self._clock() >= self._is_old_at

    async def _make(self) -> None:
        try:
            began = self._clock()
            make = self._snapshot()
            snapshot_s = self._clock() - began
            self._page = await asyncio.to_thread(make)
            self._is_old_at = self._clock() + max(self._max_age_s, snapshot_s / _LOOP_SHARE)
        finally:
            self._making = None


@dataclass(frozen=True, slots=True)
class PageServer:
    """An application that serves pages on one port."""

    runner: web.AppRunner
    listener: Listener
    connections: Connections

    async def close(self) -> None:
        """Accept no more, and end what is open."""
        await self.listener.close()
        await self.runner.cleanup()
        self.connections.abort()
        while self.connections:  # noqa: ASYNC110 - until the loop has called back
            await asyncio.sleep(0)


async def serve_pages(
    app: web.Application,
    listening: socket.socket,
    limits: ConnectionLimits = PAGE_LIMITS,
    tls: TLSPort | None = None,
) -> PageServer:
    """Serve the pages of `app` until `close` of what this returns. Without TLS each page is a probe: it is
    answered beyond the limit of connections, too.
    """
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=_LINGER_S)
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("aiohttp's runner has no server after its setup")
    connections = Connections(limits)
    options: dict[str, Any] = {
        "access_log": None,
        "keepalive_timeout": limits.idle_seconds,
        "lingering_time": _LINGER_S,
        "max_headers": MAX_HEADERS,
        "read_bufsize": limits.head_bytes,
    }
    listener: Listener
    if tls is None:
        paths = {resource.canonical for resource in app.router.resources()}
        listener = Listener(runner.server, connections, probes=paths, **options)
    else:
        listener = TLSListener(runner.server, connections, tls=tls, **options)
    await listener.start(listening)
    return PageServer(runner, listener, connections)
