"""Replicas leave GPUs that are cut anew: surge, close, mark, drain, cut."""

from dataclasses import replace

from tangram.fleet import PoolPolicy, ReplicaMove, ShapeKey
from tangram.repartition import Hold, HoldNode, MarkPod, SetLayouts, WorldOwner, WorldPod, next_step
from tests.support.repartition_worlds import LIMITS, NOW, changes, gpu, node, plan, verdicts, world

RESOURCE = "nvidia.com/mig-2g.12gb"
BEFORE, AFTER = "2g.12gb@0 2g.12gb@2", "1g.6gb@0 2g.12gb@2"
CUT = changes(("a", "a0", BEFORE, AFTER))
SAME, OTHER = ShapeKey("A30", "2g.12gb"), ShapeKey("A30", "4g.24gb")
POD = WorldPod("chat/llama-1", "chat/llama")
CLOSED = Hold(RESOURCE, NOW - 10, NOW + 5000)


def moved(*pods, available=1, holds=(), shape=SAME, shapes=frozenset({SAME}), held=(0,), owner="chat/llama"):
    """The next step where the slice at 0 has to go, which a pod of chat/llama holds."""
    users = tuple((start, pod.name) for start, pod in zip(held, pods, strict=True))
    busy = replace(gpu("a0", BEFORE), held=users)
    there = replace(node("a", busy, holds=holds, claimed={RESOURCE: len(pods)}), pods=tuple(pods))
    of = replace(CUT, moves=(("chat/llama", shape),))
    found = world(there, plans=(plan(of),), policy=PoolPolicy.FULL)
    owners = {owner: WorldOwner("uid", 1, available, shapes)}
    return next_step(replace(found, owners=owners))


def test_a_replacement_on_the_same_shape_starts_before_the_node_is_closed():
    result = moved(POD)

    assert result.moves == (ReplicaMove("uid", SAME, surge=1),)
    assert result.actions == ()
    assert verdicts(result) == {"plan": ("Executing", "Moving")}
    assert result.progress[0].waits_for == "Pod chat/llama-1"


def test_once_the_replacement_serves_the_node_is_closed():
    result = moved(POD, available=2)

    assert result.actions == (HoldNode("a", RESOURCE, NOW, NOW - 10 + LIMITS.move_s + 60),)
    assert result.moves[0].surge == 1


def test_then_the_pod_that_has_to_go_is_marked():
    result = moved(POD, available=2, holds=(CLOSED,))

    assert result.actions == (MarkPod("chat/llama-1"),)
    assert result.moves[0].surge == 1


def test_no_pod_is_marked_before_the_hold_has_settled():
    result = moved(POD, available=2, holds=(replace(CLOSED, since=NOW - 1),))

    assert MarkPod("chat/llama-1") not in result.actions


def test_no_pod_is_marked_while_its_replacement_does_not_serve():
    assert moved(POD, available=1, holds=(CLOSED,)).moves[0].surge == 1
    assert MarkPod("chat/llama-1") not in moved(POD, available=1, holds=(CLOSED,)).actions


def test_marked_pods_go_with_the_surge():
    result = moved(replace(POD, is_marked=True), available=2, holds=(CLOSED,))

    assert result.moves == (ReplicaMove("uid", SAME, surge=0),)
    assert result.actions == ()


def test_a_pod_that_finishes_its_requests_is_waited_for():
    result = moved(replace(POD, is_marked=True, is_leaving=True), available=1, holds=(CLOSED,))

    assert verdicts(result) == {"plan": ("Executing", "Draining")}
    assert result.actions == ()


def test_the_gpu_is_cut_once_nobody_uses_what_goes():
    result = moved(available=1, holds=(CLOSED,), held=())

    assert [type(action) for action in result.actions] == [SetLayouts]


def test_a_replica_that_changes_its_shape_gets_no_surge_and_its_node_is_closed_at_once():
    result = moved(POD, shape=OTHER)

    assert result.moves == (ReplicaMove("uid", OTHER, surge=0),)
    assert [type(action) for action in result.actions] == [HoldNode]


def test_a_replica_that_changes_its_shape_is_never_marked():
    result = moved(POD, shape=OTHER, available=2, holds=(CLOSED,))

    assert result.actions == ()


def test_a_pod_of_somebody_else_in_the_way_ends_the_plan():
    result = moved(WorldPod("team/job-1"))

    assert verdicts(result) == {"plan": ("Blocked", "InUse")}
    assert result.moves == ()


def test_a_plan_is_done_only_once_its_replicas_have_their_shape():
    cut = node("a", gpu("a0", AFTER), wanted={"a0": AFTER})
    of = replace(CUT, moves=(("chat/llama", OTHER),))
    found = world(cut, plans=(plan(of),), policy=PoolPolicy.FULL)
    on = [
        replace(found, owners={"chat/llama": WorldOwner("uid", 1, 1, frozenset({s}))}) for s in (SAME, OTHER)
    ]

    assert [verdicts(next_step(each))["plan"][0] for each in on] == ["Executing", "Done"]


def test_a_plan_with_moves_has_the_longer_deadline():
    of = replace(CUT, moves=(("chat/llama", SAME),))
    late = plan(of, since=NOW - LIMITS.cut_s - 1)
    result = next_step(world(node("a", gpu("a0", BEFORE)), plans=(late,), policy=PoolPolicy.FULL))

    assert verdicts(result)["plan"][0] == "Executing"
