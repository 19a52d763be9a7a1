"""Processor time and memory of reading metrics from the pods themselves, without a Prometheus.

    python -m benchmarks.engine_scrapes --models 200 --replicas 5

The engines are stand-ins in a process of their own, on loopback: each answers with a page of the size and the
series of a real one. Their time does not count. A round is one scrape of each pod and one reading of each
LLMDeployment. Time does not pass between rounds, so that 110 of them, which fill the widest window, take minutes.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.metrics_reading import fleet
from benchmarks.sizing_time import machine
from tangram.shell.measure.engine_scraper import EngineScraper, FleetPods
from tangram.shell.settings import ScrapeSettings
from tangram.shell.snapshot.workloads import EnginePod
from tangram.simulator.metrics import EnginePage
from tests.support import metrics_pages

PAGE_BYTES = 40_000  # of the engine, with some 340 lines that the operator does not read
REASONS = 11
INTERVAL_S = 15.0


def page_of(model: str) -> bytes:
    """The page of a busy engine."""
    page = EnginePage()
    for number in range(200):
        page.arrived()
        page.first_token(0.01 * number, 500)
        page.finished(0.0007 * number, 500, 100 + number, 3.0)
    page.running, page.waiting, page.kv_usage = 20, 2, 0.5
    refused = metrics_pages.rejections(model, "0", {f"reason_{n}": float(n) for n in range(REASONS)})
    text = metrics_pages.text(metrics_pages.series(page, model) | refused)
    unread = f'vllm:request_queue_time_seconds_bucket{{engine="0",le="1.0",model_name="{model}"}} 3.0\n'
    return text + unread.encode() * max(0, (PAGE_BYTES - len(text)) // len(unread))


def serve(models: dict[str, str], port: Any) -> None:
    """Answer with the page of the model of each pod until the process ends."""
    pages = {model: page_of(model) for model in set(models.values())}

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=pages[models[request.match_info["pod"]]], content_type="text/plain")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{pod}", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def measure(port: int, pods: dict[str, tuple[EnginePod, ...]], arguments: argparse.Namespace) -> None:
    now = [1000.0]
    scraper = EngineScraper(
        ScrapeSettings(timeout_seconds=60),
        now=lambda: now[0],
        clock=lambda: now[0],
        url_of=lambda pod: f"http://127.0.0.1:{port}/{pod.name}",
    )
    intents = fleet(arguments.models, arguments.replicas)[0]
    observed = FleetPods(intents, pods)
    scraper.follow(observed)
    scrapes, readings, empty_mib = [], [], 0.0
    for number in range(arguments.rounds):
        now[0] += INTERVAL_S
        begin = time.process_time()
        await asyncio.gather(*(scraper.scrape(pod) for owned in pods.values() for pod in owned))
        scraped = time.process_time()
        await scraper.evaluate(observed)
        if number:  # labels are parsed in the first round
            scrapes.append(scraped - begin)
            readings.append(time.process_time() - scraped)
        else:
            empty_mib = resident_mib()
    grown_mib = resident_mib() - empty_mib
    assert all(scraper.reading(intent).problem == "" for intent in intents)
    assert all(scraper.reading(intent).sample.targets == arguments.replicas for intent in intents)  # type: ignore[union-attr]
    await scraper.close()
    print(f"{arguments.models} LLMDeployments with {arguments.replicas} pods each, CPU seconds of a round")
    print(
        f"  scrapes:  {statistics.median(scrapes):.2f} (median of {len(scrapes)}, at most {max(scrapes):.2f})"
    )
    print(
        f"  readings: {statistics.median(readings):.2f} (median of {len(readings)}, at most {max(readings):.2f})"
    )
    print(f"  memory of {arguments.rounds} scrapes of each pod: {grown_mib:.0f} MiB")
    if arguments.json:
        found = {"scrapes_s": scrapes, "readings_s": readings, "memory_mib": grown_mib}
        found |= {"models": arguments.models, "replicas": arguments.replicas, "machine": machine()}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=5, help="pods of each LLMDeployment")
    parser.add_argument("--rounds", type=int, default=110, help="110 fill the widest window")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    intents, names = fleet(arguments.models, arguments.replicas)
    models = {pod: intent.served_name for intent in intents for pod in names[intent.uid]}
    pods = {
        uid: tuple(EnginePod(f"uid-{name}", name, "10.0.0.1", True) for name in owned)
        for uid, owned in names.items()
    }
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=serve, args=(models, port), daemon=True)
    server.start()
    try:
        asyncio.run(measure(port.get(timeout=60), pods, arguments))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
