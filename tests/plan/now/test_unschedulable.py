"""Pods that cannot be scheduled though devices are free: the shape goes into back-off."""

from dataclasses import replace

import pytest

from tangram.api import back_offs_from_status
from tangram.fleet import ApplyDeployment, BackOff, Pool, RemoveDeployment, ScaleDeployment, Unscheduled
from tangram.plan import plan, render_status
from tangram.plan.status import conditions
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

CHEAP, DEAR = shape("1g.10gb"), shape("1g.20gb")
WHY = "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible"


def stuck(m, pods=2, serving=0, age=200.0, **changes):
    """Some replicas on the cheap slice serve, and some pods cannot be scheduled."""
    running = workload(
        m,
        CHEAP,
        serving + pods,
        available=serving,
        unscheduled=Unscheduled(pods, NOW - age, WHY) if pods else None,
    )
    nodes = (node("a", mig_1g_10gb=7), node("b", mig_1g_20gb=4))
    return snapshot(
        *nodes,
        workloads=(running,),
        claims=claims(m, CHEAP, "a", serving),
        desired=((m.uid, serving + pods),),
        desired_of=((m.uid, CHEAP),),
        **changes,
    )


def planned(observed, m, now=NOW):
    new_plan = plan(observed, (m,), now)
    applied = {a.shape: a.replicas for a in new_plan.actions if isinstance(a, ApplyDeployment)}
    return new_plan, new_plan.decisions[0], applied


def later(observed, new_plan, **changes):
    back_offs = tuple(sorted(back_off for d in new_plan.decisions for back_off in d.back_offs))
    return replace(observed, back_offs=back_offs, **changes)


def test_before_the_deadline_unscheduled_pods_are_reported_and_nothing_moves():
    m = intent(min_replicas=2)
    _, decision, applied = planned(stuck(m, age=100), m)

    assert applied == {CHEAP: 2}
    assert decision.placed_reason == "Unschedulable"
    assert (
        "2 of 2 pods on H100-80GB-SXM:1g.10gb cannot be scheduled since 2026-11-21T"
        in decision.placed_message
    )
    assert "2 Insufficient cpu" in decision.placed_message
    assert "another shape is tried" in decision.placed_message


def test_a_new_unscheduled_pod_adds_no_message():
    m = intent(min_replicas=2)
    _, decision, _ = planned(stuck(m, age=5), m)
    assert decision.placed_reason == "Placed"


def test_after_the_deadline_the_next_shape_is_planned_and_the_pods_are_stopped():
    m = intent(min_replicas=2)
    observed = stuck(m)
    new_plan, decision, applied = planned(observed, m)

    assert decision.shape == DEAR
    assert applied == {DEAR: 2}
    assert [a.uid for a in new_plan.actions if isinstance(a, RemoveDeployment)] == [observed.workloads[0].uid]
    (lost,) = [alternative for alternative in decision.alternatives if alternative.shape == CHEAP]
    assert lost.rejected_because == "Unschedulable"
    assert "2 Insufficient cpu" in lost.message


def test_serving_replicas_stay_and_only_unscheduled_pods_are_stopped():
    m = intent(min_replicas=1, max_replicas=8)
    _, decision, applied = planned(stuck(m, pods=2, serving=3), m)

    assert applied == {CHEAP: 3}
    assert (decision.placed, decision.placed_reason) == (3, "Unschedulable")
    assert "3 of 5 replicas placed" in decision.placed_message


def test_below_the_minimum_all_replicas_move_and_serving_ones_stay_until_then():
    m = intent(min_replicas=4, max_replicas=4)
    new_plan, decision, applied = planned(stuck(m, pods=2, serving=2), m)

    assert decision.shape == DEAR
    assert applied == {DEAR: 4}
    assert not [a for a in new_plan.actions if isinstance(a, RemoveDeployment)]


def test_without_a_free_device_it_is_a_shortage_and_the_deployment_keeps_its_size():
    m = intent(min_replicas=2)
    observed = replace(stuck(m), claims=claims(None, CHEAP, "a", 7))
    _, _, applied = planned(replace(observed, nodes=observed.nodes[:1]), m)

    assert applied == {CHEAP: 2}


def test_a_surge_pod_that_cannot_be_scheduled_is_no_obstacle():
    m = intent(min_replicas=2)
    surge = replace(stuck(m, pods=1, serving=2).workloads[0], replicas=2, total=3, updated=1)
    _, decision, _ = planned(replace(stuck(m), workloads=(surge,), claims=claims(m, CHEAP, "a", 2)), m)

    assert decision.back_offs == ()


GROWING = Pool("p", (("gpu", "yes"),), max_nodes=9)


@pytest.mark.parametrize(("age", "given_up"), [(200, False), (1000, True)])
def test_a_growable_pool_gets_a_longer_deadline(age, given_up):
    m = intent(min_replicas=2)
    observed = stuck(m, age=age, pools=(GROWING,))
    observed = replace(observed, nodes=tuple(replace(n, labels=(("gpu", "yes"),)) for n in observed.nodes))

    assert bool(planned(observed, m)[1].back_offs) is given_up


@pytest.mark.parametrize(("leaves_at", "waits"), [(NOW + 60, True), (NOW - 300, False), (NOW + 10**6, False)])
def test_a_shape_waits_for_a_terminating_pod_but_not_for_a_stuck_one(leaves_at, waits):
    m = intent(min_replicas=2)
    observed = stuck(m)
    leaving = tuple(replace(c, leaves_at=leaves_at) for c in claims(None, CHEAP, "a"))

    assert bool(planned(replace(observed, claims=leaving), m)[1].back_offs) is not waits


