"""The plan for one LLMDeployment in each situation, reason by reason."""

from dataclasses import replace

import pytest

from tangram.fleet import (
    ApplyDeployment,
    ApplyService,
    FactsKey,
    FinishInspection,
    Inspection,
    InspectionFailure,
    InvalidIntent,
    MIGPolicy,
    Node,
    Objective,
    RemoveDeployment,
    Shape,
    StartInspection,
)
from tangram.plan import plan
from tests.support.fleet import (
    FACTS_1B,
    IMAGE,
    NOW,
    claims,
    intent,
    node,
    shape,
    snapshot,
    tpot,
    workload,
)

SLICE = shape("1g.10gb")
BIG_SLICE = shape("1g.20gb")
WHOLE = shape()


def decide(observed, *intents, now=NOW):
    new_plan = plan(observed, intents, now)
    return new_plan, {d.owner_uid: d for d in new_plan.decisions}


def only(observed, owner, now=NOW):
    new_plan, decisions = decide(observed, owner, now=now)
    return new_plan, decisions[owner.uid]


def applied(new_plan, owner=None):
    return [
        a
        for a in new_plan.actions
        if isinstance(a, ApplyDeployment) and (owner is None or a.owner_uid == owner.uid)
    ]


def removed(new_plan):
    return [a.name for a in new_plan.actions if isinstance(a, RemoveDeployment)]


# --- choosing a shape


def test_the_cheapest_fitting_shape_is_chosen():
    new_plan, decision = only(
        snapshot(node("a", gpu=8), node("b", mig_1g_10gb=7), node("c", "L4", gpu=1)), intent()
    )

    assert decision.placed_reason == "Placed"
    assert decision.shape == SLICE
    assert decision.price_per_hour == pytest.approx((1.89 * 5.0) ** 0.5 / 7)
    assert applied(new_plan) == [ApplyDeployment("uid-m", SLICE, 1, ("NVIDIA-H100-80GB-HBM3",), 4096)]
    assert ApplyService("uid-m") in new_plan.actions


def test_a_configured_price_takes_precedence_over_the_catalog():
    observed = snapshot(node("b", mig_1g_10gb=7), node("c", "L4", gpu=1), prices=(("L4", 0.01),))

    assert only(observed, intent())[1].shape == shape(sku="L4")


def test_a_gpu_without_any_price_is_not_used_until_one_is_set():
    observed = snapshot(node("a", "GB200-186GB", gpu=4))
    _, decision = only(observed, intent())

    assert (decision.placed_reason, decision.alternatives[0].rejected_because) == (
        "Infeasible",
        "NoPrice",
    )
    assert only(replace(observed, prices=(("GB200-186GB", 9.0),)), intent())[1].placed_reason == "Placed"


def test_the_maximum_model_length_is_capped_by_the_checkpoint():
    new_plan, _ = only(snapshot(node("a", gpu=1)), intent(max_model_len=10**6))

    assert applied(new_plan)[0].max_model_len == FACTS_1B.max_position_embeddings


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mig": MIGPolicy.FORBIDDEN}, shape(sku="L4")),
        ({"mig": MIGPolicy.REQUIRED}, SLICE),
        ({"allowed_skus": ("L4",)}, shape(sku="L4")),
        ({"denied_skus": ("H100-80GB-SXM",)}, shape(sku="L4")),
    ],
)
def test_a_shape_that_a_placement_rule_excludes_is_not_chosen(changes, expected):
    observed = snapshot(node("b", gpu=1, mig_1g_10gb=1), node("c", "L4", gpu=1))

    assert only(observed, intent(**changes))[1].shape == expected


def test_if_no_shape_is_allowed_the_message_names_the_rules():
    _, decision = only(snapshot(node("c", "L4", gpu=1)), intent(denied_skus=("L4",)))

    assert decision.placed_reason == "Infeasible"
    assert "placement.deniedSKUs names L4" in decision.placed_message
    assert decision.alternatives[0].rejected_because == "NotAllowed"


