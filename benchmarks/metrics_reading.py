"""Processor time of one round of reading metrics: all LLMDeployments together, and one by one.

    python -m benchmarks.metrics_reading --models 200

The Prometheus is a stand-in in a process of its own, on loopback: it answers every query with a row for each
pod that the query names, as a Prometheus would that has scraped them. Its time does not count. One by one, the
queries are those of `tangram.scaling.queries.for_deployment`.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.sizing_time import machine
from tangram.fleet import Intent, MIGPolicy, Objective
from tangram.scaling import queries, sample_from
from tangram.shell.measure.metrics_reader import MetricsReader, scalar
from tangram.shell.measure.prometheus import Prometheus
from tangram.shell.settings import PrometheusSettings
from tests.support import grouped_answers

TTFT_MS = (250, 500, 1000, 2500, 5000)
TPOT_MS = (25, 50, 75, 100)


def fleet(models: int, replicas: int) -> tuple[tuple[Intent, ...], dict[str, tuple[str, ...]]]:
    """LLMDeployments of twenty namespaces with common objectives, and their pods."""
    rng = random.Random(1)
    intents, pods = [], {}
    for number in range(models):
        name = f"llama-3-8b-instruct-{number}"
        intents.append(
            Intent(
                uid=f"uid-{number}",
                namespace=f"team-{number % 20}",
                name=name,
                generation=1,
                created_at=0.0,
                model_uri="image:///m",
                served_name=f"meta-llama/{name}",
                max_model_len=None,
                max_running_requests=64,
                ttft=Objective(rng.choice((90, 95, 99)), rng.choice(TTFT_MS)),
                tpot=Objective(90, rng.choice(TPOT_MS)),
                allowed_skus=(),
                denied_skus=(),
                mig=MIGPolicy.ALLOWED,
                min_replicas=1,
                max_replicas=8,
                paused=False,
            )
        )
        pods[f"uid-{number}"] = tuple(f"{name}-7c9f8d6b5-{rng.randrange(16**5):05x}" for _ in range(replicas))
    return tuple(intents), pods


def value(field: str, _model_name: str) -> str | None:
    """Some number of a dozen digits; all engines count arrivals."""
    return None if field.startswith("pods_without") else "0.9163846153846"


def serve(names: dict[str, tuple[str, str]], port: Any) -> None:
    """Answer queries until the process ends."""

    async def query(request: web.Request) -> web.Response:
        promql = str((await request.post())["query"])
        if promql == "time()":
            result = {"status": "success", "data": {"resultType": "scalar", "result": [100.0, "100"]}}
            return web.json_response(result)
        if "label_replace" not in promql:
            one = {"metric": {}, "value": [100.0, "0.9"]}
            return web.json_response(grouped_answers.answer([one]))
        document = grouped_answers.answer(grouped_answers.rows(promql, names, value))
        return web.json_response(text=json.dumps(document, separators=(",", ":")))  # as Prometheus writes it

    async def run() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/api/v1/query", query)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def one_by_one(
    settings: PrometheusSettings, intents: tuple[Intent, ...], pods: dict[str, tuple[str, ...]]
) -> None:
    """Ask for each field of each LLMDeployment by a query of its own, eight at a time."""
    prometheus, slots = Prometheus(settings), asyncio.Semaphore(8)
    await prometheus.refresh()

    async def ask(promql: str) -> float | str | None:
        async with slots:
            return scalar(await prometheus.query(promql, 100.0))

    async def read(intent: Intent) -> None:
        asked = queries.for_deployment(
            intent.namespace, intent.served_name, pods[intent.uid], intent.objectives, settings.window_seconds
        )
        values = await asyncio.gather(*map(ask, asked.values()))
        sample_from(dict(zip(asked, values, strict=True)), 100.0)

    await asyncio.gather(*map(read, intents))
    await prometheus.close()


async def measure(url: str, arguments: argparse.Namespace) -> None:
    intents, pods = fleet(arguments.models, arguments.replicas)
    settings = PrometheusSettings(url=url, timeout_seconds=60)
    reader = MetricsReader(settings, now=lambda: 100.0)
    await reader.read(intents, pods)
    assert all(reader.reading(intent).problem == "" for intent in intents)
    together = []
    for _ in range(arguments.rounds):
        begin = time.process_time()
        await reader.read(intents, pods)
        together.append(time.process_time() - begin)
    await reader.close()
    found: dict[str, Any] = {"together_s": together}
    print(f"{arguments.models} LLMDeployments with {arguments.replicas} pods each, CPU seconds of a round")
    print(
        f"  together:   {statistics.median(together):.3f} (median of {len(together)}, at most {max(together):.3f})"
    )
    if not arguments.together:
        begin = time.process_time()
        await one_by_one(settings, intents, pods)
        found["one_by_one_s"] = time.process_time() - begin
        print(f"  one by one: {found['one_by_one_s']:.3f}")
    if arguments.json:
        found |= {"models": arguments.models, "replicas": arguments.replicas, "machine": machine()}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=2, help="pods of each LLMDeployment")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--together", action="store_true", help="leave the slow comparison out")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    intents, pods = fleet(arguments.models, arguments.replicas)
    names = {pod: (one.namespace, one.served_name) for one in intents for pod in pods[one.uid]}
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=serve, args=(names, port), daemon=True)
    server.start()
    try:
        asyncio.run(measure(f"http://127.0.0.1:{port.get(timeout=60)}", arguments))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
