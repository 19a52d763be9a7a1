"""Nodes that have just come: no pod takes a whole GPU before a plan knows them."""

from dataclasses import replace

from tangram.fleet import Claim, Node, NodePartition, PartitionView, Pool, PoolPolicy
from tangram.fleet.times import rfc3339
from tangram.plan.repartition import (
    Hold,
    HoldNode,
    ReleaseNode,
    RepartitionLimits,
    RepartitionNode,
    next_step,
)
from tangram.shell.repartition.fleet_state import (
    ARRIVAL_S,
    FleetPlanObjects,
    Recommended,
    fleet_state,
    holds,
)
from tests.support.fleet import snapshot
from tests.support.repartition_worlds import NOW, WHOLE, gpu, node, world

LIMITS = RepartitionLimits()


def arriving(*placed: Hold, until: float = NOW + 60, **fields: object) -> tuple:
    there = replace(node("a", gpu("a0", "gpu"), holds=placed, **fields), arriving_until=until)
    return next_step(world(there)).actions


def test_a_node_that_comes_is_held_until_its_deadline():
    assert arriving() == (HoldNode("a", WHOLE, NOW, NOW + 60),)
    assert arriving(Hold(WHOLE, NOW - 5, NOW + 60)) == ()


def test_a_hold_that_is_over_is_placed_anew_while_the_node_waits():
    assert arriving(Hold(WHOLE, NOW - 5, NOW)) == (HoldNode("a", WHOLE, NOW, NOW + 60),)


def test_the_hold_ends_with_the_deadline_and_once_a_plan_knows_the_node():
    placed = Hold(WHOLE, NOW - 5, NOW + 60)
    known = node("a", gpu("a0", "gpu"), holds=(placed,))

    assert arriving(Hold(WHOLE, NOW - 60, NOW - 1), until=NOW - 1) == (ReleaseNode("a", WHOLE),)
    assert next_step(world(known)).actions == (ReleaseNode("a", WHOLE),)


def test_a_node_without_a_gpunode_is_held_too():
    bare = RepartitionNode("a", NodePartition("a"), arriving_until=NOW + 60)

    assert next_step(world(bare)).actions == (HoldNode("a", WHOLE, NOW, NOW + 60),)


def test_a_startup_taint_is_a_hold_that_ends_some_time_after_the_node_was_made():
    taint = {"key": "hold.tangram.dev/gpu", "value": "arriving", "effect": "NoSchedule"}
    made = {"metadata": {"name": "a", "creationTimestamp": rfc3339(NOW)}, "taints": [taint]}

    assert holds(made) == (Hold(WHOLE, NOW, NOW + ARRIVAL_S),)


def held_until(
    pool: Pool,
    recommended: Recommended = Recommended(),  # noqa: B008
    created: float = NOW,
    **limits: object,
) -> float | None:
    seen = Node("a", "H100-80GB-SXM", "NVIDIA-H100-80GB-HBM3", True, ((WHOLE, 1),), labels=(("pool", "x"),))
    observed = snapshot(seen, pools=(pool,), claims=(Claim("a", WHOLE, 1, None),), partition=PartitionView())
    made = {"metadata": {"name": "a", "creationTimestamp": rfc3339(created)}, "taints": [], "allocatable": {}}
    nothing = FleetPlanObjects((), {})
    found = fleet_state(observed, (), [made], [], nothing, recommended, replace(LIMITS, **limits), NOW)
    return found.nodes[0].arriving_until if found.nodes else None


def test_only_nodes_of_pools_that_are_cut_without_consent_are_held():
    pool = Pool("x", (("pool", "x"),), backend="nvml")

    assert held_until(pool) == NOW + ARRIVAL_S
    assert held_until(replace(pool, policy=PoolPolicy.FULL)) == NOW + ARRIVAL_S
    assert held_until(replace(pool, policy=PoolPolicy.RECOMMEND)) is None
    assert held_until(replace(pool, policy=PoolPolicy.IGNORE)) is None
    assert held_until(replace(pool, backend=None)) is None
    assert held_until(replace(pool, selector=(("pool", "y"),))) is None


def test_a_node_that_a_recommendation_knows_is_not_held_nor_is_any_after_a_full_stop():
    pool = Pool("x", (("pool", "x"),), backend="nvml")

    assert held_until(pool, Recommended(nodes=frozenset({"a"}))) is None
    assert held_until(pool, stopped=True) is None


def test_a_node_that_came_in_the_future_is_not_held_until_then():
    pool = Pool("x", (("pool", "x"),), backend="nvml")

    assert held_until(pool, created=NOW + 30) == NOW + 30 + ARRIVAL_S  # clocks differ a little
    assert held_until(pool, created=NOW + 3600) is None


def test_the_planner_gives_nobody_the_gpus_of_a_node_that_has_just_come():
    there = replace(node("a", gpu("a0", "gpu"), allocatable={WHOLE: 1}), arriving_until=NOW + 60)
    result = next_step(world(there))

    assert result.going == (("a", WHOLE, 1),)
    assert result.arriving == ("a",)