def test_a_model_that_fits_nowhere_names_the_nearest_shape_and_what_is_missing():
    _, decision = only(snapshot(node("a", gpu=8), node("c", "L4", gpu=1)), intent(uri="image:///m/70b"))

    assert decision.placed_reason == "Infeasible"
    assert "the closest is H100-80GB-SXM, " in decision.placed_message
    assert "GiB short" in decision.placed_message
    assert [a.rejected_because for a in decision.alternatives] == ["DoesNotFit", "DoesNotFit"]


def test_a_length_that_does_not_fit_is_refused_while_a_shorter_one_is_placed():
    observed = snapshot(node("b", "L4", gpu=1))

    assert only(observed, intent(uri="image:///m/8b", max_model_len=131072))[1].placed_reason == "Infeasible"
    assert only(observed, intent(uri="image:///m/8b", max_model_len=4096))[1].placed_reason == "Placed"


def test_an_objective_no_shape_can_reach_names_the_smallest_tpot():
    observed = snapshot(node("a", gpu=8), node("c", "L4", gpu=1))
    _, decision = only(observed, intent(uri="image:///m/8b", tpot=tpot(2)))

    assert decision.placed_reason == "SLOUnreachable"
    assert "smallest TPOT that can be reached is 6.81 ms, on H100-80GB-SXM" in decision.placed_message


def test_a_first_token_no_shape_can_deliver_in_time_names_the_smallest_ttft():
    observed = snapshot(node("a", gpu=8), node("c", "L4", gpu=1))
    _, decision = only(observed, intent(uri="image:///m/8b", ttft=Objective(90, 2)))

    assert decision.placed_reason == "SLOUnreachable"
    assert "smallest TTFT that can be reached is 74.05 ms, on H100-80GB-SXM" in decision.placed_message
    assert "objectives.ttft" in decision.placed_message
    assert {a.rejected_because for a in decision.alternatives} == {"TTFT"}


def test_a_first_token_in_time_needs_a_faster_shape():
    """What counts is the first token of a prompt of the usual length, not of one token."""
    observed = snapshot(node("a", gpu=1), node("b", mig_1g_10gb=1), node("c", "L4", gpu=1))
    _, decision = only(observed, intent(ttft=Objective(99, 60)))

    assert decision.shape == WHOLE
    assert {str(a.shape): a.rejected_because for a in decision.alternatives} == {
        "L4": "TTFT",
        "H100-80GB-SXM:1g.10gb": "TTFT",
    }


def test_a_shape_is_assessed_by_its_calibrated_latency():
    """The calibrated model of `tangram size`: a data sheet alone would allow 4.48 ms."""
    observed = snapshot(node("a", gpu=1))
    met = only(observed, intent(uri="image:///m/8b", tpot=tpot(7), ttft=Objective(99, 200)))[1]
    missed = only(observed, intent(uri="image:///m/8b", tpot=tpot(5)))[1]

    assert met.placed_reason == "Placed"
    assert "predicted 6.81 ms per token when idle" in met.placed_message
    assert missed.placed_reason == "SLOUnreachable"


def test_a_small_model_in_fp32_is_placed_on_a_slice_that_lists_no_fp32():
    """The demonstration: 15 MB on 1g.10gb, first tokens within a quarter of a second."""
    tiny = replace(
        FACTS_1B, dtype="fp32", layers=4, hidden_size=256, heads=8, kv_heads=4, head_dim=32,
        vocab_size=4096, parameters=3_800_000, weight_bytes=15_200_000, embedding_bytes=4_194_304,
        max_position_embeddings=2048,
    )  # fmt: skip
    key = FactsKey("ns", "image:///models/tangram-tiny", IMAGE)
    m = intent(uri=key.uri, max_model_len=None, mig=MIGPolicy.REQUIRED, ttft=Objective(90, 250))
    observed = replace(snapshot(node("b", mig_1g_10gb=7)), facts=((key, tiny),))

    assert only(observed, m)[1].shape == shape("1g.10gb", precision="fp32")


