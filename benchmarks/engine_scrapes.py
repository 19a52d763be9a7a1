"""Processor time and memory of reading metrics from the pods themselves, without a Prometheus.

    python -m benchmarks.engine_scrapes --models 200 --replicas 2
    python -m benchmarks.engine_scrapes --models 200 --replicas 2 --intervals 4

The engines are stand-ins in a process of their own, on loopback: each answers with a page of the size and the
series of a real one, restricted like it to the names that are asked for, on which every counter has grown since
the last scrape. Their time does not count. A round
is one scrape of each pod and one reading of each LLMDeployment. Time does not pass between rounds, so that 110
of them, which fill the widest window, take minutes. With `--intervals` the operator's own loop runs instead, on
the clock: a round is then an interval, with all that a process pays for waking up.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.metrics_reading import fleet
from benchmarks.sizing_time import machine
from tangram.fleet import Intent
from tangram.shell.measure.engine_scraper import CONCURRENCY, EngineScraper, FleetPods
from tangram.shell.measure.page_fetcher import PageFetcher
from tangram.shell.measure.scraped_page import QUERY
from tangram.shell.settings import ScrapeSettings
from tangram.shell.snapshot.workloads import EnginePod
from tangram.simulator.metrics import EnginePage
from tests.support import metrics_pages

PAGE_BYTES = 40_000  # of the engine, with some 340 lines that the operator does not read
REASONS = 11
UNREAD = "vllm:request_queue_time_seconds_bucket"
INTERVAL_S = 15.0
FETCH_ROUNDS = 5
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104  # of loopback: each pod has one


class BusyPage:
    """The page of an engine under load: with each scrape its counters are higher."""

    def __init__(self, model: str) -> None:
        page = EnginePage()
        for number in range(200):
            page.arrived()
            page.first_token(0.01 * number, 500)
            page.finished(0.0007 * number, 500, 100 + number, 3.0)
        page.running, page.waiting, page.kv_usage = 20, 2, 0.0005
        refused = metrics_pages.rejections(model, "0", {f"reason_{n}": float(n) for n in range(REASONS)})
        read = metrics_pages.series(page, model) | refused
        unread = f'{UNREAD}{{engine="0",le="1.0",model_name="{model}"}} '
        missing = max(0, PAGE_BYTES - len(metrics_pages.text(read))) // len(f"{unread}30.0\n")
        self._series = [(name, f"{name}{{{labels}}} ", value) for (name, labels), value in read.items()]
        self._series += [(UNREAD, unread, 3.0)] * missing

    def at(self, scrape: int, names: Collection[str]) -> bytes:
        """Return the series of these names on the page of a scrape; the first one is 1. No name: all series."""
        shown = (each for each in self._series if each[0] in names) if names else self._series
        lines, family = [], ""
        for name, text, value in shown:
            if name.rpartition("_")[0] != family.rpartition("_")[0]:
                family = name
                lines.append(f"# HELP {family} Text\n# TYPE {family} histogram\n")
            lines.append(f"{text}{value * scrape}\n")
        return "".join(lines).encode()


def serve(models: dict[str, str], port: Any) -> None:
    """Answer with the page of each pod, which serves one of `models`, until the process ends."""
    pages = {model: BusyPage(model) for model in set(models.values())}
    scrapes = dict.fromkeys(models, 0)

    async def metrics(request: web.Request) -> web.Response:
        pod = request.match_info["pod"]
        scrapes[pod] += 1
        names = frozenset(request.query.getall("name[]", []))
        return web.Response(body=pages[models[pod]].at(scrapes[pod], names), content_type="text/plain")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{pod}", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, EVERY_ADDRESS, 0, backlog=1024).start()
        port.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


async def measure(
    port: int, pods: dict[str, tuple[EnginePod, ...]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the seconds of each round that comes after the first, in which labels are parsed."""
    now = [1000.0]
    scraper = EngineScraper(
        ScrapeSettings(timeout_seconds=60),
        now=lambda: now[0],
        clock=lambda: now[0],
        url_of=lambda pod: url_of(pod, port),
    )
    intents = fleet(arguments.models, arguments.replicas)[0]
    observed = FleetPods(intents, pods)
    scraper.follow(observed)
    everyone = [pod for owned in pods.values() for pod in owned]
    scrapes, readings, empty_mib = [], [], 0.0
    for number in range(arguments.rounds):
        now[0] += INTERVAL_S
        begin = time.process_time()
        await asyncio.gather(*map(scraper.scrape, everyone))
        scraped = time.process_time()
        await scraper.evaluate(observed)
        if number:
            scrapes.append(scraped - begin)
            readings.append(time.process_time() - scraped)
        else:
            empty_mib = resident_mib()
    grown_mib = resident_mib() - empty_mib
    check(scraper, intents, arguments.replicas)
    await scraper.close()
    fetches = await fetch_alone([f"{url_of(pod, port)}?{QUERY}" for pod in everyone])
    print("  a round:            ", shown([a + b for a, b in zip(scrapes, readings, strict=True)]))
    print("    scrapes:          ", shown(scrapes))
    print("      fetches alone:  ", shown(fetches))
    print("    readings:         ", shown(readings))
    print(f"  memory of {arguments.rounds} scrapes of each pod: {grown_mib:.0f} MiB")
    return {"scrapes_s": scrapes, "fetches_s": fetches, "readings_s": readings, "memory_mib": grown_mib}


