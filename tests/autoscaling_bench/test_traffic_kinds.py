"""Generated kinds of traffic, and the operator's law beside fixed replicas on them."""

import pytest

from benchmarks.autoscaling import as_asked, runs, scenarios
from benchmarks.autoscaling.compared_laws import BY_NAME
from benchmarks.autoscaling.knob_bisection import next_knob
from benchmarks.autoscaling.traffic_kinds import drawn_kinds, kind_of, kind_traffic

DRAWN = drawn_kinds(1)


def test_kinds_are_drawn_by_their_seed():
    assert drawn_kinds(1) == DRAWN
    assert {name.partition("@")[0] for name in DRAWN} == {name.partition("@")[0] for name in drawn_kinds(2)}
    assert not set(DRAWN.values()) & set(drawn_kinds(2).values())


@pytest.mark.parametrize("name", [*DRAWN, "bursty-classes"])
def test_a_kind_is_always_the_same_sorted_requests_of_all_its_classes(name):
    trace = kind_traffic(name)

    arrivals = [request.arrival_s for request in trace.requests]
    expected = sum(described.expected_requests for described in kind_of(name).classes)
    assert arrivals == sorted(arrivals)
    assert len(arrivals) == pytest.approx(expected, rel=0.1)
    assert kind_traffic(name) == trace


def test_misses_that_long_prompts_of_others_cause_are_answered_with_replicas():
    """One replica that is idle meets the objective. Fixed replicas attain 95 % with 27."""
    result = runs.perform_one(runs.Case(scenarios.BY_NAME["short-answers"], "tangram", 0.05, 0))

    assert result["miss"] < 0.08
    assert 20 <= result["most_replicas"] <= 40


def run_of(law, knob, usd, miss):
    return {
        "scenario": "ramp",
        "law": law,
        "knob": knob,
        "seed": 0,
        "usd": usd,
        "miss": miss,
        "requests": 1000,
    }


def test_the_least_fixed_number_that_attains_a_percentile_is_what_others_are_compared_with():
    def miss(replicas):
        return 0.5 / replicas**2

    fixed, misses = [], {}
    while (knob := next_knob(BY_NAME["fixed"], misses)) is not None:
        misses[knob] = miss(knob)
        fixed.append(run_of("fixed", knob, 10 * knob, miss(knob)))
    ours = [run_of("tangram", 0.05, 44.0, 0.02), run_of("tangram", 0.01, 60.0, 0.009)]

    text = as_asked.markdown([*ours, *fixed])

    assert "| ramp, 95% | 40.00 USD | 98.0% | +10% | - | - | - |" in text
    assert "| ramp, 99% | 80.00 USD | 99.1% | -25% | - | - | - |" in text
