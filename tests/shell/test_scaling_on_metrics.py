"""From an answer of Prometheus to replicas on the real API server, and what happens when the answers stop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from tangram.shell.objects.kinds import DEPLOYMENTS
from tests.support.apiserver import LiveCluster, eventually, llm

pytestmark = pytest.mark.apiserver

CALM = {"waiting": "0", "running": "0", "running_mean": "0", "requests": "0", "attainment": "NaN"}
BUSY = {"waiting": "0", "running": "9", "running_mean": "9", "requests": "500", "attainment": "0.4"}
PER_POD = "sum(max by (pod, engine) ("


class StandInPrometheus:
    """Answers the operator's queries by what they ask for; `load` and `mode` are the test's."""

    def __init__(self) -> None:
        self.load: dict[str, str] = CALM
        self.mode, self.url, self.targets = "fine", "", 1

    async def query(self, request: web.Request) -> web.Response:
        promql = (await request.post())["query"]
        if self.mode == "down":
            return web.Response(status=503)
        value = None if self.mode == "empty" else "NaN" if self.mode == "nan" else self._value(str(promql))
        result = [] if value is None else [{"metric": {}, "value": [0, value]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    def _value(self, promql: str) -> str:
        series = {
            "count(": str(self.targets),
            "time()": "0.5",
            f"{PER_POD}vllm:num_requests_waiting": self.load["waiting"],
            f"{PER_POD}vllm:num_requests_running": self.load["running"],
            f"{PER_POD}avg_over_time(vllm:num_requests_running": self.load["running_mean"],
            f"{PER_POD}avg_over_time(vllm:kv_cache": "0",
            f"{PER_POD}increase": self.load["requests"],
            "histogram_quantile": "0.9",
        }
        return next(
            (value for start, value in series.items() if promql.startswith(start)), self.load["attainment"]
        )


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


def fast(prometheus: StandInPrometheus) -> dict[str, Any]:
    times = {"windowSeconds": 4, "scrapeIntervalSeconds": 1, "intervalSeconds": 0.5}
    return {
        "prometheus": {"url": prometheus.url} | times,
        "scaling": {"upAfterSeconds": 0, "downAfterSeconds": 2, "blindAfterSeconds": 4},
        "tickSeconds": 1,
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
    process = operator(**fast(prometheus))
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


async def test_without_prometheus_the_replicas_stay(cluster: LiveCluster, operator) -> None:
    operator()
    await cluster.apply(llm_deployment(cluster))
    await cluster.until("chat", "Available", "True")

    condition = await cluster.until("chat", "ScalingActive", "False", "MetricsMissing")

    assert "prometheus.url" in condition["message"]
