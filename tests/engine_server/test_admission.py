"""What clients hold before their requests are understood is bounded; probes answer all the while."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from e2e.cluster.apiserver import free_port
from tangram_engine.serve.http.admission import (
    FREE_BODY_BYTES,
    HEADER_LIMIT,
    SPARE_CONNECTIONS,
    AdmissionLimits,
    BodyBytes,
    Connections,
)
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.http.listener import Listener
from tests.support.engine_process import EngineProcess, eventually

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PROBES = ("/health", "/ready", "/metrics")
LONG = {"model": "tiny", "prompt": "the quick brown fox " * 5, "max_tokens": 400, "ignore_eos": True}
MIB = 1 << 20


@dataclass
class FakeTransport(asyncio.Transport):
    written: bytes = b""
    unsent: int = 0
    end: str = ""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def get_write_buffer_size(self) -> int:
        return self.unsent


@dataclass
class Desk:
    """Connections on a clock that the test sets."""

    limits: AdmissionLimits
    now: float = 0.0
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connections = Connections(self.limits, self.reasons.append, lambda: self.now)
        self.transports: dict[Any, FakeTransport] = {}

    def open(self, *keys: Any) -> None:
        for key in keys:
            self.transports[key] = FakeTransport()
            self.connections.opened(key, self.transports[key])

    def ended(self) -> list[Any]:
        return [key for key, transport in self.transports.items() if transport.end]

    def after(self, seconds: float) -> list[Any]:
        self.now += seconds
        self.connections.sweep()
        return self.ended()


@pytest.fixture
def desk() -> Desk:
    return Desk(AdmissionLimits(connections=3, header_seconds=10, idle_seconds=75, stall_seconds=30))


def test_beyond_the_limit_the_connection_that_waits_longest_is_closed(desk: Desk) -> None:
    desk.open(*range(10_000))
    assert len(desk.connections) == 3
    assert desk.ended() == list(range(9_997))
    assert desk.reasons == ["max_connections"] * 9_997


def test_a_connection_that_is_answered_is_not_closed_for_another(desk: Desk) -> None:
    desk.open("a", "b", "c")
    with desk.connections.answering("a"):
        desk.connections.received("b", b"GET / HTTP/1.1\r\n\r\n")  # its handler begins in a moment
        desk.open("d")
    assert desk.ended() == ["c"]


def test_while_all_are_answered_spare_connections_are_for_probes_and_bounded(desk: Desk) -> None:
    with ExitStack() as stack:
        for key in "abc":
            desk.open(key)
            assert not stack.enter_context(desk.connections.answering(key))
        desk.open(*range(1000))
        assert len(desk.connections) == 3 + SPARE_CONNECTIONS
        with desk.connections.answering(999) as only_probes:
            assert only_probes
    assert not {*"abc"} & {*desk.ended()}
    for key in range(1000):
        desk.connections.closed(key)
    desk.open("d")  # closes one of the three that wait now, and is no spare
    with desk.connections.answering("d") as only_probes:
        assert not only_probes


def test_an_idle_connection_is_closed_and_one_that_is_answered_is_not(desk: Desk) -> None:
    desk.open("a", "b")
    with desk.connections.answering("a"):
        assert desk.after(74) == []
        assert desk.after(1) == ["b"]
        assert desk.after(1000) == ["b"]
    assert desk.after(74) == ["b"]
    assert desk.after(1) == ["a", "b"]


def test_headers_that_come_byte_by_byte_are_ended_in_time(desk: Desk) -> None:
    desk.open("a")
    assert desk.after(20) == []
    for _ in range(9):
        desk.connections.received("a", b"x")
        assert desk.after(1) == []
    desk.connections.received("a", b"x")
    assert desk.after(1) == ["a"]
    assert desk.transports["a"].written.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("piece", [b"x" * 100, b"a: b\r\n" * 100, b"\r\n"])
def test_headers_are_bounded_in_bytes(piece: bytes, desk: Desk) -> None:
    desk.open("a")
    sent = 0
    if piece == b"\r\n":  # an end of headers, cut between its lines
        assert desk.connections.received("a", b"GET / HTTP/1.1\r\n")
        assert desk.connections.received("a", piece)
        assert desk.connections.received("a", b"body" * HEADER_LIMIT)
        return
    while desk.connections.received("a", piece):
        sent += len(piece)
    assert HEADER_LIMIT - len(piece) <= sent <= HEADER_LIMIT
    assert desk.transports["a"].written.startswith(b"HTTP/1.1 431 ")
    assert desk.reasons == ["headers_too_large"]
    assert not desk.connections.received("a", b"more")


def test_what_is_sent_during_an_answer_counts_as_the_next_head_once_the_body_is_read(desk: Desk) -> None:
    desk.open("a")
    desk.connections.received("a", b"POST / HTTP/1.1\r\n\r\n")
    with desk.connections.answering("a"):
        assert desk.connections.received("a", b"b" * MIB)
        desk.connections.body_read("a")
        assert not desk.connections.received("a", b"GET" * HEADER_LIMIT)
    assert desk.ended() == ["a"]


def test_a_client_that_reads_nothing_is_cut_and_a_slow_one_is_not(desk: Desk) -> None:
    desk.open("stalled", "slow")
    with desk.connections.answering("stalled"), desk.connections.answering("slow"):
        for unsent in range(10_000, 9_900, -1):
            desk.transports["stalled"].unsent = 10_000
            desk.transports["slow"].unsent = unsent
            desk.after(1)
    assert desk.ended() == ["stalled"]
    assert desk.transports["stalled"].end == "aborted"
    assert desk.reasons == ["slow_reader"]


def test_body_bytes_are_bounded_beside_a_free_part_of_each() -> None:
    reasons: list[str] = []
    bodies = BodyBytes(2 * MIB, reasons.append)
    with ExitStack() as stack:
        held = [stack.enter_context(bodies.hold()) for _ in range(100)]
        for each in held:
            each.add(FREE_BODY_BYTES)
        assert bodies.in_flight == 0
        held[0].add(MIB)
        held[1].add(MIB)
        with pytest.raises(APIError) as refusal:
            held[2].add(1)
        assert refusal.value.status == 503
        assert refusal.value.headers["Retry-After"]
        assert bodies.in_flight == 2 * MIB
    assert bodies.in_flight == 0
    assert reasons == ["max_body_bytes"]


# ---- against a server ---------------------------------------------------------------------------


@contextmanager
def clients(server: EngineProcess, count: int, raw: bytes) -> Iterator[list[socket.socket]]:
    """That many connections, each of which has sent `raw` as far as the server took it."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            opened.append(connection)
            try:
                connection.sendall(raw)
            except (ConnectionError, TimeoutError):
                continue
        yield opened


