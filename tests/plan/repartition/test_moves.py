"""Replicas leave GPUs that are cut anew: surge, close, mark, drain, cut."""

from dataclasses import replace

import pytest

from tangram.fleet import PoolPolicy, ReplicaMove, ShapeKey
from tangram.plan.repartition import (
    DevicePod,
    Hold,
    HoldNode,
    MarkPod,
    PlanState,
    ReleaseNode,
    ReplicaOwner,
    SetLayouts,
    UnmarkPod,
    next_step,
)
from tests.support.repartition_worlds import LIMITS, NOW, changes, gpu, layout, node, plan, verdicts, world

RESOURCE = "nvidia.com/mig-2g.12gb"
BEFORE, AFTER = "2g.12gb@0 2g.12gb@2", "1g.6gb@0 2g.12gb@2"
CUT = changes(("a", "a0", BEFORE, AFTER))
SAME, OTHER = ShapeKey("A30", "2g.12gb"), ShapeKey("A30", "4g.24gb")
POD = DevicePod("chat/llama-1", "chat/llama")
CLOSED = Hold(RESOURCE, NOW - 10, NOW + 5000)


def moved(
    *pods,
    available=1,
    asked=None,
    holds=(),
    shape=SAME,
    shapes=frozenset({SAME}),
    held=(0,),
    owner="chat/llama",
):
    """The next step where the slice at 0 has to go, which a pod of chat/llama holds."""
    users = tuple((start, pod.name) for start, pod in zip(held, pods, strict=True))
    busy = replace(gpu("a0", BEFORE), held=users)
    there = replace(node("a", busy, holds=holds, claimed={RESOURCE: len(pods)}), pods=tuple(pods))
    of = replace(CUT, moves=(("chat/llama", shape),))
    found = world(there, plans=(plan(of),), policy=PoolPolicy.FULL)
    owners = {owner: ReplicaOwner("uid", 1, available, available if asked is None else asked, shapes)}
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


def test_a_pod_that_has_gone_is_waited_for_until_the_backend_knows():
    busy = replace(gpu("a0", BEFORE), held=((0, POD.name),))
    record = plan(replace(CUT, moves=(("chat/llama", SAME),)))
    result = next_step(world(node("a", busy, holds=(CLOSED,)), plans=(record,), policy=PoolPolicy.FULL))

    assert verdicts(result) == {"plan": ("Executing", "Draining")}
    assert result.actions == ()


def test_the_gpu_is_cut_once_nobody_uses_what_goes():
    result = moved(available=1, holds=(CLOSED,), held=())

    assert [type(action) for action in result.actions] == [SetLayouts]


def test_a_replica_that_changes_its_shape_gets_no_surge_and_its_node_is_closed_at_once():
    result = moved(POD, shape=OTHER)

    assert result.moves == (ReplicaMove("uid", OTHER, surge=0),)
    assert [type(action) for action in result.actions] == [HoldNode]


def restarted(*pods, policy=PoolPolicy.FULL, approved=True, state=PlanState.EXECUTING, **fields):
    """As `moved` to another shape, where a person was told that replicas would not serve for a while."""
    shapes, holds = fields.get("shapes", frozenset({SAME})), fields.get("holds", ())
    busy = replace(gpu("a0", BEFORE), held=tuple((0, pod.name) for pod in pods))
    there = replace(node("a", busy, holds=holds, claimed={RESOURCE: len(pods)}), pods=tuple(pods))
    of = replace(CUT, moves=(("chat/llama", OTHER),), restarts=("chat/llama",))
    found = world(there, plans=(replace(plan(of), approved=approved, state=state),), policy=policy)
    owners = {"chat/llama": ReplicaOwner("uid", 1, len(pods), len(pods), shapes)}
    return next_step(replace(found, owners=owners))


