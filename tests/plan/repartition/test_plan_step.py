"""The step function that gives GPUs new layouts: consent, holds, writes, and how a plan ends."""

from dataclasses import replace

import pytest

from tangram.fleet import PoolPolicy
from tangram.plan.repartition import HoldNode, PlanState, ReleaseNode, SetLayouts, next_step
from tests.support.repartition_worlds import (
    HALF,
    LIMITS,
    NOW,
    QUARTER,
    WHOLE,
    changes,
    gpu,
    hold,
    layout,
    node,
    plan,
    step,
    verdicts,
    world,
)

HALVES, QUARTERS, MIXED = "2g.12gb@0 2g.12gb@2", "1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3", "1g.6gb@0 2g.12gb@2"
CUT = changes(("a", "a0", "gpu", HALVES))
RECUT = changes(("a", "a0", HALVES, MIXED))
BEGINS = {"plan": ("Executing", "Beginning")}
UNTIL = NOW - 10.0 + LIMITS.cut_s  # of a plan that began ten seconds ago
EXECUTING = PlanState.EXECUTING


def uncut(*held, **fields):
    return node("a", gpu("a0", "gpu", *held), **fields)


def halves(*held, **fields):
    return node("a", gpu("a0", HALVES, *held), **fields)


def begun(*nodes, of=CUT, since=NOW - 10.0, **fields):
    return step(*nodes, plans=(plan(of, since=since),), **fields)


# ---- consent --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "approved", "expected"),
    [
        (None, True, ("Superseded", "PolicyForbids")),
        (PoolPolicy.IGNORE, True, ("Superseded", "PolicyForbids")),
        (PoolPolicy.RECOMMEND, None, ("Recommended", "WaitingForApproval")),
        (PoolPolicy.RECOMMEND, False, ("Rejected", "Rejected")),
        (PoolPolicy.RECOMMEND, True, ("Executing", "Beginning")),
        (PoolPolicy.IDLE_ONLY, None, ("Executing", "Beginning")),
        (PoolPolicy.IDLE_ONLY, False, ("Rejected", "Rejected")),
        (PoolPolicy.FULL, None, ("Executing", "Beginning")),
        (PoolPolicy.FULL, False, ("Rejected", "Rejected")),
    ],
)
def test_a_plan_begins_by_consent_of_its_policy_or_of_a_person(policy, approved, expected):
    result = step(uncut(), plans=(plan(CUT, None, approved=approved),), policy=policy)

    assert verdicts(result) == {"plan": expected}
    assert result.actions == ()


def test_idle_only_moves_no_replica():
    disturbing = changes(("a", "a0", "gpu", HALVES), disturbed=("chat/llama",))

    result = step(uncut(), plans=(plan(disturbing, None),))

    assert verdicts(result) == {"plan": ("Blocked", "PolicyForbids")}
    assert "chat/llama" in result.progress[0].message


def test_a_plan_that_is_not_recommended_any_more_is_superseded_before_it_begins():
    result = step(uncut(), plans=(plan(CUT, PlanState.APPROVED, is_recommended=False),))

    assert verdicts(result) == {"plan": ("Superseded", "NotRecommended")}


@pytest.mark.parametrize("state", [PlanState.APPROVED, PlanState.RECOMMENDED])
def test_a_plan_of_a_former_leader_waits_until_the_fleet_was_planned(state):
    result = step(uncut(), plans=(plan(CUT, state, is_recommended=None),))

    assert verdicts(result) == {"plan": (str(state), "WaitingForRecommendation")}
    assert result.actions == ()


def test_a_plan_of_a_former_leader_that_has_begun_goes_on():
    result = step(uncut(), plans=(plan(CUT, is_recommended=None),))

    assert verdicts(result) == {"plan": ("Executing", "Holding")}


def test_a_plan_that_has_begun_goes_on_without_a_recommendation():
    result = step(uncut(), plans=(plan(CUT, is_recommended=False),))

    assert verdicts(result) == {"plan": ("Executing", "Holding")}


def test_a_layout_that_was_wanted_before_is_no_consent_to_the_rest_of_a_plan():
    both = changes(("a", "a0", "empty", HALVES), ("a", "a1", "gpu", HALVES))
    rebooted = node("a", gpu("a0", "empty"), gpu("a1", "gpu"), wanted={"a0": HALVES})

    result = step(rebooted, plans=(plan(both, None),), policy=PoolPolicy.RECOMMEND)

    assert verdicts(result) == {"plan": ("Recommended", "WaitingForApproval")}
    assert result.actions == ()


