"""What plans make of GPUs that are being cut: devices that come and go, and replicas that leave."""

from dataclasses import replace

import pytest

from tangram.fleet import (
    ApplyDeployment,
    ComingDevices,
    FailedChanges,
    InvalidIntent,
    MIGPolicy,
    PartitionView,
    Pool,
    RemoveDeployment,
    ReplicaMove,
)
from tangram.plan import plan
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

SLICE, GPU = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"
COMING = ComingDevices("a", SLICE, 1, "60336f49ed9c", NOW + 60)
CHAT = intent("chat")


def planned(*nodes, intents=(CHAT,), partition=PartitionView(), **fields):  # noqa: B008 - frozen
    decided = plan(snapshot(*nodes, partition=partition, **fields), intents, NOW)
    applied = [action for action in decided.actions if isinstance(action, ApplyDeployment)]
    return {decision.owner_uid: decision for decision in decided.decisions}, applied


def test_a_model_waits_for_the_slice_that_is_cut_for_it_though_a_whole_gpu_is_free():
    decisions, applied = planned(node("a", gpu=1), partition=PartitionView(coming=(COMING,)))

    decision = decisions[CHAT.uid]
    assert decision.placed_reason == "WaitingForSlices"
    assert "FleetPlan 60336f49ed9c cuts on a, until" in decision.placed_message
    assert decision.placed == 0
    assert applied == []


def test_slices_that_a_gpunode_wants_back_are_waited_for_without_a_plan():
    lost = replace(COMING, plan="", until=None)
    decisions, _ = planned(node("a", gpu=1), partition=PartitionView(coming=(lost,)))

    assert "as its GPUNode says" in decisions[CHAT.uid].placed_message


def test_a_replica_that_exists_keeps_its_place_among_slices_that_come_back():
    placed = workload(CHAT, shape("1g.10gb"), 1)
    lost = replace(COMING, plan="", until=None)
    decisions, applied = planned(
        node("a", gpu=1), partition=PartitionView(coming=(lost,)), workloads=(placed,)
    )

    assert [action.shape.profile for action in applied] == ["1g.10gb"]
    assert applied[0].replicas == 1
    assert decisions[CHAT.uid].shape.profile == "1g.10gb"


def test_no_replica_gets_a_device_that_goes():
    going = PartitionView(going=(("a", GPU, 1),))
    decisions, applied = planned(node("a", gpu=1), partition=going)

    assert decisions[CHAT.uid].placed_reason == "InsufficientCapacity"
    assert applied == []


def test_a_model_without_a_plan_of_the_fleet_takes_no_device_until_the_deadline():
    waits = PartitionView(unplanned=((CHAT.uid, NOW + 30),))
    late = PartitionView(unplanned=((CHAT.uid, NOW),))
    decisions, applied = planned(node("a", gpu=1), partition=waits)
    late_decisions, late_applied = planned(node("a", gpu=1), partition=late)

    assert decisions[CHAT.uid].placed_reason == "WaitingForSlices"
    assert applied == []
    assert late_decisions[CHAT.uid].placed_reason == "Placed"
    assert len(late_applied) == 1


def test_a_model_that_runs_does_not_wait_for_a_plan_of_the_fleet():
    running = workload(CHAT, shape(), 1)
    decisions, _ = planned(
        node("a", gpu=1),
        partition=PartitionView(unplanned=((CHAT.uid, NOW + 30),)),
        workloads=(running,),
        claims=claims(CHAT, shape(), "a"),
    )

    assert decisions[CHAT.uid].placed_reason == "Placed"


def test_where_cutting_failed_the_condition_of_the_whole_gpu_says_why():
    failed = PartitionView(failed=(FailedChanges("60336f49ed9c", "h100", "INSUFFICIENT_RESOURCES (23)"),))
    decisions, _ = planned(node("a", gpu=1), partition=failed)
    elsewhere, other = intent("chat", pools=("other",)), replace(node("a", gpu=1), labels=(("x", "y"),))
    others, applied = planned(
        other, intents=(elsewhere,), partition=failed, pools=(Pool("other", (("x", "y"),)),)
    )

    assert "FleetPlan 60336f49ed9c could not cut GPUs of GPUPool h100" in decisions[CHAT.uid].placed_message
    assert "could not cut" not in others[elsewhere.uid].placed_message
    assert len(applied) == 1


def test_a_surge_takes_a_free_device_and_ends_with_the_move():
    running = workload(CHAT, shape("1g.10gb"), 1)
    fields = {"workloads": (running,), "claims": claims(CHAT, shape("1g.10gb"), "a")}
    move = ReplicaMove(CHAT.uid, shape("1g.10gb").key, surge=1)

    def replicas(offered, moves):
        _, applied = planned(node("a", mig_1g_10gb=offered), partition=PartitionView(moves=moves), **fields)
        return applied[0].replicas

    assert replicas(2, (move,)) == 2
    assert replicas(1, (move,)) == 1  # no device is free: it waits
    assert replicas(2, ()) == 1