@pytest.mark.parametrize("policy", [PoolPolicy.FULL, PoolPolicy.RECOMMEND])
@pytest.mark.parametrize("state", [None, PlanState.RECOMMENDED, PlanState.EXECUTING])
def test_no_policy_consents_to_a_restart(policy, state):
    result = restarted(POD, policy=policy, approved=None, state=state, holds=(CLOSED,))

    assert verdicts(result) == {"plan": ("Recommended", "WaitingForApproval")}
    assert "replicas of chat/llama would not serve" in result.progress[0].message
    assert (result.moves, [type(action) for action in result.actions]) == ((), [ReleaseNode])


def test_a_policy_that_moves_no_replica_forbids_a_restart_though_approved():
    result = restarted(POD, policy=PoolPolicy.IDLE_ONLY)

    assert verdicts(result) == {"plan": ("Blocked", "PolicyForbids")}
    assert result.moves == ()


def test_a_replica_that_restarts_stops_only_when_its_node_is_closed_and_it_is_marked():
    marked = replace(POD, is_marked=True)
    opened, closed = restarted(POD), restarted(POD, holds=(CLOSED,))
    unsettled = restarted(marked, holds=(replace(CLOSED, since=NOW - 1),))
    stops = restarted(marked, holds=(CLOSED,))

    assert [type(action) for action in opened.actions] == [HoldNode]
    assert closed.actions == (MarkPod("chat/llama-1"),)
    assert [r.moves[0].most_on_others for r in (opened, closed, unsettled, stops)] == [1, 1, 1, 0]


def test_of_several_replicas_those_that_are_not_in_the_way_go_on():
    """The number is absolute: while a pod ends, no other one is stopped in its place."""
    other, marked = DevicePod("chat/llama-2", "chat/llama"), replace(POD, is_marked=True)
    for first in (marked, replace(marked, is_leaving=True)):
        busy = replace(gpu("a0", BEFORE), held=((0, first.name), (2, other.name)))
        there = replace(node("a", busy, holds=(CLOSED,), claimed={RESOURCE: 2}), pods=(first, other))
        of = replace(CUT, moves=(("chat/llama", OTHER),), restarts=("chat/llama",))
        found = world(there, plans=(replace(plan(of), approved=True),), policy=PoolPolicy.FULL)
        owners = {"chat/llama": ReplicaOwner("uid", 2, 2, 2, frozenset({SAME}))}

        assert next_step(replace(found, owners=owners)).moves[0].most_on_others == 1


def test_a_replica_that_has_stopped_is_underway_until_it_has_its_new_shape():
    gone = restarted(holds=(CLOSED,), shapes=frozenset())

    assert [type(action) for action in gone.actions] == [SetLayouts]
    assert gone.moves[0].shape == OTHER


def test_a_plan_is_not_done_before_what_it_restarts_is_there_again():
    of = replace(CUT, moves=(("chat/llama", OTHER),), restarts=("chat/llama",))
    cut = node("a", gpu("a0", AFTER), wanted={"a0": AFTER})
    found = world(cut, plans=(replace(plan(of), approved=True),), policy=PoolPolicy.FULL)

    def state(desired, *shapes):
        owners = {"chat/llama": ReplicaOwner("uid", desired, 0, 0, frozenset(shapes))}
        return next_step(replace(found, owners=owners)).progress[0].state

    assert [state(1), state(1, OTHER), state(0)] == [PlanState.EXECUTING, PlanState.DONE, PlanState.DONE]


def test_a_replica_that_changes_its_shape_is_never_marked():
    result = moved(POD, shape=OTHER, available=2, holds=(CLOSED,))

    assert result.actions == ()


def test_a_pod_of_somebody_else_in_the_way_ends_the_plan():
    result = moved(DevicePod("team/job-1"))

    assert verdicts(result) == {"plan": ("Blocked", "InUse")}
    assert result.moves == ()


def test_a_plan_is_done_only_once_its_replicas_have_their_shape():
    cut = node("a", gpu("a0", AFTER), wanted={"a0": AFTER})
    of = replace(CUT, moves=(("chat/llama", OTHER),))
    found = world(cut, plans=(plan(of),), policy=PoolPolicy.FULL)
    on = [
        replace(found, owners={"chat/llama": ReplicaOwner("uid", 1, 1, 1, frozenset({s}))})
        for s in (SAME, OTHER)
    ]

    assert [verdicts(next_step(each))["plan"][0] for each in on] == ["Executing", "Done"]


