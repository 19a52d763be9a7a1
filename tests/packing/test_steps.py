import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tangram import catalog
from tangram.packing import GrowablePool, Placed, from_json, slice_request, to_json
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.packing.problem.statement import Instance
from tangram.packing.solve import SolveLimits, solve
from tangram.packing.transition import Transition, end_states, plan_steps
from tangram.packing.transition.end_states import ReplicaPlacement
from tests.support.move_order_oracle import some_order_arrives
from tests.support.packing_problems import small
from tests.support.packing_simulator import Refused, SimulatedFleet
from tests.support.packing_transitions import (
    H100,
    gpu,
    large_ends,
    layout,
    limits,
    packing_of,
    problem_of,
    random_ends,
)

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=40, deadline=None)
BLOCKED = 0  # the seed of a problem whose packing has replicas that need each other's slices
MOST_REPLICAS = 12  # that stop or start, where every order is tried


def perform(problem, packing, steps, rng=None):
    """Carry out steps in a fleet in which no demand falls below the fewer of before and after."""
    fleet = SimulatedFleet(problem, *limits(problem, packing))
    if rng is None:
        fleet.run(steps)
    else:
        fleet.run_in_any_order(steps, rng)
    return fleet


# ---- laws


@FEW
@given(SEEDS, st.sampled_from([0.5, 0.9, 1.0]))
@example(2048, 0.5)  # mig-manager resets a node, one GPU of which NVML cuts
def test_no_step_is_refused_in_any_order_and_the_last_leaves_what_was_wanted(seed, full):
    problem, packing = random_ends(seed, full=full)

    planned = plan_steps(problem, packing)

    for rng in (None, random.Random(seed)):
        fleet = perform(problem, packing, planned.steps, rng)
        if planned.complete:
            fleet.check_ends_as(packing)


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([0.8, 1.0]))
def test_steps_are_complete_if_and_only_if_some_order_of_direct_moves_arrives(seed, full):
    problem, packing = random_ends(seed, full=full, most_gpus=2)
    ends = end_states(problem, packing)
    assume(0 < len(ends.before - ends.unmoved) + len(ends.after - ends.unmoved) <= MOST_REPLICAS)

    assert plan_steps(problem, packing).complete == some_order_arrives(ends)


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from([0.8, 1.0]))
def test_replicas_are_restarted_only_for_demands_that_direct_moves_do_not_serve_and_none_is_lost(seed, full):
    problem, packing = random_ends(seed, full=full)
    direct = plan_steps(problem, packing)

    planned = plan_steps(problem, packing, restarts=True)

    if not planned.restarted:
        assert planned == direct
        return
    fewest, most = limits(problem, packing)
    more = {owner for owner, count in most.items() if fewest[owner] < count - 1}
    assert any(text.split(" on ")[0] in more for text in direct.blocked.replicas)
    for rng in (None, random.Random(seed)):
        fleet = perform(problem, packing, planned.steps, rng)
        serving = Counter(pod.owner for pod in fleet.pods if pod.available)
        assert all(serving[owner] >= count for owner, count in fewest.items())
        if planned.complete:
            fleet.check_ends_as(packing)


@pytest.mark.parametrize("backend", ["nvml", "mig-manager"])
def test_a_whole_gpu_in_use_is_cut_under_its_replica_where_that_serves_one_more(backend):
    """Each of two whole GPUs of a node has a replica that a slice serves as well."""
    more = {"node": "n", "mig_enabled": False, "backend": backend}
    before = problem_of(gpu("a", ("gpu", 0, "chat"), **more), gpu("b", ("gpu", 0, "code"), **more))
    slices = zip((0, 2, 4), ("chat", "code", "new"), strict=True)
    wanted = packing_of(layout("a", *((start, "1g.20gb", owner) for start, owner in slices)), layout("b"))

    planned = plan_steps(before, wanted, restarts=True)

    restarted = {"nvml": ("chat on a",), "mig-manager": ("chat on a", "code on b")}
    assert planned.restarted == restarted[backend]
    assert planned.complete
    perform(before, wanted, planned.steps).check_ends_as(wanted)


