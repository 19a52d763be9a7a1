"""What one shape per LLMDeployment costs is shown beside the plan, up to the bound of free mixes."""

from dataclasses import replace
from itertools import product

import pytest

from tangram.packing import Demand, GPUState, Offer, Problem
from tangram.plan.explanation.one_shape_cost import one_shape_document, points
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.place.best.pack import PlanTimeLimit, pack
from tangram.plan.place.best.packing_problem import FleetProblem

A, B = "L4", "L40S"
PRICES = {A: 1.0, B: 2.0}


def asked(rate, *, least=1, a=4, b=1, uniform=True, budget=None):
    offers = (Offer(A, "gpu", 1, 4.0, PRICES[A]), Offer(B, "gpu", 1, 10.0, PRICES[B]))
    demand = Demand(
        "a", offers=offers, rate=rate, min_replicas=least, uniform=uniform, budget_per_hour=budget
    )
    gpus = [GPUState(f"{sku}{i}", f"{sku}{i}", sku) for sku, n in ((A, a), (B, b)) for i in range(n)]
    return FleetProblem(FleetInput(), Problem(tuple(gpus), (demand,), tuple(PRICES.items())))


def found(problem):
    return one_shape_document(problem, pack(problem), PlanTimeLimit())


def best(rate, a, b):
    """The least unserved share, then the least dollars, of every mix."""
    mixes = product(range(a + 1), range(b + 1))
    return min((max(0.0, 1 - (4 * n + 10 * m) / rate), n * PRICES[A] + m * PRICES[B]) for n, m in mixes)


@pytest.mark.parametrize(("rate", "a", "b"), [(14.0, 4, 1), (14.0, 4, 2), (22.0, 4, 1), (30.0, 3, 1)])
def test_the_difference_reaches_to_the_best_mix(rate, a, b):
    problem = asked(rate, a=a, b=b)

    told = found(problem)

    unmet, dollars = best(rate, a, b)
    expected = {"unmet[0]": unmet, "dollars": dollars}[told["stage"]]
    assert told["freeBound"] <= expected + 1e-5
    assert told["free"] >= expected - 1e-5
    assert told["difference"] == pytest.approx(told["value"] - told["freeBound"])


def test_dollars_are_compared_where_mixes_serve_no_more():
    told = found(asked(14.0, a=4, b=1))

    assert told["stage"] == "dollars"
    assert (told["value"], told["free"]) == (4.0, 3.0)
    assert told["text"].startswith("costs at most 1.00 $ (25.00%): free mixes cost 3.00 $")


def test_demand_comes_before_dollars():
    told = found(asked(22.0, a=4, b=1))

    assert told["stage"] == "unmet[0]"
    assert "points more of the demand of priority 0 unserved" in told["text"]


def test_where_no_mix_is_better_that_is_said():
    assert found(asked(4.0))["text"].startswith("costs nothing")


def test_nothing_is_said_of_demands_that_mix_freely():
    assert found(asked(14.0, uniform=False)) is None


def test_a_fleet_that_stays_as_it_is_states_the_restriction_without_its_cost():
    problem = asked(14.0)
    stays = replace(pack(problem), status="FALLBACK")

    told = one_shape_document(problem, stays, PlanTimeLimit())

    assert set(told) == {"text"}
    assert "not known" in told["text"]


def test_without_time_to_compare_the_restriction_is_stated_without_its_cost():
    problem = asked(14.0)

    assert "not known" in one_shape_document(problem, pack(problem), None)["text"]
    assert one_shape_document(asked(14.0, uniform=False), pack(problem), None) is None


def test_points_below_a_tenth_are_not_shown_as_none():
    assert points(0.0001, 1) == "<0.1 points"
    assert points(0.5, 4) == "12.5 points"
