"""From an answer of Prometheus to replicas on the real API server, and what happens when the answers stop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from tangram.kube.kinds import DEPLOYMENTS
from tests.support import grouped_answers
from tests.support.apiserver import LiveCluster, eventually, llm

pytestmark = pytest.mark.apiserver

CALM = {"waiting": "0", "running": "0", "running_mean": "0", "requests": "0", "attainment": "0"}
BUSY = {"waiting": "0", "running": "9", "running_mean": "9", "requests": "500", "attainment": "0.4"}


class StandInPrometheus:
    """Answers the operator's queries by what they ask for; `load` and `mode` are the test's."""

    def __init__(self) -> None:
        self.load: dict[str, str] = CALM
        self.mode, self.url, self.namespace, self.targets = "fine", "", "", 1

    async def query(self, request: web.Request) -> web.Response:
        promql = str((await request.post())["query"])
        if self.mode == "down":
            return web.Response(status=503)
        if self.mode == "empty":
            return web.json_response(grouped_answers.answer([]))
        if promql == "time()":
            now = "NaN" if self.mode == "nan" else "0.5"
            return web.json_response(grouped_answers.answer([{"metric": {}, "value": [0, now]}]))
        pods = {pod for term in grouped_answers.terms(promql) for pod in term.pods}
        names = dict.fromkeys(pods, (self.namespace, "chat"))
        rows = grouped_answers.rows(promql, names, lambda field, _model: self._value(field))
        first_of_each = {row["metric"]["field"]: row for row in reversed(rows)}  # the load of all ReplicaSets
        return web.json_response(grouped_answers.answer(list(first_of_each.values())))

    def _value(self, field: str) -> str | None:
        if self.mode == "nan":
            return "NaN"
        served = float(self.load["requests"]) * float(self.load["attainment"])
        values = {
            **self.load,
            "targets": str(self.targets) if self.targets else None,
            "scraped_at": "0",
            "kv_usage": "0",
            "ttft_good": str(served),
            "ttft_s": "0.9",
        }
        return values.get(field.partition("@")[0])


@pytest.fixture
async def prometheus() -> AsyncIterator[StandInPrometheus]:
    this = StandInPrometheus()
    app = web.Application()
    app.router.add_post("/api/v1/query", this.query)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    this.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield this
    await runner.cleanup()


def fast(prometheus: StandInPrometheus, cluster: LiveCluster) -> dict[str, Any]:
    prometheus.namespace = cluster.namespace
    times = {"windowSeconds": 4, "scrapeIntervalSeconds": 1, "intervalSeconds": 0.5}
    return {
        "prometheus": {"url": prometheus.url} | times,
        "scaling": {"upAfterSeconds": 0, "downAfterSeconds": 2, "blindAfterSeconds": 4},
        "operator": {"tickSeconds": 1},
    }


def llm_deployment(cluster: LiveCluster) -> dict[str, Any]:
    objectives = {"ttft": {"milliseconds": 500}}
    return llm("chat", cluster.namespace, scaling={"minReplicas": 1, "maxReplicas": 3}, objectives=objectives)


def replicas(cluster: LiveCluster, count: int, prometheus: StandInPrometheus) -> Callable[[], Any]:
    async def check() -> bool:
        (deployment,) = await cluster.all(DEPLOYMENTS)
        prometheus.targets = deployment.get("status", {}).get("readyReplicas", 0)
        return deployment["spec"]["replicas"] == count

    return check


# One silence here; the reader's unit tests hold every kind of it, and the campaign repeats two of them here.
_REST = pytest.mark.faults


@pytest.mark.parametrize(
    "silence", ["down", pytest.param("empty", marks=_REST), pytest.param("nan", marks=_REST)]
)
async def test_a_missed_objective_adds_replicas_and_missing_metrics_remove_none(
    cluster: LiveCluster, operator, prometheus: StandInPrometheus, silence: str
) -> None:
    process = operator(**fast(prometheus, cluster))
    await cluster.apply(llm_deployment(cluster))
    await cluster.until("chat", "Available", "True")

    prometheus.load = BUSY
    await eventually(replicas(cluster, 3, prometheus), 60)

    prometheus.mode, prometheus.load = silence, CALM
    await cluster.until("chat", "ScalingActive", "False", within_s=30)
    await asyncio.sleep(4)
    assert await replicas(cluster, 3, prometheus)()
    assert process.alive()

    prometheus.mode = "fine"
    await eventually(replicas(cluster, 1, prometheus), 60)


async def test_without_a_source_of_metrics_the_replicas_stay(cluster: LiveCluster, operator) -> None:
    operator(scrape={"enabled": False})
    await cluster.apply(llm_deployment(cluster))
    await cluster.until("chat", "Available", "True")

    condition = await cluster.until("chat", "ScalingActive", "False", "MetricsMissing")

    assert "prometheus.url" in condition["message"]