def test_an_objective_changes_the_choice_to_a_faster_shape():
    observed = snapshot(node("a", gpu=1), node("b", mig_1g_20gb=4))

    assert only(observed, intent(tpot=tpot(10)))[1].shape == BIG_SLICE
    assert only(observed, intent(tpot=tpot(2)))[1].shape == WHOLE


def test_rejected_shapes_are_listed_with_their_reasons():
    observed = snapshot(node("a", gpu=1), node("b", mig_1g_10gb=1), node("c", "L4", gpu=1))
    _, decision = only(observed, intent(tpot=tpot(8)))

    assert {str(a.shape): a.rejected_because for a in decision.alternatives} == {
        "L4": "TPOT",
        "H100-80GB-SXM": "Dearer",
    }


# --- free devices


def test_replicas_without_a_free_device_are_reported_and_not_applied():
    new_plan, decision = only(snapshot(node("b", mig_1g_10gb=2)), intent(min_replicas=3))

    assert (decision.placed, decision.desired) == (2, 3)
    assert decision.placed_reason == "InsufficientCapacity"
    assert decision.placed_message == ("2 of 3 replicas placed; 1 more needs a free 1g.10gb on H100-80GB-SXM")
    assert applied(new_plan)[0].replicas == 2


def test_slices_held_by_foreign_pods_are_not_assigned():
    observed = snapshot(node("b", mig_1g_10gb=3), claims=claims(None, SLICE, "b", 2))

    assert only(observed, intent(min_replicas=3))[1].placed == 1


def test_pods_of_a_deleted_llmdeployment_still_hold_their_slices():
    observed = snapshot(node("b", mig_1g_10gb=1), claims=claims(intent("gone"), SLICE, "b"))

    assert only(observed, intent())[1].placed == 0


@pytest.mark.parametrize(
    "bad",
    [
        node("b", usable=False, mig_1g_10gb=7),
        Node("b", None, "NVIDIA-Unheard-Of", True, (("nvidia.com/gpu", 8),)),
        node("b", mig_9g_99gb=7),
    ],
)
def test_no_new_replica_is_placed_on_an_unusable_node(bad):
    new_plan, decision = only(snapshot(bad), intent())

    assert decision.placed == 0
    assert decision.placed_reason == "InsufficientCapacity"
    assert not applied(new_plan)


def test_a_fleet_without_nodes_is_a_lack_of_capacity_not_infeasible():
    _, decision = only(snapshot(), intent())

    assert decision.placed_reason == "InsufficientCapacity"
    assert "no GPU node" in decision.placed_message


def test_the_older_llmdeployment_is_served_first():
    old, young = intent("z", created_at=1.0), intent("a", created_at=2.0)
    _, decisions = decide(snapshot(node("b", mig_1g_10gb=1)), young, old)

    assert (decisions[old.uid].placed, decisions[young.uid].placed) == (1, 0)


def test_an_older_llmdeployment_takes_no_device_from_a_running_younger_one():
    old, young = intent("old", created_at=1.0), intent("young", created_at=2.0)
    observed = snapshot(
        node("b", mig_1g_10gb=1), claims=claims(young, SLICE, "b"), workloads=(workload(young, SLICE),)
    )
    _, decisions = decide(observed, old, young)

    assert (decisions[old.uid].placed, decisions[young.uid].placed) == (0, 1)


def test_devices_of_replicas_that_are_not_scheduled_yet_stay_reserved():
    old, young = intent("old", created_at=1.0), intent("young", created_at=2.0)
    observed = snapshot(node("b", mig_1g_10gb=1), workloads=(workload(young, SLICE, available=0),))
    _, decisions = decide(observed, old, young)

    assert (decisions[old.uid].placed, decisions[young.uid].placed) == (0, 1)