def test_where_mig_manager_changes_a_mode_what_stays_on_the_node_is_restarted_in_place():
    more = {"node": "n", "mig_enabled": False, "backend": "mig-manager"}
    before = problem_of(gpu("a", **more), gpu("b", ("gpu", 0, "code"), **more))
    wanted = packing_of(layout("a", (0, "4g.40gb", "new")), layout("b", (0, "gpu", "code")))

    planned = plan_steps(before, wanted, restarts=True)

    assert (planned.restarted, planned.complete) == (("code on b",), True)
    perform(before, wanted, planned.steps).check_ends_as(wanted)


def test_no_replica_is_restarted_that_would_not_find_its_place_again():
    before = problem_of(gpu("a", ("4g.40gb", 0, "chat")), gpu("b", cuttable=False))
    wanted = packing_of(layout("a", (0, "4g.40gb", "new")), layout("b", (0, "4g.40gb", "chat")))

    planned = plan_steps(before, wanted, restarts=True)

    assert (planned.steps, planned.restarted) == ((), ())
    assert planned.blocked is not None


@FEW
@given(SEEDS)
def test_each_blocked_replica_is_named_with_the_replicas_that_hold_its_place(seed):
    problem, packing = random_ends(seed, full=1.0)
    planned = plan_steps(problem, packing)
    if planned.blocked is None:
        return

    pods = perform(problem, packing, planned.steps).pods

    serving = {str(ReplicaPlacement(pod.owner, pod.profile, pod.gpus, pod.start)) for pod in pods}
    waiting = [reason.split(" waits for ") for reason in planned.blocked.reasons if " waits for " in reason]
    for replica, holders in waiting:
        assert replica.startswith(planned.blocked.replicas)
        assert set(holders.split(", which")[0].split(" and ")) <= serving


@pytest.mark.parametrize("seed", range(12))
def test_steps_lead_to_what_the_solver_wants_unless_replicas_wait_for_each_other(seed):
    problem = small(seed)
    packing = solve(problem, SolveLimits(deterministic_s=2))

    planned = plan_steps(problem, packing)

    fleet = perform(problem, packing, planned.steps)
    assert planned.complete == (seed != BLOCKED)
    if planned.complete:
        fleet.check_ends_as(packing)


@FEW
@given(SEEDS)
def test_transitions_are_the_same_every_time_and_survive_json(seed):
    problem, packing = random_ends(seed)

    planned = plan_steps(problem, packing)

    assert plan_steps(problem, packing) == planned
    assert from_json(Transition, to_json(planned)) == planned
    assert [step.number for step in planned.steps] == list(range(1, len(planned.steps) + 1))
    assert all(n < step.number for step in planned.steps for n in step.after)


@pytest.mark.parametrize("sku", [sku for sku in catalog.skus() if board(sku) is not None])
def test_slices_of_which_each_two_fit_on_a_board_fit_on_it_together(sku):
    cut = board(sku)
    places = [Placement(option.start, option.profile) for option in cut.options]
    beside = {place: {other for other in places if is_legal(cut, (place, other))} for place in places}
    layouts = [((place,), {other for other in beside[place] if other > place}) for place in places]

    while layouts:
        layout_, others = layouts.pop()
        assert is_legal(cut, layout_)
        layouts += [((*layout_, other), {o for o in others & beside[other] if o > other}) for other in others]


# ---- direct moves


def halves(left, right):
    """Two replicas on the halves of one GPU, which then hold the other."""
    return problem_of(gpu("a", ("3g.40gb", 0, left), ("3g.40gb", 4, right))), packing_of(
        layout("a", (0, "3g.40gb", right), (4, "3g.40gb", left))
    )


def kinds(planned):
    return [(step.kind, step.owner) for step in planned.steps]