def test_a_plan_that_is_rejected_takes_nothing_back_that_was_wanted_before():
    lost = changes(("a", "a0", "empty", HALVES))
    rebooted = node("a", gpu("a0", "empty"), wanted={"a0": HALVES})

    result = step(rebooted, plans=(plan(lost, None, approved=False),))

    assert verdicts(result) == {"plan": ("Rejected", "Rejected")}
    assert result.actions == ()


# ---- begin, hold, settle, write, wait, done --------------------------------------------------------


def test_nothing_is_done_before_the_plan_says_that_it_is_carried_out():
    for state in (None, PlanState.APPROVED, PlanState.RECOMMENDED):
        result = step(uncut(), plans=(plan(CUT, state),))

        assert verdicts(result) == BEGINS
        assert result.actions == ()
        assert result.progress[0].until == NOW + LIMITS.cut_s


def test_the_node_is_held_for_the_devices_that_go_until_after_the_end_of_the_plan():
    result = begun(uncut())

    assert result.actions == (HoldNode("a", WHOLE, NOW, UNTIL + 60.0),)
    assert verdicts(result) == {"plan": ("Executing", "Holding")}
    assert result.progress[0].until == UNTIL


def test_slices_that_stay_are_not_held():
    result = begun(halves(), of=changes(("a", "a0", HALVES, "2g.12gb@2 1g.6gb@0 1g.6gb@1")))

    assert result.actions == (HoldNode("a", HALF, NOW, UNTIL + 60.0),)
    assert result.going == (("a", HALF, 1),)


@pytest.mark.parametrize(("age_s", "since_s"), [(1.5, 10.0), (10.0, 1.5)])
def test_a_node_that_was_closed_just_now_may_still_get_a_pod(age_s, since_s):
    held = uncut(holds=(hold(WHOLE, age_s, LIMITS.cut_s + 60.0),))

    result = begun(held, since=NOW - since_s)

    assert verdicts(result) == {"plan": ("Executing", "Settling")}
    assert result.actions == ()


def test_the_wanted_layout_is_written_once_the_node_is_settled():
    result = begun(uncut(holds=(hold(WHOLE, LIMITS.settle_s),)))

    assert result.actions == (SetLayouts("a", (("a0", layout(HALVES)),), CUT.name),)
    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


def test_layouts_of_one_node_are_written_together():
    of = changes(("a", "a0", "gpu", HALVES), ("a", "a1", "gpu", QUARTERS), ("b", "b0", "gpu", HALVES))
    a = node("a", gpu("a0", "gpu"), gpu("a1", "gpu"), holds=(hold(WHOLE),))
    b = node("b", gpu("b0", "gpu"), holds=(hold(WHOLE),))

    assert begun(a, b, of=of).actions == (
        SetLayouts("a", (("a0", layout(HALVES)), ("a1", layout(QUARTERS))), of.name),
        SetLayouts("b", (("b0", layout(HALVES)),), of.name),
    )


def test_a_gpunode_that_is_not_up_to_date_is_not_written():
    result = begun(uncut(holds=(hold(WHOLE),), is_current=False))

    assert verdicts(result) == {"plan": ("Executing", "Settling")}
    assert (result.progress[0].waits_for, result.actions) == ("GPUNode a", ())


def test_a_written_layout_is_waited_for_behind_its_holds():
    result = begun(uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),)))

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}
    assert (result.progress[0].waits_for, result.progress[0].until) == ("GPUNode a", UNTIL)
    assert result.actions == ()


def test_the_device_plugin_may_start_again_once_the_gpu_is_cut_and_offers_nothing():
    cut = {"allocatable": {HALF: 0}, "wanted": {"a": "2g.12gb@0"}, "is_applied": False}
    record = plan(changes(("n", "a", "gpu", "2g.12gb@0")))
    held = {"holds": (hold(WHOLE),), **cut}
    assert step(node("n", gpu("a", "2g.12gb@0"), **held), plans=(record,)).actions == (
        ReleaseNode("n", WHOLE),
    )
    # and its node is not held again, whatever it waits for
    assert step(node("n", gpu("a", "2g.12gb@0"), **cut), plans=(record,)).actions == ()


@pytest.mark.parametrize(
    ("now", "fields"),
    [
        ("gpu", {"allocatable": {}}),  # not cut yet: the device plugin may come back with the GPU as a whole
        ("2g.12gb@0", {"allocatable": {WHOLE: 1}}),  # the node still offers what is gone
    ],
)
def test_a_hold_stays_while_pods_could_get_what_goes(now, fields):
    record = plan(changes(("n", "a", "gpu", "2g.12gb@0")))
    wanted = {"wanted": {"a": "2g.12gb@0"}, "is_applied": False}
    held = node("n", gpu("a", now), holds=(hold(WHOLE),), **wanted, **fields)
    assert step(held, plans=(record,)).actions == ()