def test_a_lost_node_removes_free_devices_but_no_replicas_of_the_deployment():
    m = intent(min_replicas=1, max_replicas=3)
    observed = snapshot(
        node("a", usable=False, mig_1g_10gb=2),
        node("b", mig_1g_10gb=1),
        claims=claims(m, SLICE, "b") + claims(m, SLICE, "a", 2),
        workloads=(workload(m, SLICE, 3, available=1),),
        desired=((m.uid, 3),),
    )
    new_plan, decision = only(observed, m)

    assert (decision.placed, decision.placed_reason) == (1, "InsufficientCapacity")
    assert applied(new_plan)[0].replicas == 3


def test_a_cordoned_node_loses_no_running_replica():
    m = intent()
    observed = snapshot(
        node("a", usable=False, mig_1g_10gb=1), claims=claims(m, SLICE, "a"), workloads=(workload(m, SLICE),)
    )
    new_plan, _ = only(observed, m)

    assert [a.replicas for a in applied(new_plan)] == [1]


# --- number of replicas


@pytest.mark.parametrize(("desired", "expected"), [(0, 2), (3, 3), (99, 4)])
def test_the_desired_replicas_stay_within_the_bounds(desired, expected):
    m = intent(min_replicas=2, max_replicas=4)
    observed = snapshot(node("b", mig_1g_10gb=7), desired=((m.uid, desired),))

    assert only(observed, m)[1].desired == expected


def test_without_desired_replicas_the_current_number_stays():
    m = intent(max_replicas=4)
    observed = snapshot(node("b", mig_1g_10gb=7), workloads=(workload(m, SLICE, 3),))

    assert only(observed, m)[1].desired == 3


# --- moves


def test_running_replicas_are_not_moved_to_save_cents():
    m = intent()
    observed = snapshot(
        node("a", gpu=1),
        node("b", mig_1g_10gb=7),
        claims=claims(m, WHOLE, "a"),
        workloads=(workload(m, WHOLE),),
    )
    new_plan, decision = only(observed, m)

    assert decision.shape == WHOLE
    assert not removed(new_plan)
    assert "running replicas are not moved" in decision.alternatives[0].message


def moving():
    """An LLMDeployment that runs on a slice which its new objective excludes."""
    m = intent(tpot=tpot(10), min_replicas=2)
    old = workload(m, SLICE, 2)
    return (
        m,
        old,
        snapshot(node("b", mig_1g_10gb=2, mig_1g_20gb=2), claims=claims(m, SLICE, "b", 2), workloads=(old,)),
    )


def test_a_move_starts_new_replicas_before_it_stops_old_ones():
    m, _, observed = moving()
    m = replace(m, tpot=tpot(5))
    new_plan, decision = only(observed, m)

    assert decision.shape == BIG_SLICE
    assert [a.shape for a in applied(new_plan)] == [BIG_SLICE]
    assert not removed(new_plan)
    assert "until enough replicas" in decision.placed_message


@pytest.mark.parametrize(("available", "expected"), [(0, False), (1, False), (2, True)])
def test_the_old_deployment_is_removed_when_enough_new_replicas_are_available(available, expected):
    m, old, observed = moving()
    m = replace(m, tpot=tpot(5))
    new = workload(m, BIG_SLICE, 2, available=available)
    new_plan, _ = only(replace(observed, workloads=(old, new)), m)

    assert bool(removed(new_plan)) is expected


def test_an_old_deployment_that_serves_nothing_on_a_forbidden_shape_is_removed_at_once():
    m, old, observed = moving()
    m = replace(m, tpot=tpot(5))
    new_plan, _ = only(replace(observed, workloads=(replace(old, available=0, ready=0),)), m)

    assert removed(new_plan) == [old.name]


def test_a_move_without_free_devices_waits_with_a_reason_and_the_old_shape_serves():
    m, _old, observed = moving()
    m = replace(m, tpot=tpot(5))
    full = claims(None, BIG_SLICE, "b", 2)
    new_plan, decision = only(replace(observed, claims=observed.claims + full), m)

    assert decision.placed_reason == "InsufficientCapacity"
    assert "0 of 2 replicas placed" in decision.placed_message
    assert "until enough" in decision.placed_message
    assert not removed(new_plan)
    assert not applied(new_plan)