def test_nothing_to_do_is_no_step():
    problem, _ = halves("chat", "code")

    same = packing_of(layout("a", (0, "3g.40gb", "chat"), (4, "3g.40gb", "code")))

    assert plan_steps(problem, same) == Transition(())


def test_a_replica_serves_at_its_new_place_before_the_old_one_stops():
    problem = problem_of(gpu("a", ("3g.40gb", 4, "chat")), gpu("b"))

    planned = plan_steps(
        problem, packing_of(layout("a", (4, "3g.40gb")), layout("b", (4, "3g.40gb", "chat")))
    )

    assert [step.kind for step in planned.steps] == [
        "create-slice",
        "start-replica",
        "wait-available",
        "drain-replica",
    ]
    assert planned.steps[-1].after == (3,)


def test_a_move_that_frees_a_slice_comes_before_the_move_that_needs_it():
    problem = problem_of(gpu("a", ("3g.40gb", 4, "chat")), gpu("b", ("3g.40gb", 4, "code")), gpu("c"))
    wanted = packing_of(layout("a", (4, "3g.40gb", "code")), layout("b"), layout("c", (4, "3g.40gb", "chat")))

    planned = plan_steps(problem, wanted)

    assert planned.complete
    starts = [step for step in planned.steps if step.kind == "start-replica"]
    assert [step.owner for step in starts] == ["chat", "code"]
    drained = next(step for step in planned.steps if step.kind == "drain-replica")
    assert (drained.owner, drained.gpus) == ("chat", ("a",))
    assert drained.number in starts[1].after


def test_of_the_replicas_that_leave_the_one_stops_first_whose_place_another_demand_needs():
    before = problem_of(
        gpu("a", ("1g.10gb", 0, "chat"), ("1g.10gb", 1, "chat")), gpu("b", ("3g.40gb", 4, "code")), gpu("c")
    )
    wanted = packing_of(
        layout("a", (1, "1g.10gb", "code")),
        layout("b", (4, "3g.40gb", "chat")),
        layout("c", (0, "1g.10gb", "chat")),
    )

    planned = plan_steps(before, wanted)

    assert planned.complete
    drains = [(step.owner, step.at) for step in planned.steps if step.kind == "drain-replica"]
    assert drains[0] == ("chat", "1g.10gb@1 of a")


def test_a_replica_makes_room_for_another_of_its_demand_once_one_more_serves():
    before = problem_of(gpu("a", ("1g.10gb", 0, "chat"), ("1g.10gb", 4, "chat")), gpu("b"))
    wanted = packing_of(layout("a", (4, "3g.40gb", "chat")), layout("b", (6, "1g.10gb", "chat")))

    planned = plan_steps(before, wanted)

    assert planned.complete
    moves = [
        (step.kind, step.at) for step in planned.steps if step.kind in {"start-replica", "drain-replica"}
    ]
    assert moves[:3] == [
        ("start-replica", "1g.10gb@6 of b"),
        ("drain-replica", "1g.10gb@4 of a"),
        ("start-replica", "3g.40gb@4 of a"),
    ]


def test_a_thousand_replicas_of_a_demand_make_room_for_each_other_one_by_one():
    names = [f"g{i:04}" for i in range(1000)]
    before = problem_of(*(gpu(name, ("1g.10gb", 0, "chat")) for name in names), gpu("z"))
    after = [layout(name, (0, "3g.40gb", "chat")) for name in (*names[:-1], "z")]

    planned = plan_steps(before, packing_of(*after, layout(names[-1])))

    assert planned.complete


def test_old_replicas_stop_in_proportion_to_the_new_ones_that_serve():
    before = problem_of(gpu("a", *(("1g.10gb", start, "chat") for start in range(6))), gpu("b"))
    wanted = packing_of(layout("a"), layout("b", (0, "3g.40gb", "chat"), (4, "3g.40gb", "chat")))

    planned = plan_steps(before, wanted)

    moves = [step.kind for step in planned.steps if step.kind in {"start-replica", "drain-replica"}]
    assert moves == ["start-replica", *["drain-replica"] * 3] * 2


