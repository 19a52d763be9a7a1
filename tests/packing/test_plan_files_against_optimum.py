"""Files through `tangram plan -o json`, judged by an optimiser that shares no code with planner and packer.

Legal, worth the figures in the JSON, replayable step by step, and as good as the optimum within its own gap.
"""

import copy
import json
import subprocess
import sys

import pytest

from tests.support.plan_file_oracle import faults, headline_faults, judged, rates_of
from tests.support.plan_files import KINDS, documents, inventory_of
from tests.support.plans import Planner

pytestmark = pytest.mark.slow

MOVED = ("running-short", 1)


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_of_files_is_legal_worth_its_figures_and_as_good_as_the_optimiser_says(planner, kind):
    assert judged(planner, kind, range(1)) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("spread-running", 116),  # a move to an equal shape was counted from a pool that allows it
        ("policies", 128),  # a plan without moves took another replica for one that must not move
        ("policies", 205),  # IdleOnly lets NVML cut what is idle of a GPU in use: the optimiser did not know
        ("running", 1011),  # replicas that end were counted otherwise among few mixes than among all
        ("budgets", 124),  # the same
        ("spread-running", 102),  # beside a replica that must not move, spread left no room that was planned
    ],
)
def test_a_plan_that_broke_a_rule_once_keeps_all(planner, kind, seed):
    assert judged(planner, kind, [seed]) == ({}, {})


@pytest.mark.parametrize("kind", ["running"])
def test_a_process_of_its_own_prints_the_same_bytes_and_its_headline_agrees(planner, kind):
    asked = documents(kind, 1, rates_of)
    status, text, _ = planner.run(*asked, flags=("-o", "json"))
    table = planner.run(*asked, columns=100_000)[1]
    again = subprocess.run(
        [sys.executable, "-m", "tangram.cli.main", "plan", "-f", planner.folder / "fleet.yaml", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert status == 0
    assert again.stdout == text
    assert list(headline_faults(json.loads(text), table.splitlines()[0])) == []


@pytest.mark.campaign
@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_plans_of_files_are_as_good_as_the_optimiser_says(planner, kind, batch):
    wrong, behind = judged(planner, kind, range(200 + batch * 10, 210 + batch * 10))

    assert wrong == {}
    assert len(behind) <= 1, behind  # within its gap a plan may be worse


# ---- each check can fail


def dropped(*keys):
    """Documents without some keys, wherever they are."""

    def without(value):
        if isinstance(value, dict):
            return {key: without(each) for key, each in value.items() if key not in keys}
        return [without(each) for each in value] if isinstance(value, list) else value

    return without


def one_more_node(asked):
    asked = copy.deepcopy(asked)
    for each in asked:
        if each["kind"] == "GPUPool" and "nodes" in each["spec"]:
            each["spec"]["nodes"]["max"] += 1
    return asked


def all_linked(asked):
    asked = copy.deepcopy(asked)
    for gpu in inventory_of(asked)["gpus"]:
        gpu["nvlinkGPUs"] = 8
    return asked


WEAKER = [
    ("budgets", 4, dropped("budgetPerHour"), "above its budget"),
    ("budgets", 19, dropped("maxReplicas"), "more than"),
    ("spread", 1, dropped("spread"), "replicas on"),
    ("pinned", 0, dropped("movable"), "must not move"),
    ("running", 57, dropped("cuttable"), "must not be cut"),
    ("gangs", 57, all_linked, "gang on"),
    ("mig-manager", 4, dropped("backend"), "moves are listed"),
    ("move-budgets", 2, dropped("moveBudget"), "moves"),
    ("move-budgets", 17, dropped("disruptionBudget"), "moves from pool"),
    ("growing", 0, one_more_node, "grows by"),
    ("pool-prices", 12, dropped("pools"), "stands in pool"),
    ("plenty", 7, dropped("migEnabled"), "MIG mode"),
    ("replicas", 16, dropped("paused", "replicas"), "paused or off"),
    ("requests", 2, dropped("priority"), "stages are"),
    ("running", 0, dropped("horizonHours"), "dollars is"),
]


@pytest.mark.parametrize(("kind", "seed", "weaken", "fault"), WEAKER)
def test_a_plan_of_weaker_documents_breaks_a_rule_of_the_others(planner, kind, seed, weaken, fault):
    asked = documents(kind, seed, rates_of)

    plan = planner.plan(*weaken(asked), flags=("--time-limit", "1"))

    assert any(fault in line for line in faults(asked, plan))


def stage(plan, name, **more):
    next(each for each in plan["stages"] if each["name"].startswith(name)).update(more)


def without_a_step(kind):
    def corrupt(plan):
        step = next(step for step in plan["steps"] if step["kind"] == kind)
        step.update(kind="wait-available")

    return corrupt


WRONG = {
    "a value": (lambda p: stage(p, "unmet", value=p["stages"][0]["value"] + 0.1), "unmet["),
    "a bound": (lambda p: stage(p, "dollars", bound=999.0), "is above its value"),
    "the objective": (lambda p: p.update(objective=p["objective"] + 1), "objective: "),
    "a gap": (lambda p: p.update(gap=0.5), "gap: "),
    "the price": (lambda p: p.update(costPerHour=p["costPerHour"] + 1), "dollars per hour: "),
    "a missing move": (lambda p: p["moves"].pop(), "moves are listed"),
    "a move to where it ran": (lambda p: p["moves"][0].update(to=p["moves"][0]["from"]), "no move from"),
    "a step left out": (without_a_step("start-replica"), "steps in order"),
    "a slice not made": (without_a_step("create-slice"), "steps in order"),
    "a shortage not listed": (lambda p: p["unmet"].clear(), "is unmet, listed is"),
    "a rate": (lambda p: served(p).update(requestsPerSecond=1e6), "carries"),
    "a count": (lambda p: served(p).update(replicas=99), "are chosen"),
}


def served(plan):
    return next(each["chosen"] for each in plan["deployments"] if each["chosen"])[0]


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """Documents and their plan, with moves, new slices, and a demand that goes short."""
    asked = documents(*MOVED, rates_of)
    return asked, Planner(tmp_path_factory.mktemp("moved")).plan(*asked)


@pytest.mark.parametrize("fault", WRONG)
def test_a_corrupt_plan_is_seen(moved, fault):
    asked, plan = moved[0], copy.deepcopy(moved[1])
    corrupt, line = WRONG[fault]

    assert faults(asked, plan) == []
    corrupt(plan)

    assert any(line in found for found in faults(asked, plan))


@pytest.mark.parametrize(
    ("text", "more"),
    [("Proved best: gap 0.00%", {"proved": False}), ("The best found: gap 5.00%", {"proved": True})],
)
def test_a_headline_that_contradicts_the_stages_is_seen(text, more):
    stages = [{"name": "dollars", "value": 2.0, "bound": 1.9} | more]
    plan = {"stages": stages, "status": "FEASIBLE", "gap": 0.05, "bound": 1.9}

    assert list(headline_faults(plan, text))