def test_a_move_does_not_begin_if_the_minimum_finds_no_free_devices():
    m, _old, observed = moving()
    m = replace(m, tpot=tpot(5))
    full = claims(None, BIG_SLICE, "b", 1)
    new_plan, decision = only(replace(observed, claims=observed.claims + full), m)

    assert (decision.placed, decision.placed_reason) == (0, "InsufficientCapacity")
    assert "no move begins before the minimum of 2 replicas has free devices" in decision.placed_message
    assert "1g.10gb until enough" in decision.placed_message
    assert not applied(new_plan)
    assert not removed(new_plan)


def test_a_move_that_has_not_begun_reserves_no_devices():
    m, _old, observed = moving()
    m, young = replace(m, tpot=tpot(5)), intent("young", tpot=tpot(5), created_at=NOW)
    full = claims(None, BIG_SLICE, "b", 1)
    _, decisions = decide(replace(observed, claims=observed.claims + full), m, young)

    assert decisions[young.uid].placed == 1


def test_a_serving_shape_below_the_minimum_is_not_joined_by_another_such_shape():
    m = intent(min_replicas=4)
    observed = snapshot(
        node("a", gpu=3),
        node("b", mig_1g_10gb=2),
        node("away", usable=False, mig_1g_10gb=2),
        claims=claims(m, SLICE, "b", 2),
        workloads=(workload(m, SLICE, 4, available=2),),
    )
    new_plan, decision = only(observed, m)

    assert (decision.shape, decision.placed) == (SLICE, 2)
    assert [(a.shape, a.replicas) for a in applied(new_plan)] == [(SLICE, 4)]


def test_a_move_that_has_begun_continues_when_its_free_devices_shrink():
    m, old, observed = moving()
    m = replace(m, tpot=tpot(5))
    new = workload(m, BIG_SLICE, 2, available=1)
    lost = replace(observed, nodes=(node("b", mig_1g_10gb=2, mig_1g_20gb=1),), workloads=(old, new))
    new_plan, _ = only(lost, m)

    assert [(a.shape, a.replicas) for a in applied(new_plan)] == [(BIG_SLICE, 2)]
    assert not removed(new_plan)


def test_an_infeasible_objective_stops_no_replica():
    m, _, observed = moving()
    new_plan, decision = only(observed, replace(m, tpot=tpot(1)))

    assert decision.placed_reason == "SLOUnreachable"
    assert "goes on serving" in decision.placed_message
    assert not removed(new_plan)


def test_replicas_leave_a_shape_whose_nodes_are_gone_for_one_with_free_devices():
    m = intent()
    observed = snapshot(
        node("a", gpu=1),
        node("b", usable=False, mig_1g_10gb=1),
        claims=claims(m, SLICE, "b"),
        workloads=(workload(m, SLICE, available=0),),
    )
    new_plan, decision = only(observed, m)

    assert decision.shape == WHOLE
    assert not removed(new_plan)  # it may come back before the new one is there


def test_a_deployment_with_an_unreadable_shape_is_removed_when_it_is_not_needed():
    m = intent()
    strange = workload(m, Shape("unknown", "gpu"), available=0)
    good = workload(m, SLICE)
    new_plan, decision = only(snapshot(node("b", mig_1g_10gb=2), workloads=(strange, good)), m)

    assert decision.shape == SLICE
    assert removed(new_plan) == [strange.name]


def test_a_new_precision_waits_for_the_slices_of_the_old_one():
    m = intent()
    old = workload(m, shape("1g.10gb", precision="fp16"))
    observed = snapshot(node("b", mig_1g_10gb=1), claims=claims(m, SLICE, "b"), workloads=(old,))
    new_plan, decision = only(observed, m)

    assert decision.placed == 0
    assert not applied(new_plan)
    assert not removed(new_plan)


