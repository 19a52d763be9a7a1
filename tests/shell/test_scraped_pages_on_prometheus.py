"""Pages that the operator scrapes itself, against the same pages in a real Prometheus."""

import random

import pytest

from e2e.cluster import packages
from e2e.cluster.base import ClusterError
from tangram.fleet import Objective, Objectives
from tangram.scaling import queries
from tangram.scaling.scrapes import MetricsView, ScrapeStore, query_results
from tangram.scaling.scrapes.page_layout import READ_BY_OPERATOR
from tangram.shell.measure.scraped_page import PageParser, PodPages, is_wanted
from tangram.simulator.metrics import EnginePage
from tests.support import metrics_pages, promtool_answers

MODEL = "meta/x"
OBJECTIVES = Objectives(Objective(90, 2000), Objective(95, 60))
END_S = 1500
INSTANTS = (
    20,
    34,
    61,
    64,
    120,
    305,
    399,
    433,
    470,
    500,
    640,
    700,
    760,
    905,
    912,
    950,
    1000,
    1203,
    1400,
    1499,
)
VLLM_LACKS = ("tangram:", 'le="0.001"', 'le="0.002"', 'le="0.003"', 'le="0.004"', 'le="0.005"', 'le="0.0075"')
# pod -> (phase, from, until); "older" is an engine without arrivals, with fewer buckets and previous names.
PODS = {
    "steady": (3, 0, END_S),
    "parallel": (5, 0, END_S),
    "restarted": (7, 0, END_S),
    "older": (11, 900, 1300),
}


@pytest.fixture(scope="module")
def promtool():
    try:
        return packages.need("promtool")
    except ClusterError as missing:
        pytest.fail(f"these tests need promtool: {missing}", pytrace=False)


def serve(page, rng):
    for _ in range(rng.choice((0, 0, 1, 3))):
        page.arrived()
        page.first_token(rng.lognormvariate(-0.5, 1.2), rng.randrange(1, 4000))
    page.token_gaps(rng.randrange(50), rng.lognormvariate(-3.2, 0.6))
    if rng.random() < 0.5:
        page.finished(rng.lognormvariate(-3.2, 0.6), 900, rng.randrange(1, 400), 3.0)
    page.running, page.waiting, page.kv_usage = rng.randrange(60), rng.randrange(9), rng.random()


def previous_name(name):
    for current, previous in queries.PREVIOUS_NAMES.items():
        name = name.replace(current, previous)
    return name


def page_of(pod, engines, second):
    """The series of a pod: two engines, series that appear late, missing series."""
    values = {}
    for number, page in enumerate(engines):
        values |= metrics_pages.series(page, MODEL, f"{number}", without=VLLM_LACKS if pod == "older" else ())
    if pod == "older":
        values = {(previous_name(name), labels): value for (name, labels), value in values.items()}
    if pod == "steady" and second <= 400:
        late = (queries.TPOT, queries.RECEIVED)
        values = {
            (name, labels): value for (name, labels), value in values.items() if not name.startswith(late)
        }
    return values


def scraped_hours(major):
    """What the operator stores, and the same as series of Prometheus by second."""
    rng, store, parser = random.Random(11), ScrapeStore(READ_BY_OPERATOR, 15, major=major), PageParser()
    engines = {pod: [EnginePage() for _ in range(2 if pod == "parallel" else 1)] for pod in PODS}
    pages = {pod: PodPages() for pod in PODS}
    series = {}
    for second in range(END_S):
        for pod, (phase, begin, end) in PODS.items():
            for page in engines[pod]:
                serve(page, rng)
            if pod == "restarted" and second == 450:
                engines[pod] = [EnginePage()]
            if second % 15 != phase or not begin <= second < end:
                continue
            values = page_of(pod, engines[pod], second)
            lines = [line for line in metrics_pages.text(values).split(b"\n") if is_wanted(line)]
            for engine, row in parser.parse(lines, MODEL, pages[pod]).items():
                # Each scrape counts as another process, so that every step between scrapes is looked at.
                store.append(f"{pod}/{engine}", second, row.row, second, row.absent)
            for (name, labels), value in values.items():
                full = f'{name}{{namespace="ns",pod="{pod}",{labels}}}'
                series.setdefault(full, {})[second] = value
    for pod, (phase, _, end) in PODS.items():
        if end < END_S:  # from then on no scrape succeeds
            failed = next(second for second in range(end, END_S) if second % 15 == phase)
            store.mark_stale(f"{pod}/0", failed)
            for name, values in series.items():
                if f'pod="{pod}"' in name:
                    values[failed] = promtool_answers.STALE
    return store, series


def test_prometheus_returns_the_sample_that_scraped_pages_give(promtool, tmp_path):
    store, series = scraped_hours(promtool_answers.major_version(promtool))
    asked = queries.for_deployment("ns", MODEL, PODS, OBJECTIVES, 60)
    questions = [(promql, at) for at in INSTANTS for promql in asked.values()]
    needed = {name: values for name, values in series.items() if "e2e_request" not in name}

    real = iter(promtool_answers.answers(promtool, needed, questions, tmp_path / "test.yaml"))

    keys = ["steady/0", "parallel/0", "parallel/1", "restarted/0", "older/0"]
    compared = 0
    for at in INSTANTS:
        scraped = query_results(MetricsView(store, keys, at), OBJECTIVES, 60)
        assert scraped.keys() == asked.keys()
        for name in asked:
            answer = next(real)
            expected = None if answer is None else pytest.approx(answer, rel=1e-9, abs=1e-12, nan_ok=True)
            assert scraped[name] == expected, (at, name)
            compared += answer is not None
    assert compared > 400
