"""What an engine counts as load is what the scaling law orders replicas for.

Requests that no number of replicas would serve order none, however many a client sends; requests that a
replica refused because it was full do. The pages are those of the engine's own metrics.
"""

import ast
from pathlib import Path

import pytest
from prometheus_client import generate_latest

import tangram_engine.serve
from tangram.fleet import Objective, Traffic
from tangram.fleet.lengths import around
from tangram.scaling import ScalingParams, classify
from tangram.scaling.law import Law, LawObservation, LawState
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.scrapes import MetricsView, ScrapeStore
from tangram.scaling.scrapes.page_layout import READ_BY_OPERATOR
from tangram.scaling.scrapes.sample_from_scrapes import read_sample
from tangram.shell.measure.scraped_page import PageParser, PodPages, wanted_lines
from tangram_engine.serve.http.errors import APIError
from tangram_engine.serve.metrics import (
    REFUSALS,
    REFUSED_BY_REPLICA,
    REFUSED_FOR_ITSELF,
    CountedRequest,
    EngineMetrics,
)
from tangram_http import refusals
from tests.contracts.test_contract_buckets import INFO
from tests.support.fleet import intent, shape

REPLICAS, SCRAPE_S, GOOD_PER_SECOND = 4, 15, 5
PARAMS = ScalingParams(window_s=60.0, scrape_interval_s=15.0, up_after_s=30.0, down_after_s=300.0)
CHAT = intent(
    ttft=Objective(90, 1000),
    tpot=Objective(90, 50),
    traffic=Traffic(None, around(700), around(150)),
    max_replicas=40,
)
CAPACITY = ReplicaCapacity(((99, 4.0), (95, 4.5), (90, 5.0), (50, 6.0)))


def count(engine, *, good, refused, error):
    """Count the requests of one replica between two scrapes."""
    for _ in range(good):
        CountedRequest(engine).accepted()
        engine.ttft.observe(0.1)
        engine.tpot.observe(0.02)
        engine.prompt_length.observe(700)
        engine.generation_length.observe(150)
    for _ in range(refused):
        CountedRequest(engine).refused(error)


def law_after(minutes, refused_per_second, error=None):
    """Return state and decision of the law after minutes of 5 good requests/s and of refused ones."""
    engine, parser, pages = EngineMetrics("chat"), PageParser(), PodPages()
    engine.engine_ready(INFO)
    engine.running.set(1)
    store = ScrapeStore(READ_BY_OPERATOR, SCRAPE_S)
    targets = [f"{pod}/0" for pod in range(REPLICAS)]
    per_scrape = {
        "good": GOOD_PER_SECOND * SCRAPE_S // REPLICAS,
        "refused": refused_per_second * SCRAPE_S // REPLICAS,
    }
    law, state, decision = Law(PARAMS), LawState(), None
    for step in range(1 + minutes * 60 // SCRAPE_S):
        at = 600.0 + SCRAPE_S * step
        values = parser.parse(wanted_lines(generate_latest(engine.registry)), "chat", pages)["0"]
        for target in targets:
            store.append(target, "process", values.row, at, values.absent)
        sample = read_sample(MetricsView(store, targets, at), CHAT.objectives, PARAMS.window_s)
        signal = classify(sample, "", ready=REPLICAS, params=PARAMS, now=at)
        seen = LawObservation(
            at,
            CHAT,
            signal,
            ready=REPLICAS,
            existing=REPLICAS,
            current=REPLICAS,
            shapes=frozenset({shape()}),
            capacity_of=lambda _prompt, _answer: CAPACITY,
            start_s=80.0,
        )
        state, decision = law.step(state, seen)
        count(engine, error=error, **per_scrape)
    return state, decision


@pytest.fixture(scope="module")
def undisturbed():
    """State and decision without refused requests."""
    return law_after(4, 0)


@pytest.mark.parametrize(
    ("code", "refused_per_second"),
    [*((code, 50) for code in REFUSED_FOR_ITSELF), ("invalid_value", 1000), (None, 50)],
)
def test_requests_that_no_replica_would_serve_change_nothing(code, refused_per_second, undisturbed):
    error = APIError(400, "refused", code=code)

    state, decision = law_after(4, refused_per_second, error)

    assert decision.need == undisturbed[1].need
    assert (state, decision) == undisturbed


@pytest.mark.parametrize("code", REFUSED_BY_REPLICA)
def test_requests_that_full_replicas_refuse_order_replicas(code, undisturbed):
    state, decision = law_after(4, 50, APIError(503, "full", code=code))

    assert decision.need.replicas > 2 * undisturbed[1].need.replicas
    assert state.history.rates[-1] == pytest.approx(GOOD_PER_SECOND + 50, rel=0.1)


def errors_of_the_server():
    """Yield status and code of each error that is written out in the sources of the engine's server."""
    for path in Path(tangram_engine.serve.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                codes = [key.value for key in node.keywords if key.arg == "code"]
                match node.func.id, node.args:
                    case "unavailable", [_, ast.Constant(value=code), *_]:
                        yield 503, code
                    case "APIError", [ast.Constant(value=status), *_]:
                        yield from ((status, code.value) for code in codes if isinstance(code, ast.Constant))
            elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and path.name == "lifecycle.py":
                message, code = node.elts
                if isinstance(message, ast.Constant) and isinstance(code, ast.Constant):
                    yield 503, code.value


def test_each_refusal_is_the_replicas_or_the_requests():
    """Refusals of requests are 4xx but 429, which says either; 500 and 504 end what was accepted."""
    errors = set(errors_of_the_server())
    errors |= {(r.status, r.code) for r in vars(refusals).values() if isinstance(r, refusals.EarlyRefusal)}
    by_replica = {code for status, code in errors if status == 503} | {"queue_full"}

    assert by_replica == set(REFUSED_BY_REPLICA)
    assert {code for status, code in errors if status == 429} == {"queue_full", "too_many_sequences"}
    assert set(REFUSED_BY_REPLICA).isdisjoint(REFUSED_FOR_ITSELF)
    assert {status for status, _ in errors if status >= 500} == {500, 501, 503, 504}


def test_the_document_says_of_each_reason_whether_it_is_load():
    document = (Path(__file__).parents[2] / "docs/engine-api.md").read_text()
    rows = [line for line in document.splitlines() if line.startswith("| `")]
    named = {
        code: load.strip()
        for line in rows
        if len(cells := line.strip("| ").split(" | ")) == 3 and cells[1].strip() in ("yes", "no")
        for codes, load in [cells[:2]]
        for code in codes.replace("`", "").split(", ")
    }

    assert named == {code: "yes" if code in REFUSED_BY_REPLICA else "no" for code in REFUSALS}
