"""The first line of a plan claims what is proved, and no more."""

import pytest

from tangram.cli.plan.headline import headline, one_shape


def plan(status="OPTIMAL", *, unmet=(0.0, 0.0), dollars=(10.0, 10.0), demands=4, **more):
    stages = [
        {"name": name, "value": value, "bound": bound, "proved": value == bound}
        for name, (value, bound) in (("unmet[5]", unmet), ("dollars", dollars), ("share", (3.0, 2.0)))
    ]
    stages[0]["demands"] = demands
    value, bound = dollars
    return {
        "status": status,
        "stages": stages,
        "objective": value,
        "bound": bound,
        "gap": (value - bound) / value,
        "costPerHour": value,
        "idlePerHour": 0.0,
        "horizonHours": 1.0,
        "gpus": [{}],
        "gpusInUse": 1,
        "newNodes": [],
        "moves": [],
        "moveCost": 0.0,
    } | more


def test_a_plan_proved_up_to_the_dollars_is_proved_best_whatever_follows():
    assert headline(plan("FEASIBLE")).startswith("Proved best: ")


def test_unproved_dollars_show_their_gap():
    text = headline(plan("FEASIBLE", dollars=(10.0, 9.5)))

    assert text.startswith("The best found within the limits: ")
    assert "bound 9.50 $, gap 5.00%" in text


def test_unproved_demand_shows_its_gap_in_points_of_its_priority():
    text = headline(plan("FEASIBLE", unmet=(0.5, 0.2)))

    assert text.startswith("The best found within the limits: ")
    assert "up to 7.5 points more of the demand of priority 5 could be served" in text


def test_without_a_bound_none_is_shown():
    text = headline(plan("FEASIBLE", dollars=(10.0, 0.0)))

    assert "no bound was found in time" in text
    assert "100.00%" not in text


def test_a_plan_to_which_not_all_steps_are_known_says_so_before_its_price():
    assert headline(plan(stepsMissing={})).startswith("Proved best, but some steps to it are blocked: ")


@pytest.mark.parametrize("status", ["OPTIMAL", "FEASIBLE"])
def test_a_plan_with_one_shape_each_is_the_best_of_those_and_shows_what_that_costs(status):
    found = plan(status, oneShapePerDeployment={"text": "costs at most 0.50 $ (5.00%)"})

    assert headline(found).startswith("Proved best with one shape per LLMDeployment: ")
    assert one_shape(found) == "One shape per LLMDeployment costs at most 0.50 $ (5.00%)."


def test_plans_that_mix_shapes_say_nothing_of_it():
    assert one_shape(plan()) is None


def test_a_fleet_that_stays_as_it_is_says_among_which_plans_nothing_better_was_found():
    found = plan("FALLBACK", oneShapePerDeployment={"text": "has a cost that is not known"})

    assert headline(found).startswith("No better plan with one shape per LLMDeployment was found in time: ")
    assert one_shape(found) == "One shape per LLMDeployment has a cost that is not known."
    assert headline(plan("FALLBACK")).startswith(
        "No better plan was found in time: replicas stay where they are"
    )