def test_affinity_lists_the_products_of_all_nodes_of_the_sku_even_of_unusable_ones():
    observed = snapshot(
        replace(node("a", "L4", gpu=1), product="Tesla-L4"), replace(node("b", "L4", usable=False, gpu=1))
    )
    new_plan, _ = only(observed, intent())

    assert applied(new_plan)[0].products == ("NVIDIA-L4", "Tesla-L4")


# --- refused and paused LLMDeployments


def test_the_older_of_two_llmdeployments_with_one_served_name_is_served():
    old = intent("z", created_at=1.0, served_name="llama")
    young = intent("a", created_at=2.0, served_name="llama")
    elsewhere = replace(young, uid="x", namespace="other")
    new_plan, decisions = decide(snapshot(node("b", mig_1g_10gb=7)), young, old, elsewhere)

    assert [decisions[uid].accepted_reason for uid in (old.uid, young.uid, "x")] == [
        "Valid",
        "ModelNameCollision",
        "Valid",
    ]
    assert "LLMDeployment z" in decisions[young.uid].accepted_message
    assert not applied(new_plan, young)


def test_the_uid_decides_between_llmdeployments_of_the_same_second():
    first, second = intent("b", uid="1", served_name="x"), intent("a", uid="2", served_name="x")
    _, decisions = decide(snapshot(), second, first)

    assert decisions["1"].accepted
    assert not decisions["2"].accepted


def test_an_invalid_spec_is_reported_and_running_replicas_are_left_alone():
    bad = InvalidIntent("uid-m", "ns", "m", 2, 1.0, "spec.scaling.minReplicas is wrong")
    running = workload(intent(), SLICE)
    new_plan, decisions = decide(snapshot(node("b", mig_1g_10gb=1), workloads=(running,)), bad)

    assert decisions["uid-m"].accepted_message == "spec.scaling.minReplicas is wrong"
    assert new_plan.actions == ()


def test_replicas_of_an_invalid_spec_still_hold_their_slices():
    bad = InvalidIntent("uid-m", "ns", "m", 2, 9e9, "broken")
    running = workload(intent(), SLICE)
    _, decisions = decide(snapshot(node("b", mig_1g_10gb=1), workloads=(running,)), bad, intent("other"))

    assert decisions["uid-other"].placed == 0


def test_a_paused_llmdeployment_gets_no_action():
    m = intent(paused=True, uri="image:///m/new")
    old = workload(m, WHOLE)
    job = Inspection(
        FactsKey("ns", m.model_uri, IMAGE), "ns", "j", "ju", NOW, InspectionFailure("NotFound", "x", 0.0)
    )
    new_plan, decision = only(snapshot(node("b", mig_1g_10gb=1), workloads=(old,), inspections=(job,)), m)

    assert new_plan.actions == ()
    assert decision.placed_reason == "Paused"


# --- checkpoints


NEW = "pvc://claim/new"
KEY = FactsKey("ns", NEW, IMAGE)


def job(result=None, key=KEY, uid="ju", **changes):
    return replace(Inspection(key, "ns", "tangram-inspect-1", uid, NOW - 60, result), **changes)


def test_an_unknown_checkpoint_is_inspected_once_before_anything_runs():
    a, b = intent("a", uri=NEW, created_at=1.0), intent("b", uri=NEW)
    new_plan, decisions = decide(snapshot(node("b", gpu=8)), a, b)

    assert [x for x in new_plan.actions if isinstance(x, StartInspection)] == [StartInspection(a.uid, KEY)]
    assert not applied(new_plan)
    assert decisions[a.uid].model_reason == "Inspecting"
    assert decisions[a.uid].placed_reason == "WaitingForModel"


