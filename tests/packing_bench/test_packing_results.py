"""What the kept results say, whoever made them: nowhere worse than best-fit, no more moves than allowed."""

import json

import pytest

from benchmarks.packing.churn import BUDGETS, PERIOD
from benchmarks.packing.churn import USED as CHURNED
from benchmarks.packing.full_fleet import BUDGET
from benchmarks.packing.full_fleet import USED as FILLED
from benchmarks.packing.online import BEST
from benchmarks.packing.report import HERE, KEPT
from benchmarks.packing.static import MIXES


def figures(part):
    record = json.loads((KEPT / f"{part}.json").read_text())
    assert record["failed"] == []
    return record["figures"]


@pytest.mark.parametrize("mix", CHURNED)
@pytest.mark.parametrize("budget", BUDGETS)
def test_after_churn_no_seed_needs_more_gpus_than_best_fit_and_moves_are_bounded(mix, budget):
    found, name = figures("churn")[mix], f"planner, {budget} moves"

    assert all(mine <= best for mine, best in zip(found["over"][name], found["over"][BEST], strict=True))
    assert 0 < found["moves_per_100_arrivals"][name] <= budget * 100 / PERIOD


@pytest.mark.parametrize("mix", FILLED)
@pytest.mark.parametrize("load", ["1.0", "0.85"])
def test_a_full_fleet_accepts_no_less_than_best_fit_at_any_seed_and_moves_are_bounded(mix, load):
    found = figures("full-fleet")[f"{mix} {load}"]

    assert all(
        mine >= best for mine, best in zip(found["share"]["planner"], found["share"][BEST], strict=True)
    )
    assert 0 < found["moves_per_request_helped"] <= BUDGET


@pytest.mark.parametrize("mix", MIXES)
def test_known_requests_need_the_proven_number_of_gpus(mix):
    for seed in figures("static")[mix]:
        assert seed["planner"] == seed["optimum"] <= seed[BEST]


def test_a_trace_is_packed_no_worse_than_by_best_fit():
    for name, found in figures("openb").items():
        if "optimum" in found:
            assert found["planner"] == found["optimum"], name
        else:
            pairs = zip(found["planner"], found[BEST], strict=True)
            assert all(mine >= best for mine, best in pairs), name


def test_the_report_has_every_part():
    report = (HERE / "RESULTS.md").read_text()

    assert "Not run yet" not in report
    assert all(f"python -m benchmarks.packing {path.stem}" in report for path in KEPT.glob("*.json"))
