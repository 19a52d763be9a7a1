"""A client that leaves, at whatever stage, leaves nothing behind: no request, no KV block."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from tests.support.engine_process import EngineProcess, eventually

LONG = {"model": "tiny", "prompt": "the quick brown fox " * 5, "max_tokens": 400, "ignore_eos": True}


def send(server: EngineProcess, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A request on a connection of its own, whose answer nobody reads yet."""
    raw = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    )
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_leaving_during_decode_frees_the_blocks(stream: bool, n: int, start: Any) -> None:
    server = start(step_seconds=0.02)
    with send(server, LONG | {"stream": stream, "n": n}):
        eventually(lambda: server.metric("vllm:num_requests_running") == n, "running")
        assert server.metric("vllm:kv_cache_usage_perc") > 0
    eventually(server.quiet, "nothing left", seconds=1.0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") == n
    assert server.metric("vllm:generation_tokens_total") < n * 400


def test_leaving_in_the_queue_frees_the_place(start: Any) -> None:
    server = start("--max-num-seqs", "1", step_seconds=0.02)
    with send(server, LONG):
        eventually(lambda: server.metric("vllm:num_requests_running") == 1, "the first runs")
        with send(server, LONG), send(server, LONG | {"stream": True}):
            eventually(lambda: server.metric("vllm:num_requests_waiting") == 2, "two wait")
        eventually(lambda: server.metric("vllm:num_requests_waiting") == 0, "they left")
        assert server.metric("vllm:num_requests_running") == 1
    eventually(server.quiet, "nothing left")


def test_leaving_before_the_first_token_frees_the_blocks(start: Any) -> None:
    server = start(step_seconds=0.5)
    with send(server, LONG | {"stream": True}):
        eventually(lambda: server.get("/load").json()["server_load"] == 1, "accepted")
    eventually(lambda: server.get("/load").json()["server_load"] == 0, "left", seconds=0.4)
    eventually(server.quiet, "nothing left", seconds=2)


def test_leaving_in_the_middle_of_the_body_frees_the_handler(start: Any) -> None:
    server = start()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"model"'
        )
        eventually(lambda: server.get("/load").json()["server_load"] == 1, "reading")
    eventually(lambda: server.get("/load").json()["server_load"] == 0, "left")


def test_many_that_leave_at_random_times_leave_nothing(start: Any) -> None:
    server = start("--max-num-seqs", "8", step_seconds=0.003)
    connections = [send(server, LONG | {"stream": at % 2 == 0, "n": 1 + at % 3}) for at in range(40)]
    for at, connection in enumerate(connections):
        time.sleep(0.002 * (at % 7))
        connection.close()
    eventually(server.quiet, "nothing left")
    answer = server.complete("the quick", max_tokens=4)
    assert answer.json()["choices"][0]["text"] == "the quickthe quick"


def test_a_client_that_does_not_read_its_stream_is_ended_at_the_time_limit(start: Any) -> None:
    server = start("--max-request-seconds", "1", step_seconds=0.0005)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        # Logprobs make the events so large that they fill every buffer on the way.
        body = json.dumps(LONG | {"stream": True, "logprobs": 20, "n": 16, "max_tokens": 400}).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        eventually(lambda: server.get("/load").json()["server_load"] == 1, "accepted")
        eventually(lambda: server.get("/load").json()["server_load"] == 0, "ended", seconds=5)
    eventually(server.quiet, "nothing left")


async def test_a_client_that_leaves_at_the_end_of_its_stream_writes_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last write of a stream finds its client gone: that ends a handler with ConnectionError."""
    from aiohttp import web

    from tangram_engine.serve.http_responses import EventStream
    from tangram_http.pages import serve_pages
    from tangram_http.sockets import listening_socket

    ended = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        events = EventStream(request, {}, close=False)
        hold = events.send(b"{}")
        assert hold is not None
        await hold()
        while request.transport is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        ended.set()
        await events.done()
        raise AssertionError("the client has left")

    app = web.Application()
    app.router.add_get("/", stream)
    listening = listening_socket("127.0.0.1", 0)
    serving = await serve_pages(app, listening)
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"{}")
    writer.transport.abort()
    async with asyncio.timeout(30):
        await ended.wait()
    await serving.close()
    assert not caplog.records


async def test_answers_of_concurrent_clients_are_never_mixed_up(server: EngineProcess) -> None:
    import httpx

    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=60) as client:  # noqa: S501

        async def ask(number: int) -> None:
            body = {
                "model": "tiny",
                "prompt": [10 + number],
                "max_tokens": 20,
                "ignore_eos": True,
                "logprobs": 1,
            }
            answer = await client.post(f"{server.url}/v1/completions", json=body)
            tokens = answer.json()["choices"][0]["logprobs"]["tokens"]
            assert len(tokens) == 20
            assert len(set(tokens)) == 1
            seen.add(tokens[0])

        seen: set[str] = set()
        await asyncio.gather(*[ask(number) for number in range(60)])
    assert len(seen) == 60
