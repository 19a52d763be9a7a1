"""What clients hold before their requests are understood is bounded; probes answer all the while."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tangram_engine.serve.http.admission import FREE_BODY_BYTES, BodyBytes
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.server import ServeOptions
from tangram_http.connections import ConnectionLimits
from tests.support.engine_process import EngineProcess, eventually

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PROBES = ("/health", "/ready", "/metrics")
LONG = {"model": "tiny", "prompt": "the quick brown fox " * 5, "max_tokens": 400, "ignore_eos": True}
MIB = 1 << 20


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
        assert peak_rss(server) - before < 96 * MIB  # 130 MiB without a limit, 50 to 75 with it
    eventually(lambda: server.metric("tangram_engine_body_bytes") == 0, "all given back")


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


JSON = b"Content-Type: application/json\r\n"
# Requests that are answered with an error, by what the answer is.
REFUSED_REQUESTS = {
    "400": (b"POST /v1/completions", JSON, b"{}"),
    "400, no JSON": (b"POST /v1/chat/completions", JSON, b"{"),
    "400, of a large body": (b"POST /v1/completions", JSON, b'{"prompt":[' + b"1," * 20_000 + b'"x"]}'),
    "404": (b"GET /nothing", b"", b""),
    "404, the model": (b"POST /v1/completions", JSON, b'{"model":"x","prompt":"the"}'),
    "404, with a body": (b"POST /nothing", JSON, b"{}"),
    "405": (b"GET /v1/completions", b"", b""),
    "405, with a body": (b"PUT /v1/completions", JSON, b"{}"),
    "413": (b"POST /v1/completions", JSON, b"x" * (5 << 20)),
    "415": (b"POST /v1/completions", b"Content-Type: text/plain\r\n", b"{}"),
    "415, encoded": (b"POST /v1/completions", JSON + b"Content-Encoding: br\r\n", b"{}"),
    "415, encoded twice": (
        b"POST /v1/completions",
        JSON + b"Content-Encoding: identity\r\nContent-Encoding: br\r\n",
        b"{}",
    ),
    "415, encoded in a list": (b"POST /v1/completions", JSON + b"Content-Encoding: identity, br\r\n", b"{}"),
    "417": (b"POST /v1/completions", JSON + b"Expect: more\r\n", b"{}"),
    "429": (b"POST /v1/completions", JSON, b'{"model":"tiny","prompt":"the","n":16}'),
    "501": (b"POST /v1/completions", JSON + b"Transfer-Encoding: gzip, chunked\r\n", b""),
}


def refused_request(name: str) -> bytes:
    line, headers, body = REFUSED_REQUESTS[name]
    if b"Transfer-Encoding" not in headers:
        headers += b"Content-Length: %d\r\n" % len(body)
    return line + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body


def answer_head(connection: socket.socket) -> bytes:
    """The status line and headers of one answer; its body is read, too."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head


def test_after_any_refusal_a_connection_is_idle_and_bounded_as_a_new_one(start: Any) -> None:
    """What is refused holds no place: as many such connections as there may be lock no client out."""
    server = start(
        *("--max-connections", "32", "--max-num-seqs", "4", "--max-queued-requests", "4"),
        *("--header-seconds", "1"),
    )
    with ExitStack() as stack:
        opened: list[tuple[str, socket.socket]] = []

        def refuse(name: str) -> None:
            (connection,) = stack.enter_context(clients(server, 1, refused_request(name)))
            connection.settimeout(30)
            head = answer_head(connection)
            assert head.split()[1].decode() == name[:3], (name, head)
            opened.append((name, connection))

        for name in REFUSED_REQUESTS:
            refuse(name)
        for at in range(32):
            refuse(("400", "404, the model", "429")[at % 3])
        for _ in range(3):
            assert server.complete("the", max_tokens=1).status_code == 200
        assert server.metric("vllm:admission_rejections_total", reason="max_connections") > 0
        # The newest are still open: half a head on them is ended in time, a large one by its size.
        late = opened[-10:]
        for at, (_, connection) in enumerate(late):
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            if at % 2:
                for _ in range(5):
                    try:
                        connection.sendall(b"a: %s\r\n" % (b"b" * 8000))
                    except ConnectionError:
                        break
        for at, (name, connection) in enumerate(late):
            assert read_all(connection)[:12] in ({b"HTTP/1.1 431", b""} if at % 2 else {b"HTTP/1.1 408"}), (
                name
            )
        closed = partial(server.metric, "tangram_engine_connections_closed_total")
        assert (closed(reason="slow_headers"), closed(reason="headers_too_large")) == (5, 5)


def test_a_body_that_its_client_aborts_leaves_no_connection(start: Any) -> None:
    server = start("--max-connections", "16")
    for _ in range(3):
        with clients(server, 16, HEAD + b"Content-Length: 1000\r\n\r\n{"):
            pass
        eventually(lambda: server.metric("tangram_engine_connections") == 1, "only this one")
    assert server.complete("the", max_tokens=1).status_code == 200


def test_a_single_header_may_have_what_all_may_have_together(start: Any) -> None:
    server = start()
    for size in (8_000, 9_000, 20_000, 32_000):
        with clients(server, 1, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: %s\r\n\r\n" % (b"a" * size)) as (
            one,
        ):
            assert answer_head(one).startswith(b"HTTP/1.1 200 "), size
    with clients(server, 1, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: %s\r\n\r\n" % (b"a" * 32_760)) as (
        one,
    ):
        received = read_all(one)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


def test_broken_http_gets_an_error_object_that_quotes_nothing(start: Any) -> None:
    server = start()
    for raw in (b"GET /secret\r\n\r\n", b"secret\r\n\r\n", b"GET / HTTP/1.1\r\nsecret\r\n\r\n"):
        with clients(server, 1, raw) as (broken,):
            received = read_all(broken)
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.split()[1] == b"400"
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert b"secret" not in received
    assert "Traceback" not in server.log.read_text()


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
    options = ServeOptions("x")
    assert defaults["max_connections"] == options.limits.connections
    assert defaults["max_body_bytes_in_flight"] == options.max_body_bytes_in_flight
    numbers = f"{jsonio.MAX_STRINGS}, {jsonio.MAX_CONTAINERS}, {jsonio.MAX_VALUES}; {jsonio.DEPTH_LIMIT}"
    limits = ConnectionLimits()
    sizes = (f"{limits.head_bytes >> 10} KiB", f"{body.BODY_LIMIT >> 20} MiB", f"{FREE_BODY_BYTES >> 10} KiB")
    for stated in (numbers, *sizes, f"{limits.spare} more"):
        assert f" {stated}" in table