def test_when_all_shapes_are_in_back_off_the_message_says_when_the_next_is_tried():
    m = intent(min_replicas=2)
    observed = stuck(m)
    new_plan, _, _ = planned(observed, m)
    dear = workload(m, DEAR, 2, available=0, unscheduled=Unscheduled(2, NOW + 60, WHY))
    new_plan, decision, applied = planned(later(observed, new_plan, workloads=(dear,)), m, NOW + 250)

    assert applied == {}
    assert [a.uid for a in new_plan.actions if isinstance(a, RemoveDeployment)] == [dear.uid]
    assert decision.placed_reason == "Unschedulable"
    assert "all 2 shapes that may be used are in back-off" in decision.placed_message
    assert decision.placed_message.count("is tried") >= 1
    assert {b.shape for b in decision.back_offs} == {CHEAP, DEAR}


def test_back_offs_double_up_to_an_hour_and_survive_in_the_status():
    m, now, waits = intent(min_replicas=2), NOW, []
    observed = replace(stuck(m), nodes=(node("a", mig_1g_10gb=7),))
    for _ in range(6):
        new_plan, decision, applied = planned(observed, m, now)
        assert applied == {CHEAP: 0}
        (back_off,) = decision.back_offs
        waits.append(back_off.until - now)
        obj = {
            "metadata": {"uid": m.uid},
            "status": render_status(decision, m, observed, None, None, {}, now),
        }
        assert back_offs_from_status(obj) == decision.back_offs
        now = back_off.until + 200
        probing = workload(m, CHEAP, 1, available=0, unscheduled=Unscheduled(1, now - 190, WHY))
        observed = later(observed, new_plan, workloads=(probing,))
    assert waits == [300, 600, 1200, 2400, 3600, 3600]


def test_a_probe_pod_that_is_scheduled_ends_the_back_off():
    m = intent(min_replicas=2)
    observed = replace(stuck(m), nodes=(node("a", mig_1g_10gb=7),))
    new_plan, decision, _ = planned(observed, m)
    until = decision.back_offs[0].until
    waiting = later(observed, new_plan, workloads=(workload(m, CHEAP, 1, available=0),))
    assert planned(waiting, m, until + 1)[2] == {CHEAP: 1}

    scheduled = replace(waiting, claims=claims(m, CHEAP, "a"))
    _, decision, applied = planned(scheduled, m, until + 2)
    assert (decision.back_offs, applied) == ((), {CHEAP: 2})


def test_an_unreadable_status_holds_no_back_off():
    odd = [{"sku": 3}, "text", {"sku": "L4", "until": -1}]
    obj = {"metadata": {"uid": "u"}, "status": {"backOffs": odd}}
    assert back_offs_from_status(obj) == ()


def test_ready_repeats_placed_while_the_minimum_waits():
    m = intent(min_replicas=2)
    observed = stuck(m, age=100)
    _, decision, _ = planned(observed, m)
    ready = conditions.ready(conditions.condition_inputs(decision, m, observed, None, None), None)

    assert (ready.status, ready.reason) == ("False", "Unschedulable")


def recorded(m, **changes):
    back_off = BackOff(m.uid, m.generation, CHEAP, "FailedCreate", "webhook", 1, NOW - 10, NOW + 200, 3)
    return (replace(back_off, **changes),)


def serving(m, count):
    return snapshot(
        node("a", mig_1g_10gb=7),
        workloads=(workload(m, CHEAP, count),),
        claims=claims(m, CHEAP, "a", count),
        desired=((m.uid, count),),
        desired_of=((m.uid, CHEAP),),
    )


def test_an_obsolete_back_off_stops_no_serving_replica():
    """For example, it was paused, and its pods started without a write of the status."""
    m = intent(min_replicas=4)
    _, decision, applied = planned(replace(serving(m, 4), back_offs=recorded(m)), m)

    assert (decision.back_offs, applied) == ((), {CHEAP: 4})


def test_pods_that_start_during_a_back_off_are_left_to_start():
    m = intent(min_replicas=4)
    starting = workload(m, CHEAP, 4, available=1)
    observed = replace(serving(m, 4), workloads=(starting,), back_offs=recorded(m))
    _, decision, applied = planned(observed, m)

    assert (decision.back_offs[0].replicas, applied) == (4, {CHEAP: 4})


@pytest.mark.parametrize("odd", [{"reason": "Bogus"}, {"until": float(2**40)}, {"until": NOW + 400}])
def test_an_implausible_recorded_back_off_is_ignored(odd):
    m = intent(min_replicas=2)
    new_plan, decision, applied = planned(replace(serving(m, 2), back_offs=recorded(m, **odd)), m)

    assert (new_plan.faults, decision.back_offs, applied) == ((), (), {CHEAP: 2})


def test_a_move_leaves_no_waiting_pod_on_the_shape_in_back_off():
    """Otherwise the waiting pods and the replicas that get its devices compete for the same devices."""
    m = intent(min_replicas=4, max_replicas=4)
    new_plan, decision, _ = planned(stuck(m, pods=3, serving=1), m)

    assert decision.shape == DEAR
    assert [a.replicas for a in new_plan.actions if isinstance(a, ScaleDeployment)] == [1]


def test_refused_replicas_are_stopped_though_the_last_node_of_their_shape_is_gone():
    """Otherwise they are refused for ever, and each refusal adds an attempt to the status."""
    m = intent(min_replicas=2)
    refused = workload(m, CHEAP, 2, available=0, total=0, refused="FailedCreate: exceeded quota: q, used")
    new_plan, decision, _ = planned(snapshot(workloads=(refused,)), m)

    assert decision.back_offs[0].replicas == 0
    assert [a.replicas for a in new_plan.actions if isinstance(a, ScaleDeployment)] == [0]
