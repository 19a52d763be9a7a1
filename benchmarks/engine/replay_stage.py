"""Recorded arrivals replayed over HTTP: what the simulation of a replica is compared with.

The requests of the first minutes of the Azure conversation trace of 2023, faster by a factor per row; each
row writes the times of every request beside its figures (REPLAYED in the output directory).
"""

import asyncio
import csv
import gzip
import statistics
import time
from dataclasses import dataclass
from functools import partial

from benchmarks.engine.bench_rows import BenchmarkRow, MeasuredValue, Unavailable
from benchmarks.engine.engine_adapter import random_prompts
from benchmarks.engine.serve_stage import NAME, EngineServer
from benchmarks.engine.setting import ROOT, Setting
from benchmarks.engine.stream_client import stream

TRACE = ROOT / "operator" / "tangram" / "simulator" / "traces" / "azure2023_conv.csv.gz"
FACTORS = (1.0, 2.0, 2.6, 3.0, 3.4)
SECONDS = 60.0  # of each row, before what is under way ends


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of the trace."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


def rows(setting: Setting) -> list[BenchmarkRow]:
    """The rows of the stage."""
    server = EngineServer(setting)
    factors, seconds = (FACTORS, SECONDS) if not setting.tiny else ((1.0,), 1.0)
    found = [BenchmarkRow("server ready", 240, server.start)]
    found.append(
        BenchmarkRow("warm-up", 60, partial(replay, setting=setting, server=server, factor=1.0, seconds=5.0))
    )
    found += [
        BenchmarkRow(
            f"conversations x {factor:g}",
            180,
            partial(replay, setting=setting, server=server, factor=factor, seconds=seconds),
        )
        for factor in factors
    ]
    return [*found, BenchmarkRow("server ends", 60, server.stop)]


def recorded_requests(factor: float, seconds: float, longest: int) -> list[RecordedRequest]:
    """The first requests of the trace, `factor` times as fast, for `seconds`; cut at `longest` tokens in all."""
    requests = []
    with gzip.open(TRACE, "rt") as lines:
        for line in csv.DictReader(lines):
            arrival = float(line["arrival_s"]) / factor
            if arrival > seconds:
                break
            output = min(int(line["output_tokens"]), longest // 2)
            requests.append(
                RecordedRequest(arrival, min(int(line["input_tokens"]), longest - output), output)
            )
    return requests


def replay(
    _seconds: float, setting: Setting, server: EngineServer, factor: float, seconds: float
) -> MeasuredValue:
    """Output tokens per second of open arrivals; percentiles of TTFT and TPOT, and all of them as a list."""
    if not server.running():
        raise Unavailable("no server runs")
    requests = recorded_requests(factor, seconds, setting.sizes.max_model_len - 16)
    prompts = [
        random_prompts(1, request.input_tokens, setting.sizes.large.vocabulary, seed=number)[0]
        for number, request in enumerate(requests)
    ]
    begin = time.perf_counter()
    times = asyncio.run(_send(server.port, requests, prompts))
    spent = time.perf_counter() - begin
    ttft = sorted(first for first, _ in times)
    tpot = sorted(gap for _, gap in times if gap is not None)
    details: dict[str, object] = {"requests": len(requests), "seconds": spent}
    for name, values in (("TTFT", ttft), ("TPOT", tpot)):
        if values:
            details[f"{name} ms mean"] = 1e3 * statistics.fmean(values)
        for percentile in (50, 90, 99):
            if values:
                details[f"{name} ms p{percentile}"] = 1e3 * values[int(percentile / 100 * (len(values) - 1))]
    details["ms per request"] = [
        [round(1e3 * first, 1), None if gap is None else round(1e3 * gap, 2)] for first, gap in times
    ]
    return MeasuredValue(sum(request.output_tokens for request in requests) / spent, "tok/s", details)


async def _send(
    port: int, requests: list[RecordedRequest], prompts: list[list[int]]
) -> list[tuple[float, float | None]]:
    """Send each request at its time. Returns seconds to the first token and per token after it."""
    begin = time.perf_counter()

    async def one(request: RecordedRequest, prompt: list[int]) -> tuple[float, float | None]:
        await asyncio.sleep(max(0.0, begin + request.arrival_s - time.perf_counter()))
        times = await stream(port, NAME, prompt, request.output_tokens)
        gaps = request.output_tokens - 1
        return times.first, (times.last - times.first) / gaps if gaps else None

    return await asyncio.gather(*(one(r, p) for r, p in zip(requests, prompts, strict=True)))
