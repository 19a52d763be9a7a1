"""The whole operator without Prometheus: from the metrics page of a pod to a number of replicas."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from e2e.cluster.apiserver import free_port
from tangram.scaling import SignalState
from tangram.shell.measure.engine_scraper import EngineScraper
from tangram.shell.measure.scaler import ScalingResult
from tangram.shell.process.app import Operator
from tangram.shell.settings import (
    LeaderElectionSettings,
    ProcessSettings,
    ScalingSettings,
    ScrapeSettings,
    Settings,
)
from tangram.shell.snapshot.intents import parsed_intents
from tangram.simulator.metrics import EnginePage
from tests.shell.test_large_clusters import Planner
from tests.support import metrics_pages, views
from tests.support.apiserver import eventually
from tests.support.plain_credentials import PlainCredentials
from tests.support.stand_in_api import StandInApi

CHAT = views.llm_deployment("chat", scaling={"minReplicas": 1, "maxReplicas": 3})
(OWNER,) = parsed_intents(views.Fleet((CHAT,)).view(), lambda *_: None, "")
DEPLOYMENT = views.deployment(OWNER)
POD = views.pod(DEPLOYMENT, "n1")
POD["status"]["podIP"] = "10.1.2.3"
CLUSTER = {
    "llmdeployments": [CHAT],
    "deployments": [DEPLOYMENT],
    "pods": [POD],
    "nodes": [views.node("n1", 7)],
}


class Engine:
    """An engine whose queue a test sets; `answers` says whether it serves its page."""

    def __init__(self) -> None:
        self.page, self.answers, self.url = EnginePage(), True, ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def metrics(_request: web.Request) -> web.Response:
            if not self.answers:
                return web.Response(status=503)
            self.page.arrived()
            text = metrics_pages.text(metrics_pages.series(self.page, OWNER.served_name))
            return web.Response(body=text, content_type="text/plain")

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
        try:
            yield
        finally:
            await runner.cleanup()


def settings(**more: Any) -> Settings:
    return Settings(
        engine_image="engine:1",
        leader_election=LeaderElectionSettings(lease_seconds=1.5, renew_seconds=1.0, retry_seconds=0.2),
        scaling=ScalingSettings(up_after_seconds=0),
        listen_host="127.0.0.1",
        probe_port=free_port(),
        metrics_port=free_port(),
        operator=ProcessSettings(tick_seconds=0.5),
        **more,
    )


async def test_the_operator_orders_replicas_for_the_queue_that_a_pod_shows() -> None:
    engine, api = Engine(), StandInApi(CLUSTER)
    async with engine.serving(), api.serving():
        operator = Operator(
            settings(scrape=ScrapeSettings(interval_seconds=0.2, window_seconds=1)), PlainCredentials(api.url)
        )
        operator.loop.worker = Planner()  # type: ignore[assignment]
        reader = operator.reader
        assert isinstance(reader, EngineScraper)
        asked = []

        def url_of(pod: Any) -> str:
            asked.append(pod.ip)
            return engine.url

        reader._url_of = url_of

        def result() -> ScalingResult | None:
            observed = operator.loop.observation
            return observed.scaling.get(OWNER.uid) if observed is not None else None

        async def reads_one_pod() -> bool:
            now = result()
            signal = now.signal if now else None
            return (
                signal is not None and signal.pods_read == "1 of 1 pods" and signal.recent_sample is not None
            )

        async def orders_more() -> bool:
            now = result()
            return now is not None and (now.decision.memory.replicas or 0) > 1

        async def is_blind() -> bool:
            now = result()
            return now is not None and now.signal is not None and now.signal.state is SignalState.BLIND

        await operator.start()
        try:
            await eventually(reads_one_pod, 20)
            assert not await orders_more()
            assert set(asked) == {"10.1.2.3"}

            engine.page.waiting, engine.page.running = 200, 64
            await eventually(orders_more, 20)

            engine.answers = False
            await eventually(is_blind, 20)
            assert await orders_more()
        finally:
            await operator.stop()


async def test_without_any_source_no_pod_is_asked() -> None:
    operator = Operator(
        settings(scrape=ScrapeSettings(enabled=False)), PlainCredentials("http://127.0.0.1:1")
    )

    assert operator.reader is None
    await operator.client.close()
