"""What is recommended agrees with what the operator does: pools, budgets, and whether it is in force."""

from dataclasses import replace

from tangram.fleet import Pool
from tangram.plan import plan
from tangram.plan.recommend import recommend
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

A10 = shape(sku="A10")
LEFT = ("side", "left")
POOLS = (Pool("both", (("half", "yes"),)), Pool("left", (LEFT,)))


def running(m, at, on, count, *nodes, **changes):
    return snapshot(*nodes, claims=claims(m, at, on, count), workloads=(workload(m, at, count),), **changes)


def test_what_runs_on_a_node_of_two_pools_is_in_force_for_who_names_the_second():
    m = intent(pools=("left",))
    shared = replace(node("a", "A10", gpu=1), labels=(("half", "yes"), LEFT))
    found = recommend(running(m, A10, "a", 1, shared, pools=POOLS), (m,))

    assert not found.document["unmet"]
    assert not found.better


def test_nobody_is_sent_to_nodes_that_a_pool_has_beside_those_that_are_named():
    m = intent(pools=("left",))
    other = replace(node("a", "A10", gpu=1), labels=(("half", "yes"),))
    found = recommend(snapshot(other, pools=POOLS), (m,))

    assert [each["share"] for each in found.document["unmet"]] == [1.0]


def test_a_lowered_budget_leaves_the_minimum_that_runs_in_recommendations_too():
    m = intent(min_replicas=2, max_replicas=4, budget_per_hour=0.1)
    observed = running(m, A10, "a", 2, node("a", "A10", gpu=4))
    found = recommend(observed, (m,))

    assert [d.placed for d in plan(observed, (m,), NOW).decisions] == [2]
    assert sum(len(gpu["instances"]) for gpu in found.document["gpus"]) == 2
    assert not found.better


def test_a_plan_that_takes_what_runs_from_a_lower_priority_is_not_in_force():
    low, high = intent("low"), intent("high", priority=5)
    found = recommend(running(low, A10, "a", 1, node("a", "A10", gpu=1)), (low, high))

    assert [each["name"] for each in found.document["unmet"]] == ["ns/low"]
    assert found.better


def test_no_way_out_is_told_that_only_another_engine_has():
    m = intent(uri="image:///m/70b")
    (told,) = recommend(snapshot(node("a", gpu=8)), (m,)).document["deployments"]

    assert told["alternatives"]
    assert not any("servesWith" in each for each in told["alternatives"])
