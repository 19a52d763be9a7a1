"""Inputs on which plans were called proved best that were not; `tests/data/packing_cases/README.md`."""

from pathlib import Path

import pytest
import yaml

from tests.support.plans import Planner, used

CASES = Path(__file__).parents[1] / "data/packing_cases"


@pytest.fixture
def plan_of(tmp_path):
    def plan(name):
        return Planner(tmp_path).plan(*yaml.safe_load_all((CASES / f"{name}.yaml").read_text()))

    return plan


def chosen(plan):
    return [(each["profile"], each["replicas"]) for each in plan["deployments"][0]["chosen"]]


def test_a_request_without_a_sku_takes_the_cheapest_node_that_may_come(plan_of):
    plan = plan_of("grow-twice-the-price")

    assert (plan["costPerHour"], plan["gap"], plan["unmet"]) == (2.45, 0, [])


def test_a_surplus_replica_gives_its_slice_up_although_it_must_not_move(plan_of):
    plan = plan_of("immovable-surplus")

    assert (plan["unmet"], plan["moves"]) == ([], [])


def test_no_gpu_is_empty_while_demand_is_unmet(plan_of):
    plan = plan_of("llm-idle-gpu")

    assert len(used(plan)) == len(plan["gpus"]) == 6
    assert len(chosen(plan)) == 3


def test_different_slices_of_one_gpu_serve_more_than_equal_ones(plan_of):
    plan = plan_of("llm-two-slices")

    assert chosen(plan) == [("3g.20gb", 1), ("4g.20gb", 1)]
    assert {each["precision"] for each in plan["deployments"][0]["chosen"]} == {"int8"}
