"""Too much work, the end of a pod's life, and an engine that dies: clients are told, and nothing is cut."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest
from aiohttp import web

from tangram_engine.serve.api import Backend
from tangram_engine.serve.app import StatusEndpoints
from tangram_engine.serve.lifecycle import Lifecycle, State
from tests.support.engine_process import EngineProcess, eventually, launch

pytestmark = pytest.mark.slow


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


def test_a_full_queue_answers_429_with_retry_after_and_serves_the_rest(
    start: Any, pool: ThreadPoolExecutor
) -> None:
    server = start("--max-num-seqs", "2", "--max-queued-requests", "3", step_seconds=0.02)
    futures = [pool.submit(server.complete, "the", max_tokens=30) for _ in range(12)]
    answers = [future.result() for future in futures]
    refused = [answer for answer in answers if answer.status_code == 429]
    served = [answer for answer in answers if answer.status_code == 200]
    assert len(served) + len(refused) == 12
    assert len(served) >= 5
    assert refused
    assert all(answer.json()["error"]["code"] == "queue_full" for answer in refused)
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert server.metric("vllm:admission_rejections_total") == len(refused)
    assert server.metric("tangram:requests_received_total") == 12
    assert server.metric("tangram:requests_rejected_total", reason="queue_full") == len(refused)
    eventually(server.quiet, "nothing left")
    assert server.complete("the", max_tokens=1).status_code == 200


def test_n_counts_for_the_queue_limit_and_its_places_return(start: Any) -> None:
    server = start("--max-num-seqs", "1", "--max-queued-requests", "1")
    assert server.complete("the", n=3, max_tokens=1).status_code == 429
    for _ in range(3):
        assert server.complete("the", n=2, max_tokens=1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_ends_with_the_error_timeout(stream: bool, start: Any) -> None:
    server = start("--max-request-seconds", "0.3", step_seconds=0.02)
    if stream:
        with server.stream("the", max_tokens=400) as lines:
            data = [line.removeprefix("data: ") for line in lines if line]
        assert data[-1] == "[DONE]"
        error = json.loads(data[-2])["error"]
        assert json.loads(data[0])["choices"][0]["text"] == "the"
    else:
        answer = server.complete("the", max_tokens=400)
        assert answer.status_code == 504
        assert answer.headers["x-should-retry"] == "false"
        assert server.metric("tangram:requests_rejected_total") == 0  # it was accepted
        error = answer.json()["error"]
    assert error["code"] == "timeout"
    eventually(server.quiet, "nothing left")


def test_before_the_engine_is_warm_the_server_lives_but_is_not_ready(
    served_model: Path, tmp_path: Path
) -> None:
    server = launch(served_model, tmp_path / "log", {"load_seconds": 1.0})
    try:
        eventually(lambda: reachable(server), "listening")
        assert server.get("/health").status_code == 200
        assert server.get("/ready").status_code == 503
        answer = server.complete("the")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert "Retry-After" in answer.headers
        assert server.metric("tangram:requests_rejected_total", reason="not_ready") == 1
        eventually(server.ready, "ready")
        assert server.complete("the", max_tokens=1).status_code == 200
    finally:
        server.process.kill()
        server.process.wait()


def test_sigterm_while_loading_exits_at_once(served_model: Path, tmp_path: Path) -> None:
    server = launch(served_model, tmp_path / "log", {"load_seconds": 60.0})
    try:
        eventually(lambda: reachable(server), "listening")
        eventually(server.children, "engine process started")
        server.terminate()
        assert server.wait(6) == 0
    finally:
        server.process.kill()
        server.process.wait()


def reachable(server: EngineProcess) -> bool:
    import httpx

    try:
        return server.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_drain_cuts_no_accepted_request_and_accepts_for_a_while(
    start: Any, pool: ThreadPoolExecutor
) -> None:
    server = start("--drain-seconds", "0.8", step_seconds=0.02)
    before = [pool.submit(server.complete, "the quick", max_tokens=120, n=2) for _ in range(4)]
    streamed = pool.submit(lambda: read_stream(server, 120))
    eventually(lambda: server.metric("vllm:num_requests_running") == 9, "all running")
    server.terminate()
    eventually(lambda: server.get("/ready").status_code == 503, "not ready at once", seconds=0.5)
    late = pool.submit(server.complete, "the", max_tokens=100)
    assert server.get("/health").status_code == 200
    eventually(lambda: server.complete("the", max_tokens=1).status_code == 503, "refusing")
    refusal = server.complete("the", max_tokens=1)
    assert refusal.json()["error"]["code"] == "draining"
    assert refusal.headers["Retry-After"]
    assert refusal.headers["Connection"] == "close"
    assert server.get("/health").status_code == 200
    for future in [*before, late]:
        answer = future.result()
        assert answer.status_code == 200
        assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
    assert streamed.result() == "the quick" * 60
    assert server.wait() == 0
    assert "Traceback" not in server.log.read_text()


def read_stream(server: EngineProcess, tokens: int) -> str:
    with server.stream("the quick", max_tokens=tokens) as lines:
        data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in data[:-1])


def test_an_idle_server_leaves_after_its_drain_time_with_zero(start: Any) -> None:
    server = start("--drain-seconds", "0.2")
    children = server.children()
    assert len(children) == 1
    begin = time.monotonic()
    server.terminate()
    assert server.wait() == 0
    assert 0.2 <= time.monotonic() - begin < 15
    assert "accepting for 0.2 s more" in server.log.read_text()
    assert not Path(f"/proc/{children[0]}").exists()


@pytest.mark.parametrize("how", ["killed", "crashed"])
def test_a_dead_engine_fails_its_requests_clearly_and_ends_the_server(
    how: str, start: Any, pool: ThreadPoolExecutor
) -> None:
    server = start(step_seconds=0.02, crash_token=9)
    whole = pool.submit(server.complete, "the quick", max_tokens=400)
    lines_read = pool.submit(lambda: list(stream_lines(server)))
    eventually(lambda: server.metric("vllm:num_requests_running") == 2, "both running")
    begin = time.monotonic()
    if how == "killed":
        os.kill(server.children()[0], signal.SIGKILL)
    else:
        assert server.complete([9], max_tokens=1).status_code == 503
    answer = whole.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    data = lines_read.result()
    assert json.loads(data[-2])["error"]["code"] == "engine_died"
    assert server.wait(20) == 1
    assert time.monotonic() - begin < 20  # without a look at the engine, as long as a step may take
    if how == "crashed":
        message = answer.json()["error"]["message"]
        assert message.endswith("(RuntimeError: CUDA error: an illegal memory access was encountered).")


def test_a_server_whose_engine_died_is_not_healthy_until_it_ends() -> None:
    lifecycle = Lifecycle(1)
    status = StatusEndpoints(cast("Backend", SimpleNamespace(lifecycle=lifecycle)))
    request = cast("web.Request", None)
    assert asyncio.run(status.health(request)).status == 200
    lifecycle.state = State.FAILED
    assert asyncio.run(status.health(request)).status == 503


def test_an_engine_that_cannot_start_says_why_in_one_line(served_model: Path, tmp_path: Path) -> None:
    server = launch(served_model, tmp_path / "log", {"start_error": "NVIDIA X (sm_75) has no bfloat16"})
    try:
        assert server.wait(30) == 1
    finally:
        server.process.kill()
        server.process.wait()
    log = server.log.read_text()
    assert "The engine process failed (StartError: NVIDIA X (sm_75) has no bfloat16)." in log
    assert "Traceback" not in log


def stream_lines(server: EngineProcess) -> Iterator[str]:
    with server.stream("the quick", max_tokens=400) as lines:
        yield from (line.removeprefix("data: ") for line in lines if line)


def test_an_engine_whose_books_do_not_balance_ends_when_it_is_idle(start: Any) -> None:
    server = start(unbalanced=True)

    assert server.complete("the quick brown fox", max_tokens=2).status_code == 200

    assert server.wait(10) != 0
    assert "block 7: 1 references, 0 holders" in server.log.read_text()


def test_the_openai_client_sees_a_dead_engine_as_an_error_in_the_stream(start: Any) -> None:
    import httpx

    server = start(step_seconds=0.02)
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0) as client,
    ):
        stream = client.completions.create(model="tiny", prompt="the", max_tokens=400, stream=True)
        next(iter(stream))
        os.kill(server.children()[0], signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine process failed"):
            list(stream)
    assert server.wait(5) == 1


def test_a_killed_server_leaves_no_engine_process_behind(start: Any) -> None:
    server = start(step_seconds=0.02)
    (child,) = server.children()
    server.process.kill()
    server.wait()
    eventually(lambda: not Path(f"/proc/{child}").exists(), "engine process gone")


def test_a_refused_checkpoint_ends_the_server_with_three(served_model: Path, tmp_path: Path) -> None:
    for model, fake in (
        (tmp_path / "none", {}),
        (served_model, {"refuse": "the weights are of another model"}),
    ):
        server = launch(model, tmp_path / "log", fake)
        try:
            assert server.wait(30) == 3
        finally:
            server.process.kill()
            server.process.wait()
        assert "Traceback" not in server.log.read_text() or fake
        assert fake.get("refuse", "does not exist") in server.log.read_text()