def test_a_plan_with_moves_has_the_longer_deadline():
    of = replace(CUT, moves=(("chat/llama", SAME),))
    late = plan(of, since=NOW - LIMITS.cut_s - 1)
    result = next_step(world(node("a", gpu("a0", BEFORE)), plans=(late,), policy=PoolPolicy.FULL))

    assert verdicts(result)["plan"][0] == "Executing"


# ---- in batches, and as far as nobody is in the way ---------------------------------------------------

QUARTER = "nvidia.com/mig-1g.6gb"
QUARTERS, HALF_FIRST = "1g.6gb@0", "1g.6gb@3 2g.12gb@0"
CHAIN = replace(
    changes(("a", "a0", QUARTERS, HALF_FIRST)), moves=(("chat/llama", ShapeKey("A30", "1g.6gb")),)
)


def chain(layout, *held, wanted=None, pods=(), available=1, holds=(), **fields):
    """The next step on the only GPU: the replica on 1g.6gb@0 has to make room for a 2g.12gb."""
    users = tuple((start, pod.name) for start, pod in zip(held, pods, strict=True))
    there = node("a", replace(gpu("a0", layout), held=users), holds=holds, wanted=wanted or {}, **fields)
    there = replace(there, pods=tuple(pods), claimed=tuple((QUARTER, pod.name, 1) for pod in pods))
    owners = {
        "chat/llama": ReplicaOwner("uid", 1, available, available, frozenset({ShapeKey("A30", "1g.6gb")}))
    }
    return next_step(replace(world(there, plans=(plan(CHAIN),), policy=PoolPolicy.FULL), owners=owners))


def test_the_slice_that_a_replica_moves_to_is_made_beside_the_one_that_it_leaves():
    result = chain(QUARTERS, 0, pods=(POD,))

    assert result.actions == (SetLayouts("a", (("a0", layout("1g.6gb@0 1g.6gb@3")),), CHAIN.name),)
    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


def test_while_it_is_made_nothing_is_held_and_nobody_marked():
    result = chain(QUARTERS, 0, pods=(POD,), wanted={"a0": "1g.6gb@0 1g.6gb@3"}, is_applied=False)

    assert result.actions == ()
    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


BETWEEN = {"layout": "1g.6gb@0 1g.6gb@3", "wanted": {"a0": "1g.6gb@0 1g.6gb@3"}}


def test_once_it_is_offered_it_is_free_for_a_replacement():
    result = chain(BETWEEN["layout"], 0, pods=(POD,), wanted=BETWEEN["wanted"])

    assert result.actions == ()
    assert result.moves == (ReplicaMove("uid", ShapeKey("A30", "1g.6gb"), surge=1),)
    assert result.going == ()  # the one that goes is in use: the other one is free


def test_the_replacement_serves_and_the_first_replica_goes():
    second = DevicePod("chat/llama-2", "chat/llama")
    closed = Hold(QUARTER, NOW - 10, NOW + 5000)
    result = chain(
        BETWEEN["layout"],
        0,
        3,
        pods=(POD, second),
        available=2,
        wanted=BETWEEN["wanted"],
        holds=(closed,),
    )

    assert result.actions == (MarkPod("chat/llama-1"),)


def test_once_it_is_gone_the_new_layout_is_made():
    second = DevicePod("chat/llama-2", "chat/llama")
    closed = Hold(QUARTER, NOW - 10, NOW + 5000)
    result = chain(BETWEEN["layout"], 3, pods=(second,), wanted=BETWEEN["wanted"], holds=(closed,))

    assert result.actions == (SetLayouts("a", (("a0", layout(HALF_FIRST)),), CHAIN.name),)


