"""What the simulated Prometheus stores and returns, on series that are small enough to count by hand."""

import math

import pytest

from tangram.fleet import Objective, Objectives
from tangram.scaling import Sample, queries
from tangram.scaling.scrapes import MetricsView, read_sample
from tangram.scaling.scrapes.histogram_quantile import histogram_quantile
from tangram.simulator.metrics import EnginePage, PrometheusDown, SimulatedPrometheus
from tangram.simulator.metrics.page_layout import EDGES, GENERATION_TOKENS, PROMPT_TOKENS, RECEIVED

BOTH = Objectives(Objective(90, 1000), Objective(95, 60))


def page_with(received):
    page = EnginePage()
    page.arrived(received)
    return page


def scraped(prometheus, pod, received, times):
    """Scrapes of one process, whose counter of requests has these values at these times."""
    page = EnginePage()
    before = 0
    for at, count in zip(times, received, strict=True):
        page.arrived(count - before)
        before = count
        prometheus.scrape(pod, page, at)


@pytest.fixture
def prometheus():
    return SimulatedPrometheus(15)


# -- rates -------------------------------------------------------------------------------------------------


def test_an_increase_is_extrapolated_to_the_window_that_its_samples_nearly_fill(prometheus):
    scraped(prometheus, "a", (100, 110, 120, 130), (5, 20, 35, 50))

    # 30 within 45 s; 5 s more before the first sample and 10 s behind the last.
    assert prometheus.increase(RECEIVED, 60, 60) == {"a": pytest.approx(30 * 60 / 45)}
    assert prometheus.rate(RECEIVED, 60, 60) == {"a": pytest.approx(30 / 45)}


def test_an_increase_of_a_series_that_began_in_the_window_grows_by_half_a_scrape(prometheus):
    scraped(prometheus, "a", (100, 110), (35, 50))

    assert prometheus.increase(RECEIVED, 60, 60) == {"a": pytest.approx(10 * (15 + 7.5 + 10) / 15)}


def test_a_counter_is_not_extrapolated_to_before_it_was_zero(prometheus):
    scraped(prometheus, "a", (2, 12, 22), (20, 35, 50))

    # 20 within 30 s, so it was zero 3 s before the first sample.
    assert prometheus.increase(RECEIVED, 60, 60) == {"a": pytest.approx(20 * (30 + 3 + 10) / 30)}


@pytest.mark.parametrize(("major", "to_start_s"), [(2, 12.0), (3, 7.5)])
def test_versions_differ_in_a_counter_that_began_between_half_a_scrape_and_one_before_its_first_sample(
    major, to_start_s
):
    prometheus = SimulatedPrometheus(15, major=major)
    scraped(prometheus, "a", (8, 18), (35, 50))

    assert prometheus.increase(RECEIVED, 60, 60) == {"a": pytest.approx(10 * (15 + to_start_s + 10) / 15)}


@pytest.mark.parametrize(("major", "increase"), [(2, 20), (3, 20 * 45 / 30)])
def test_a_sample_at_the_start_of_a_window_counts_before_prometheus_3_alone(major, increase):
    prometheus = SimulatedPrometheus(15, major=major)
    scraped(prometheus, "a", (100, 100, 110, 120), (0, 15, 30, 45))

    assert prometheus.increase(RECEIVED, 45, 45) == {"a": pytest.approx(increase)}


def test_a_window_with_one_sample_has_no_rate_but_a_mean(prometheus):
    page = page_with(5)
    page.running = 3
    prometheus.scrape("a", page, 50)

    assert prometheus.increase(RECEIVED, 60, 60) == {}
    assert prometheus.avg_over_time(queries.RUNNING, 60, 60) == {"a": 3}


def test_requests_before_a_restart_of_the_container_are_not_lost(prometheus):
    scraped(prometheus, "a", (100, 110), (0, 15))
    scraped(prometheus, "a", (4, 6), (30, 45))

    # 10, then 4 since the process began, then 2; the window is 3 s longer than the samples' 45 s.
    assert prometheus.increase(RECEIVED, 48, 46) == {"a": pytest.approx(16 * 48 / 45)}


def test_functions_over_a_gauge_take_the_samples_of_the_window(prometheus):
    page = EnginePage()
    for at, running in ((0, 90), (15, 1), (30, 6), (45, 2)):
        page.running = running
        prometheus.scrape("a", page, at)

    assert prometheus.avg_over_time(queries.RUNNING, 45, 45) == {"a": 3}
    assert prometheus.max_over_time(queries.RUNNING, 45, 45) == {"a": 6}


# -- series that end ---------------------------------------------------------------------------------------


def test_a_series_ends_with_a_scrape_that_fails_and_goes_on_with_the_next(prometheus):
    page = page_with(1)
    prometheus.scrape("a", page, 0)
    prometheus.failed_scrape("a", 15)
    prometheus.failed_scrape("a", 30)
    prometheus.scrape("a", page, 45)

    counts = [len(prometheus.instant(RECEIVED, at)) for at in (14, 15, 44, 45)]

    assert counts == [1, 0, 0, 1]
    assert len(prometheus.increase(RECEIVED, 60, 46)) == 1  # the failed scrapes are no samples


def test_a_removed_target_ends_at_the_scrape_it_lacks_and_only_after_the_next(prometheus):
    prometheus.scrape("a", page_with(1), 0)
    prometheus.forget("a", 4)

    visible = [len(prometheus.instant(RECEIVED, at)) for at in (4, 16, 31, 32)]

    assert visible == [1, 1, 1, 0]


