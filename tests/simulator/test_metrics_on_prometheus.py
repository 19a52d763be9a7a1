"""The simulated Prometheus against the real one, by the queries of the operator."""

import random

import pytest

from e2e.cluster import packages
from e2e.cluster.base import ClusterError
from tangram.fleet import Objective, Objectives
from tangram.scaling import queries
from tangram.scaling.scrapes import MetricsView
from tangram.scaling.scrapes.sample_from_scrapes import query_results
from tangram.simulator.metrics import EnginePage, SimulatedPrometheus
from tangram.simulator.metrics.page_layout import ANSWER_LENGTH, PROMPT_LENGTH, series_labels
from tests.support import promtool_answers

PODS = ("steady", "restarted", "silent", "removed", "late")
OBJECTIVES = Objectives(Objective(90, 2000), Objective(95, 60))
WINDOW_S = 60
OUTAGE = (1200, 1290)
END_S = 2400
# Windows that begin at a scrape, or hold one scrape, a restart, silence or an outage; no series at the end.
INSTANTS = (
    *(2, 4, 20, 63, 64, 120, 306, 363, 704, 705, 720, 760, 914, 925, 944, 946, 960, 1000, 1291, 1300, 1330),
    *(1363, 1500, 1522, 1563, 1600, 1700, 1840, 1860, 1990, 2000, 2010, 2063, 2099, 2103, 2350, 2390, 2399),
)


class Scrapes:
    """A simulated Prometheus, and the same scrapes as series by second."""

    def __init__(self, major):
        self.prometheus = SimulatedPrometheus(15, major=major)
        self.prometheus.outage(*OUTAGE)
        self.series = {}

    def scrape(self, pod, page, at):
        self.prometheus.scrape(pod, page, at)
        if not self.prometheus.is_down(at):
            for column, value in enumerate(page.scrape()):
                self.series.setdefault((pod, column), {})[at] = value

    def end(self, pod, at):
        for (name, _), values in self.series.items():
            if name == pod:
                values[at] = promtool_answers.STALE

    def failed(self, pod, at):
        self.prometheus.failed_scrape(pod, at)
        self.end(pod, at)

    def named(self):
        named = {}
        labels = series_labels()
        for (pod, column), values in self.series.items():
            name, le = labels[column]
            if le != "+Inf" and name.removesuffix("_bucket") in (PROMPT_LENGTH, ANSWER_LENGTH):
                continue  # nothing asks for them
            more = f',le="{le}"' if le else ""
            identity = f'namespace="ns",model_name="m/x",pod="{pod}",engine="0"'
            named[f"{name}{{{identity}{more}}}"] = values
            if le == "+Inf":
                named[f"{name.removesuffix('_bucket')}_count{{{identity}}}"] = values
        return named


def serve(page, rng):
    """A second of a busy engine."""
    for _ in range(rng.choice((0, 0, 1, 3))):
        page.first_token(rng.lognormvariate(-0.5, 1.2), rng.randrange(1, 4000))
    page.token_gaps(rng.randrange(50), rng.lognormvariate(-3.2, 0.6))
    if rng.random() < 0.5:
        page.finished(rng.lognormvariate(-3.2, 0.6), 900, rng.randrange(1, 400), rng.lognormvariate(2, 1))
    page.running = rng.randrange(60)
    page.waiting = rng.choice((0, 0, rng.randrange(9)))
    page.kv_usage = rng.random()


def scraped_day(major):
    rng = random.Random(7)
    scrapes = Scrapes(major)
    pages = {pod: EnginePage() for pod in PODS}
    phases = dict(zip(PODS, (3, 5, 10, 7, 14), strict=True))
    begins = {"removed": 1500, "late": 1985}
    ends = {"steady": 2045, "restarted": 2045, "silent": 2045, "removed": 1800, "late": 2100}
    for second in range(END_S):
        for pod in PODS:
            if not begins.get(pod, 0) <= second < ends[pod]:
                continue
            serve(pages[pod], rng)
            if pod == "restarted" and second in (698, 706):
                pages[pod] = EnginePage()
            if second % 15 != phases[pod]:
                continue
            if pod == "silent" and 900 <= second < 945:
                scrapes.failed(pod, second)
            else:
                scrapes.scrape(pod, pages[pod], second)
        if second == 1801:
            scrapes.prometheus.forget("removed", second)
            scrapes.end("removed", 1792 + 15)
    return scrapes


@pytest.fixture(scope="module")
def promtool():
    try:
        return packages.need("promtool")
    except ClusterError as missing:
        pytest.fail(f"these tests need promtool: {missing}", pytrace=False)


def test_prometheus_returns_the_sample_that_the_simulated_one_returns(promtool, tmp_path):
    scrapes = scraped_day(promtool_answers.major_version(promtool))
    asked = queries.for_deployment("ns", "m/x", PODS, OBJECTIVES, WINDOW_S)
    questions = [(promql, at) for at in INSTANTS for promql in asked.values()]

    real = iter(promtool_answers.answers(promtool, scrapes.named(), questions, tmp_path / "test.yaml"))

    compared = 0
    for at in INSTANTS:
        simulated = query_results(MetricsView(scrapes.prometheus, PODS, at), OBJECTIVES, WINDOW_S)
        assert simulated.keys() == asked.keys()
        for name in asked:
            answer = next(real)
            expected = None if answer is None else pytest.approx(answer, rel=1e-9, abs=1e-12, nan_ok=True)
            assert simulated[name] == expected, (at, name)
            compared += answer is not None
    assert compared > 700