def test_replicas_that_are_not_replaced_stop_first():
    before = problem_of(gpu("a", ("3g.40gb", 0, "chat"), ("3g.40gb", 4, "chat")))

    planned = plan_steps(before, packing_of(layout("a", (0, "3g.40gb", "chat"), (4, "3g.40gb", "code"))))

    assert kinds(planned) == [
        ("drain-replica", "chat"),
        ("start-replica", "code"),
        ("wait-available", "code"),
    ]


def test_a_gang_moves_to_gpus_of_another_node():
    pair = (Instance("gpu", 0, "large", gang="p"),)
    old = [replace(gpu(name, node="n", mig_enabled=False), instances=pair) for name in ("a", "b")]
    new = [gpu(name, node="m", mig_enabled=False) for name in ("c", "d")]
    wanted = packing_of(
        layout("a", (0, "gpu", "small")),
        layout("b"),
        *(layout(name, Placed(0, "gpu", "large", "q")) for name in ("c", "d")),
    )

    planned = plan_steps(problem_of(*old, *new), wanted)

    assert planned.complete
    assert [
        (step.kind, step.owner, step.gpus) for step in planned.steps if step.kind != "wait-available"
    ] == [
        ("start-replica", "large", ("c", "d")),
        ("drain-replica", "large", ("a", "b")),
        ("start-replica", "small", ("a",)),
    ]


def test_a_node_is_added_before_a_replica_starts_there():
    pool = GrowablePool("pool", H100, 1, 1, 3.0, mig_enabled=True)
    wanted = layout("a"), layout("pool/new-0/0", (0, "7g.80gb", "chat"))

    planned = plan_steps(
        problem_of(gpu("a", ("3g.40gb", 4, "chat")), growable=(pool,)),
        packing_of(*wanted, grown=(("pool", 1),)),
    )

    assert planned.complete
    assert kinds(planned)[:3] == [("add-node", ""), ("create-slice", ""), ("start-replica", "chat")]


def test_a_growing_demand_starts_side_by_side_up_to_the_nodes_limit():
    slots = [("1g.10gb", start, None) for start in range(5)]
    wanted = packing_of(layout("a", *((start, "1g.10gb", "chat") for start in range(5))))

    planned = plan_steps(problem_of(gpu("a", *slots)), wanted)

    starts = [step for step in planned.steps if step.kind == "start-replica"]
    waits = {step.number for step in planned.steps if step.kind == "wait-available"}
    assert [len(waits & set(step.after)) for step in starts] == [0, 0, 1, 1, 1]


def test_the_moves_of_a_thousand_full_gpus_are_ordered():
    problem, packing = large_ends(1, 1000)

    planned = plan_steps(problem, packing)

    assert planned.complete
    arriving = end_states(problem, packing).after - end_states(problem, packing).before
    assert sum(step.kind == "start-replica" for step in planned.steps) == len(arriving) > 2000


# ---- blocked moves


def test_two_replicas_that_need_each_others_slices_are_blocked_and_named():
    problem, wanted = halves("chat", "code")

    planned = plan_steps(problem, wanted)

    assert planned.steps == ()
    assert planned.blocked.replicas == ("chat on 3g.40gb@4 of a", "code on 3g.40gb@0 of a")
    assert str(planned.blocked) == (
        "chat on 3g.40gb@4 of a (node node-a) waits for code on 3g.40gb@4 of a, "
        "which may stop only once a replacement serves; "
        "code on 3g.40gb@0 of a (node node-a) waits for chat on 3g.40gb@0 of a, "
        "which may stop only once a replacement serves"
    )


def test_replicas_that_would_change_places_make_no_detour():
    problem, wanted = halves("chat", "code")

    planned = plan_steps(replace(problem, gpus=(*problem.gpus, gpu("b"))), wanted)

    assert not planned.complete
    assert planned.steps == ()


