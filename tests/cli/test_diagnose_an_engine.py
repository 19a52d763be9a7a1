"""`tangram diagnose` reads the engine of this repository: the real one, on CPU, under load, over loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tangram.cli.diagnose import command
from tangram.cli.main import main
from tests.support.engine_process import ROOT, EngineProcess, engine_process, eventually

TINY = ROOT / "models" / "tangram-tiny"
PLACES = 2
CLIENTS = 6


@contextmanager
def under_load(engine: EngineProcess) -> Iterator[None]:
    """Three times as many clients as the engine has places, each with one request after the other."""
    stop = threading.Event()
    failures: list[Any] = []

    def ask(client: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            answer = engine.complete(f"client {client} asks {number}", max_tokens=40, ignore_eos=True)
            if answer.status_code != 200:
                failures.append(answer.text)
                return

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: engine.metric("vllm:num_requests_waiting") > 0, "a queue")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.slow
def test_an_engine_with_too_few_places_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--max-num-seqs", str(PLACES), "--kv-cache-bytes", str(64 << 20))
    with engine_process(TINY, tmp_path / "log", *flags) as engine, under_load(engine):
        began = engine.metric("vllm:generation_tokens_total")
        assert main(["diagnose", "--url", engine.url, "-o", "json"]) == 0
        made = engine.metric("vllm:generation_tokens_total") - began
    found = json.loads(capsys.readouterr().out)
    bound, phase, pressure, policy = found["answers"]
    numbers = {each["name"]: each["value"] for answer in found["answers"] for each in answer["numbers"]}

    assert found["model"] == "tiny"
    assert 15 <= found["seconds"] < 20
    assert phase["verdict"] == "queue", "four of six requests wait at any time"
    assert numbers["queue per request"] > numbers["decode per request"] > numbers["prefill per request"]
    assert numbers["queue per request"] == pytest.approx(2 * numbers["decode per request"], rel=0.5)
    assert pressure["verdict"] == "low"
    assert numbers["preemptions in between"] == 0
    assert policy["verdict"] == "held by sequence limit"
    assert bound["verdict"] == "not compute", "two tokens per step"
    assert 1 <= numbers["tokens per step, mean"] <= PLACES + 1
    assert numbers["steps"] * numbers["tokens per step, mean"] <= made * 1.5
    assert found["notes"] == []


def test_an_engine_without_traffic_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "sleep", lambda _: None)  # nothing will change in the meantime
    with engine_process(TINY, tmp_path / "log", "--kv-cache-bytes", str(64 << 20)) as engine:
        assert main(["diagnose", "--url", f"{engine.url}/metrics"]) == 0
    out = capsys.readouterr().out
    assert out.count("there was no traffic between the readings") == 3
    assert "3. KV pressure?  low" in out