@pytest.mark.parametrize("allocatable", [{}, {WHOLE: 1}])
def test_mig_manager_cuts_while_the_device_plugin_is_down(allocatable):
    record = plan(changes(("n", "a", "gpu", "2g.12gb@0")))
    fields = {"wanted": {"a": "2g.12gb@0"}, "is_applied": False, "backend": "mig-manager"}
    holds = (hold(WHOLE, left_s=LIMITS.managed_s + 60.0),)
    held = node("n", gpu("a", "gpu"), holds=holds, allocatable=allocatable, **fields)
    released = () if allocatable else (ReleaseNode("n", WHOLE),)
    assert step(held, plans=(record,)).actions == released


def test_the_failure_of_the_last_attempt_is_told():
    failing = node("a", gpu("a0", "gpu", failure="mode: IN_USE"), wanted={"a0": HALVES}, holds=(hold(WHOLE),))

    assert begun(failing).progress[0].message == "mode: IN_USE"


def test_a_hold_that_is_lifted_by_hand_is_placed_again_while_the_gpu_is_cut():
    result = begun(uncut(wanted={"a0": HALVES}))

    assert result.actions == (HoldNode("a", WHOLE, NOW, UNTIL + 60.0),)
    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


def test_a_cut_gpu_is_not_done_before_its_node_offers_the_slices():
    offers = {WHOLE: 1}
    cut = halves(wanted={"a0": HALVES}, holds=(hold(WHOLE),), allocatable=offers, is_applied=False)

    result = begun(cut)

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}
    assert (result.progress[0].done, result.actions) == (0, ())


def test_a_plan_is_done_while_the_backend_still_works_on_another_gpu_of_the_node():
    cut = node(
        "a",
        gpu("a0", HALVES),
        gpu("a1", "gpu"),
        wanted={"a0": HALVES, "a1": QUARTERS},
        allocatable={HALF: 2, WHOLE: 1},
    )

    assert verdicts(begun(cut)) == {"plan": ("Done", "Applied")}


def test_a_layout_that_is_there_and_that_no_gpunode_wants_is_not_done():
    assert verdicts(begun(halves())) == {"plan": ("Executing", "Holding")}


def test_a_plan_is_done_with_its_last_gpu_and_its_holds_are_lifted():
    result = begun(halves(wanted={"a0": HALVES}, holds=(hold(WHOLE),)))

    assert verdicts(result) == {"plan": ("Done", "Applied")}
    assert (result.progress[0].done, result.actions) == (1, (ReleaseNode("a", WHOLE),))


def test_a_plan_is_not_done_before_every_resource_of_its_gpu_is_offered():
    cut = node(
        "a", gpu("a0", MIXED), wanted={"a0": MIXED}, allocatable={HALF: 2, QUARTER: 0}, is_applied=False
    )

    assert verdicts(begun(cut, of=RECUT)) == {"plan": ("Executing", "Cutting")}


def test_a_plan_is_not_done_with_the_first_of_its_gpus():
    of = changes(("a", "a0", "gpu", HALVES), ("b", "b0", "gpu", HALVES))
    b = node("b", gpu("b0", "gpu"), wanted={"b0": HALVES}, holds=(hold(WHOLE),))

    result = begun(halves(wanted={"a0": HALVES}, holds=(hold(WHOLE),)), b, of=of)

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}
    assert (result.progress[0].done, result.progress[0].waits_for) == (1, "GPUNode b")


def test_a_plan_of_which_one_gpu_is_written_writes_the_others_whatever_is_wanted_now():
    of = changes(("a", "a0", "gpu", HALVES), ("b", "b0", "gpu", HALVES))
    a = uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),))
    b = node("b", gpu("b0", "gpu"), holds=(hold(WHOLE),))

    result = begun(a, b, of=of, policy=PoolPolicy.IGNORE)

    assert result.actions == (SetLayouts("b", (("b0", layout(HALVES)),), of.name),)


# ---- in use ----------------------------------------------------------------------------------------


def test_a_gpu_in_use_blocks_the_plan_and_the_hold_is_lifted():
    result = begun(uncut(None, holds=(hold(WHOLE),)))

    assert verdicts(result) == {"plan": ("Blocked", "InUse")}
    assert result.progress[0].message == "in use: GPU a0"
    assert result.actions == (ReleaseNode("a", WHOLE),)