def test_blocked_replicas_do_not_keep_the_others_from_their_places():
    stuck, wanted = halves("chat", "code")
    problem = problem_of(*stuck.gpus, gpu("b", ("3g.40gb", 4, "free")), gpu("c"))
    packing = packing_of(*wanted.layouts, layout("b"), layout("c", (0, "3g.40gb", "free")))

    planned = plan_steps(problem, packing)

    assert planned.blocked.replicas == ("chat on 3g.40gb@4 of a", "code on 3g.40gb@0 of a")
    assert {step.owner for step in planned.steps if step.owner} == {"free"}


def test_a_replica_on_a_gpu_that_mig_manager_clears_waits_for_itself():
    before = problem_of(gpu("a", ("1g.10gb", 6, "chat"), ("3g.40gb", 0, None), backend="mig-manager"))
    wanted = packing_of(layout("a", (0, "4g.40gb", None), (6, "1g.10gb", "chat")))

    planned = plan_steps(before, wanted)

    assert planned.steps == ()
    assert "chat on 1g.10gb@6 of a (node node-a) waits for chat on 1g.10gb@6 of a" in str(planned.blocked)


def test_a_slice_that_does_not_exist_on_a_gpu_that_must_not_be_cut_is_named():
    planned = plan_steps(
        problem_of(gpu("a", cuttable=False)), packing_of(layout("a", (4, "3g.40gb", "chat")))
    )

    assert str(planned.blocked) == "chat on 3g.40gb@4 of a needs a change of a, which must not be cut"


def test_the_text_has_the_first_reasons_and_counts_the_others():
    gpus = [gpu(f"g{i}", ("3g.40gb", 0, f"a{i}"), ("3g.40gb", 4, f"b{i}")) for i in range(3)]
    wanted = [layout(f"g{i}", (0, "3g.40gb", f"b{i}"), (4, "3g.40gb", f"a{i}")) for i in range(3)]

    blocked = plan_steps(problem_of(*gpus), packing_of(*wanted)).blocked

    assert len(blocked.reasons) == 6
    assert str(blocked).endswith("; and 3 more")


def test_a_search_that_ends_early_says_that_more_may_be_possible():
    problem, packing = random_ends(5, full=1.0)
    assert plan_steps(problem, packing).complete

    planned = plan_steps(problem, packing, looks=0)

    assert "not every order was tried" in str(planned.blocked)
    perform(problem, packing, planned.steps)


# ---- MIG modes and mig-manager


def test_where_nothing_can_be_placed_the_driver_chooses_and_the_owners_follow():
    before = gpu("a", ("7g.80gb", 0, "old"), backend="mig-manager")
    wanted = packing_of(
        layout("a", (0, "3g.40gb", "new"), (4, "2g.20gb", "small")), layout("b", (0, "7g.80gb", "old"))
    )

    planned = plan_steps(problem_of(before, gpu("b", ("7g.80gb", 0, None))), wanted)

    geometry = next(step for step in planned.steps if step.kind == "set-geometry")
    assert [str(place) for place in geometry.layout] == ["2g.20gb@2", "3g.40gb@4"]
    assert {step.at for step in planned.steps if step.owner == "new"} == {"3g.40gb@4 of a"}


def test_mig_mode_is_switched_only_when_the_gpu_is_empty():
    before = gpu("a", ("gpu", 0, "chat"), mig_enabled=False, convertible=True)
    wanted = packing_of(layout("a", (4, "3g.40gb", "new")), layout("b", (0, "gpu", "chat")))

    planned = plan_steps(problem_of(before, gpu("b", mig_enabled=False)), wanted)

    assert planned.complete
    assert kinds(planned)[2:5] == [("drain-replica", "chat"), ("set-mode", ""), ("create-slice", "")]
    assert planned.steps[3].mig_enabled


