"""Prometheus may be down, slow, empty, absurd or hostile: the reading has the reason, and nothing raises."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Intent, MIGPolicy, Objective
from tangram.scaling import FleetAnswers, SignalState, classify, for_fleet, metrics_subject
from tangram.shell.measure import metrics_reader as reader_module
from tangram.shell.measure.metrics_reader import MAX_GROUPS, MetricsReader, scalar, vector
from tangram.shell.measure.prometheus import MAX_RESPONSE_BYTES, MOST_VALUES, QueryFailed, percent_encoded
from tangram.shell.measure.scaler import params_of
from tangram.shell.settings import PrometheusSettings, Settings
from tests.support import grouped_answers

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


Answer = Callable[[httpx.Request], httpx.Response]
OTHER = replace(INTENT, uid="other", namespace="ns-2", name="other", served_name="other")
BOTH_PODS = PODS | {"other": ("other-1-a",)}
NAMES = {
    "chat-1-a": ("ns", "chat"),
    "chat-1-b": ("ns", "chat"),
    "other-1-a": ("ns-2", "other"),
}


def vector_of_one(value: str) -> httpx.Response:
    result = [{"metric": {}, "value": [100.0, value]}]
    return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})


def empty() -> httpx.Response:
    return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": []}})


def partial(warning: str) -> httpx.Response:
    body = {"status": "success", "data": {"resultType": "scalar", "result": [100.0, "1"]}}
    return httpx.Response(200, json=body | {"warnings": [warning]})


def asked(request: httpx.Request) -> str:
    return parse_qs(request.content.decode())["query"][0]


def rows(value: str) -> Answer:
    """Every term has this value for every ReplicaSet, and the time is 100."""

    def answer(request: httpx.Request) -> httpx.Response:
        if asked(request) == "time()":
            return vector_of_one("100")
        result = grouped_answers.rows(asked(request), NAMES, lambda _field, _model: value)
        return httpx.Response(200, json=grouped_answers.answer(result))

    return answer


def healthy(request: httpx.Request) -> httpx.Response:
    """All terms are 1, and no pod lacks a counter."""
    if asked(request) == "time()":
        return vector_of_one("100")

    def value(field: str, _model: str) -> str | None:
        return None if field.startswith("pods_without") else "99" if field == "scraped_at" else "1"

    return httpx.Response(
        200, json=grouped_answers.answer(grouped_answers.rows(asked(request), NAMES, value))
    )


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
    "huge": lambda _r: httpx.Response(200, content=b"[" * (MAX_RESPONSE_BYTES + 1)),
    "nested": lambda _r: httpx.Response(200, content=b"[" * 200_000),
    "error": lambda _r: httpx.Response(
        200, json={"status": "error", "data": {"resultType": "vector", "result": []}}
    ),
    "partial": lambda _r: partial("a store did not answer"),
    "infinite": rows("+Inf"),
    "negative": rows("-5e9"),
    "not a number": rows("NaN"),
    "text": rows("many"),
    "long": rows("1" * 65),
    "no time": lambda _r: vector_of_one("NaN"),
    "rows that are none": lambda r: (
        vector_of_one("100")
        if asked(r) == "time()"
        else httpx.Response(200, json=grouped_answers.answer([7]))  # type: ignore[list-item]
    ),
    "a number for rows": lambda r: (
        vector_of_one("100")
        if asked(r) == "time()"
        else httpx.Response(
            200, json={"status": "success", "data": {"resultType": "scalar", "result": [100, "1"]}}
        )
    ),
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
    prometheus.answer = lambda r: vector_of_one("100") if asked(r) == "time()" else empty()
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
            return vector_of_one(str(server_s))
        evaluated.append(float(form["time"][0]))
        return empty()

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
        queries.append(asked(request))
        return healthy(request)

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)

    terms = [term for query in queries if query != "time()" for term in grouped_answers.terms(query)]
    assert len(terms) > 40
    assert {term.pods for term in terms} == {("chat-1-a", "chat-1-b")}
    await metrics_reader.close()


@pytest.mark.parametrize(
    ("intent", "pods", "expected"),
    [
        (INTENT, ("chat-1-a", "chat-1-c"), "chat-1-a|chat-1-c"),
        (replace(INTENT, ttft=Objective(90, 250)), PODS["u"], r'le=~"0\\.25"'),
    ],
    ids=["other pods", "another objective"],
)
async def test_a_change_is_asked_about_in_the_next_round(
    intent: Intent, pods: tuple[str, ...], expected: str
) -> None:
    queries: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        queries.append(asked(request))
        return healthy(request)

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)
    await metrics_reader.read((INTENT,), PODS)
    half = len(queries) // 2
    assert queries[:half] == queries[half:]
    assert expected not in "".join(queries)

    queries.clear()
    await metrics_reader.read((intent,), {"u": pods})

    assert expected in "".join(queries)
    await metrics_reader.close()


async def test_the_number_of_queries_does_not_grow_with_the_llmdeployments() -> None:
    few, many = Prometheus(), Prometheus()
    intents = tuple(replace(INTENT, uid=f"u{n}", served_name=f"m{n}") for n in range(40))
    pods = {intent.uid: (f"m-{intent.uid}-a",) for intent in intents}
    for prometheus, asked_for in ((few, intents[:1]), (many, intents)):
        metrics_reader = reader(prometheus)
        await metrics_reader.read(asked_for, pods)
        await metrics_reader.close()

    assert many.requests <= few.requests + 2


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


@given(JSON | st.fixed_dictionaries({"status": st.just("success"), "data": JSON}))
def test_any_json_answer_is_rows_or_refused(document: Any) -> None:
    body = json.dumps(document).encode()
    try:
        result = vector(body)
    except QueryFailed:
        return
    assert result == json.loads(body)["data"]["result"]


@given(st.text() | st.text('abc-.|"{}()[]=~,%+ /'))
def test_a_query_is_encoded_as_forms_are(text: str) -> None:
    try:
        expected = quote(text, safe="")
    except UnicodeEncodeError:
        return
    assert percent_encoded(text) == expected


async def test_a_bug_about_one_llmdeployment_affects_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(uid: str, *rest: Any) -> Any:
        if uid == "other":
            raise ZeroDivisionError("division by zero")
        return metrics_subject(uid, *rest)

    monkeypatch.setattr(reader_module, "metrics_subject", failing)
    await only_other_fails("ZeroDivisionError: division by zero")


async def test_a_bug_in_a_query_affects_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(subjects: Any, window_s: float) -> Any:
        if any(subject.uid == "other" for subject in subjects):
            raise ZeroDivisionError("division by zero")
        return for_fleet(subjects, window_s)

    monkeypatch.setattr(reader_module, "for_fleet", failing)
    await only_other_fails("ZeroDivisionError: division by zero")


async def test_a_bug_about_one_answer_affects_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FleetAnswers.results

    def failing(self: FleetAnswers, subject: Any, *rest: Any) -> Any:
        if subject.uid == "other":
            raise ZeroDivisionError("division by zero")
        return real(self, subject, *rest)

    monkeypatch.setattr(FleetAnswers, "results", failing)
    await only_other_fails("ZeroDivisionError: division by zero")


async def only_other_fails(problem: str, answer: Answer = healthy, rounds: int = 1) -> int:
    """One round of both LLMDeployments: the problem is that of the other alone. The number of requests."""
    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    for _ in range(rounds):
        prometheus.requests = 0
        await metrics_reader.read((OTHER, INTENT), BOTH_PODS)

    assert metrics_reader.reading(INTENT).sample is not None
    assert metrics_reader.reading(INTENT).problem == ""
    assert metrics_reader.reading(OTHER).sample is None
    assert problem in metrics_reader.reading(OTHER).problem
    await metrics_reader.close()
    return prometheus.requests


async def test_without_a_bug_no_reading_is_affected() -> None:
    with pytest.raises(AssertionError):
        await only_other_fails("")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("NaN", "the metrics have nan for waiting"),
        ("+Inf", "the metrics have inf for waiting"),
        ("-5e9", "the metrics have -5e+09 for waiting"),
        ("many", "Prometheus returned 'many' for waiting"),
    ],
)
async def test_a_bad_value_affects_one_reading(value: str, problem: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if asked(request) == "time()":
            return vector_of_one("100")

        def value_of(field: str, model: str) -> str:
            return value if model == "other" and field == "waiting" else "1"

        result = grouped_answers.rows(asked(request), NAMES, value_of)
        return httpx.Response(200, json=grouped_answers.answer(result))

    await only_other_fails(problem, answer)


UNUSABLE = {
    "warning": (lambda: partial("a store did not answer"), "in part"),
    "execution": (lambda: httpx.Response(422, text="too many samples"), "422"),
    "bad data": (lambda: httpx.Response(400, text="?"), "400"),
    "huge": (lambda: httpx.Response(200, content=b" " * (MAX_RESPONSE_BYTES + 1)), "bytes"),
    "rows": (lambda: httpx.Response(200, content=many_rows(100_000)), "more rows than there are pods"),
    "numbers": (lambda: httpx.Response(200, content=b"[" + b"0," * MOST_VALUES + b"0]"), "values"),
    "objects": (lambda: httpx.Response(200, content=b'{"a":' * (MOST_VALUES + 1)), "values"),
}


def many_rows(count: int) -> bytes:
    """An answer of rows as small as they can be."""
    row = b'{"metric":{},"value":[0,"1"]}'
    head = b'{"status":"success","data":{"resultType":"vector","result":['
    return head + b",".join([row] * count) + b"]}}"


@pytest.mark.parametrize("what", UNUSABLE)
@pytest.mark.parametrize("rounds", [1, 2])
async def test_series_that_prometheus_cannot_use_affect_one_reading(what: str, rounds: int) -> None:
    unusable, problem = UNUSABLE[what]

    def answer(request: httpx.Request) -> httpx.Response:
        return unusable() if "other-1-a" in asked(request) else healthy(request)

    await only_other_fails(problem, answer, rounds)


async def test_an_answer_beyond_the_limits_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    real = reader_module.from_json

    def counting(body: bytes, **options: Any) -> Any:
        parsed.append(len(body))
        return real(body, **options)

    monkeypatch.setattr(reader_module, "from_json", counting)
    for what in ("huge", "rows", "numbers", "objects"):
        await test_series_that_prometheus_cannot_use_affect_one_reading(what, 1)

    assert max(parsed) < 100_000


async def test_rows_are_added_in_parts_between_which_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[int] = []
    turns: list[int] = []
    real = FleetAnswers.add

    def counting(self: FleetAnswers, query: Any, rows: Any) -> None:
        added.append(len(rows))
        asyncio.get_running_loop().call_soon(turns.append, len(added))
        real(self, query, rows)

    def answer(request: httpx.Request) -> httpx.Response:
        content = many_rows(MOST_VALUES // 7)
        return vector_of_one("100") if asked(request) == "time()" else httpx.Response(200, content=content)

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    monkeypatch.setattr(FleetAnswers, "add", counting)
    await metrics_reader.read((INTENT,), PODS)
    await metrics_reader.close()

    assert max(added) <= 2000
    assert len(set(turns)) > len(turns) / 2 > 1


def test_the_largest_query_has_an_answer_far_within_the_limits() -> None:
    subjects = [
        metrics_subject(f"u{n}", "ns", f"m{n}", (f"a{n}-7c9f8d5b6f-x2x4z",), INTENT.objectives)
        for n in range(4000)
    ]
    names = {pod: ("ns", subject.served_name) for subject in subjects for pod in subject.pods}

    values = [
        sum(json.dumps(grouped_answers.rows(query.promql, names, lambda _f, _m: "1")).count(c) for c in ",{[")
        for query in for_fleet(subjects, 60)
    ]

    assert max(values) < MOST_VALUES / 2


async def test_an_llmdeployment_whose_series_cannot_be_used_is_asked_alone_until_they_can() -> None:
    broken = True

    def answer(request: httpx.Request) -> httpx.Response:
        return partial("?") if broken and "other-1-a" in asked(request) else healthy(request)

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    counts = []
    for _ in range(2):
        prometheus.requests = 0
        await metrics_reader.read((OTHER, INTENT), BOTH_PODS)
        counts.append(prometheus.requests)
    broken = False
    for _ in range(2):
        prometheus.requests = 0
        await metrics_reader.read((OTHER, INTENT), BOTH_PODS)
        counts.append(prometheus.requests)

    assert metrics_reader.reading(OTHER).problem == ""
    first, second, third, fourth = counts
    assert second < first
    assert fourth < third <= second
    await metrics_reader.close()


async def test_a_prometheus_that_can_use_nothing_is_asked_a_bounded_number_of_times() -> None:
    intents = tuple(replace(INTENT, uid=f"u{n}", served_name=f"m{n}") for n in range(100))
    pods = {intent.uid: (f"m-{intent.uid}-a",) for intent in intents}
    prometheus = Prometheus()
    prometheus.answer = lambda r: vector_of_one("100") if asked(r) == "time()" else partial("?")
    metrics_reader = reader(prometheus)
    for _ in range(3):
        prometheus.requests = 0
        await metrics_reader.read(intents, pods)

        assert all("in part" in metrics_reader.reading(intent).problem for intent in intents)
        assert prometheus.requests <= 1 + 3 * MAX_GROUPS
    await metrics_reader.close()


async def test_a_prometheus_that_is_down_is_asked_once() -> None:
    prometheus = Prometheus()
    prometheus.answer = lambda r: vector_of_one("100") if asked(r) == "time()" else httpx.Response(503)
    metrics_reader = reader(prometheus)
    await metrics_reader.read((OTHER, INTENT), BOTH_PODS)

    assert metrics_reader.reading(OTHER).problem == metrics_reader.reading(INTENT).problem
    assert prometheus.requests <= 3
    await metrics_reader.close()


async def test_arrivals_and_lengths_are_read_for_each_window() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if asked(request) == "time()":
            return vector_of_one("100")
        values = {
            "arrived": "40",
            "arrived@300": "150",
            "pods_without_arrived@1500": "1",
            "prompt_tokens_sum": "900",
            "prompt_tokens_count": "3",
            "answer_tokens_sum@300": "80",
            "answer_tokens_count@300": "4",
            "arrived@1500": "7",
        }
        result = grouped_answers.rows(asked(request), NAMES, lambda field, _model: values.get(field))
        return httpx.Response(200, json=grouped_answers.answer(result))

    prometheus = Prometheus()
    prometheus.answer = answer
    metrics_reader = reader(prometheus)
    await metrics_reader.read((INTENT,), PODS)

    sample = metrics_reader.reading(INTENT).sample
    assert sample is not None
    narrow, wide, widest = sample.windows(60)
    assert (narrow.arrived, narrow.prompt_tokens_mean) == (40, 300)
    assert (wide.arrived, wide.answer_tokens_mean) == (150, 20)
    assert widest.arrived is None  # not every engine counts them
    await metrics_reader.close()