def test_a_move_to_another_shape_starts_there_before_anything_ends():
    running = workload(CHAT, shape(), 1)
    move = ReplicaMove(CHAT.uid, shape("1g.10gb").key)
    decided = plan(
        snapshot(
            node("a", gpu=1, mig_1g_10gb=1),
            workloads=(running,),
            claims=claims(CHAT, shape(), "a"),
            partition=PartitionView(moves=(move,)),
        ),
        (CHAT,),
        NOW,
    )

    applied = [action for action in decided.actions if isinstance(action, ApplyDeployment)]
    assert [action.shape.profile for action in applied] == ["1g.10gb"]
    assert [type(action).__name__ for action in decided.actions if "Remove" in type(action).__name__] == []


def test_a_move_waits_for_the_devices_that_come():
    running = workload(CHAT, shape(), 1)
    move = ReplicaMove(CHAT.uid, shape("1g.10gb").key)
    decisions, applied = planned(
        node("a", gpu=1),
        partition=PartitionView(coming=(COMING,), moves=(move,)),
        workloads=(running,),
        claims=claims(CHAT, shape(), "a"),
    )

    assert decisions[CHAT.uid].placed_reason == "WaitingForSlices"
    assert "keeps 1 replica" in decisions[CHAT.uid].placed_message
    assert applied == []


# ---- moves that are impossible, and models that a consent would serve ------------------------------------


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({}, None),
        ({"mig": MIGPolicy.FORBIDDEN}, "H100-80GB-SXM:1g.10gb does not serve it any more"),
        ({"paused": True}, "spec.paused is true"),
        ({"uri": "image:///m/70b"}, "does not serve it any more"),
        ({"min_replicas": 0, "replicas": 0}, None),  # it is off: nothing is left to move
    ],
)
def test_why_a_replica_does_not_move_as_a_plan_has_it(edit, why):
    """What a person edits after the consent decides; the plan hears of it."""
    edited = intent("chat", **edit)
    seen = snapshot(
        node("a", gpu=1, mig_1g_10gb=1),
        workloads=(workload(CHAT, shape(), 1),),
        claims=claims(CHAT, shape(), "a"),
        partition=PartitionView(moves=(ReplicaMove(CHAT.uid, shape("1g.10gb").key),)),
    )

    told = dict(plan(seen, (edited,), NOW).immovable)

    assert (CHAT.uid in told) == (why is not None)
    assert (why or "") in told.get(CHAT.uid, "")


def test_a_spec_that_became_invalid_moves_no_replica():
    invalid = InvalidIntent(CHAT.uid, "ns", "chat", 2, 0.0, "spec.x is wrong")
    seen = snapshot(
        node("a", gpu=1, mig_1g_10gb=1),
        workloads=(workload(CHAT, shape(), 1),),
        partition=PartitionView(moves=(ReplicaMove(CHAT.uid, shape("1g.10gb").key),)),
    )

    assert "Accepted" in dict(plan(seen, (invalid,), NOW).immovable)[CHAT.uid]


WAITING = PartitionView(waiting=(("ns/chat", "60336f49ed9c"), ("ns/chat", "71"), ("ns/other", "72")))


@pytest.mark.parametrize(
    ("of", "fields", "without"),
    [
        (intent("chat", mig=MIGPolicy.REQUIRED), {}, "placement.mig is Required"),
        (CHAT, {"claims": claims(None, shape(), "a")}, "1 more needs a free"),
    ],
)
def test_a_model_that_waits_for_a_consent_says_so_with_the_plan_and_the_command(of, fields, without):
    decisions, applied = planned(node("a", gpu=1), intents=(of,), partition=WAITING, **fields)

    decision = decisions[CHAT.uid]
    assert (decision.placed_reason, decision.consent) == ("WaitingForConsent", "60336f49ed9c")
    assert "FleetPlan 60336f49ed9c serves it and waits for consent: tangram approve 60336f49ed9c" in (
        decision.placed_message
    )
    assert without in decision.placed_message
    assert applied == []


def test_a_model_that_is_served_waits_for_no_consent():
    decisions, _ = planned(node("a", gpu=1), partition=WAITING)

    assert (decisions[CHAT.uid].placed_reason, decisions[CHAT.uid].consent) == ("Placed", "")


@pytest.mark.parametrize(
    ("most", "coming", "free", "left"),
    [
        (1_000_000, True, False, [1]),  # no restart: it waits for the device that comes
        (0, True, False, []),  # with consent it stops before
        (0, True, True, [1]),  # a replacement can start first
    ],
)
def test_a_replica_stops_before_its_replacement_serves_only_with_consent_and_without_a_device(
    most, coming, free, left
):
    old = shape()
    offered = {"gpu": 1} | ({"mig_1g_10gb": 1} if free else {})
    view = PartitionView(
        coming=(COMING,) * coming,
        going=(("a", GPU, 1),),
        moves=(ReplicaMove(CHAT.uid, shape("1g.10gb").key, most_on_others=most),),
    )
    seen = snapshot(
        node("a", **offered),
        partition=view,
        workloads=(workload(CHAT, old, 1),),
        claims=claims(CHAT, old, "a"),
        desired=((CHAT.uid, 1),),
    )

    decided = plan(seen, (CHAT,), NOW)

    ended = [action for action in decided.actions if isinstance(action, RemoveDeployment)]
    assert [1] * (not ended) == left