def test_mig_manager_never_resets_a_node_that_serves():
    busy = gpu("b", ("gpu", 0, "chat"), node="n", mig_enabled=False, backend="mig-manager")
    free = gpu("a", node="n", mig_enabled=False, convertible=True, backend="mig-manager")
    wanted = packing_of(layout("a", (4, "3g.40gb", "new")), layout("b", (0, "gpu", "chat")))

    planned = plan_steps(problem_of(free, busy), wanted)

    assert str(planned.blocked) == "MIG mode of a changes only while nothing runs on n: chat on b"
    assert planned.steps == ()


def empty(name):
    return gpu(name, node="n", mig_enabled=False, convertible=True, backend="mig-manager")


def test_mig_modes_of_an_empty_node_change_before_anything_starts_there():
    wanted = packing_of(layout("a", (4, "3g.40gb", "new")), layout("b", (4, "3g.40gb", "new")))

    planned = plan_steps(problem_of(empty("a"), empty("b")), wanted)

    assert planned.complete
    assert [step.kind for step in planned.steps][:3] == ["set-mode", "set-mode", "set-geometry"]
    perform(problem_of(empty("a"), empty("b")), wanted, planned.steps)


def test_replicas_start_on_a_node_only_after_its_mig_modes_have_changed():
    old = [gpu(name, ("7g.80gb", 0, f"old-{name}"), node="n", backend="mig-manager") for name in "bc"]
    problem = problem_of(empty("a"), *old, gpu("d"), gpu("e"))
    half = [layout(name, (4, "3g.40gb", f"new-{name}")) for name in "abc"]
    away = [layout(name, (0, "7g.80gb", owner)) for name, owner in (("d", "old-b"), ("e", "old-c"))]

    planned = plan_steps(problem, packing_of(*half, *away))

    assert planned.complete
    perform(problem, packing_of(*half, *away), planned.steps)


@pytest.mark.parametrize(
    "profiles", [["1g.10gb+me"], ["1g.10gb", "1g.20gb"], ["2g.20gb", "1g.10gb+me", "1g.10gb"]]
)
def test_a_packing_says_where_the_driver_puts_slices_of_a_gpu_that_it_gives_to_mig(profiles):
    demands = tuple(slice_request(f"r{n}", profile, 1) for n, profile in enumerate(profiles))
    problem = replace(problem_of(empty("a")), demands=demands)

    packing = solve(problem)
    both = end_states(problem, packing)

    (cut,) = packing.layouts
    assert [(p.start, p.profile) for p in cut.instances] == [(p.start, p.profile) for p in both.slices["a"]]
    placed = {(each.owner, each.profile, each.start) for each in both.after}
    assert {(p.owner, p.profile, p.start) for p in cut.instances if p.owner} == placed


def test_a_slice_with_media_engines_waits_for_the_one_that_has_them():
    before = problem_of(gpu("a", ("1g.10gb+me", 0, "chat")), gpu("b"))
    wanted = packing_of(layout("a", (6, "1g.10gb+me", "code")), layout("b", (0, "1g.10gb+me", "chat")))

    planned = plan_steps(before, wanted)

    assert planned.complete
    perform(before, wanted, planned.steps).check_ends_as(wanted)


# ---- steps as text, and the simulated fleet


def test_every_step_says_what_it_needs_and_when_it_is_done():
    for seed in range(20):
        problem, packing = random_ends(seed)
        for step in plan_steps(problem, packing).steps:
            assert step.node in str(step) or step.at in str(step)
            assert "{" not in step.precondition + step.done_when


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_simulated_fleet_refuses_scripts_with_a_step_left_out(seed):
    problem, packing = random_ends(seed, full=0.5)
    steps = plan_steps(problem, packing).steps
    assert steps

    for left_out in steps:
        kept = [step for step in steps if step is not left_out]
        with pytest.raises(Refused):
            perform(problem, packing, kept).check_ends_as(packing)


def test_the_wanted_end_of_a_layout_that_is_not_named_is_the_layout_as_it_is():
    problem, _ = halves("chat", "code")

    both = end_states(problem, packing_of())

    assert both.before == both.after == both.unmoved
