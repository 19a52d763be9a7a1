"""The listener on loopback: what it accepts, which connections it closes, and what it refuses itself."""

import asyncio
import errno
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tangram_http.connections import ConnectionLimits, Connections
from tangram_http.http_connection import RECEIVE_BYTES
from tangram_http.listener import Listener
from tangram_http.refusals import EarlyRefusal, RefusalWriter
from tangram_http.sockets import listening_socket, within_descriptors
from tests.support.ipv6 import has_ipv6

SMALL = ConnectionLimits(connections=16)
HEAD_BYTES = SMALL.head_bytes
PROBE = b"GET /probe HTTP/1.1\r\nHost: x\r\n\r\n"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Port:
    """A listener on a free port, with an application of a few paths."""

    limits: ConnectionLimits = SMALL
    writer: RefusalWriter | None = None
    listening: socket.socket = field(default_factory=lambda: listening_socket("127.0.0.1", 0))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.reasons: list[str] = []
        self.refusals: list[EarlyRefusal] = []
        self.release = asyncio.Event()
        self.connections = Connections(self.limits, self.reasons.append, lambda: self.now, self.writer)
        self.number = self.listening.getsockname()[1]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/held":
            await self.release.wait()
        elif request.path == "/left":
            raise ConnectionResetError("the client has left")
        elif request.path == "/refused":
            if "read" in request.query:
                await request.read()
            return web.Response(status=int(request.query["status"]))
        return web.Response(text=str(len(await request.read())))

    def refuse(self, request: web.BaseRequest, refusal: EarlyRefusal) -> web.Response:
        self.refusals.append(refusal)
        return self.connections.writer.response(refusal)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Port"]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        assert runner.server is not None
        listener = Listener(
            runner.server,
            self.connections,
            {"/probe"},
            self.refuse,
            lambda: self.now,
            access_log=None,
            lingering_time=0.2,
        )
        await listener.start(self.listening)
        try:
            yield self
        finally:
            self.release.set()
            await listener.close()
            await runner.cleanup()


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to `raw`."""
        self.writer.write(raw)
        return await self.read()

    async def read(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        """Wait for the end of the connection, whatever comes before it."""
        try:
            await self.reader.read()
            return True
        except ConnectionError:
            return True


@dataclass
class Clients:
    port: Port
    stack: AsyncExitStack

    async def open(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port.number))
        self.stack.callback(client.writer.close)
        return client

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        return await (await self.open()).ask(raw)


@asynccontextmanager
async def clients_of(port: Port) -> AsyncIterator[Clients]:
    async with port.serving(), AsyncExitStack() as stack:
        yield Clients(port, stack)


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with clients_of(Port()) as opened:
        yield opened


async def turns(condition: Callable[[], Any]) -> None:
    """Let the loop turn until `condition` holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST %s HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


# ---- which connection is closed -------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 400, 401, 404, 413, 422, 429, 500, 503])
@pytest.mark.parametrize("read", [b"&read", b""])
async def test_after_any_answer_a_connection_waits_and_is_the_first_to_be_closed(
    status: int, read: bytes, clients: Clients
) -> None:
    answered = await clients.open()
    found, _ = await answered.ask(post(b"/refused?status=%d%s" % (status, read), b"{}"))
    assert found == status
    others = [await clients.open() for _ in range(15)]
    assert (await clients.ask(PROBE))[0] == 200
    assert await answered.is_closed()
    assert (await others[0].ask(PROBE))[0] == 200


async def test_a_body_that_its_client_aborts_leaves_no_connection(clients: Clients) -> None:
    for _ in range(20):
        client = await clients.open()
        client.writer.write(post(b"/", b"x" * 100)[:-50])
        await turns(lambda: len(clients.port.connections) > 0)
        client.writer.transport.abort()
    await turns(lambda: len(clients.port.connections) == 0)


