"""Whether requests without a grammar cost this version's server more than an older one's, in one run on one machine.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.engine.versions --before /tmp/before [--streams 1 16] [--tokens 48] [--starts 4] [--runs 16]

Both servers run the model of the repository on the CPU, with one thread, side by side; short rounds of the same streamed
chats go to one and the other by turns, so that a noisy machine is as noisy for both. They are started anew several times,
because where a process lies in memory is chance, too. Counted is the CPU time of all processes of a server: API, text and
engine. The ratio is that of a pair of rounds; its median is printed with the quartiles, and beside it the ratio of the
cheapest rounds, which other work on the machine has made dearer the least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine.api import APIS, Stream, chat_model, cpu_seconds
from benchmarks.outside_client import Server
from e2e.cluster.apiserver import free_port
from e2e.cluster.base import REPOSITORY, wait_until

NAME = "versions"
READ_EVERY_S = 0.002
GOAL = 1.0


@dataclass
class Rounds:
    """CPU milliseconds a token, of rounds with so many streams: pair by pair, before and after."""

    streams: int
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ratios = [after / before for before, after in zip(self.before, self.after, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        before, after = statistics.median(self.before), statistics.median(self.after)
        least = min(self.after) / min(self.before)
        return f"{self.streams:>8}{before:>10.3f}{after:>10.3f}{median:>8.3f} [{low:.3f}, {high:.3f}]{least:>8.3f}"


@contextmanager
def served(source: Path, model: Path, log: Path) -> Iterator[Server]:
    """`tangram-engine serve` of the packages in a checkout, until the block ends."""
    port, folder = free_port(), source / "engine"
    command = [
        sys.executable,
        "-P",
        "-m",
        "tangram_engine",
        "serve",
        "--model",
        model,
        "--served-model-name",
        NAME,
    ]
    command += ["--host", "127.0.0.1", "--port", port, "--drain-seconds", 0]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    where = [sys.executable, "-P", "-c", "import tangram_engine; print(tangram_engine.__file__)"]
    found = subprocess.run(where, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(folder), found
    with log.open("wb") as sink:
        process = subprocess.Popen(list(map(str, command)), stdout=sink, stderr=sink, env=environment)
    try:
        server = Server(process, port, log)
        wait_until("the engine's readiness", server.ready, timeout_s=120)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def tree(root: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has ended
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def milliseconds(server: Server, streams: int, tokens: int, seed: int) -> float:
    """CPU time of the server for each token of a round."""
    port = int(server.url.rpartition(":")[2])
    path, fields = APIS["chat"]
    bodies = [
        {"model": NAME, "stream": True, **fields(tokens), "temperature": 0, "seed": 97 * seed + number}
        for number in range(streams)
    ]
    processes = tree(server.process.pid)
    made, begin = server.counter("vllm:generation_tokens_total"), sum(map(cpu_seconds, processes))
    running = [Stream(port, path, json.dumps(body).encode()) for body in bodies]
    while running:
        time.sleep(READ_EVERY_S)
        running = [stream for stream in running if not stream.read()]
    spent = sum(map(cpu_seconds, processes)) - begin
    made = server.counter("vllm:generation_tokens_total") - made
    assert made == streams * tokens, made
    return spent / made * 1e3


def measure(servers: tuple[Server, Server], rounds: Rounds, tokens: int, runs: int) -> None:
    for server in servers:
        milliseconds(server, rounds.streams, tokens, seed=0)  # warms up
    for number in range(runs):
        for which in (0, 1) if number % 2 else (1, 0):
            spent = milliseconds(servers[which], rounds.streams, tokens, seed=1 + number)
            (rounds.before, rounds.after)[which].append(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the older version")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--runs", type=int, default=16, help="pairs of rounds of each start")
    options = parser.parse_args()
    all_rounds = [Rounds(streams) for streams in options.streams]
    with tempfile.TemporaryDirectory() as scratch:
        model, log = chat_model(Path(scratch)), Path(scratch) / "log"
        for _ in range(options.starts):
            with (
                served(options.before.resolve(), model, log) as before,
                served(REPOSITORY, model, log) as after,
            ):
                for rounds in all_rounds:
                    measure((before, after), rounds, options.tokens, options.runs)
    print(
        f"{'streams':>8}{'before':>10}{'after':>10}{'ratio':>23}{'least':>8}   CPU ms of all processes for a token"
    )
    for rounds in all_rounds:
        print(rounds)
    print(f"goal: a ratio of at most {GOAL}")


if __name__ == "__main__":
    main()
