"""Prometheus may be down, slow, empty, absurd or hostile: the reading has the reason, and nothing raises."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Intent, MIGPolicy, Objective
from tangram.scaling import SignalState, classify, queries
from tangram.shell.measure.metrics_reader import MetricsReader, QueryFailed, scalar
from tangram.shell.measure.scaler import params_of
from tangram.shell.settings import PrometheusSettings, Settings

PROMETHEUS = PrometheusSettings(url="http://prometheus:9090", timeout_seconds=1)
SETTINGS = Settings(engine_image="e", prometheus=PROMETHEUS)
INTENT = Intent(
    uid="u",
    namespace="ns",
    name="chat",
    generation=1,
    created_at=0.0,
    model_uri="image:///m",
    served_name="chat",
    max_model_len=None,
    max_running_requests=64,
    ttft=Objective(90, 500),
    tpot=Objective(90, 50),
    allowed_skus=(),
    denied_skus=(),
    mig=MIGPolicy.ALLOWED,
    min_replicas=1,
    max_replicas=4,
    paused=False,
)
PODS = {"u": ("chat-1-a", "chat-1-b")}


def vector(value: str) -> httpx.Response:
    result = [{"metric": {}, "value": [100.0, value]}]
    return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})


def empty() -> httpx.Response:
    return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": []}})


def partial(warning: str) -> httpx.Response:
    body = {"status": "success", "data": {"resultType": "scalar", "result": [100.0, "1"]}}
    return httpx.Response(200, json=body | {"warnings": [warning]})


def healthy(request: httpx.Request) -> httpx.Response:
    query = request.content.decode()
    return vector("1" if "count" in query or "attain" in query or "bucket" in query else "0.5")


class Prometheus:
    """A transport whose behaviour the test changes."""

    def __init__(self) -> None:
        self.answer: Any = healthy
        self.requests = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer


def reader(prometheus: Prometheus, now: float = 100.0) -> MetricsReader:
    return MetricsReader(PROMETHEUS, now=lambda: now, transport=httpx.MockTransport(prometheus))


async def test_a_valid_answer_of_prometheus_becomes_a_sample() -> None:
    prometheus = Prometheus()
    metrics_reader = reader(prometheus)

    await metrics_reader.read((INTENT,), PODS)

    reading = metrics_reader.reading(INTENT)
    assert reading.problem == ""
    assert reading.sample is not None
    assert reading.sample.at == 100.0
    assert reading.sample.targets == 1.0
    await metrics_reader.close()


BAD = {
    "unreachable": lambda _r: httpx.ConnectError("refused"),
    "slow": lambda _r: httpx.ReadTimeout("slow"),
    "500": lambda _r: httpx.Response(500, text="boom"),
    "redirect": lambda _r: httpx.Response(302, headers={"Location": "http://elsewhere/"}),
    "html": lambda _r: httpx.Response(200, text="<html>"),
    "huge": lambda _r: httpx.Response(200, content=b"[" * (2 * 2**20)),
    "nested": lambda _r: httpx.Response(200, content=b"[" * 200_000),
    "error": lambda _r: httpx.Response(
        200, json={"status": "error", "data": {"resultType": "vector", "result": []}}
    ),
    "partial": lambda _r: partial("a store did not answer"),
    "infinite": lambda _r: vector("+Inf"),
    "negative": lambda _r: vector("-5e9"),
    "not a number": lambda _r: vector("NaN"),
    "text": lambda _r: vector("many"),
    "number": lambda _r: httpx.Response(200, json=7),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_answer_keeps_the_last_good_sample_with_the_reason(what: str) -> None:
    prometheus = Prometheus()
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)
    good = metrics_reader.reading(INTENT).sample

    prometheus.answer = BAD[what]
    await metrics_reader.read((INTENT,), PODS)

    assert metrics_reader.reading(INTENT).sample == good
    assert metrics_reader.reading(INTENT).problem
    await metrics_reader.close()


@pytest.mark.parametrize("what", BAD)
async def test_without_any_good_sample_a_reading_is_blind_not_idle(what: str) -> None:
    prometheus = Prometheus()
    prometheus.answer = BAD[what]
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)
    reading = metrics_reader.reading(INTENT)

    signal = classify(reading.sample, reading.problem, ready=1, params=params_of(SETTINGS), now=100.0)

    assert signal.state is SignalState.BLIND
    await metrics_reader.close()


async def test_empty_vectors_are_missing_values_not_zeros() -> None:
    prometheus = Prometheus()
    prometheus.answer = lambda r: vector("100") if b"query=time%28%29" in r.content else empty()
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)

    sample = metrics_reader.reading(INTENT).sample

    assert sample is not None
    assert sample.targets is None
    assert classify(sample, "", ready=1, params=params_of(SETTINGS), now=100.0).state is SignalState.BLIND
    await metrics_reader.close()


async def test_readings_of_deleted_llmdeployments_are_forgotten() -> None:
    metrics_reader = reader(Prometheus())
    await metrics_reader.read((INTENT,), PODS)
    await metrics_reader.read((), {})

    assert metrics_reader.reading(INTENT).sample is None
    await metrics_reader.close()


@pytest.mark.parametrize(
    "changes", [{"ttft": Objective(90, 100)}, {"tpot": None}, {"served_name": "other"}], ids=str
)
async def test_a_sample_for_other_objectives_is_not_used(changes: dict[str, Any]) -> None:
    prometheus = Prometheus()
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)
    changed = replace(INTENT, **changes)

    assert metrics_reader.reading(changed).sample is None
    assert "changed" in metrics_reader.reading(changed).problem
    prometheus.answer = lambda _r: httpx.ConnectError("refused")
    await metrics_reader.read((changed,), PODS)
    assert metrics_reader.reading(changed).sample is None
    prometheus.answer = healthy
    await metrics_reader.read((changed,), PODS)
    assert metrics_reader.reading(changed).sample is not None
    await metrics_reader.close()


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
async def test_queries_use_the_time_of_prometheus_if_the_own_clock_is_wrong(ahead_s: float) -> None:
    server_s, evaluated = 1_000_000.0, []

    def answer(request: httpx.Request) -> httpx.Response:
        form = parse_qs(request.content.decode())
        if form["query"] == ["time()"]:
            return vector(str(server_s))
        evaluated.append(float(form["time"][0]))
        return vector("1")

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus, server_s + ahead_s)
    await metrics_reader.read((INTENT,), PODS)

    assert set(evaluated) == {server_s}
    assert metrics_reader.reading(INTENT).sample is not None
    await metrics_reader.close()


async def test_queries_select_only_series_of_the_pods_of_replicas() -> None:
    queries: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        queries.extend(parse_qs(request.content.decode())["query"])
        return vector("1")

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)

    assert all('pod=~"chat-1-a|chat-1-b"' in query for query in queries if query != "time()")
    await metrics_reader.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "result", "resultType", "status", "value"]), inner, max_size=4
        )
    ),
)


@given(JSON | st.fixed_dictionaries({"status": st.just("success"), "data": JSON}))
def test_any_json_answer_is_a_number_missing_or_refused(document: Any) -> None:
    try:
        value = scalar(json.dumps(document).encode())
    except QueryFailed:
        return
    assert value is None or isinstance(value, str)


async def test_a_bug_in_a_query_affects_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    real, other = queries.for_deployment, replace(INTENT, uid="other", served_name="other")

    def failing_query(namespace: str, served_name: str, *rest: Any) -> Any:
        if served_name == "other":
            raise ZeroDivisionError("division by zero")
        return real(namespace, served_name, *rest)

    monkeypatch.setattr(queries, "for_deployment", failing_query)
    metrics_reader = reader(Prometheus())
    await metrics_reader.read((other, INTENT), PODS)

    assert metrics_reader.reading(INTENT).sample is not None
    assert "ZeroDivisionError: division by zero" in metrics_reader.reading(other).problem
    await metrics_reader.close()