async def test_while_all_are_answered_a_probe_is_answered_in_a_flood_of_connections(clients: Clients) -> None:
    held = [await clients.open() for _ in range(16)]
    for client in held:
        client.writer.write(post(b"/held", b""))
    waiting = clients.port.connections._waiting
    await turns(lambda: len(clients.port.connections) == 16 and not waiting)
    flood = [socket.create_connection(("127.0.0.1", clients.port.number)) for _ in range(300)]
    probes = flood[20::40]
    try:
        for probe in probes:  # their connections queue in the kernel, among the others
            probe.sendall(PROBE)
        for probe in probes:
            probe.setblocking(False)
            received = await asyncio.get_running_loop().sock_recv(probe, 1000)
            assert received.startswith(b"HTTP/1.1 200 ")
            assert b"Connection: close" in received
        assert len(clients.port.connections) <= 16 + SMALL.spare
        refused, _ = await clients.ask(post(b"/", b""))
        assert refused == 503
        assert clients.port.refusals[-1].code == "too_many_connections"
    finally:
        for each in flood:
            each.close()
    clients.port.release.set()
    for client in held:
        assert (await client.read())[0] == 200


async def test_where_every_place_is_answered_the_next_connection_waits_in_the_kernel(
    clients: Clients,
) -> None:
    port = clients.port
    opened = [await clients.open() for _ in range(16 + SMALL.spare)]
    await turns(lambda: len(port.connections) == 16)
    for at, client in enumerate(opened[SMALL.spare :]):
        client.writer.write(post(b"/held", b""))
        await turns(lambda at=at: len(port.connections._waiting) == 15 - at)
    more = [await clients.open() for _ in range(SMALL.spare)]
    await turns(lambda: len(port.connections) == 16 + SMALL.spare)
    for held in port.connections._open.values():
        held.unanswered += 1  # as if each were a probe that is being answered
    port.connections._waiting.clear()
    last = await clients.open()
    last.writer.write(PROBE)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert len(port.connections) == 16 + SMALL.spare
    more[0].writer.close()
    assert (await last.read())[0] == 200


