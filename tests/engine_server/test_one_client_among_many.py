"""What one client asks for, or does not read, costs others nothing and the server no more than a bound."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_engine.serve.answers.deltas import Delta
from tangram_engine.serve.generation import TokenLogprob
from tangram_engine.serve.http import jsonio
from tangram_engine.serve.replies import Chat, Completion
from tangram_engine.serve.text.tokenizer import TextTools, load_tokenizer
from tests.support.engine_process import EngineProcess, eventually

TEXTS = st.lists(st.sampled_from(["the ", "quick", "\U0001f389", " ", "é", "zzz"])).map("".join)
LARGE = {"model": "tiny", "prompt": ["the quick brown"] * 32, "max_tokens": 400, "logprobs": 20}


@pytest.fixture(scope="module")
def tools(served_model: Path) -> TextTools:
    return load_tokenizer(served_model)


def test_other_threads_run_while_a_long_text_is_tokenized(tools: TextTools) -> None:
    ticks = 0
    tokenized = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not tokenized.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    before = ticks
    tools.encode("lorem ipsum " * 50_000)
    during = ticks - before
    tokenized.set()
    ticker.join()
    assert during > 10


@settings(deadline=None)
@given(text=TEXTS, repeat=st.integers(1, 3000))
def test_no_text_that_fits_is_said_to_exceed(tools: TextTools, text: str, repeat: int) -> None:
    text *= repeat
    tokens = len(tools.encode(text, add_special_tokens=False))
    assert not tools.exceeds(text, max(tokens, 1))


def test_what_exceeds_is_known_after_a_part_of_the_text(tools: TextTools) -> None:
    begin = time.process_time()
    tools.encode("lorem ipsum " * 50_000)
    whole = time.process_time() - begin
    begin = time.process_time()
    assert tools.exceeds("lorem ipsum " * 50_000, 512)
    assert time.process_time() - begin < whole / 4


def test_a_text_far_over_the_bound_is_not_counted(server: EngineProcess) -> None:
    answer = server.post("/tokenize", {"prompt": "z" * 2_000_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_a_penalty_that_would_overflow_logits_is_refused(server: EngineProcess) -> None:
    answer = server.complete("the", max_tokens=1, repetition_penalty=1e-300)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "repetition_penalty")


def begin_large(server: EngineProcess, **fields: Any) -> socket.socket:
    """Ask for some megabytes and read none of them."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps(LARGE | fields).encode()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return connection


def read_end(connection: socket.socket) -> bytes:
    """Read to the end, and return the last bytes: to join megabytes from small pieces takes seconds."""
    end = b""
    while data := connection.recv(1 << 20):
        end = (end + data)[-100:]
    return end


def test_a_drain_waits_until_a_slow_client_has_its_answer(start: Any) -> None:
    """A server each for a whole answer and for a stream: neither waits for the other."""
    ends = {False: b"}]}", True: b"data: [DONE]\n\n\r\n0\r\n\r\n"}
    servers = {stream: start("--drain-seconds", "0") for stream in ends}
    with ExitStack() as stack:
        connections = {
            stream: stack.enter_context(begin_large(server, stream=stream))
            for stream, server in servers.items()
        }
        for connection in connections.values():
            connection.recv(100)
        for server in servers.values():
            server.terminate()
        time.sleep(3)  # longer than a farewell
        received = {stream: read_end(connection) for stream, connection in connections.items()}
    assert {stream: received[stream][-len(end) :] for stream, end in ends.items()} == ends
    assert [server.wait() for server in servers.values()] == [0, 0]


def test_a_whole_answer_that_nobody_reads_is_given_up_at_the_time_limit(start: Any) -> None:
    server = start("--max-request-seconds", "5")
    with begin_large(server) as connection:
        connection.recv(100)
        assert server.get("/load").json()["server_load"] == 1
        eventually(lambda: server.get("/load").json()["server_load"] == 0, "given up", seconds=10)
        assert not read_end(connection).endswith(b"}]}")
    eventually(server.quiet, "nothing left")
    assert "Traceback" not in server.log.read_text()


def test_a_large_answer_is_the_same_as_its_parts(server: EngineProcess) -> None:
    large = server.complete(["the quick"] * 8, max_tokens=100, logprobs=20).json()
    small = server.complete("the quick", max_tokens=100, logprobs=20).json()
    assert [choice["index"] for choice in large["choices"]] == list(range(8))
    assert all(choice | {"index": 0} == small["choices"][0] for choice in large["choices"])
    assert large["usage"]["completion_tokens"] == 800


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=200) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=300,
)


@given(value=JSON)
def test_json_in_pieces_is_the_same_json(value: Any) -> None:
    assert jsonio.dumps_in_pieces(value) == jsonio.dumps(value)


def test_no_part_of_a_large_answer_is_encoded_in_one_long_call(
    tools: TextTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    class Recording(json.JSONEncoder):
        def encode(self, value: Any) -> str:
            text = super().encode(value)
            lengths.append(len(text))
            return text

    monkeypatch.setattr(jsonio, "_ENCODER", Recording(separators=(",", ":")))
    top = tuple((token, -1.0) for token in range(20))
    parts = [Delta(0, "x", (TokenLogprob(5, -1.0, top, at),)) for at in range(2000)]
    for dialect in (Chat, Completion):
        lengths.clear()
        raw = dialect("tiny", tools, usage_in_chunks=False).whole([parts], {})
        assert len(raw) > 400_000
        assert max(lengths) < 100_000


def test_sigterm_before_anything_is_loaded_is_not_lost(tmp_path: Path) -> None:
    """As process 1 of a container, a process without a handler ignores SIGTERM."""
    code = (
        "import os, signal, sys; from tangram_engine import __main__ as command\n"
        "sys.modules['tangram_engine.serve.server'] = None\n"  # the import fails where the long ones begin
        "try: command.main(['serve', '--model', '.', '--served-model-name', 'x'])\n"
        "except ImportError: pass\n"
        "os.kill(os.getpid(), signal.SIGTERM)"
    )
    command = [sys.executable, "-P", "-c", code]
    assert subprocess.run(command, check=False, timeout=20).returncode == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # nothing of it in this process
