"""The comparison of scaling laws: cost at equal attainment, knobs chosen elsewhere, runs that are resumed."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscaling import clairvoyant, compare, compared_laws, disturbances, runs, scenarios
from benchmarks.autoscaling.__main__ import main
from benchmarks.autoscaling.client_traffic import CLIENTS, client_traffic
from benchmarks.autoscaling.compare import SweptRun, usd_at
from benchmarks.autoscaling.compared_laws import BY_NAME
from benchmarks.autoscaling.knob_bisection import BRACKETED, next_knob
from benchmarks.autoscaling.prepared_scenario import prepared
from tangram.simulator.cluster.faults import InjectedFaults, PrometheusOutage


def swept(*points):
    return [SweptRun(float(place), usd, miss, 10_000) for place, (usd, miss) in enumerate(points)]


def record(scenario, law, knob, usd, miss, seed=0):
    figures = dict.fromkeys(
        ("windows_99", "mean_replicas", "most_replicas", "starts", "reversals_per_day", "changes_per_day",
         "recovery_s", "idle_gpu_hours", "starting_gpu_hours", "blind_actions", "blind_scale_downs"), 0.0
    )  # fmt: skip
    case = {"scenario": scenario, "law": law, "knob": knob, "seed": seed}
    return figures | case | {"usd": usd, "miss": miss, "requests": 10_000}


def every_knob(scenario, law, points, seed=0):
    knobs = BY_NAME[law].knobs
    assert len(points) == len(knobs)
    return [record(scenario, law, k, usd, miss, seed) for k, (usd, miss) in zip(knobs, points, strict=True)]


def test_between_two_knobs_cost_is_linear_in_the_logarithm_of_the_misses():
    runs_of_a_seed = swept((10.0, 0.1), (20.0, 0.001))

    assert usd_at(runs_of_a_seed, 0.99) == pytest.approx(15.0)
    assert usd_at(runs_of_a_seed, 0.99, is_stepped=True) == 20.0


def test_an_attainment_that_no_knob_reaches_has_no_cost():
    assert usd_at(swept((10.0, 0.1), (20.0, 0.02)), 0.99) is None


def test_the_cheapest_knob_that_reaches_the_attainment_counts_also_where_a_law_is_not_monotone():
    assert usd_at(swept((30.0, 0.001), (12.0, 0.0), (40.0, 0.001)), 0.99) == 12.0


def test_no_misses_count_as_half_a_request():
    assert swept((1.0, 0.0))[0].log_miss == pytest.approx(math.log(0.5 / 10_000))


def test_a_law_is_compared_with_ours_by_seed():
    ours = [(usd, 0.001) for usd in (10.0, 11, 12, 13, 14, 15, 16, 17)]
    theirs = [(2 * usd, miss) for usd, miss in ours]
    records = []
    for seed, scale in ((0, 1.0), (1, 3.0)):
        records += every_knob("conv", "tangram", [(scale * usd, miss) for usd, miss in ours], seed)
        records += every_knob("conv", "keda", [(scale * usd, miss) for usd, miss in theirs], seed)

    at = compare.at_equal_attainment(compare.collected(records), "conv", "keda", 0.99)

    assert (at.over_ours.value, at.over_ours.half_width, at.reached) == (pytest.approx(1.0), 0.0, 2)


def test_a_seed_in_which_an_attainment_is_not_bracketed_does_not_count():
    points = [(10.0, miss) for miss in (0.2, 0.2, 0.2, 0.2, 0.2, 0.02, 0.002, 0.001)]
    records = every_knob("conv", "keda", points)

    assert compare.collected(records[:-1]).runs["conv", "keda"].keys() == {0}
    assert compare.collected([*records[:4], *records[5:]]).runs["conv", "keda"] == {}


def test_without_all_knobs_a_scenario_has_its_cost_and_no_knob_from_elsewhere():
    points = [(10.0 + place, miss) for place, miss in enumerate((0.2, 0.1, 0.04, 0.02, 0.005, 0.0, 0.0, 0.0))]
    whole, part = every_knob("conv", "tangram", points), every_knob("day1", "tangram", points)[1:6]
    results = compare.collected([*whole, *part])

    costs = [
        compare.at_equal_attainment(results, name, "tangram", 0.95).usd.value for name in ("conv", "day1")
    ]
    assert costs[0] == costs[1]
    assert compare.most_frugal_knob(results, "day1", "tangram", 0.99) == BY_NAME["tangram"].knobs[4]
    assert compare.at_default(results, "day1", "tangram", 0.99).miss.value == 0.0
    assert compare.on_other_traces(results, "day1", "tangram", 0.99) is None
    assert compare.on_other_traces(results, "conv", "tangram", 0.99) is None


def test_the_knob_of_a_scenario_is_chosen_on_the_others():
    here = [(10.0, 0.0)] * 8
    there = [(10.0, 0.5), (11.0, 0.5), (12.0, 0.5), (13.0, 0.009), *[(14.0, 0.0)] * 4]
    results = compare.collected([*every_knob("conv", "keda", here), *every_knob("code", "keda", there)])

    assert compare.on_other_traces(results, "conv", "keda", 0.99).knob == BY_NAME["keda"].knobs[3]
    assert compare.on_other_traces(results, "code", "keda", 0.99).knob == BY_NAME["keda"].knobs[0]
    assert compare.on_other_traces(results, "code", "keda", 0.99).miss.value == 0.5


@pytest.mark.parametrize("law", compared_laws.LAWS, ids=lambda law: law.name)
def test_a_law_is_built_for_each_knob_and_its_default_is_one_of_them(law):
    scenario = prepared(scenarios.QUICK, 0)

    assert [law.controller(scenario, knob).interval_s > 0 for knob in law.knobs] == [True] * len(law.knobs)
    assert law.default is None or law.default in law.knobs


def test_a_law_is_compared_with_a_pool_for_the_busiest_minute_by_seed():
    records = []
    for seed, scale in ((0, 1.0), (1, 3.0)):
        records += every_knob("conv", "tangram", [(scale * 15.0, 0.04)] * 8, seed)
        records += every_knob("conv", "static-peak", [(scale * 20.0, 0.0)], seed)

    over = compare.over_peak_sized(compare.collected(records), "conv", "tangram", 0.958)

    assert (over.value, over.half_width) == (pytest.approx(-0.25), 0.0)


def test_a_pool_for_the_busiest_minute_carries_it():
    scenario = prepared(scenarios.QUICK, 0)
    replicas = compared_laws.peak_replicas(scenario, 1.0)

    busiest = max(Counter(request.arrival_s // 60 for request in scenario.trace.requests).values()) / 60
    assert replicas - 1 < busiest / scenario.profile.requests_per_second <= replicas


@pytest.mark.parametrize("client", CLIENTS)
def test_traffic_of_a_client_has_the_mean_rate_asked_for(client):
    trace = client_traffic(client, 2.0)

    assert len(trace.requests) / trace.duration_s == pytest.approx(2.0, rel=0.1)


def test_the_load_of_the_oracle_is_all_work():
    scenario = prepared(scenarios.QUICK, 0)

    replica_s = sum(clairvoyant.load(scenario)) * clairvoyant.BIN_S
    usual_s = len(scenario.trace.requests) / scenario.profile.requests_per_second
    assert replica_s == pytest.approx(usual_s, rel=0.1)


def test_a_run_that_fails_is_recorded(monkeypatch):
    def broken(_scenario, _seed):
        raise ValueError("no replica")

    monkeypatch.setattr(runs, "prepared", broken)

    assert "no replica" in runs.perform_one(runs.Case(scenarios.QUICK, "keda", 5.0, 0))["error"]


def test_the_smoke_compares_three_laws_and_repeats_no_run(tmp_path, capsys):
    arguments = ["--quick", "--processes", "1", "--out", str(tmp_path)]
    assert main(arguments) == 0
    lines = (tmp_path / "runs.jsonl").read_text().splitlines()

    assert main(arguments) == 0

    assert (tmp_path / "runs.jsonl").read_text().splitlines() == lines
    figures = json.loads((tmp_path / "report.json").read_text())["quick"]
    assert figures.keys() == {"tangram", "static", "hpa-running"}
    for law in figures.values():
        regret = law["at_equal_attainment"]["0.99"]["regret"]
        assert regret["value"] > -0.1
        costs = [did["usd"] for did in law["by_knob"].values()]
        assert costs == sorted(costs)
    assert "| oracle |" in capsys.readouterr().out


@given(st.lists(st.sampled_from([0.0, 0.008, 0.03, 0.2, 0.9]), min_size=8, max_size=8))
def test_bisection_runs_what_all_attainments_lie_between(misses):
    law = BY_NAME["tangram"]
    swept = dict(zip(law.knobs, sorted(misses, reverse=True), strict=True))
    ran = {}
    while (knob := next_knob(law, ran)) is not None:
        assert knob not in ran
        ran[knob] = swept[knob]

    def cost_at(misses, attainment):
        return usd_at(
            [SweptRun(k, float(law.knobs.index(k)), misses[k], 100) for k in law.knobs if k in misses],
            attainment,
        )

    assert law.default in ran
    assert len(ran) <= 6
    assert [cost_at(ran, a) for a in BRACKETED] == [cost_at(swept, a) for a in BRACKETED]


def test_a_sweep_bisects_the_knobs_of_long_traces_and_resumes(tmp_path, monkeypatch):
    began = []

    def perform_one(case):
        began.append(case)
        place = BY_NAME[case.law].knobs.index(case.knob)
        return record(case.scenario.name, case.law, case.knob, 1.0, 0.3**place, case.seed) | {"key": case.key}

    monkeypatch.setattr(runs, "perform_one", perform_one)
    scenario = replace(scenarios.QUICK, is_bisected=True, seeds=2)
    arguments = [scenario], ["static", "keda"], tmp_path / "runs.jsonl"

    records = runs.sweep(*arguments, with_oracle=False)

    assert [case.seed for case in began] == sorted(case.seed for case in began)
    assert len(began) == len(records) < 2 * 12
    assert compare.collected(records).runs["quick", "keda"].keys() == {0, 1}
    began.clear()
    again = runs.sweep(*arguments, with_oracle=False, hours=0.0)
    assert {case["key"] for case in again} == {case["key"] for case in records}
    assert not began


def test_a_disturbance_is_what_sets_a_day_apart_from_the_undisturbed_one():
    short = ((0.0, 4.0), (600.0, 4.0), (1500.0, 8.0))
    outage = InjectedFaults(outages=(PrometheusOutage(600.0, 1200.0),))
    days = (
        disturbances.Disturbance("growth", short),
        disturbances.Disturbance("outage", short, outage),
        disturbances.Disturbance("two models", short, nodes=(6,), models=2),
    )

    figures = disturbances.run_all(["tangram"], days)

    growth, disturbed, shared = (figures[day.name]["tangram"] for day in days)
    assert (disturbed["blind_actions"], disturbed["blind_scale_downs"]) == (0, 0)
    assert disturbed["attainment"] < growth["attainment"]
    assert shared["attainment"] < growth["attainment"]
    assert "## two models" in disturbances.markdown(figures)


@pytest.mark.parametrize(
    ("missed", "percentile"), [(0.5, 50), (0.3, 50), (0.1, 90), (0.02, 95), (0.01, 99), (0.001, 99)]
)
def test_a_spec_asks_for_the_strictest_percentile_that_allows_the_misses(missed, percentile):
    asked = compared_laws.asking_for(prepared(scenarios.QUICK, 0).intent, missed)

    assert (asked.ttft.percentile, asked.tpot.percentile) == (percentile, percentile)