async def test_a_failing_accept_pauses_makes_room_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(socket.socket):
        failures = 0

        def accept(self) -> Any:
            if Failing.failures:
                Failing.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    listening = Failing(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    listening.setblocking(False)
    async with clients_of(Port(listening=listening)) as clients:
        waiting = [await clients.open() for _ in range(3)]
        await turns(lambda: len(clients.port.connections) == 3)
        Failing.failures = 4
        with caplog.at_level(logging.INFO):
            assert (await clients.ask(PROBE))[0] == 200
            assert await waiting[0].is_closed()
            Failing.failures = 2
            assert (await clients.ask(PROBE))[0] == 200
        assert [record.getMessage() for record in caplog.records if "accepted" in record.getMessage()] == [
            "no connection could be accepted, the longest waiting is closed: [Errno 24] Too many open files"
        ]
        assert not [record for record in caplog.records if record.exc_info]


# ---- what one connection holds ---------------------------------------------------------------------


async def test_one_field_may_have_all_bytes_of_a_head_and_not_one_more(clients: Clients) -> None:
    line = b"GET /probe HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n"
    client = await clients.open()
    for size in (8_190, 20_000, HEAD_BYTES - len(line % b"")):
        assert (await client.ask(line % (b"a" * size)))[0] == 200
    assert (await client.ask(line % (b"a" * (size + 1))))[0] == 431
    assert await client.is_closed()


@pytest.mark.parametrize("before", [b"", post(b"/refused?status=400&read", b"{}")])
async def test_a_head_without_an_end_is_ended_by_its_size_and_by_its_time(
    before: bytes, clients: Clients
) -> None:
    port = clients.port
    large, slow = await clients.open(), await clients.open()
    for client in (large, slow) if before else ():
        assert (await client.ask(before))[0] == 400
    large.writer.write(b"GET / HTTP/1.1\r\n" + b"a: %s\r\n" % (b"b" * 1000) * 40)
    assert await large.is_closed()
    slow.writer.write(b"GET / HT")
    await turns(lambda: any(held.head_bytes for held in port.connections._open.values()))
    port.now += 10
    assert (await slow.read())[0] == 408
    assert await slow.is_closed()
    assert port.reasons == ["headers_too_large", "slow_headers"]


async def test_a_large_body_is_read_in_small_pieces_and_is_no_head(
    monkeypatch: pytest.MonkeyPatch, clients: Clients
) -> None:
    sizes: list[int] = []
    received = Connections.received

    def record(self: Connections, key: object, size: int, *, in_body: bool = False) -> None:
        sizes.append(size)
        received(self, key, size, in_body=in_body)

    monkeypatch.setattr(Connections, "received", record)
    client = await clients.open()
    for _ in range(3):
        assert await client.ask(post(b"/", b"x" * 800_000)) == (200, b"800000")
    chunks = b"".join(b"%x\r\n%s\r\n" % (5000, b"x" * 5000) for _ in range(50)) + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert await client.ask(head + chunks) == (200, b"250000")
    assert max(sizes) <= RECEIVE_BYTES


async def test_requests_ahead_of_an_answer_are_answered_in_order_and_bounded(clients: Clients) -> None:
    port = clients.port
    client = await clients.open()
    client.writer.write(PROBE * 100)
    assert [(await client.read())[0] for _ in range(100)] == [200] * 100
    client.writer.write(post(b"/held", b""))
    await turns(lambda: not port.connections._waiting)
    for _ in range(20):
        client.writer.write(post(b"/", b"x" * 10_000))
    assert await client.is_closed()
    assert port.reasons == ["headers_too_large"]


async def test_a_refused_body_is_dropped_so_that_its_client_sees_the_refusal(clients: Clients) -> None:
    client = await clients.open()
    client.writer.write(post(b"/refused?status=413", b"x" * 3_000_000))
    assert (await client.read())[0] == 413
    assert await client.is_closed()
    assert clients.port.reasons == []


async def test_what_follows_a_declined_upgrade_is_counted_once(clients: Clients) -> None:
    client = await clients.open()
    upgrade = b"GET /probe HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    client.writer.write(upgrade + PROBE + PROBE)
    assert [(await client.read())[0] for _ in range(3)] == [200] * 3
    (held,) = clients.port.connections._open.values()
    assert held.unanswered == 0
    assert len(clients.port.connections._waiting) == 1


# ---- what is refused before any handler ------------------------------------------------------------

CHUNKED_BODY = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_BODY, 200),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n" + CHUNKED_BODY, 200),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED_BODY, 501),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: deflate,chunked\r\n\r\n" + CHUNKED_BODY, 501),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
            + CHUNKED_BODY,
            400,
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x;y=1, chunked\r\n\r\n" + CHUNKED_BODY, 501),
        (b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_BODY, 400),
        (b"GET /probe HTTP/1.0\r\n\r\n", 200),
        (b"GET /probe\r\n\r\n", 400),
        (b"GET /probe HTTP/0.9\r\n\r\n", 400),
        (b"GET /probe HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /probe HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET /probe HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n", 417),
        (b"GET /probe HTTP/1.1\r\nHost: x\r\nExpect: \xff\r\n\r\n", 417),
    ],
)
async def test_broken_and_unusual_http_is_refused_in_the_format_of_the_server(
    raw: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RefusalWriter(lambda refusal: json.dumps({"code": refusal.code}).encode(), "application/json")
    async with clients_of(Port(writer=writer)) as clients:
        client = await clients.open()
        found, body = await client.ask(raw)
        assert found == status
        if status != 200:
            assert json.loads(body)["code"]
            assert await client.is_closed()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_handler_whose_client_has_left_is_no_error(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    client = await clients.open()
    client.writer.write(post(b"/left", b""))
    assert await client.is_closed()
    assert not caplog.records


# ---- sockets and descriptors ------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])
def test_a_socket_listens_where_it_is_told_to(host: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with listening_socket(host, 0) as listening:
        reached = host if ":" in host else "127.0.0.1"
        socket.create_connection((reached, listening.getsockname()[1])).close()


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "raised_to"),
    [
        (2000, 4000, 1024, None),
        (1024, 4000, 1024, 1024 + 64 + 256),
        (1024, 1024, 1024 - 64 - 256, None),
        (100, 200, 1, 200),
        (-1, -1, 1024, None),
        (1024, -1, 1024, 1024 + 64 + 256),
    ],
)
def test_connections_stay_within_the_descriptors_of_the_process(
    soft: int, hard: int, connections: int, raised_to: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda which, limits: set_to.append(limits))
    assert within_descriptors(ConnectionLimits()).connections == connections
    assert [limit for limit, _ in set_to if limit != soft] == ([] if raised_to is None else [raised_to])
