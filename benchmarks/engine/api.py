"""Streamed tokens that one core of the API process carries: steps of a fake engine to many clients at once.

    python -m benchmarks.engine.api [--streams 64 256] [--tokens 400] [--runs 3] [--apis chat responses] [--json FILE]

A `tangram-engine serve` runs over the tests' fake engine, which repeats the prompt. Each stream is one request on a
connection of its own: a chat, or what asks for the same in another API. The runs of the APIs take turns. Counted is
the CPU time of the API process alone, with all of its threads: in production the engine process and the clients have
other cores. The client looks at its sockets every 5 ms instead of waiting for them, because a write to a socket of this
machine pays for waking the process that waits for it, and a write to another machine does not. Two speeds of the engine:

    paced     a step every 20 ms, so that no two steps come together: one token a stream, one write a token
    flat out  the next step as soon as the socket has taken the last
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.engine_process import EngineProcess, engine_process

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "tangram-tiny"
PROMPT = "The quick brown fox jumps over the lazy dog; 1 + 1 = 2, and a café is no tea house. " * 4
SPEEDS = {"paced": 0.02, "flat out": 0.0}  # seconds a step
PROMPTS_AT_ONCE = 32  # the text process has two workers, and a prompt that waits for long is refused
READ_EVERY_S = 0.005
END = b"\r\n0\r\n\r\n"
MESSAGES = [{"role": "user", "content": PROMPT}]
# Of each API: its path, and a body for so many tokens.
APIS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "chat": (
        "/v1/chat/completions",
        lambda tokens: {"messages": MESSAGES, "max_tokens": tokens, "ignore_eos": True},
    ),
    "responses": (
        "/v1/responses",
        lambda tokens: {"input": PROMPT, "max_output_tokens": tokens, "ignore_eos": True},
    ),
    "messages": ("/v1/messages", lambda tokens: {"messages": MESSAGES, "max_tokens": tokens}),
}
EVENTS_AROUND = 10  # at most, beside one of each token
GOAL = 20_000  # tokens per second of one core


@dataclass(frozen=True)
class Result:
    api: str
    speed: str
    streams: int
    tokens: int
    tokens_per_cpu_second: list[float]
    tokens_per_second: list[float]


class Stream:
    """One request on a connection of its own, read without waiting."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)
        head = f"Host: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(f"POST {path} HTTP/1.1\r\n{head}".encode() + body)
        self._tail = b""
        self.events = 0

    def read(self) -> bool:
        """Take what has arrived; whether the answer is complete."""
        try:
            while True:
                data = self._socket.recv(1 << 16)
                if not data:
                    raise ConnectionError(self._tail.decode())
                self.events += data.count(b"data: {")
                self._tail = (self._tail + data)[-400:]
        except BlockingIOError:
            pass
        if not self._tail.endswith(END):
            return False
        self._socket.close()
        return True


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, without its children."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def load(server: EngineProcess, api: str, streams: int, tokens: int) -> tuple[float, float]:
    """Seconds of the API process's CPU and of the wall that `streams` answers of `tokens` tokens take."""
    path, fields = APIS[api]
    body = json.dumps({"model": server.name, "stream": True, **fields(tokens)}).encode()
    cpu, begin = cpu_seconds(server.process.pid), time.perf_counter()
    started: list[Stream] = []
    running: list[Stream] = []
    while running or len(started) < streams:
        time.sleep(READ_EVERY_S)
        running = [stream for stream in running if not stream.read()]
        waiting = sum(not stream.events for stream in running)
        new = [
            Stream(server.port, path, body)
            for _ in range(min(PROMPTS_AT_ONCE - waiting, streams - len(started)))
        ]
        started += new
        running += new
    cpu, wall = cpu_seconds(server.process.pid) - cpu, time.perf_counter() - begin
    events = [stream.events for stream in started]
    # At least the opening, and an event for almost every token: some end in the middle of a character.
    assert all(tokens / 2 < count <= tokens + EVENTS_AROUND for count in events), events
    return cpu, wall


def chat_model(folder: Path) -> Path:
    """The model of the repository with a chat template, which it has not been trained on."""
    model = folder / "model"
    shutil.copytree(MODEL, model)
    (model / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    return model


def measure(model: Path, log: Path, apis: list[str], streams: int, tokens: int, runs: int) -> list[Result]:
    results = []
    for speed, step_seconds in SPEEDS.items():
        fake = {"step_seconds": step_seconds, "max_model_len": 4096, "vocab_size": 8192}
        flags = ("--max-num-seqs", str(streams), "--max-connections", str(2 * streams + 16))
        with engine_process(model, log, *flags, fake=fake) as server:
            for api in apis:
                load(server, api, streams, 20)  # warms up both sides
            rounds = [[load(server, api, streams, tokens) for api in apis] for _ in range(runs)]
        count = streams * tokens
        for api, taken in zip(apis, zip(*rounds, strict=True), strict=True):
            rates = [count / cpu for cpu, _ in taken], [count / wall for _, wall in taken]
            results.append(Result(api, speed, streams, tokens, *rates))
    return results


def table(results: list[Result]) -> str:
    lines = [f"{'API':<12}{'engine':<10}{'streams':>8}{'tok/s of one core':>24}{'tok/s here':>16}"]
    for one in results:
        cpu, wall = one.tokens_per_cpu_second, one.tokens_per_second
        median = f"{statistics.median(cpu):.0f} [{min(cpu):.0f}, {max(cpu):.0f}]"
        lines.append(
            f"{one.api:<12}{one.speed:<10}{one.streams:>8}{median:>24}{statistics.median(wall):>16.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--apis", nargs="+", default=["chat"], choices=APIS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = chat_model(Path(scratch))
        results = [
            result
            for streams in options.streams
            for result in measure(
                model, Path(scratch) / "log", options.apis, streams, options.tokens, options.runs
            )
        ]
    print(table(results))
    print(f"goal: {GOAL} tokens per second of one core")
    if options.json:
        document = {
            "python": platform.python_version(),
            "goal": GOAL,
            "results": [asdict(one) for one in results],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