def test_a_target_removed_while_prometheus_is_down_is_seen_for_five_minutes(prometheus):
    prometheus.scrape("a", page_with(1), 0)
    prometheus.outage(10, 100)
    prometheus.forget("a", 20)

    assert [len(prometheus.instant(RECEIVED, at)) for at in (100, 299, 300)] == [1, 1, 0]


def test_an_outage_loses_scrapes_and_queries(prometheus):
    scraped(prometheus, "a", (1, 2, 3, 4), (0, 15, 30, 45))
    prometheus.outage(50, 70)
    prometheus.scrape("a", page_with(9), 60)

    with pytest.raises(PrometheusDown):
        prometheus.instant(RECEIVED, 50)
    with pytest.raises(PrometheusDown):
        prometheus.increase(RECEIVED, 60, 69)
    assert prometheus.instant(RECEIVED, 70) == {"a": 4}
    assert prometheus.timestamp(RECEIVED, 70) == {"a": 45}


def test_history_is_kept_for_the_retention_and_a_longer_window_is_refused():
    prometheus = SimulatedPrometheus(15, retention_s=300)
    page = EnginePage()
    for at in range(0, 6000, 15):
        page.arrived(15)
        prometheus.scrape("a", page, at)

    assert prometheus.increase(RECEIVED, 300, 5990) == {"a": pytest.approx(300)}
    assert len(prometheus._targets["a"].times_ms) <= 41
    with pytest.raises(ValueError, match="retention"):
        prometheus.increase(RECEIVED, 301, 5990)


def test_scrapes_out_of_order_are_refused(prometheus):
    prometheus.scrape("a", page_with(1), 15)

    with pytest.raises(ValueError, match="order"):
        prometheus.scrape("a", page_with(1), 15)


# -- pages -------------------------------------------------------------------------------------------------


def test_a_page_counts_tokens_and_latencies_where_the_engine_does(prometheus):
    page = EnginePage()
    prometheus.scrape("a", page, 0)
    page.arrived(3)
    page.first_token(0.25, 700)  # at an edge
    page.first_token(0.26, 300)
    page.token_gaps(9, 0.03)
    page.finished(0.03, 700, 10, 0.52)
    page.finished(0.0, 300, 1, 0.26)  # an answer of one token has no time per output token
    prometheus.scrape("a", page, 15)

    at_15 = {name: prometheus.instant(name, 15)["a"] for name in (RECEIVED, PROMPT_TOKENS, GENERATION_TOKENS)}
    ttft, tpot = (prometheus.buckets(name, 16, 15) for name in (queries.TTFT, queries.TPOT))

    assert at_15 == {RECEIVED: 3, PROMPT_TOKENS: 1000, GENERATION_TOKENS: 11}
    edge = EDGES[queries.TTFT].index(0.25)
    assert ttft["a"][edge - 1 : edge + 2] == [0, 1, 2]
    assert (ttft["a"][-1], tpot["a"][-1]) == (2, 1)


def test_names_and_buckets_are_those_of_the_engine():
    metrics = pytest.importorskip("tangram_engine.serve.metrics")

    assert EDGES[queries.TTFT] == metrics.TTFT_BUCKETS
    assert EDGES[queries.ITL] == EDGES[queries.TPOT] == metrics.ITL_BUCKETS
    assert EDGES["vllm:e2e_request_latency_seconds"] == metrics.LATENCY_BUCKETS
    assert list(EDGES["vllm:request_prompt_tokens"]) == metrics.length_buckets(200_000)


# -- quantiles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantile", "counts", "expected"),
    [
        (0.5, (4, 4, 8, 8), 1.0),  # exactly the first bucket
        (0.75, (4, 4, 8, 8), 3.0),  # half of what is between 2 and 4
        (0.25, (4, 4, 8, 8), 0.5),
        (0.9, (0, 0, 1, 10), 4.0),  # above all edges
        (0.75, (4, 3, 8, 8), 3.0),  # a decrease is no decrease
        (0.9, (0, 0, 0, 0), math.nan),
    ],
)
def test_a_quantile_is_interpolated_inside_its_bucket(quantile, counts, expected):
    result = histogram_quantile(quantile, (1.0, 2.0, 4.0), counts)

    assert result == pytest.approx(expected, nan_ok=True)


# -- samples -----------------------------------------------------------------------------------------------


def test_a_sample_tells_no_series_from_no_request(prometheus):
    nothing = read_sample(MetricsView(prometheus, ("a",), 60), BOTH, 60)
    page = EnginePage()
    for at in (0, 15, 30, 45):
        prometheus.scrape("a", page, at)
        prometheus.scrape("of another LLMDeployment", page_with(7), at)
    idle = read_sample(MetricsView(prometheus, ("a",), 59), BOTH, 60)

    assert isinstance(nothing, Sample)
    assert isinstance(idle, Sample)
    assert (nothing.targets, nothing.requests, nothing.waiting) == (None, None, None)
    assert (idle.targets, idle.requests, idle.waiting, idle.age_s) == (1, 0, 0, 14)
    assert idle.ttft_attainment is None
    assert [window.seconds for window in idle.wider] == [300, 1500]


def test_a_sample_sums_pods_before_it_divides(prometheus):
    for pod, good, bad in (("a", 9, 1), ("b", 0, 90)):
        page = EnginePage()
        prometheus.scrape(pod, page, 0)
        for _ in range(good):
            page.first_token(0.1, 5)
        for _ in range(bad):
            page.first_token(9.0, 5)
        prometheus.scrape(pod, page, 15)

    sample = read_sample(MetricsView(prometheus, ("a", "b"), 16), BOTH, 60)

    assert isinstance(sample, Sample)
    assert sample.ttft_attainment == pytest.approx(0.09)
    assert sample.ttft_s == pytest.approx(7.5 + 2.5 * (90 - 9) / 91)
