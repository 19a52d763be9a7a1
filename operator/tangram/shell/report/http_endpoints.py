"""Serve the operator's HTTP endpoints: probes for the kubelet, metrics for Prometheus."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tangram_http.pages import CachedPage

Check = Callable[[], str]
"""Returns the problem, empty if there is none."""


class CollectedMetrics(Collector):
    """The metrics of one moment, with their values."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Metric]:
        """Return the same metrics again."""
        return iter(self._metrics)


def probes(live: Check, ready: Check) -> web.Application:
    """Return the application with /livez and /readyz."""
    checks = {"/livez": live, "/readyz": ready}

    async def answer(request: web.Request) -> web.StreamResponse:
        problem = checks[request.path]()
        return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)

    app = web.Application()
    app.add_routes([web.get(path, answer) for path in checks])
    return app


def metrics(registry: CollectorRegistry, refresh: Callable[[], None]) -> web.Application:
    """Return the application with /metrics. `refresh` sets the gauges that depend on the time.

    Values are collected in the event loop, so that no page shows half of a change, and written as text in a
    thread.
    """

    def snapshot() -> Callable[[], bytes]:
        refresh()
        collected = CollectorRegistry()
        collected.register(CollectedMetrics(registry.collect()))
        return partial(generate_latest, collected)

    page = CachedPage(snapshot)

    async def show(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=await page.read(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", show)
    return app