def test_a_rejection_before_the_replica_has_gone_leaves_a_legal_layout():
    there = node("a", replace(gpu("a0", BETWEEN["layout"]), held=((0, POD.name),)), wanted=BETWEEN["wanted"])
    rejected = plan(CHAIN, approved=False)
    result = next_step(world(replace(there, pods=(POD,)), plans=(rejected,), policy=PoolPolicy.FULL))

    assert verdicts(result) == {"plan": ("Rejected", "Rejected")}
    assert result.actions == ()


def test_a_rejection_while_a_slice_on_the_way_is_made_takes_it_back():
    there = node("a", replace(gpu("a0", QUARTERS), held=((0, POD.name),)), wanted=BETWEEN["wanted"])
    there = replace(there, pods=(POD,), claimed=((QUARTER, POD.name, 1),))
    rejected = plan(CHAIN, approved=False)
    held = replace(there, holds=(Hold(QUARTER, NOW - 10, NOW + 5000),))
    result = next_step(world(held, plans=(rejected,), policy=PoolPolicy.FULL))

    assert verdicts(result) == {"plan": ("Executing", "TakingBack")}
    assert result.actions == (SetLayouts("a", (("a0", layout(QUARTERS)),), ""),)


def test_mig_manager_makes_nothing_beside_a_slice_in_use():
    there = node("a", replace(gpu("a0", QUARTERS), held=((0, POD.name),)), backend="mig-manager")
    owners = {"chat/llama": ReplicaOwner("uid", 1, 1, 1, frozenset({ShapeKey("A30", "1g.6gb")}))}
    found = world(replace(there, pods=(POD,)), plans=(plan(CHAIN),), policy=PoolPolicy.FULL)

    assert next_step(replace(found, owners=owners)).actions == ()


TWO = "2g.12gb@0 2g.12gb@2"
BOTH = changes(("a", "a0", TWO, "gpu"))
PODS = (DevicePod("chat/llama-1", "chat/llama"), DevicePod("chat/llama-2", "chat/llama"))


def both(*pods, available, asked=None, holds=(CLOSED,)):
    """The next step where two replicas have to leave a GPU."""
    users = tuple((2 * number, pod.name) for number, pod in enumerate(pods))
    there = node("a", replace(gpu("a0", TWO), held=users), holds=holds)
    there = replace(there, pods=pods, claimed=tuple((RESOURCE, pod.name, 1) for pod in pods))
    of = replace(BOTH, moves=(("chat/llama", SAME),))
    owners = {
        "chat/llama": ReplicaOwner(
            "uid", 2, available, available if asked is None else asked, frozenset({SAME})
        )
    }
    found = world(there, plans=(plan(of),), policy=PoolPolicy.FULL)
    return next_step(replace(found, owners=owners))


def test_as_many_replicas_start_as_leave():
    assert both(*PODS, available=2, holds=()).moves[0].surge == 2


def test_one_replica_goes_where_there_is_room_for_one_replacement_alone():
    assert both(*PODS, available=3).actions == (MarkPod("chat/llama-1"),)


def test_a_replacement_that_still_starts_is_waited_for():
    assert both(*PODS, available=3, asked=4).actions == (ReleaseNode("a", RESOURCE),)


def test_nobody_else_is_marked_where_more_are_marked_than_are_replaced():
    """A replacement has failed since: one serves, two are marked."""
    four = "1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3"
    quarter = ShapeKey("A30", "1g.6gb")
    pods = tuple(DevicePod(f"chat/llama-{n}", "chat/llama", is_marked=n < 2) for n in range(4))
    users = tuple((n, pod.name) for n, pod in enumerate(pods))
    there = node("a", replace(gpu("a0", four), held=users), holds=(Hold(QUARTER, NOW - 10, NOW + 5000),))
    there = replace(there, pods=pods, claimed=tuple((QUARTER, pod.name, 1) for pod in pods))
    of = replace(changes(("a", "a0", four, "gpu")), moves=(("chat/llama", quarter),))
    found = world(there, plans=(plan(of),), policy=PoolPolicy.FULL)
    owners = {"chat/llama": ReplicaOwner("uid", 4, 5, 5, frozenset({quarter}))}

    assert next_step(replace(found, owners=owners)).actions == ()


