"""Queries about many LLMDeployments: how many, how long, about which pods; and what their answers mean."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.fleet import Objective, Objectives
from tangram.scaling import FleetAnswers, FleetQuery, Sample, for_fleet, metrics_subject, queries, sample_from
from tangram.shell.measure.prometheus import percent_encoded
from tests.support.grouped_answers import rows, terms

BOTH = Objectives(Objective(90, 1000), Objective(95, 60))
OTHER_EDGES = Objectives(Objective(99, 300), Objective(90, 30))


def subject(number, pods=2, objectives=BOTH, namespace="ns"):
    name = f"llama-3.1-8b-{number}"
    return metrics_subject(
        f"uid-{number}",
        namespace,
        f"m/{name}",
        tuple(f"{name}-7c9f8-{n:05x}" for n in range(pods)),
        objectives,
    )


def pods_by_field(asked):
    found = defaultdict(list)
    for query in asked:
        for term in terms(query.promql):
            edge = "le=" in term.expression and term.expression.split("le=~")[1][:8]
            found[term.field, edge] += term.pods
    return found


@pytest.mark.parametrize("most_chars", [1, 2000, 48 << 10])
def test_every_term_names_each_pod_once(most_chars):
    subjects = [subject(n, objectives=OTHER_EDGES if n % 3 else BOTH) for n in range(30)]
    every_pod = sorted(pod for one in subjects for pod in one.pods)

    found = pods_by_field(for_fleet(subjects, 60, most_chars))

    for field in ("running", "requests", "arrived@300", "answer_tokens_count@1500", "itl_count"):
        assert sorted(found[field, False]) == every_pod, field
    by_edge = {edge: pods for (field, edge), pods in found.items() if field == "ttft_good@300"}
    assert len(by_edge) == 2
    assert sorted(pod for pods in by_edge.values() for pod in pods) == every_pod


def test_no_body_of_a_form_is_longer_than_64_kib():
    subjects = [subject(n, pods=4, objectives=OTHER_EDGES if n % 3 else BOTH) for n in range(500)]

    asked = for_fleet(subjects, 60)

    assert max(len(percent_encoded(query.promql)) for query in asked) < 64 << 10
    assert len(asked) < 150


@pytest.mark.parametrize("most_chars", [1, 2000, 48 << 10])
def test_rows_of_two_terms_of_a_query_differ(most_chars):
    subjects = [subject(n, objectives=OTHER_EDGES if n % 3 else BOTH) for n in range(30)]
    names = {pod: (one.namespace, one.served_name) for one in subjects for pod in one.pods}

    for query in for_fleet(subjects, 60, most_chars):
        labels = [tuple(row["metric"].items()) for row in rows(query.promql, names, lambda *_: "1")]
        assert len(set(labels)) == len(labels)


def test_only_the_edges_of_objectives_are_asked_for():
    (query, *_), found = for_fleet([subject(1)], 60), pods_by_field(for_fleet([subject(1)], 60))

    assert query.promql.count("le=~") == 3 * 4  # windows, names of histograms
    assert {edge for field, edge in found if field.startswith("ttft_good")} == {'"1|1\\\\.0'}


def test_without_objectives_nothing_is_asked_about_latency():
    found = pods_by_field(for_fleet([subject(1, objectives=Objectives())], 60))

    assert not [field for field, _ in found if field.startswith(("ttft", "tpot", "itl"))]


def test_without_pods_nothing_is_asked():
    assert for_fleet([subject(1, pods=0)], 60) == ()


def test_two_llmdeployments_with_a_row_in_common_are_asked_apart():
    one = metrics_subject("one", "ns", "m", ("same-x",), BOTH)
    two = metrics_subject("two", "ns", "m", ("same-y",), BOTH)

    for query in for_fleet([one, two], 60):
        (uid,) = set(query.owners.values())
        pods = {pod for term in terms(query.promql) for pod in term.pods}
        assert pods == set({"one": one, "two": two}[uid].pods)


def test_an_objective_below_all_edges_is_refused():
    with pytest.raises(ValueError, match="no bucket edge"):
        metrics_subject("u", "ns", "m", (), Objectives(Objective(90, 0.5)))


def answered(field_values, one=subject(1)):  # noqa: B008 - frozen
    answers = FleetAnswers()
    key = one.namespace, one.served_name, one.pods[0].rpartition("-")[0]
    query = FleetQuery("", {key: one.uid})
    labels = dict(zip(("namespace", "model_name", "replica_set"), key, strict=True))
    answers.add(
        query,
        [{"metric": {**labels, "field": field}, "value": [0, text]} for field, text in field_values],
    )
    return answers.results(one, 60, 100.0)


def test_replica_sets_add_up_and_the_newest_scrape_counts():
    results = answered([("waiting", "2"), ("waiting", "3"), ("scraped_at", "90"), ("scraped_at", "97.5")])

    assert results["waiting"] == 5
    assert results["age_s"] == 2.5


@pytest.mark.parametrize(
    ("values", "attainment"),
    [
        ([("ttft_good", "9"), ("requests", "10")], 0.9),
        ([("ttft_good", "9"), ("requests", "0")], None),
        ([("ttft_good", "9"), ("requests", "NaN")], None),
        ([("ttft_good", "9")], None),
        ([("requests", "10")], None),
    ],
)
def test_a_share_needs_observations(values, attainment):
    assert answered(values)["ttft_attainment"] == attainment


def test_a_counter_that_not_every_engine_exports_is_not_known():
    exported = [("arrived", "5"), ("arrived@300", "9")]

    assert answered(exported)["arrived"] == 5
    partly = answered([*exported, ("pods_without_arrived", "1")])
    assert (partly["arrived"], partly["arrived@300"]) == (None, 9)


def test_rows_of_other_models_and_pods_count_for_none():
    one = subject(1)
    answers = FleetAnswers()
    (query, *_) = for_fleet([one], 60)
    key = {"namespace": "ns", "model_name": one.served_name, "replica_set": "llama-3.1-8b-1-7c9f8"}
    for change in ({"namespace": "other"}, {"model_name": "other"}, {"replica_set": "other"}, {}):
        answers.add(query, [{"metric": {**key, **change, "field": "waiting"}, "value": [0, "1"]}])
        left_out = {name: text for name, text in key.items() if name != "model_name"}
        answers.add(query, [{"metric": {**left_out, "field": "waiting"}, "value": [0, "1"]}])

    assert answers.results(one, 60, 0.0)["waiting"] == 1


@pytest.mark.parametrize(
    "row",
    [None, 7, {}, {"metric": {}}, {"metric": [], "value": [0, "1"]}, {"metric": {"namespace": []}}],
    ids=str,
)
def test_rows_that_no_prometheus_returns_are_refused(row):
    one = subject(1)
    if row == {"metric": {}}:
        row = {
            "metric": {
                "namespace": "ns",
                "model_name": one.served_name,
                "replica_set": "llama-3.1-8b-1-7c9f8",
            }
        }
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        FleetAnswers().add(for_fleet([one], 60)[0], [row])


VALUE = st.floats(allow_nan=True).map(str) | st.sampled_from(["+Inf", "NaN", "many", "", "1" * 65, "1e300"])
FIELD = st.sampled_from(
    [
        *("running", "targets", "scraped_at", "waiting", "kv_usage", "requests", "ttft_good", "arrived"),
        *("pods_without_arrived", "prompt_tokens_sum", "prompt_tokens_count", "requests@300"),
        *("ttft_good@300", "tpot_count", "tpot_good", "itl_good", "itl_count", "ttft_s", "running_mean@1500"),
    ]
)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), FIELD, VALUE), max_size=30))
def test_whatever_is_returned_about_one_llmdeployment_the_other_is_read(values):
    subjects = {1: subject(1), 2: subject(2)}
    keys = {
        n: (one.namespace, one.served_name, one.pods[0].rpartition("-")[0]) for n, one in subjects.items()
    }
    query = FleetQuery("", {key: subjects[n].uid for n, key in keys.items()})
    answers = FleetAnswers()
    expected = defaultdict(float)
    for n, field, text in values:
        labels = dict(zip(("namespace", "model_name", "replica_set"), keys[n], strict=True))
        answers.add(query, [{"metric": {**labels, "field": field}, "value": [0, text]}])
        if n == 1 and field == "waiting" and text not in ("many", "", "1" * 65):
            expected["waiting"] += float(text)
    answers.add(query, [])

    bad = any(n == 1 and text in ("many", "", "1" * 65) for n, _, text in values)
    if bad:
        with pytest.raises(ValueError, match="Prometheus returned"):
            answers.results(subjects[1], 60, 100.0)
        return
    results = answers.results(subjects[1], 60, 100.0)
    assert results.keys() == queries.for_deployment("ns", "m", ("p",), BOTH, 60).keys()
    if "waiting" in expected:
        assert results["waiting"] == pytest.approx(expected["waiting"], nan_ok=True)
    else:
        assert results["waiting"] is None
    sample = sample_from(results, 0.0)
    if isinstance(sample, Sample):
        assert sample.ttft_attainment is None or 0 <= sample.ttft_attainment <= 1