def test_a_slice_in_use_that_stays_blocks_nothing():
    result = begun(halves(2, holds=(hold(HALF),), claimed={"other/pod": HALF}), of=RECUT)

    assert result.actions == (SetLayouts("a", (("a0", layout(MIXED)),), RECUT.name),)


def test_a_slice_in_use_that_goes_blocks_the_plan():
    result = begun(halves(0, holds=(hold(HALF),)), of=RECUT)

    assert verdicts(result) == {"plan": ("Blocked", "InUse")}
    assert result.progress[0].message == "in use: 2g.12gb@0 of GPU a0"


def test_a_slice_in_use_blocks_a_change_of_the_mode():
    result = begun(halves(2, holds=(hold(HALF),)), of=changes(("a", "a0", HALVES, "gpu")))

    assert verdicts(result) == {"plan": ("Blocked", "InUse")}


def test_a_pod_whose_device_is_not_known_yet_is_waited_for():
    result = begun(halves(holds=(hold(HALF),), claimed={"other/pod": HALF}), of=RECUT)

    assert verdicts(result) == {"plan": ("Executing", "Settling")}
    assert (result.progress[0].waits_for, result.actions) == ("Node a", ())


def test_a_slice_of_a_pod_that_has_just_ended_is_not_the_device_of_the_next_one():
    result = begun(halves(2, holds=(hold(HALF),), claimed={"other/next": HALF}), of=RECUT)

    assert verdicts(result) == {"plan": ("Executing", "Settling")}


def test_pods_for_other_devices_are_not_waited_for():
    result = begun(halves(holds=(hold(HALF),), claimed={"other/pod": WHOLE}), of=RECUT)

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


def test_a_slice_that_a_process_uses_is_not_the_device_of_a_bound_pod():
    used = node("a", gpu("a0", HALVES, held=((2, ""),)), holds=(hold(HALF),), claimed={"other/pod": HALF})

    assert verdicts(begun(used, of=RECUT)) == {"plan": ("Executing", "Settling")}


def test_a_backend_that_knows_no_pods_is_believed_that_the_device_of_a_pod_is_in_use():
    used = node(
        "a",
        gpu("a0", HALVES, held=((2, ""),)),
        holds=(hold(HALF, left_s=LIMITS.managed_s + 60.0),),
        claimed={"other/pod": HALF},
        backend="mig-manager",
    )

    assert verdicts(begun(used, of=RECUT)) == {"plan": ("Executing", "Cutting")}


def test_a_gpu_in_use_beside_one_that_is_written_already_takes_that_back():
    of = changes(("a", "a0", "gpu", HALVES), ("b", "b0", "gpu", HALVES))
    a = node("a", gpu("a0", "gpu"), wanted={"a0": HALVES}, holds=(hold(WHOLE),))
    b = node("b", gpu("b0", "gpu", None), holds=(hold(WHOLE),))

    result = begun(a, b, of=of)

    assert verdicts(result) == {"plan": ("Executing", "TakingBack")}
    assert result.actions == (SetLayouts("a", (("a0", layout("gpu")),), ""),)


# ---- deadline, failure, taking back ----------------------------------------------------------------


def overdue(*nodes, of=CUT, late_s=0.0):
    return begun(*nodes, of=of, since=NOW - LIMITS.cut_s - late_s)


def test_a_plan_that_has_written_nothing_fails_at_its_deadline():
    result = overdue(uncut(holds=(hold(WHOLE),)))

    assert verdicts(result) == {"plan": ("Failed", "DeadlineExceeded")}
    assert result.actions == (ReleaseNode("a", WHOLE),)


def test_a_plan_does_not_fail_before_its_deadline():
    result = begun(uncut(), since=NOW - LIMITS.cut_s + 1.0)

    assert verdicts(result) == {"plan": ("Executing", "Holding")}


def test_a_plan_that_waits_for_approval_has_no_deadline():
    waiting = plan(CUT, PlanState.RECOMMENDED, since=NOW - 1e6)

    result = step(uncut(), plans=(waiting,), policy=PoolPolicy.RECOMMEND)

    assert verdicts(result) == {"plan": ("Recommended", "WaitingForApproval")}


def test_what_was_written_is_taken_back_before_the_plan_fails_and_stays_held_until_then():
    written = uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE, left_s=60.0),))

    result = overdue(written)

    assert verdicts(result) == {"plan": ("Executing", "TakingBack")}
    assert result.actions == (SetLayouts("a", (("a0", layout("gpu")),), ""),)