def test_the_deployment_shrinks_by_the_marked_pods_alone():
    first = replace(PODS[0], is_marked=True)

    assert both(first, PODS[1], available=3).moves[0].surge == 0
    assert both(first, PODS[1], available=4).moves[0].surge == 1
    assert both(first, PODS[1], available=3).actions == ()


def test_then_the_next_one_is_replaced_while_the_first_finishes_its_requests():
    first = replace(PODS[0], is_marked=True, is_leaving=True)

    assert both(first, PODS[1], available=2).moves[0].surge == 1


def test_a_pod_on_two_gpus_is_one_replica():
    pod = DevicePod("chat/llama-1", "chat/llama")
    of = changes(("a", "a0", "gpu", TWO), ("a", "a1", "gpu", TWO))
    whole = ShapeKey("A30", "gpu", 2)
    held = ((None, pod.name),)
    gpus = tuple(replace(gpu(name, "gpu"), held=held) for name in ("a0", "a1"))
    there = node("a", *gpus, holds=(Hold("nvidia.com/gpu", NOW - 10, NOW + 5000),))
    there = replace(there, pods=(pod,), claimed=(("nvidia.com/gpu", pod.name, 2),))
    owners = {"chat/llama": ReplicaOwner("uid", 1, 2, 2, frozenset({whole}))}
    found = world(there, plans=(plan(replace(of, moves=(("chat/llama", whole),))),), policy=PoolPolicy.FULL)
    result = next_step(replace(found, owners=owners))

    assert result.actions == (MarkPod("chat/llama-1"),)
    assert both(*PODS, available=2).moves[0].surge == 2
    assert next_step(
        replace(found, owners={"chat/llama": ReplicaOwner("uid", 1, 1, 1, frozenset({whole}))})
    ).moves == (ReplicaMove("uid", whole, surge=1),)


# ---- what failed in between -------------------------------------------------------------------------


def test_a_marked_pod_whose_replacement_has_failed_is_replaced_again():
    first = replace(PODS[0], is_marked=True)

    assert both(first, PODS[1], available=2).moves[0].surge == 2
    assert both(first, PODS[1], available=2, asked=3).moves[0].surge == 2


def test_no_further_replica_starts_while_a_batch_leaves():
    assert both(*PODS, available=3).moves[0].surge == 1


def test_the_node_of_a_marked_pod_without_a_replacement_is_opened_again():
    marked = tuple(replace(pod, is_marked=True) for pod in PODS)

    assert both(*marked, available=2).actions == (ReleaseNode("a", RESOURCE),)


def test_the_mark_of_a_plan_that_has_ended_is_taken_from_the_pod():
    pod = replace(POD, is_marked=True)
    there = replace(node("a", gpu("a0", BEFORE)), pods=(pod, DevicePod("team/job-1", is_marked=True)))

    assert next_step(world(there)).actions == (UnmarkPod("chat/llama-1"),)


def test_no_mark_is_taken_from_a_pod_that_leaves():
    there = replace(node("a", gpu("a0", BEFORE)), pods=(replace(POD, is_marked=True, is_leaving=True),))

    assert next_step(world(there)).actions == ()


# ---- moves for which no GPU is cut: the plan names the GPU that a replica leaves ------

SLICE, ENTIRE = ShapeKey("A30", "1g.6gb"), ShapeKey("A30", "gpu")
LEAVE = replace(changes(("a", "a0", "gpu", "gpu")), moves=(("chat/llama", SLICE),))


def left(*held, state=PlanState.EXECUTING, shapes=(ENTIRE,), age_s=10.0, of=LEAVE, approved=True, **fields):
    """The next step where chat/llama is to leave a0, whole, for a slice of a1."""
    drains, owner = fields.pop("drains", False), fields
    pods = tuple(DevicePod(name, name.rpartition("-")[0], is_leaving=drains) for name in held)
    gpus = (
        replace(gpu("a0", "gpu"), held=tuple((None, pod.name) for pod in pods)),
        gpu("a1", "1g.6gb@0 2g.12gb@2"),
    )
    there = replace(node("a", *gpus), pods=pods)
    record = plan(of, state, since=NOW - age_s, approved=approved)
    found = world(there, plans=(record,), policy=PoolPolicy.RECOMMEND)
    known = ReplicaOwner("uid", 1, 1, 1, frozenset(shapes), **owner)
    return next_step(replace(found, owners={} if "gone" in held else {"chat/llama": known}))