@pytest.mark.parametrize("uri", ["image:///m/new", NEW])
def test_each_namespace_inspects_a_checkpoint_itself(uri):
    first = intent("a", uri=uri, created_at=1.0)
    second = replace(intent("b", uri=uri), namespace="other")
    new_plan, decisions = decide(snapshot(node("b", gpu=8)), first, second)

    assert [x for x in new_plan.actions if isinstance(x, StartInspection)] == [
        StartInspection(first.uid, FactsKey("ns", uri, IMAGE)),
        StartInspection(second.uid, FactsKey("other", uri, IMAGE)),
    ]

    observed = snapshot(node("b", gpu=8), inspections=(job(FACTS_1B, key=FactsKey("other", uri, IMAGE)),))
    _, decisions = decide(observed, first, second)
    assert (decisions[first.uid].facts, decisions[second.uid].facts) == (None, FACTS_1B)


def test_a_running_inspection_is_reported_with_what_it_waits_for():
    observed = snapshot(inspections=(job(message="0/1 nodes are available"),))
    new_plan, decision = only(observed, intent(uri=NEW))

    assert "Job ns/tangram-inspect-1" in decision.model_message
    assert "0/1 nodes are available" in decision.model_message
    assert new_plan.actions == (ApplyService("uid-m"),)


def test_facts_are_used_at_once_and_the_job_goes_when_they_are_recorded():
    m = intent(uri=NEW)
    observed = snapshot(node("b", gpu=1), inspections=(job(FACTS_1B),))
    new_plan, decision = only(observed, m)

    assert decision.facts == FACTS_1B
    assert applied(new_plan)
    assert not [a for a in new_plan.actions if isinstance(a, FinishInspection)]

    new_plan, _ = only(replace(observed, facts=((KEY, FACTS_1B),)), m)
    assert FinishInspection(m.uid, "ns", "tangram-inspect-1", "ju") in new_plan.actions


@pytest.mark.parametrize(
    "reason", ["NotFound", "InvalidCheckpoint", "UnknownArchitecture", "InspectionFailed"]
)
def test_a_failed_inspection_is_reported_and_retried_later(reason):
    observed = snapshot(inspections=(job(InspectionFailure(reason, "config.json is missing", NOW)),))
    m = intent(uri=NEW)
    early, decision = only(observed, m, now=NOW + 59)
    late, _ = only(observed, m, now=NOW + 301)

    assert decision.model_reason == reason
    assert "config.json is missing" in decision.model_message
    assert early.actions == (ApplyService(m.uid),)
    assert FinishInspection(m.uid, "ns", "tangram-inspect-1", "ju") in late.actions
    again, _ = only(snapshot(), m)
    assert StartInspection(m.uid, KEY) in again.actions


def test_an_inspection_job_that_no_llmdeployment_needs_is_removed():
    new_plan, _ = decide(snapshot(inspections=(job(),)), intent())

    assert FinishInspection("", "ns", "tangram-inspect-1", "ju") in new_plan.actions


def test_one_of_two_inspection_jobs_of_a_checkpoint_is_kept():
    key = FactsKey("ns", "image:///m/new", IMAGE)
    two = (job(key=key, uid="1"), job(key=key, uid="2", job_name="tangram-inspect-2"))
    new_plan, _ = decide(snapshot(inspections=two), intent(uri="image:///m/new"))

    assert [a.uid for a in new_plan.actions if isinstance(a, FinishInspection)] == ["2"]


def test_the_old_replicas_stay_while_a_new_checkpoint_is_inspected():
    m = intent(uri=NEW)
    new_plan, _ = only(snapshot(node("b", mig_1g_10gb=1), workloads=(workload(m, SLICE),)), m)

    assert not applied(new_plan)
    assert not removed(new_plan)


def test_a_new_engine_image_inspects_the_checkpoint_again():
    observed = snapshot(node("b", gpu=1), engine_image="engine:2")
    new_plan, _ = only(observed, intent())

    assert StartInspection("uid-m", FactsKey("ns", "image:///m/1b", "engine:2")) in new_plan.actions


def test_unverified_catalog_numbers_are_reported():
    verified = only(snapshot(node("a", gpu=1)), intent())[1]
    recalled = only(snapshot(node("a", "A10", gpu=1)), intent())[1]

    assert "not verified" not in verified.placed_message
    assert "the catalog's numbers for A10 are not verified" in recalled.placed_message