async def fetch_alone(urls: list[str]) -> list[float]:
    """Return the seconds of fetching all pages, for some rounds after the first."""
    fetcher, slots, seconds = PageFetcher(60), asyncio.Semaphore(CONCURRENCY), []

    async def fetch(url: str) -> None:
        async with slots:
            await fetcher.fetch(url)

    for number in range(FETCH_ROUNDS + 1):
        begin = time.process_time()
        await asyncio.gather(*map(fetch, urls))
        if number:
            seconds.append(time.process_time() - begin)
    await fetcher.close()
    return seconds


async def run_paced(
    port: int, pods: dict[str, tuple[EnginePod, ...]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the seconds of each interval of the operator's own loop that comes after the first."""
    scraper = EngineScraper(
        ScrapeSettings(), now=time.time, clock=time.monotonic, url_of=lambda pod: url_of(pod, port)
    )
    intents = fleet(arguments.models, arguments.replicas)[0]
    used: list[float] = []
    enough = asyncio.Event()

    def evaluated() -> None:
        used.append(time.process_time())
        if len(used) == arguments.intervals + 2:
            enough.set()

    running = asyncio.create_task(scraper.run(lambda: FleetPods(intents, pods), lambda: True, evaluated))
    await enough.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    check(scraper, intents, arguments.replicas)
    await scraper.close()
    seconds = [after - before for before, after in itertools.pairwise(used)][1:]
    print("  an interval:        ", shown(seconds))
    return {"intervals_s": seconds}


def check(scraper: EngineScraper, intents: tuple[Intent, ...], replicas: int) -> None:
    """Raise where some pod was not read."""
    for intent in intents:
        reading = scraper.reading(intent)
        assert reading.problem == "", reading.problem
        assert reading.sample is not None
        assert reading.sample.targets == replicas


def url_of(pod: EnginePod, port: int) -> str:
    """Return where a stand-in answers: each pod has an address of its own, as in a cluster."""
    return f"http://{pod.ip}:{port}/{pod.name}"


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f} (median of {len(seconds)}, at least {min(seconds):.3f}, at most {max(seconds):.3f})"


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=5, help="pods of each LLMDeployment")
    parser.add_argument("--rounds", type=int, default=110, help="110 fill the widest window")
    parser.add_argument(
        "--intervals", type=int, default=0, help="of the operator's own loop, instead of rounds"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    intents, names = fleet(arguments.models, arguments.replicas)
    models = {pod: intent.served_name for intent in intents for pod in names[intent.uid]}
    addresses = {pod: f"127.1.{number // 250}.{number % 250 + 1}" for number, pod in enumerate(models)}
    pods = {
        uid: tuple(EnginePod(f"uid-{name}", name, addresses[name], True) for name in owned)
        for uid, owned in names.items()
    }
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=serve, args=(models, port), daemon=True)
    server.start()
    try:
        print(f"{arguments.models} LLMDeployments with {arguments.replicas} pods each, CPU seconds")
        of = run_paced if arguments.intervals else measure
        found = asyncio.run(of(port.get(timeout=60), pods, arguments))
    finally:
        server.terminate()
        server.join()
    if arguments.json:
        found |= {"models": arguments.models, "replicas": arguments.replicas, "machine": machine()}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
