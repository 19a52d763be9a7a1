import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Objective, Objectives
from tangram.scaling import RejectedSample, Sample, queries, sample_from

PODS = ("m-1-a", "m-1.b")
BOTH = Objectives(ttft=Objective(90, 1000), tpot=Objective(95, 60))


def le_of(query: str) -> re.Pattern[str]:
    """The anchored regular expression that Prometheus sees after unquoting the string."""
    text = re.search(r'le=~"([^"]*)"', query)
    assert text
    return re.compile(text.group(1).replace("\\\\", "\\"))


def test_every_selector_names_namespace_and_model():
    for query in queries.for_deployment("ns", "m", PODS, BOTH, 60).values():
        selectors = re.findall(r"(?:vllm|tangram):\w+(\{[^}]*\})?", query)
        assert selectors
        assert all('namespace="ns",model_name="m"' in selector for selector in selectors)
        assert all(r'pod=~"m-1-a|m-1\\.b"' in selector for selector in selectors)


def test_rates_are_taken_before_sums():
    for query in queries.for_deployment("ns", "m", PODS, BOTH, 60).values():
        assert "rate(sum" not in query
        assert "increase(sum" not in query


def test_no_query_invents_a_zero():
    for query in queries.for_deployment("ns", "m", PODS, BOTH, 60).values():
        assert "vector(" not in query


def test_without_objectives_nothing_is_asked_about_latency():
    asked = queries.for_deployment("ns", "m", PODS, Objectives(), 60)

    over_window = {
        "running_mean",
        "requests",
        "arrived",
        "prompt_tokens_mean",
        "answer_tokens_mean",
    }
    wider = {f"{name}@{seconds}" for name in over_window for seconds in (300, 1500)}
    assert set(asked) == {"targets", "age_s", "waiting", "running", "kv_usage"} | over_window | wider


@pytest.mark.parametrize(
    ("window_s", "wider"), [(60, (300, 1500)), (4, (20, 100)), (600, (3000,)), (7200, ())]
)
def test_wider_windows_end_at_an_hour(window_s, wider):
    assert queries.wider_windows(window_s) == wider


def test_without_pods_no_series_is_asked_for():
    for query in queries.for_deployment("ns", "m", (), BOTH, 60).values():
        assert re.findall(r'pod=~"([^"]*)"', query)[0] == "-"  # no pod can have this name


@pytest.mark.parametrize(
    ("milliseconds", "edge"),
    [(1000, 1.0), (2000, 1.0), (2500, 2.5), (1, 0.001), (7, 0.005), (600_000, 160.0)],
)
def test_an_objective_is_checked_at_the_bucket_edge_at_or_below_it(milliseconds, edge):
    assert queries.snap(milliseconds, queries.TTFT_BUCKETS) == edge


def test_a_bucket_is_found_in_both_spellings_and_no_other_is():
    pattern = le_of(queries.for_deployment("ns", "m", PODS, BOTH, 60)["ttft_attainment"])

    assert pattern.fullmatch("1")
    assert pattern.fullmatch("1.0")
    spellings = {f"{edge:g}" for edge in queries.TTFT_BUCKETS} | {str(edge) for edge in queries.TTFT_BUCKETS}
    assert {text for text in spellings | {"+Inf"} if pattern.fullmatch(text)} == {"1", "1.0"}


@pytest.mark.parametrize("buckets", [queries.TTFT_BUCKETS, queries.TPOT_BUCKETS])
def test_every_bucket_matches_itself_alone(buckets):
    for edge in buckets:
        pattern = re.compile(queries.le_pattern(edge).replace("\\\\", "\\"))
        assert [other for other in buckets if pattern.fullmatch(f"{other:g}")] == [edge]
        assert [other for other in buckets if pattern.fullmatch(str(other))] == [edge]


@given(st.integers(1, 600_000))
def test_snapping_never_loosens_an_objective_and_knows_only_real_edges(milliseconds):
    for buckets in (queries.TTFT_BUCKETS, queries.TPOT_BUCKETS):
        edge = queries.snap(milliseconds, buckets)
        assert edge <= milliseconds / 1000
        assert edge in buckets
        assert not [other for other in buckets if edge < other <= milliseconds / 1000]


def test_a_name_cannot_break_out_of_its_selector():
    query = queries.for_deployment('n"} or vector(1)', "a\\", PODS, Objectives(), 60)["targets"]

    assert r'namespace="n\"} or vector(1)"' in query
    assert r'model_name="a\\"' in query


def good(**changes):
    return {
        "targets": "1",
        "age_s": "3",
        "waiting": "0",
        "running": "1",
        "running_mean": "0.5",
        "requests": "30",
    } | changes


def test_prometheus_strings_become_numbers():
    sample = sample_from(good(ttft_attainment="0.93", ttft_s="0.2"), at=7.0)

    assert sample == Sample(7.0, 1, 3, 0, 1, 0.5, 30, ttft_attainment=0.93, ttft_s=0.2)


def test_a_missing_series_is_not_zero():
    sample = sample_from({}, at=7.0)

    assert isinstance(sample, Sample)
    assert sample.waiting is None
    assert sample.requests is None


def test_nan_of_a_ratio_is_no_sample():
    sample = sample_from(good(ttft_attainment="NaN", tpot_s="NaN"), at=7.0)

    assert isinstance(sample, Sample)
    assert sample.ttft_attainment is None
    assert sample.tpot_s is None


@pytest.mark.parametrize(
    "bad",
    [
        {"waiting": "NaN"},
        {"waiting": "+Inf"},
        {"running": "-1"},
        {"requests": "1e300"},
        {"ttft_attainment": "1.2"},
        {"ttft_attainment": "-0.1"},
        {"ttft_s": "+Inf"},
        {"targets": "many"},
        {"age_s": "-4000"},
        {"kv_usage": "-1"},
        {"requests@300": "NaN"},
        {"running_mean@300": "1e308"},
        {"ttft_attainment@1500": "7"},
    ],
)
def test_a_number_that_cannot_be_rejects_the_whole_sample(bad):
    rejected = sample_from(good(**bad), at=7.0)

    assert isinstance(rejected, RejectedSample)
    assert next(iter(bad)).partition("@")[0] in rejected.reason


def test_wider_windows_are_read_in_their_order():
    sample = sample_from(good(**{"requests@1500": "90", "requests@300": "40"}), at=7.0)

    assert isinstance(sample, Sample)
    assert [(w.seconds, w.requests, w.is_widest) for w in sample.windows(60)] == [
        (60, 30, False),
        (300, 40, False),
        (1500, 90, True),
    ]


@given(
    st.dictionaries(
        st.sampled_from(
            sorted(good() | {"ttft_attainment": 0, "itl_attainment": 0, "tpot_s": 0, "kv_usage": 0})
        ),
        st.floats(),
    )
)
def test_whatever_prometheus_says_nothing_absurd_comes_through(results):
    sample = sample_from(results, at=0.0)

    if isinstance(sample, Sample):
        for name in results:
            value = getattr(sample, name)
            assert value is None or -60 <= value <= 1e7
        for name in ("ttft_attainment", "itl_attainment"):
            value = getattr(sample, name)
            assert value is None or 0 <= value <= 1
