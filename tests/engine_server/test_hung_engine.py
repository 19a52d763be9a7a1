"""An engine process that hangs: probes turn red, requests are refused, and a drain still ends."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tangram_engine.serve.heartbeat import Heartbeat
from tests.support.engine_process import EngineProcess, eventually, launch

POLL_S = 0.01  # a hang is seen for at least a tick of the heartbeat, which is 0.1 s


def test_a_hung_engine_turns_both_probes_red_until_it_goes_on(start: Any) -> None:
    server = start("--step-timeout-seconds", "1")
    (engine,) = server.children()
    os.kill(engine, signal.SIGSTOP)
    eventually(lambda: server.get("/health").status_code == 503, "not healthy")
    health = server.get("/health").json()
    assert health["status"] == "hung"
    assert "has not answered" in health["reason"]
    assert server.get("/ready").status_code == 503
    assert server.metric("tangram_engine_heartbeat_silence_seconds") > 1
    refusal = server.complete("the", max_tokens=1)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "engine_hung")
    os.kill(engine, signal.SIGCONT)
    eventually(lambda: server.get("/health").status_code == 200, "healthy again")
    assert server.ready()
    assert server.complete("the", max_tokens=1).status_code == 200
    assert server.metric("tangram_engine_heartbeat_silence_seconds") == 0


@pytest.mark.parametrize("hangs", ["before the signal", "during the drain"])
def test_a_drain_with_a_hung_engine_ends_long_before_the_time_limit_of_requests(
    hangs: str, start: Any
) -> None:
    server = start(
        "--step-timeout-seconds", "1", "--drain-seconds", "0", "--max-request-seconds", "600",
        step_seconds=0.02,
    )  # fmt: skip
    (engine,) = server.children()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, "the quick", max_tokens=400)
        eventually(lambda: server.metric("vllm:num_requests_running") == 1, "running")
        os.kill(engine, signal.SIGSTOP)
        if hangs == "before the signal":
            eventually(lambda: server.get("/health").status_code == 503, "not healthy")
        begin = time.monotonic()
        server.terminate()
        assert server.wait(30) == 1
        assert time.monotonic() - begin < 20
        assert answer.result().json()["error"]["code"] == "engine_died"
    assert not Path(f"/proc/{engine}").exists()


def test_neither_a_long_start_nor_idleness_is_a_hang(served_model: Path, tmp_path: Path) -> None:
    fake = {"load_seconds": 2.0, "audit_seconds": 0.1}
    server = launch(served_model, tmp_path / "log", fake, "--step-timeout-seconds", "0.4")
    try:
        eventually(lambda: _status(server, "/health"), "listening", 60)
        while _status(server, "/ready") != 200:
            assert _status(server, "/health") == 200
            time.sleep(POLL_S)
        idle_until = time.monotonic() + 2  # longer than the limit, which is three warm-ups of 0.5 s
        while time.monotonic() < idle_until:
            assert _status(server, "/health") == 200
            time.sleep(POLL_S)
    finally:
        server.process.kill()
        server.process.wait()


def _status(server: EngineProcess, path: str) -> int:
    try:
        return server.get(path).status_code
    except httpx.TransportError:
        return 0


def test_silence_is_counted_in_ticks_and_one_ping_is_on_its_way() -> None:
    sent: list[int] = []
    beat = Heartbeat(sent.append, limit_s=3)
    assert beat.interval_s == 0.75
    for _ in range(5):
        beat.tick()
    assert (sent, beat.silent_s, beat.hung) == ([1], 3.0, False)
    beat.tick()
    assert beat.hung
    beat.answer(1)
    assert (beat.silent_s, beat.hung) == (0, False)
    beat.tick()
    assert sent == [1, 2]


def test_a_slow_answer_within_the_limit_is_no_hang() -> None:
    sent: list[int] = []
    beat = Heartbeat(sent.append, limit_s=60)
    for _ in range(100):
        for _ in range(50):
            beat.tick()
            assert not beat.hung
        beat.answer(sent[-1])


def test_an_answer_to_no_ping_is_refused() -> None:
    beat = Heartbeat(lambda number: None, limit_s=60)
    with pytest.raises(ValueError, match="ping 7"):
        beat.answer(7)
