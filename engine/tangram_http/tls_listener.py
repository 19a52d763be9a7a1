"""The port with TLS: handshakes are bounded in number and time, and the certificate may change meanwhile."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .http_connection import HTTPConnection
from .listener import Listener

MOST_HANDSHAKES = 32  # at once: each holds buffers of 256 KiB, and is in no count of connections yet
HANDSHAKE_S = 3.0
PATIENCE_S = 0.25  # with a handshake for whose end another client waits
SHUTDOWN_S = 1.0  # until a client has acknowledged the end of a connection

OVERLOAD_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class TLSPort:
    """What a port with TLS needs: the context of the next connection, and whether to accept one now."""

    context: Callable[[], ssl.SSLContext]
    may_accept: Callable[[], bool] = lambda: True


class TLSListener(Listener):
    """Accepts like `Listener`. A client that does not finish its handshake holds up no other: where there are
    too many, the oldest handshake ends.
    """

    def __init__(self, *arguments: Any, tls: TLSPort, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tls = tls
        self._handshakes: dict[asyncio.Task[None], tuple[socket.socket, float]] = {}  # the oldest first

    async def close(self) -> None:
        """Accept no more, and end the handshakes; what is open goes on."""
        await super().close()
        for handshake in self._handshakes:
            handshake.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            while not self._tls.may_accept():  # noqa: ASYNC110 (the others queue in the kernel)
                await asyncio.sleep(OVERLOAD_PAUSE_S)
            client = await self._client()
            try:
                await self._handshake_ends()
            except asyncio.CancelledError:
                client.close()
                raise
            await self._room(client, 0)
            handshake = asyncio.create_task(self._open(client))
            self._handshakes[handshake] = client, self._clock()
            handshake.add_done_callback(self._end_of)

    async def _handshake_ends(self) -> None:
        """Wait until there are few enough; where none ends by itself, the oldest one is ended."""
        while len(self._handshakes) >= MOST_HANDSHAKES:
            oldest, (_, since) = next(iter(self._handshakes.items()))
            left_s = since + PATIENCE_S - self._clock()
            if left_s <= 0:
                oldest.cancel()
            await asyncio.wait(self._handshakes, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # for the callbacks of those that have ended

    def _end_of(self, handshake: asyncio.Task[None]) -> None:
        client, _ = self._handshakes.pop(handshake)
        if handshake.cancelled():
            client.close()

    async def _open(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: HTTPConnection(self._connections, self._server, loop=loop, **self._options),
                client,
                ssl=self._tls.context(),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:  # also what is no TLS, and a handshake that is too slow
            client.close()