def test_a_plan_fails_once_it_is_taken_back():
    result = overdue(uncut(wanted={"a0": "gpu"}, holds=(hold(WHOLE, left_s=60.0),)))

    assert verdicts(result) == {"plan": ("Failed", "DeadlineExceeded")}
    assert result.actions == (ReleaseNode("a", WHOLE),)


def test_a_node_stays_held_until_its_backend_is_at_rest_after_a_plan_has_ended():
    result = overdue(uncut(wanted={"a0": "gpu"}, holds=(hold(WHOLE, left_s=60.0),), is_applied=False))

    assert verdicts(result) == {"plan": ("Failed", "DeadlineExceeded")}
    assert result.actions == ()


def test_slices_that_have_to_go_again_are_held_first():
    partly = node("a", gpu("a0", "2g.12gb@0"), wanted={"a0": HALVES}, holds=(hold(WHOLE, left_s=60.0),))

    result = overdue(partly)

    assert verdicts(result) == {"plan": ("Executing", "TakingBack")}
    assert result.actions == (HoldNode("a", HALF, NOW, NOW + 60.0),)


def test_slices_that_have_to_go_again_go_once_their_hold_is_settled():
    holds = (hold(WHOLE, left_s=60.0), hold(HALF, left_s=60.0))
    partly = node("a", gpu("a0", "2g.12gb@0"), wanted={"a0": HALVES}, holds=holds)

    assert overdue(partly).actions == (SetLayouts("a", (("a0", layout("gpu")),), ""),)


def test_a_new_slice_that_a_pod_uses_already_is_left_as_it_is():
    partly = node("a", gpu("a0", "2g.12gb@0", 0), wanted={"a0": HALVES}, holds=(hold(WHOLE, left_s=60.0),))

    assert overdue(partly).actions == (SetLayouts("a", (("a0", None),), ""),)


def test_a_gpu_that_cannot_be_taken_back_in_time_is_left_as_it_is():
    silent = uncut(wanted={"a0": HALVES}, is_current=False, holds=(hold(WHOLE, left_s=30.0),))

    result = overdue(silent, late_s=30.0)

    assert result.actions == (SetLayouts("a", (("a0", None),), ""),)


def test_no_hold_ends_before_the_backend_knows_what_it_is_to_leave():
    silent = uncut(wanted={"a0": HALVES}, is_current=False, holds=(hold(WHOLE, left_s=0.0),))

    result = overdue(silent, late_s=60.0)

    assert result.actions == (HoldNode("a", WHOLE, NOW, NOW + 30.0),)


def test_a_backend_that_does_not_know_the_spec_yet_is_waited_for_before_the_layout_is_taken_back():
    silent = uncut(wanted={"a0": HALVES}, is_current=False, holds=(hold(WHOLE, left_s=60.0),))

    result = overdue(silent)

    assert (verdicts(result), result.actions) == ({"plan": ("Executing", "TakingBack")}, ())


def test_a_gpu_that_has_its_new_layout_keeps_it_when_the_plan_fails():
    cut = halves(wanted={"a0": HALVES}, holds=(hold(WHOLE),), allocatable={}, is_applied=False)

    result = overdue(cut)

    assert verdicts(result) == {"plan": ("Failed", "DeadlineExceeded")}
    assert result.progress[0].message == "node a does not offer the devices of GPU a0"
    assert result.actions == (ReleaseNode("a", WHOLE),)  # else its device plugin could never start


def test_a_quarantined_gpu_is_left_as_it_is_and_the_others_go_back():
    of = changes(("a", "a0", "gpu", HALVES), ("a", "a1", "gpu", HALVES))
    failed = node(
        "a",
        gpu("a0", "empty", quarantine="5 attempts failed"),
        gpu("a1", "gpu"),
        wanted={"a0": HALVES, "a1": HALVES},
        holds=(hold(WHOLE),),
    )

    result = begun(failed, of=of)

    assert verdicts(result) == {"plan": ("Executing", "TakingBack")}
    assert result.actions == (SetLayouts("a", (("a0", None), ("a1", layout("gpu"))), ""),)


def test_a_plan_with_a_quarantined_gpu_fails_with_the_reason():
    result = begun(node("a", gpu("a0", "gpu", quarantine="it fell off the bus")))

    assert verdicts(result) == {"plan": ("Failed", "Quarantined")}
    assert result.progress[0].message == "GPU a0: it fell off the bus"