def test_a_move_alone_waits_for_consent_and_tells_the_planner_once_it_has_it():
    assert verdicts(left("chat/llama-1", state=None, approved=None)) == {
        "plan": ("Recommended", "WaitingForApproval")
    }
    assert verdicts(left("chat/llama-1", state=PlanState.APPROVED)) == {"plan": ("Executing", "Beginning")}
    result = left("chat/llama-1")
    assert verdicts(result) == {"plan": ("Executing", "Moving")}
    assert result.moves == (ReplicaMove("uid", SLICE, surge=0),)
    assert (result.actions, result.progress[0].done) == ((), 0)


@pytest.mark.parametrize(
    ("held", "shapes", "expected"),
    [
        (("chat/llama-1",), (ENTIRE, SLICE), ("Executing", "Moving")),
        (("chat/llama-1",), (SLICE,), ("Executing", "Moving")),  # its Deployment is gone, its pod is not
        ((), (ENTIRE, SLICE), ("Executing", "Moving")),
        ((), (SLICE,), ("Done", "Applied")),
        (("chat/other-1",), (SLICE,), ("Done", "Applied")),  # another one has taken the GPU meanwhile
    ],
)
def test_a_plan_of_moves_is_done_once_its_replicas_stand_where_it_says(held, shapes, expected):
    assert verdicts(left(*held, shapes=shapes)) == {"plan": expected}


def test_a_plan_of_moves_that_was_not_carried_out_is_not_done_although_nothing_is_left_to_move():
    assert verdicts(left(shapes=(SLICE,), state=PlanState.RECOMMENDED, approved=None)) == {
        "plan": ("Recommended", "WaitingForApproval")
    }


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"immovable": "spec.paused is true"}, "MoveImpossible", "spec.paused is true"),
        ({"age_s": LIMITS.cut_s + 1}, "NoDevice", "A30:1g.6gb for chat/llama"),
        (
            {"age_s": LIMITS.move_s + 1, "shapes": (ENTIRE, SLICE)},
            "DeadlineExceeded",
            "chat/llama runs on A30:1g.6gb",
        ),
    ],
)
def test_a_move_that_becomes_impossible_fails_and_says_why(fields, reason, text):
    result = left("chat/llama-1", **fields)

    assert verdicts(result) == {"plan": ("Failed", reason)}
    assert text in result.progress[0].message
    assert result.moves == ()


def test_a_device_that_another_replica_still_drains_from_is_waited_for():
    assert verdicts(left("chat/llama-1", age_s=LIMITS.cut_s + 1, drains=True)) == {
        "plan": ("Executing", "Draining")
    }


def test_a_cut_is_not_done_before_the_replica_that_moves_for_it_has_left_its_gpu():
    both = replace(
        changes(("a", "a0", "gpu", "gpu"), ("a", "a1", "empty", "1g.6gb@0 2g.12gb@2")), moves=LEAVE.moves
    )
    pod = DevicePod("chat/llama-1", "chat/llama")
    cut = gpu("a1", "1g.6gb@0 2g.12gb@2")
    there = replace(
        node(
            "a", replace(gpu("a0", "gpu"), held=((None, pod.name),)), cut, wanted={"a1": "1g.6gb@0 2g.12gb@2"}
        ),
        pods=(pod,),
    )
    found = world(there, plans=(plan(both),), policy=PoolPolicy.FULL)
    owner = ReplicaOwner("uid", 1, 1, 1, frozenset({ENTIRE}))
    result = next_step(replace(found, owners={"chat/llama": owner}))

    assert verdicts(result) == {"plan": ("Executing", "Moving")}
    assert result.progress[0].done == 1
    assert result.moves == (ReplicaMove("uid", SLICE, surge=0),)