def peak_rss(server: EngineProcess) -> int:
    """Bytes, the most that the server process ever had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def probes_answer(server: EngineProcess) -> None:
    for path in PROBES:
        begin = time.monotonic()
        assert server.get(path).status_code == 200
        assert time.monotonic() - begin < 5


def test_unfinished_bodies_hold_no_more_memory_than_their_limit(start: Any) -> None:
    server = start("--max-body-bytes-in-flight", str(16 * MIB))
    assert server.complete("the", max_tokens=1).status_code == 200
    before = peak_rss(server)
    raw = HEAD + b"Content-Length: %d\r\n\r\n" % (4 * MIB) + b'{"prompt":"' + b"x" * (3 * MIB)
    with clients(server, 60, raw):  # 180 MiB
        refused = partial(server.metric, "vllm:admission_rejections_total", reason="max_body_bytes")
        eventually(lambda: refused() >= 40, "the rest is refused")
        assert server.metric("tangram_engine_body_bytes") <= 16 * MIB
        probes_answer(server)
        # A small body has its place whatever the large ones hold; another large one is refused.
        assert server.complete("the", max_tokens=1).status_code == 200
        refusal = server.complete("x" * 3 * MIB, max_tokens=1)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "too_many_body_bytes")
        assert refusal.headers["Retry-After"]
        # The limit, its transient copies, the free part of each, and what aiohttp reads ahead.
        assert peak_rss(server) - before < 16 * MIB * 2 + 60 * (FREE_BODY_BYTES + 300_000)
    eventually(lambda: server.metric("tangram_engine_body_bytes") == 0, "all given back")
    assert server.complete("x" * 3 * MIB, max_tokens=1).status_code == 400


def test_token_ids_and_answers_that_nothing_reads_count_as_held(start: Any) -> None:
    server = start("--max-body-bytes-in-flight", str(16 * MIB))
    assert server.post("/detokenize", {"tokens": [3]}).status_code == 200
    before = peak_rss(server)
    body = b'{"tokens":[' + b"300," * 200_000 + b"3]}"  # 0.8 MB, and 7 MB as a list
    raw = HEAD.replace(b"/v1/completions", b"/detokenize") + b"Content-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
    with clients(server, 16, raw) as opened:
        statuses = [connection.recv(12) for connection in opened]
        assert b"HTTP/1.1 503" in statuses
        assert b"HTTP/1.1 200" in statuses
        assert peak_rss(server) - before < 64 * MIB
    eventually(lambda: server.metric("tangram_engine_body_bytes") == 0, "all given back")


def test_a_large_body_is_read_in_small_pieces() -> None:
    pieces: list[int] = []

    class Recorded(Connections):
        def received(self, key: object, data: bytes) -> bool:
            pieces.append(len(data))
            return super().received(key, data)

    async def exchange() -> None:
        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(text=str(len(await request.read())))

        listener = Listener(
            web.Server(handle), Recorded(AdmissionLimits(), lambda reason: None), access_log=None
        )
        port = free_port()
        await listener.start("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Content-Length: 800000\r\n\r\n" + b"x" * 800_000)
        assert (await reader.readuntil(b"800000")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()
        await listener.close()

    asyncio.run(exchange())
    assert max(pieces) <= 32 << 10


def test_many_connections_are_bounded_and_probes_and_requests_go_on(start: Any) -> None:
    server = start("--max-connections", "20")
    with clients(server, 200, b""):
        assert server.metric("tangram_engine_connections") <= 20
        probes_answer(server)
        assert server.complete("the", max_tokens=1).status_code == 200
    assert server.metric("vllm:admission_rejections_total", reason="max_connections") >= 180


def test_while_every_connection_sends_a_body_probes_answer_and_requests_are_refused(start: Any) -> None:
    server = start("--max-connections", "5")
    eventually(lambda: server.metric("tangram_engine_connections") == 1, "only this connection")
    with ExitStack() as stack:
        for _ in range(5):  # one after the other: each is answered before another could close it as waiting
            (sending,) = stack.enter_context(
                clients(server, 1, HEAD + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n")
            )
            assert sending.recv(100).startswith(b"HTTP/1.1 100 ")
        eventually(lambda: server.get("/load").status_code == 503, "all connections are used")
        probes_answer(server)
        refusal = server.complete("the", max_tokens=1)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "too_many_connections")
        assert refusal.headers["Retry-After"]
        assert refusal.headers["Connection"] == "close"
        assert server.metric("tangram:requests_rejected_total", reason="too_many_connections") == 1
        # The bodies that have not come are no load; the request that found no connection is.
        assert server.metric("tangram:requests_received_total") == 1
    eventually(lambda: server.complete("the", max_tokens=1).status_code == 200, "free again")


def read_all(connection: socket.socket, seconds: float = 30) -> bytes:
    connection.settimeout(seconds)
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


def test_slow_and_endless_headers_are_ended_and_idle_connections_closed(start: Any) -> None:
    server = start("--header-seconds", "0.5", "--idle-seconds", "2")
    with clients(server, 1, b"GET /health HTTP/1.1\r\nHo") as (slow,):
        assert read_all(slow).startswith(b"HTTP/1.1 408 ")
    flood = b"GET /health HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (at, b"v" * 1000) for at in range(60))
    with clients(server, 1, flood) as (flooding,):
        assert read_all(flooding)[:12] in {b"HTTP/1.1 431", b""}
    with clients(server, 1, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as (idle,):
        assert read_all(idle).startswith(b"HTTP/1.1 200 ")  # and then closed
    for reason in ("slow_headers", "headers_too_large"):
        assert server.metric("tangram_engine_connections_closed_total", reason=reason) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/metrics"])
def test_a_client_that_stops_reading_loses_its_connection_and_its_blocks(path: str, start: Any) -> None:
    server = start("--stall-seconds", "1", step_seconds=0.0005)
    body = json.dumps(LONG | {"stream": True, "logprobs": 20, "n": 16}).encode()
    raw = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    if path == "/metrics":
        raw = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 700  # pipelined, some megabytes of answers
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(raw)
        closed = partial(server.metric, "tangram_engine_connections_closed_total", reason="slow_reader")
        eventually(closed, "cut", seconds=10)
    eventually(server.quiet, "nothing left")
    assert server.get("/load").json()["server_load"] == 0


def test_a_body_that_comes_byte_by_byte_is_ended_in_time(start: Any) -> None:
    server = start("--body-seconds", "1")
    with clients(server, 1, HEAD + b"Content-Length: 100\r\n\r\n{") as (slow,):
        received = read_all(slow)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in received


def test_the_documented_limits_are_those_of_the_code() -> None:
    from tangram_engine.__main__ import _parser
    from tangram_engine.serve.http import body, jsonio

    table = (Path(__file__).parents[2] / "docs" / "engine-api.md").read_text().split("## Limits")[1]
    rows = [row.strip("|").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    defaults = vars(_parser().parse_args(["serve", "--model", ".", "--served-model-name", "x"]))
    flags = {cells[1].strip().strip("`"): float(cells[2]) for cells in rows if "`--" in cells[1]}
    assert len(flags) == 7
    for flag, value in flags.items():
        assert defaults[flag.removeprefix("--").replace("-", "_")] == value, flag
    limits = AdmissionLimits()
    assert (limits.connections, limits.body_bytes) == (
        defaults["max_connections"],
        defaults["max_body_bytes_in_flight"],
    )
    numbers = f"{jsonio.MAX_STRINGS}, {jsonio.MAX_CONTAINERS}, {jsonio.MAX_VALUES}; {jsonio.DEPTH_LIMIT}"
    sizes = (f"{HEADER_LIMIT >> 10} KiB", f"{body.BODY_LIMIT >> 20} MiB", f"{FREE_BODY_BYTES >> 10} KiB")
    for stated in (numbers, *sizes, f"{SPARE_CONNECTIONS} more"):
        assert f" {stated}" in table