@pytest.mark.parametrize(
    ("late", "message"),
    [
        (
            gpu("a0", "gpu", failure="mode: IN_USE"),
            "GPU a0 does not have the layout 2g.12gb@0 2g.12gb@2: mode: IN_USE",
        ),
        (gpu("a0", "gpu", None), "GPU a0 does not have the layout 2g.12gb@0 2g.12gb@2: GPU a0"),
        (gpu("a0", "gpu"), "GPU a0 does not have the layout 2g.12gb@0 2g.12gb@2"),
    ],
)
def test_a_plan_that_fails_at_its_deadline_says_which_gpu_was_late_and_why(late, message):
    assert overdue(node("a", late)).progress[0].message == message


def test_a_plan_that_ends_waits_for_nothing():
    assert overdue(uncut()).progress[0].until is None


# ---- changes from outside --------------------------------------------------------------------------


def test_a_foreign_change_of_the_layout_blocks_a_plan_that_has_written_nothing():
    result = begun(node("a", gpu("a0", "empty"), holds=(hold(WHOLE),)))

    assert verdicts(result) == {"plan": ("Blocked", "LayoutChanged")}
    assert result.actions == (ReleaseNode("a", WHOLE),)


def test_a_foreign_change_of_the_layout_after_the_write_is_cut_through():
    cut = node("a", gpu("a0", QUARTERS), wanted={"a0": HALVES}, holds=(hold(WHOLE),))

    assert verdicts(begun(cut)) == {"plan": ("Executing", "Cutting")}


def test_a_wanted_layout_that_is_edited_by_hand_is_written_again():
    edited = uncut(wanted={"a0": QUARTERS}, holds=(hold(WHOLE),), is_applied=False)

    assert begun(edited).actions == (SetLayouts("a", (("a0", layout(HALVES)),), CUT.name),)


@pytest.mark.parametrize("nodes", [(), (node("a"),), (node("a", gpu("a1", "gpu")),)])
def test_a_missing_node_or_gpu_blocks_the_plan(nodes):
    result = begun(*nodes)

    assert verdicts(result) == {"plan": ("Blocked", "GPUMissing")}
    assert result.progress[0].message == "node a does not report GPU a0 any more"


def test_a_missing_gpu_takes_the_others_back():
    of = changes(("a", "a0", "gpu", HALVES), ("b", "b0", "gpu", HALVES))

    result = begun(uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),)), of=of)

    assert result.actions == (SetLayouts("a", (("a0", layout("gpu")),), ""),)


def test_a_backend_that_is_not_ready_blocks_what_is_not_written():
    result = begun(uncut(problem="DriverUnavailable: no driver"))

    assert verdicts(result) == {"plan": ("Blocked", "BackendNotReady")}
    assert result.progress[0].message == "DriverUnavailable: no driver"


def test_a_backend_that_is_not_ready_is_waited_for_after_the_write():
    result = begun(uncut(problem="DriverUnavailable", wanted={"a0": HALVES}, holds=(hold(WHOLE),)))

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


@pytest.mark.parametrize("policy", [None, PoolPolicy.IGNORE, PoolPolicy.RECOMMEND])
def test_a_policy_that_changes_before_the_write_ends_the_plan_or_sends_it_back(policy):
    result = begun(uncut(holds=(hold(WHOLE),)), policy=policy)

    state = "Recommended" if policy is PoolPolicy.RECOMMEND else "Superseded"
    assert verdicts(result)["plan"][0] == state
    assert result.actions == (ReleaseNode("a", WHOLE),)


@pytest.mark.parametrize("fields", [{"policy": PoolPolicy.IGNORE}, {"stopped": True}, {"policy": None}])
def test_what_was_written_is_cut_through_whatever_is_wanted_now(fields):
    result = begun(uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),)), **fields)

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


def test_what_was_written_is_cut_through_when_it_is_rejected():
    written = uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),))

    result = step(written, plans=(plan(CUT, approved=False),))

    assert verdicts(result) == {"plan": ("Executing", "Cutting")}


@pytest.mark.parametrize("state", [None, PlanState.APPROVED, EXECUTING])
def test_the_full_stop_ends_what_has_not_cut_anything(state):
    result = step(uncut(holds=(hold(WHOLE),)), plans=(plan(CUT, state),), stopped=True)

    assert verdicts(result) == {"plan": ("Superseded", "Stopped")}
    assert result.actions == (ReleaseNode("a", WHOLE),)


# ---- several plans ---------------------------------------------------------------------------------


def test_of_two_plans_on_one_gpu_the_one_that_has_begun_goes_on():
    later = plan(changes(("a", "a0", "gpu", QUARTERS)), PlanState.APPROVED, "first", since=0.0)

    result = step(uncut(), plans=(later, plan(CUT)))

    assert verdicts(result) == {
        "first": ("Approved", "WaitingForOtherPlans"),
        "plan": ("Executing", "Holding"),
    }
    assert result.targets == (("a0", layout(HALVES)),)


