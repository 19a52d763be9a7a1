"""What the gateway adds to a request, beside the direct path in the same run.

    python -m benchmarks.gateway [--seconds 4] [--json FILE]

A real Envoy with the chart's configuration (one worker thread), a picker process, and four replicas that answer at
once. Direct requests go to one replica. Client, replicas, Envoy and picker share this machine's cores; processor times
are those of the processes of Envoy and of the picker alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from e2e.cluster import binaries
from tests.chart.conftest import Helm
from tests.gateway.conftest import ENABLED
from tests.support.front_door import FrontDoor, bootstrap_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CHAT = "/v1/chat/completions"
SHORT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
LONG = {"model": "chat", "messages": [{"role": "user", "content": "word " * 80_000}]}  # about 100,000 tokens
STREAMS, CHUNKS_PER_S = 50, 20


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Measured:
    """Processor seconds of the picker and of Envoy within a block."""

    def __init__(self, door: FrontDoor) -> None:
        assert door.picker is not None
        assert door.envoy is not None
        self._pids = (door.picker.pid, door.envoy.pid)
        self.picker_s = self.envoy_s = 0.0

    def __enter__(self) -> Measured:
        self._before = [processor_s(pid) for pid in self._pids]
        return self

    def __exit__(self, *_: object) -> None:
        self.picker_s, self.envoy_s = (
            processor_s(pid) - before for pid, before in zip(self._pids, self._before, strict=True)
        )


def percentile_ms(times_s: list[float], percent: int) -> float:
    return round(statistics.quantiles(times_s, n=100, method="inclusive")[percent - 1] * 1e3, 2)


async def timed(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    async with session.post(url + CHAT, json=body) as response:
        await response.read()
        assert response.status == 200, await response.text()
    return time.perf_counter() - began


async def one_by_one(url: str, body: dict[str, Any], count: int) -> list[float]:
    async with aiohttp.ClientSession() as session:
        await timed(session, url, body)
        return [await timed(session, url, body) for _ in range(count)]


async def open_loop(url: str, rate: float, seconds: float) -> list[float]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began, tasks = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(timed(session, url, SHORT)))
        return await asyncio.gather(*tasks)


async def streams(url: str, seconds: float) -> list[float]:
    """Return the gaps between chunks, less the pace of the replica."""
    count = int(seconds * CHUNKS_PER_S)
    body = SHORT | {"stream": True, "max_tokens": count, "user": str(1 / CHUNKS_PER_S)}

    async def read(session: aiohttp.ClientSession) -> list[float]:
        async with session.post(url + CHAT, json=body) as response:
            lines = response.content
            times = [time.perf_counter() async for line in lines if line.startswith(b"data: {")]
        return [later - earlier - 1 / CHUNKS_PER_S for earlier, later in pairwise(times)]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        gaps = await asyncio.gather(*(read(session) for _ in range(STREAMS)))
    return [gap for each in gaps for gap in each]


def compare(
    door: FrontDoor, direct: str, load: Callable[[str], Awaitable[list[float]]], percents: tuple[int, ...]
) -> dict[str, float]:
    """Run a load directly and through the gateway."""
    alone = asyncio.run(load(direct))
    with Measured(door) as used:
        through = asyncio.run(load(door.url))
    row: dict[str, float] = {"requests or chunks": len(through)}
    for percent in percents:
        row[f"direct p{percent} ms"] = percentile_ms(alone, percent)
        row[f"gateway p{percent} ms"] = percentile_ms(through, percent)
    row["picker ms each"] = round(used.picker_s / len(through) * 1e3, 3)
    row["Envoy ms each"] = round(used.envoy_s / len(through) * 1e3, 3)
    return row


def measure(door: FrontDoor, seconds: float) -> dict[str, dict[str, float]]:
    replicas = door.serve("bench", "chat", "a", "b", "c", "d")
    direct = f"http://{replicas[0].address}"
    with Measured(door) as idle:
        time.sleep(seconds)
    return {
        "one connection, one by one": compare(
            door, direct, lambda url: one_by_one(url, SHORT, 300), (50, 99)
        ),
        "100k tokens, one by one": compare(door, direct, lambda url: one_by_one(url, LONG, 30), (50, 99)),
        "200 requests/s": compare(door, direct, lambda url: open_loop(url, 200, seconds), (50, 99)),
        f"{STREAMS} streams x {CHUNKS_PER_S} chunks/s": compare(
            door, direct, lambda url: streams(url, seconds), (50, 99)
        ),
        "idle": {
            "picker cores": round(idle.picker_s / seconds, 3),
            "Envoy cores": round(idle.envoy_s / seconds, 3),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        objects = Helm(binaries.need("helm"), Path(folder)).objects(ENABLED)
        with FrontDoor(bootstrap_of(objects), Path(folder)) as door:
            rows = measure(door, args.seconds)
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{key} {value:g}" for key, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
