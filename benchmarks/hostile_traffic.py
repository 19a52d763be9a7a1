"""An engine under five minutes of mixed hostile traffic, beside one honest client.

    python -m benchmarks.hostile_traffic [--seconds 300] [--model models/tangram-tiny] [--json FILE]

A `tangram-engine serve` on a free loopback port serves an honest client that asks for 8 tokens at a time, and a
prober of /health once in half a second: for 10 s alone, then beside all kinds of hostile clients, then alone again. All
of them share this machine's cores, so that latencies are those of the machine; counts are not.

The run fails if a request of the honest client is not answered with 200, if a probe fails, or if anything is left
in the engine afterwards: requests, blocks of the cache, bytes of bodies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.outside_client import NAME, Server, engine
from e2e.cluster.base import REPOSITORY
from tests.support.parser_bombs import BOMBS

QUIET_S = 10.0
HONEST = {"model": NAME, "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 8}
LONG = {"model": NAME, "prompt": "the", "max_tokens": 400, "stream": True, "ignore_eos": True}
JUNK = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS hello
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200,
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 3000,
)
REFUSED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Latencies:
    """Seconds that answers took, and what was not answered as it should."""

    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, object]:
        ordered = sorted(self.seconds) or [float("nan")]
        at = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 99)}
        rounded = {name: round(value, 3) for name, value in (at | {"max": ordered[-1]}).items()}
        return {"answered": len(self.seconds), **rounded, "failed": dict(self.failures)}


class Attack:
    """Hostile clients of a server, of every kind at once, and how often each began."""

    def __init__(self, server: Server, seed: int) -> None:
        self.host, self.port = "127.0.0.1", int(server.url.rpartition(":")[2])
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def kinds(self) -> list[tuple[int, Callable[[], Awaitable[None]]]]:
        """How many clients of each kind there are at once."""
        return [
            (8, self.leave_a_stream),
            (4, self.send_a_bomb),
            (4, self.send_junk),
            (60, self.idle),
            (60, self.idle_after_a_refusal),
            (16, self.send_a_slow_head),
            (8, self.send_a_slow_body),
            (4, self.read_slowly),
        ]

    async def run(self) -> None:
        """Until cancelled: each client begins again when it has ended."""
        async with asyncio.TaskGroup() as group:
            for number, kind in self.kinds():
                for _ in range(number):
                    group.create_task(self._repeat(kind))

    async def _repeat(self, kind: Callable[[], Awaitable[None]]) -> None:
        while True:
            self.counts[kind.__name__] += 1
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await kind()
            await asyncio.sleep(self.rng.uniform(0.01, 0.1))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    def _request(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        return head.encode() + b"\r\n\r\n" + body

    async def leave_a_stream(self) -> None:
        """Leave an answer at a random moment, every second time with a reset."""
        reader, writer = await self._connect()
        body = {**LONG, "n": self.rng.choice((1, 1, 1, 4, 16)), "logprobs": self.rng.choice((None, 5))}
        writer.write(self._request("/v1/completions", json.dumps(body).encode()))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rng.uniform(0.0, 2.0)):
                await reader.readexactly(self.rng.randint(1, 50_000))
        _end(writer, reset=self.rng.random() < 0.5)

    async def send_a_bomb(self) -> None:
        """Send a body that is made to cost a parser more than its bytes."""
        path, build = BOMBS[self.rng.choice(sorted(BOMBS))]
        await self._send(self._request(path, build(self.rng.choice((10_000, 300_000, 2_000_000)))), read_s=20)

    async def send_junk(self) -> None:
        """Send bytes that are no request."""
        await self._send(self.rng.choice(JUNK), read_s=2)

    async def idle(self) -> None:
        """Hold a connection without a byte."""
        await self._send(b"", read_s=self.rng.uniform(1, 90))

    async def idle_after_a_refusal(self) -> None:
        """Hold a connection on which one request was refused."""
        await self._send(REFUSED, read_s=self.rng.uniform(1, 90))

    async def send_a_slow_head(self) -> None:
        """Send a header a second."""
        _, writer = await self._connect()
        writer.write(b"GET /health HTTP/1.1\r\n")
        for number in range(60):
            writer.write(b"x-%d: y\r\n" % number)
            await writer.drain()
            await asyncio.sleep(1)
        _end(writer)

    async def send_a_slow_body(self) -> None:
        """Send a byte of a body a second."""
        _, writer = await self._connect()
        writer.write(
            self._request("/v1/completions", b"")[:-4].replace(b"th: 0", b"th: 100000") + b"\r\n\r\n{"
        )
        for _ in range(60):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(1)
        _end(writer)

    async def read_slowly(self) -> None:
        """Take a few bytes of a long answer every second."""
        reader, writer = await self._connect()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.write(self._request("/v1/completions", json.dumps({**LONG, "n": 8}).encode()))
        for _ in range(60):
            if not await reader.read(16):
                break
            await asyncio.sleep(1)
        _end(writer)

    async def _send(self, data: bytes, read_s: float) -> None:
        reader, writer = await self._connect()
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(read_s):
                while await reader.read(65_536):
                    pass
        finally:
            _end(writer)


def _end(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    if reset:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def ask(client: httpx.AsyncClient, seconds: float) -> Latencies:
    """Ask for a few tokens, again and again."""
    return await _repeatedly(lambda: client.post("/v1/chat/completions", json=HONEST), seconds, pause_s=0.2)


async def probe(client: httpx.AsyncClient, seconds: float) -> Latencies:
    """Ask /health as the kubelet does, each time on a connection of its own."""
    headers = {"Connection": "close"}
    return await _repeatedly(lambda: client.get("/health", headers=headers, timeout=5), seconds, pause_s=0.5)


async def _repeatedly(
    send: Callable[[], Awaitable[httpx.Response]], seconds: float, pause_s: float
) -> Latencies:
    found, end = Latencies(), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            answer = await send()
        except httpx.HTTPError as error:
            found.failures[type(error).__name__] += 1
        else:
            if answer.status_code == 200:
                found.seconds.append(time.monotonic() - began)
            else:
                found.failures[str(answer.status_code)] += 1
        await asyncio.sleep(pause_s)
    return found


async def measure(server: Server, seconds: float, seed: int) -> dict[str, object]:
    """Return what the honest client and the prober saw: before, beside and after the attack."""
    result: dict[str, object] = {}
    limits = httpx.Limits(max_keepalive_connections=1)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, limits=limits) as client:
        attack = Attack(server, seed)
        for phase, phase_s in (("before", QUIET_S), ("during", seconds), ("after", QUIET_S)):
            hostile = asyncio.create_task(attack.run()) if phase == "during" else None
            honest, probes = await asyncio.gather(ask(client, phase_s), probe(client, phase_s))
            if hostile is not None:
                hostile.cancel()
                await asyncio.gather(hostile, return_exceptions=True)
                await asyncio.sleep(3)
            result[phase] = {
                "honest": honest.summary(),
                "probes": probes.summary(),
                "resident_mib": _resident_mib(server.process.pid),
            }
        result["attack"] = dict(sorted(attack.counts.items()))
    left = ("vllm:num_requests_running", "vllm:num_requests_waiting", "tangram_engine_body_bytes")
    result["left"] = {name: server.counter(name) for name in left}
    result["log_bytes"] = server.log.stat().st_size
    return result


def _resident_mib(pid: int) -> int:
    """Return the resident memory of a process and its descendants."""
    tree, pids = 0, [pid]
    while pids:
        proc = Path("/proc") / str(pids.pop())
        with suppress(OSError):
            tree += int((proc / "statm").read_text().split()[1]) * resource.getpagesize()
            for task in (proc / "task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return tree >> 20


def problems(result: dict[str, object]) -> list[str]:
    """Return what must not have happened."""
    found = [
        f"{who} {phase}: {result[phase][who]['failed']}"
        for phase in ("before", "during", "after")
        for who in ("honest", "probes")
        if result[phase][who]["failed"]
    ]
    return found + [f"left: {name} {value}" for name, value in result["left"].items() if value]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--model", type=Path, default=REPOSITORY / "models" / "tangram-tiny")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with engine(args.model) as server:
        result = asyncio.run(measure(server, args.seconds, args.seed))
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    for problem in (found := problems(result)):
        print(f"FAILED {problem}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
