"""Plans of slices alone, on every board, against an optimiser that shares no code with planner and packer.

Judged as all plans of files are (`tests/packing/test_plan_files_against_optimum.py`), and each is proved.
"""

import copy
import random

import pytest

from tests.support.plan_file_oracle import faults, judged, rates_of
from tests.support.plan_files import SLICES, documents, inventory_of
from tests.support.plans import H100, Planner, gpu, inventory, request

FLEETS, BATCH = 180, 15


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


@pytest.mark.parametrize("first", range(0, FLEETS, BATCH))
def test_plans_keep_every_rule_and_are_as_good_as_the_best(planner, first):
    assert judged(planner, SLICES, range(first, first + BATCH)) == ({}, {})


def test_the_order_of_gpus_and_documents_changes_no_stage(planner):
    for seed in range(12):
        asked = documents(SLICES, seed, rates_of)
        mixed, rng = copy.deepcopy(asked), random.Random(seed)
        rng.shuffle(mixed)
        rng.shuffle(inventory_of(mixed)["gpus"])
        for each in inventory_of(mixed)["gpus"]:
            rng.shuffle(each.get("instances", []))

        assert planner.plan(*mixed)["stages"] == planner.plan(*asked)["stages"]


RUNNING = [
    inventory(
        gpu("g0", "3g.40gb@4=search", "1g.10gb@0=note"),
        gpu("g1", "2g.20gb@0=embed", "1g.10gb@6=old"),
        gpu("g2"),
        prices={H100: 2.5},
    ),
    request("batch", "3g.40gb", 3),
]


def _elsewhere(plan):
    found = next(i for g in plan["gpus"] for i in g["instances"] if i["profile"] == "3g.40gb")
    found["start"] = 2


def _overlapping(plan):
    used = next(g for g in plan["gpus"] if g["instances"])
    used["instances"].append(dict(used["instances"][0], owner="batch"))


def _lost(plan):
    for each in plan["gpus"]:
        each["instances"] = [i for i in each["instances"] if i["owner"] != "embed"]


def _recut(plan):
    plan["gpus"][0]["recut"] = not plan["gpus"][0]["recut"]


def _another_mode(plan):
    first = next(step for step in plan["steps"] if step["kind"] == "create-slice")
    first.update(kind="set-mode", gpus=["g0"], migEnabled=False)


def _drained_first(plan):
    steps = plan["steps"]
    drain = next(step for step in steps if step["kind"] == "drain-replica")
    start = next(
        step for step in steps if (step["kind"], step.get("owner")) == ("start-replica", drain["owner"])
    )
    for key in ("kind", "gpus", "profile", "start", "owner"):
        start[key], drain[key] = drain[key], start[key]


LIES = {
    "an illegal start": (_elsewhere, "is no layout"),
    "an overlap": (_overlapping, "is no layout"),
    "a replica lost": (_lost, "embed: ran"),
    "a GPU twice": (lambda plan: plan["gpus"].append(plan["gpus"][-1]), "a GPU is listed twice"),
    "slices that do not change": (_recut, "re-cut is"),
    "a move at another price": (lambda plan: plan["moves"][0].update(cost=0.5), "the move from"),
    "a move of another owner": (lambda plan: plan["moves"][0].update(owner="note"), "moves are listed"),
    "GPUs in use": (lambda plan: plan.update(gpusInUse=plan["gpusInUse"] + 1), "GPUs are in use"),
    "a count": (lambda plan: plan["requests"][0].update(placed=2), "stand, listed is"),
    "a request left out": (lambda plan: plan["requests"].clear(), "requests are"),
    "a shortage of nothing": (
        lambda plan: plan["unmet"].append({"name": "batch", "share": 0, "count": 0, "priority": 0}),
        "is unmet, listed is",
    ),
    "a shortage of no request": (
        lambda plan: plan["unmet"].append({"name": "other", "share": 1, "count": 1, "priority": 0}),
        "unmet are",
    ),
    "a MIG mode that is stated": (_another_mode, "sets the MIG mode"),
    "a step after a later one": (lambda plan: plan["steps"][0].update(after=[2]), "step 1 is after"),
    "a drain before its replacement": (_drained_first, "would be available"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    return Planner(tmp_path_factory.mktemp("running")).plan(*RUNNING)


@pytest.mark.parametrize("lie", LIES)
def test_the_checker_sees_every_kind_of_lie(running, lie):
    assert faults(RUNNING, running) == []
    told, (change, line) = copy.deepcopy(running), LIES[lie]

    change(told)

    assert any(line in found for found in faults(RUNNING, told))
