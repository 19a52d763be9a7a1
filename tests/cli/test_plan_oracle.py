"""Plans of random small fleets, against a checker and an optimum that share nothing with the product."""

import copy
import random

import pytest

from tests.support.oracle_checks import problems
from tests.support.oracle_fleets import fleet
from tests.support.oracle_model import Optimum
from tests.support.plans import H100, Planner, gpu, inventory, request

FLEETS, BATCH = 180, 15


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def comparable(documents):
    """The stages that documents say all about: `share` needs one price per board."""
    own = any("pricePerGPUHour" in one for one in documents[0]["spec"]["gpus"])
    return (
        ("unmet", "dollars") if own or documents[-1]["kind"] == "GPUPool" else ("unmet", "dollars", "share")
    )


@pytest.mark.parametrize("first", range(0, FLEETS, BATCH))
def test_plans_keep_every_rule_and_are_as_good_as_the_best(planner, first):
    for seed in range(first, first + BATCH):
        documents = fleet(random.Random(seed))

        plan = planner.plan(*documents)

        assert (seed, problems(documents, plan)) == (seed, [])
        assert (seed, plan["status"]) == (seed, "OPTIMAL")
        best = Optimum(documents).solve()
        found = {stage["name"]: stage["value"] for stage in plan["stages"]}
        compared = [name for name in best if name.startswith(comparable(documents))]
        assert (seed, {name: found.get(name, 0) for name in compared}) == (
            seed,
            {name: pytest.approx(best[name], rel=1e-4, abs=3e-4) for name in compared},
        )


def test_the_order_of_gpus_and_documents_changes_no_stage(planner):
    for seed in range(12):
        rng = random.Random(seed)
        documents = fleet(rng)
        mixed = copy.deepcopy(documents)
        rng.shuffle(mixed)
        for one in mixed:
            rng.shuffle(one["spec"].get("gpus", []))
            for each in one["spec"].get("gpus", []):
                rng.shuffle(each.get("instances", []))

        assert planner.plan(*mixed)["stages"] == planner.plan(*documents)["stages"]


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


def _without_a_start(plan):
    made = next(step for step in plan["steps"] if step["kind"] == "create-slice")
    made.update(kind="wait-available", owner="batch")


def _drained_first(plan):
    steps = plan["steps"]
    drain = next(step for step in steps if step["kind"] == "drain-replica")
    start = next(
        step for step in steps if (step["kind"], step.get("owner")) == ("start-replica", drain["owner"])
    )
    for key in ("kind", "gpus", "profile", "start", "owner"):
        start[key], drain[key] = drain[key], start[key]


LIES = {
    "an illegal start": _elsewhere,
    "an overlap": _overlapping,
    "somebody lost": _lost,
    "a move untold": lambda plan: plan["moves"].pop(),
    "a move at another price": lambda plan: plan["moves"][0].update(cost=0.5),
    "money": lambda plan: plan.update(costPerHour=plan["costPerHour"] + 0.01),
    "a bound above the objective": lambda plan: plan.update(bound=plan["objective"] + 1),
    "a gap": lambda plan: plan.update(gap=0.1),
    "GPUs in use": lambda plan: plan.update(gpusInUse=plan["gpusInUse"] + 1),
    "a count": lambda plan: plan["requests"][0].update(placed=2),
    "unmet": lambda plan: plan["unmet"].append({"name": "batch", "share": 1, "count": 1, "priority": 0}),
    "no slice made": _without_a_start,
    "a drain before its replacement": _drained_first,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    return Planner(tmp_path_factory.mktemp("running")).plan(*RUNNING)


@pytest.mark.parametrize("lie", LIES)
def test_the_checker_sees_every_kind_of_lie(running, lie):
    assert problems(RUNNING, running) == []
    told = copy.deepcopy(running)

    LIES[lie](told)

    assert problems(RUNNING, told)