def test_of_two_new_plans_on_one_gpu_the_older_one_begins():
    new = plan(changes(("a", "a0", "gpu", QUARTERS)), None, "a-new-one", since=NOW)

    result = step(uncut(), plans=(new, plan(CUT, PlanState.APPROVED)))

    assert verdicts(result) == {"a-new-one": ("Approved", "WaitingForOtherPlans")} | BEGINS


def test_a_plan_on_a_node_that_is_changed_already_needs_no_room():
    of = changes(("a", "a1", "gpu", HALVES))

    result = step(
        node("a", gpu("a0", "gpu"), gpu("a1", "gpu")), plans=(plan(CUT), plan(of, None, "second")), nodes=1
    )

    assert verdicts(result)["second"] == ("Executing", "Beginning")


@pytest.mark.parametrize(("nodes", "second"), [(1, "Approved"), (2, "Executing")])
def test_no_more_nodes_than_the_limit_are_changed_at_once(nodes, second):
    of = changes(("b", "b0", "gpu", HALVES))

    result = step(
        uncut(), node("b", gpu("b0", "gpu")), plans=(plan(CUT), plan(of, None, "second")), nodes=nodes
    )

    assert verdicts(result)["second"][0] == second


def test_a_plan_of_more_nodes_than_the_limit_begins_alone():
    of = changes(("a", "a0", "gpu", HALVES), ("b", "b0", "gpu", HALVES))

    result = step(uncut(), node("b", gpu("b0", "gpu")), plans=(plan(of, None),), nodes=1)

    assert verdicts(result) == BEGINS


def test_two_plans_on_one_node_share_a_hold_that_lasts_for_the_later_one():
    of = changes(("a", "a1", "gpu", HALVES))
    both = node("a", gpu("a0", "gpu"), gpu("a1", "gpu"), holds=(hold(WHOLE),))

    result = step(both, plans=(plan(CUT), plan(of, name="second", since=NOW)))

    assert HoldNode("a", WHOLE, NOW, NOW + LIMITS.cut_s + 60.0) in result.actions
    assert ReleaseNode("a", WHOLE) not in result.actions


# ---- holds -----------------------------------------------------------------------------------------


def test_a_hold_that_no_plan_needs_is_lifted():
    assert step(uncut(holds=(hold(WHOLE),))).actions == (ReleaseNode("a", WHOLE),)


def test_a_hold_on_a_node_without_a_backend_is_lifted():
    assert step(node("a", holds=(hold(HALF),), backend=None, is_applied=False)).actions == (
        ReleaseNode("a", HALF),
    )


def test_an_overdue_hold_is_lifted_whatever_the_backend_does():
    late = uncut(holds=(hold(WHOLE, left_s=0.0),), is_applied=False)

    assert step(late).actions == (ReleaseNode("a", WHOLE),)


def test_a_hold_that_a_person_placed_stays():
    by_hand = replace(hold(WHOLE), since=0.0, until=None)

    assert step(uncut(holds=(by_hand,))).actions == ()


def test_a_hold_that_a_person_placed_serves_a_plan():
    by_hand = replace(hold(WHOLE), since=0.0, until=None)

    assert verdicts(begun(uncut(holds=(by_hand,)))) == {"plan": ("Executing", "Cutting")}


@pytest.mark.parametrize("left_s", [-100.0, 0.0, 100.0])
def test_a_hold_that_would_end_before_the_plan_is_placed_again_and_not_lifted(left_s):
    result = begun(uncut(holds=(hold(WHOLE, 500.0, left_s),)))

    assert result.actions == (HoldNode("a", WHOLE, NOW, UNTIL + 60.0),)


def test_a_hold_from_the_future_is_waited_for():
    result = begun(uncut(holds=(hold(WHOLE, -50.0),)))

    assert verdicts(result) == {"plan": ("Executing", "Settling")}


# ---- what the planner has to know ------------------------------------------------------------------


def test_the_planner_hears_what_comes_and_goes_while_a_gpu_is_cut():
    result = begun(uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),)))

    assert [(c.node, c.resource, c.count, c.plan, c.until) for c in result.coming] == [
        ("a", HALF, 2, "plan", UNTIL)
    ]
    assert result.going == (("a", WHOLE, 1),)
    assert result.targets == (("a0", layout(HALVES)),)


def test_nothing_comes_of_a_plan_that_waits():
    waiting = plan(CUT, PlanState.RECOMMENDED)

    result = step(uncut(), plans=(waiting,), policy=PoolPolicy.RECOMMEND)

    assert (result.coming, result.going, result.targets) == ((), (), ())


