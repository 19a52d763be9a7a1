"""Serve the operator's HTTP endpoints: probes for the kubelet, metrics for Prometheus."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], str]
"""Returns the problem, empty if there is none."""


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
    """Return the application with /metrics. `refresh` sets the gauges that depend on the time."""
    app = web.Application()

    async def show(_request: web.Request) -> web.StreamResponse:
        refresh()
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", show)
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Serve `app` until cleanup() of the returned runner."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