def test_a_wanted_layout_that_a_reboot_lost_comes_again():
    rebooted = node("a", gpu("a0", "empty"), wanted={"a0": HALVES}, is_current=False)

    result = step(rebooted)

    assert [(c.resource, c.count, c.plan, c.until) for c in result.coming] == [(HALF, 2, "", None)]
    assert result.targets == (("a0", layout(HALVES)),)
    assert result.actions == ()


def test_a_wanted_layout_does_not_come_to_a_quarantined_gpu_or_from_a_backend_with_a_problem():
    lost = gpu("a0", "empty", quarantine="lost")
    nodes = (
        node("a", lost, wanted={"a0": HALVES}),
        node("b", gpu("b0", "empty"), wanted={"b0": HALVES}, problem="DriverUnavailable"),
    )

    assert step(*nodes).coming == ()


def test_nothing_comes_of_a_gpu_that_is_as_wanted():
    result = step(halves(wanted={"a0": HALVES}))

    assert (result.coming, result.going, result.targets) == ((), (), ())


def test_what_stays_neither_comes_nor_goes():
    result = begun(halves(wanted={"a0": MIXED}, holds=(hold(HALF),)), of=RECUT)

    assert [(c.resource, c.count) for c in result.coming] == [(QUARTER, 1)]
    assert result.going == (("a", HALF, 1),)


def test_a_resource_of_which_as_much_comes_as_goes_is_not_told():
    swapped = changes(("a", "a0", "gpu", HALVES), ("a", "a1", HALVES, "gpu"))
    a = node("a", gpu("a0", "gpu"), gpu("a1", HALVES))

    result = begun(a, of=swapped)

    assert (result.coming, result.going) == ((), ())
    assert [name for name, _ in result.targets] == ["a0", "a1"]


# ---- sizes -----------------------------------------------------------------------------------------


def test_an_empty_world_has_nothing_to_be_done():
    result = step()

    assert (result.actions, result.progress, result.coming, result.going) == ((), (), (), ())


def test_a_thousand_nodes_with_a_thousand_plans_take_their_turns():
    names = [f"n{index:04}" for index in range(1000)]
    nodes = [node(name, *(gpu(f"{name}-{i}", "gpu") for i in range(8))) for name in names]
    plans = tuple(plan(changes((name, f"{name}-0", "gpu", QUARTERS)), None, name) for name in names)

    result = next_step(world(*nodes, plans=plans))

    states = [str(item.state) for item in result.progress]
    assert states == ["Executing"] * LIMITS.nodes + ["Approved"] * (1000 - LIMITS.nodes)
    assert [(c.node, c.resource, c.count) for c in result.coming] == [
        (name, QUARTER, 4) for name in names[: LIMITS.nodes]
    ]


def test_a_gpunode_that_cannot_be_read_is_no_missing_gpu():
    bare = node("a", problem="GPUNode a is invalid: status.gpus.0.migMode")

    result = begun(bare)

    assert verdicts(result) == {"plan": ("Blocked", "BackendNotReady")}
    assert "is invalid" in result.progress[0].message


def test_a_plan_that_a_dead_agent_makes_late_says_so():
    silent = uncut(wanted={"a0": HALVES}, holds=(hold(WHOLE),), is_current=False, is_applied=False)

    late = plan(CUT, since=NOW - LIMITS.cut_s)
    message = step(silent, plans=(late,)).progress[0].message

    assert "has not reported" in message


def test_mig_manager_changes_a_mode_while_nothing_of_the_node_is_in_use():
    of = changes(("a", "a0", "gpu", HALVES))
    beside = {"backend": "mig-manager"}

    free = begun(node("a", gpu("a0", "gpu"), gpu("a1", QUARTERS), **beside), of=of)
    used = begun(node("a", gpu("a0", "gpu"), gpu("a1", QUARTERS, 0), **beside), of=of)

    assert {action.resource for action in free.actions} == {WHOLE, QUARTER}
    assert verdicts(used) == {"plan": ("Blocked", "InUse")}


def test_the_layout_is_written_at_the_instant_that_a_loop_has_to_wake_for():
    settling = world(uncut(holds=(hold(WHOLE, 0.5),)), plans=(plan(CUT),))
    settled = settling.next_settled()

    assert settled == NOW - 0.5 + LIMITS.settle_s
    assert not any(isinstance(action, SetLayouts) for action in next_step(settling).actions)
    later = replace(settling, now=settled)
    assert any(isinstance(action, SetLayouts) for action in next_step(later).actions)
    assert later.next_settled() is None
