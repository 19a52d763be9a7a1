import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.catalog import InputError
from tangram.packing import from_json, slice_request, to_json
from tangram.packing.solve import SolveLimits, solve
from tangram.packing.transition import Pace, Transition, end_states, transition
from tests.support.packing_problems import small
from tests.support.packing_simulator import Refused, SimulatedFleet
from tests.support.packing_transitions import (
    full_ends,
    gpu,
    layout,
    packing_of,
    problem_of,
    random_ends,
    rules,
)

SEEDS = st.integers(0, 10**9)
FEW = settings(max_examples=40, deadline=None)


def perform(problem, packing, pace, minimum, most, steps, rng=None):
    fleet = SimulatedFleet(problem, minimum, most, pace.per_node)
    if rng is None:
        fleet.run(steps)
    else:
        fleet.run_in_any_order(steps, rng)
    return fleet


@FEW
@given(SEEDS, st.sampled_from([0, 1, 2]), st.sampled_from([1, 2]))
def test_no_step_is_refused_in_any_order_and_the_last_leaves_what_was_wanted(seed, permitted, per_node):
    problem, packing = random_ends(seed)
    pace, minimum, most = rules(problem, packing, permitted)
    pace = replace(pace, per_node=per_node)

    found = transition(problem, packing, pace)

    for rng in (None, random.Random(seed)):
        fleet = perform(problem, packing, pace, minimum, most, found.steps, rng)
        if found.complete:
            fleet.check_ends_as(packing)


def test_where_drains_by_goals_lead_nowhere_drains_by_blockers_do():
    problem, packing = random_ends(453, full=1.0)
    pace, minimum, most = rules(problem, packing, 0)

    found = transition(problem, packing, pace)

    assert found.complete
    for rng in (None, random.Random(0)):
        perform(problem, packing, pace, minimum, most, found.steps, rng).check_ends_as(packing)


@FEW
@given(SEEDS)
def test_where_every_minimum_is_zero_the_wanted_layout_is_reached_without_a_spare_gpu(seed):
    problem, packing = random_ends(seed, full=1.0)
    pace, minimum, most = rules(problem, packing, permitted=99)

    found = transition(problem, packing, pace)

    assert found.complete
    perform(problem, packing, pace, minimum, most, found.steps).check_ends_as(packing)


@pytest.mark.parametrize("seed", range(12))
def test_what_the_solver_wants_is_reached(seed):
    problem = small(seed)
    packing = solve(problem, SolveLimits(deterministic_s=2))
    pace, minimum, most = rules(problem, packing, permitted=1)

    found = transition(problem, packing, pace)

    assert found.complete
    perform(problem, packing, pace, minimum, most, found.steps).check_ends_as(packing)


@FEW
@given(SEEDS)
def test_transitions_are_the_same_every_time_and_survive_json(seed):
    problem, packing = random_ends(seed)
    pace, _, _ = rules(problem, packing, 0)

    found = transition(problem, packing, pace)

    assert transition(problem, packing, pace) == found
    assert from_json(Transition, to_json(found)) == found
    assert [step.number for step in found.steps] == list(range(1, len(found.steps) + 1))
    assert all(n < step.number for step in found.steps for n in step.after)


def halves(left, right):
    """Two replicas on the halves of one GPU, which then hold the other."""
    return problem_of(gpu("a", ("3g.40gb", 0, left), ("3g.40gb", 4, right))), packing_of(
        layout("a", (0, "3g.40gb", right), (4, "3g.40gb", left))
    )


def kinds(found):
    return [(step.kind, step.owner) for step in found.steps]


def test_nothing_to_do_is_no_step():
    problem, _ = halves("chat", "code")

    same = packing_of(layout("a", (0, "3g.40gb", "chat"), (4, "3g.40gb", "code")))

    assert transition(problem, same) == Transition(())


def test_a_replica_serves_at_its_new_place_before_the_old_one_stops():
    problem = problem_of(gpu("a", ("3g.40gb", 4, "chat")), gpu("b"))

    found = transition(problem, packing_of(layout("a", (4, "3g.40gb")), layout("b", (4, "3g.40gb", "chat"))))

    assert [step.kind for step in found.steps] == [
        "create-slice",
        "start-replica",
        "wait-available",
        "drain-replica",
    ]
    assert found.steps[-1].after == (3,)


def test_replicas_that_change_places_use_a_spare_slot():
    problem, wanted = halves("chat", "code")
    problem = replace(problem, gpus=(*problem.gpus, gpu("b")))

    found = transition(problem, wanted)

    assert found.complete
    assert [step.kind for step in found.steps if step.temporary] == [
        "create-slice",
        "start-replica",
        "wait-available",
    ]
    assert not any(step.restart for step in found.steps)
    assert found.steps[-1].kind == "destroy-slice"  # the spare slot is given back


def test_without_a_spare_slot_one_is_taken_down_where_its_minimum_permits():
    problem, wanted = halves("chat", "code")

    found = transition(problem, wanted, Pace(min_available=(("code", 0),)))

    assert found.complete
    assert [(step.owner, step.at) for step in found.steps if step.restart] == [("code", "3g.40gb@4 of a")]


def test_without_either_it_says_what_is_missing_and_touches_nothing():
    problem, wanted = halves("chat", "code")

    found = transition(problem, wanted)

    assert str(found.missing) == "one free 3g.40gb on H100-80GB-SXM or minAvailable 0 of 'chat'"
    assert found.steps == ()


def test_a_search_that_is_given_up_says_so_and_takes_nothing_down():
    problem, wanted = halves("chat", "code")

    found = transition(problem, wanted, effort=1)

    assert "was given up" in str(found.missing)
    assert found.steps == ()


def test_where_the_search_for_spare_places_ends_replicas_are_taken_down_as_their_minimum_permits():
    problem, wanted = halves("chat", "code")
    problem = replace(problem, gpus=(*problem.gpus, gpu("b")))
    pace = Pace((("chat", 0),))

    found = transition(problem, wanted, pace, effort=1)

    assert found.complete
    assert [step.owner for step in found.steps if step.restart] == ["chat"]
    assert not any(step.restart for step in transition(problem, wanted, pace).steps)


@pytest.mark.parametrize(("gpus", "effort"), [(20, 10**6), (30, 10**3)])
def test_a_full_fleet_in_which_nobody_has_a_minimum_gets_where_it_is_wanted(gpus, effort):
    problem, packing = full_ends(1, gpus)
    pace, minimum, most = rules(problem, packing, permitted=10**6)

    found = transition(problem, packing, pace, effort)

    assert found.complete
    moved = sum(step.kind == "start-replica" for step in found.steps)
    assert 0 < sum(step.restart for step in found.steps) < moved / 4
    for rng in (None, random.Random(1)):
        perform(problem, packing, pace, minimum, most, found.steps, rng).check_ends_as(packing)


def test_who_is_stuck_does_not_keep_the_others_from_getting_where_they_are_wanted():
    stuck, wanted = halves("chat", "code")
    full, moved = full_ends(2, 8)
    others = [replace(each, sku="A100-80GB-SXM") for each in full.gpus]  # no place of theirs suits the stuck
    problem = problem_of(*stuck.gpus, *others)
    packing = packing_of(*wanted.layouts, *moved.layouts)
    pace, minimum, most = rules(problem, packing, permitted=99)
    held = {"chat": 1, "code": 1}
    pace = Pace(tuple(sorted((dict(pace.min_available) | held).items())))

    found = transition(problem, packing, pace, effort=10**6)

    assert found.missing is not None
    assert found.missing.blocked == ("chat on 3g.40gb@4 of a", "code on 3g.40gb@0 of a")
    assert str(found.missing) == "one free 3g.40gb on H100-80GB-SXM or minAvailable 0 of 'chat'"
    perform(problem, packing, pace, minimum | held, most, found.steps).check_ends_as(
        packing_of(*stuck_as_it_is(stuck), *moved.layouts)
    )


def stuck_as_it_is(problem):
    return [layout(g.id, *((i.start, i.profile, i.owner) for i in g.instances)) for g in problem.gpus]


@FEW
@given(SEEDS)
def test_either_remedy_for_what_is_missing_suffices(seed):
    problem, packing = random_ends(seed, full=1.0)
    pace, _, _ = rules(problem, packing, 0)
    found = transition(problem, packing, pace)
    if found.missing is None:
        return

    lowered = dict(pace.min_available) | dict(found.missing.min_available)
    spares = [
        gpu(f"z{spare.profile}{i}", (spare.profile, 0, None), cuttable=False)
        if spare.profile != "gpu"
        else gpu(f"z{i}", mig_enabled=False)
        for spare in found.missing.spares
        for i in range(spare.count)
    ]

    assert found.missing.min_available or found.missing.spares or found.missing.reasons
    if found.missing.min_available:
        assert transition(problem, packing, Pace(tuple(sorted(lowered.items())))).complete
    if found.missing.spares:
        roomy = replace(problem, gpus=tuple(sorted((*problem.gpus, *spares))))
        assert transition(roomy, packing, pace).complete


def test_where_nothing_can_be_placed_the_driver_chooses_and_the_owners_follow():
    before = gpu("a", ("7g.80gb", 0, "old"), backend="mig-manager")
    wanted = packing_of(layout("a", (0, "3g.40gb", "new"), (4, "2g.20gb", "small")))

    found = transition(problem_of(before), wanted, Pace(min_available=(("old", 0),)))

    assert [step.kind for step in found.steps][:2] == ["drain-replica", "set-geometry"]
    assert [str(place) for place in found.steps[1].layout] == ["2g.20gb@2", "3g.40gb@4"]
    assert {step.at for step in found.steps if step.owner == "new"} == {"3g.40gb@4 of a"}


def test_mig_mode_is_switched_only_when_the_gpu_is_empty():
    before = gpu("a", mig_enabled=False, convertible=True)

    found = transition(problem_of(before), packing_of(layout("a", (4, "3g.40gb", "new"))))

    assert kinds(found)[:2] == [("set-mode", ""), ("create-slice", "")]
    assert found.steps[0].mig_enabled


def test_mig_manager_never_resets_a_node_that_serves():
    busy = gpu("b", ("gpu", 0, "chat"), node="n", mig_enabled=False, backend="mig-manager")
    free = gpu("a", node="n", mig_enabled=False, convertible=True, backend="mig-manager")
    wanted = packing_of(layout("a", (4, "3g.40gb", "new")), layout("b", (0, "gpu", "chat")))

    found = transition(problem_of(free, busy), wanted)

    assert str(found.missing) == "MIG mode of a changes only while nothing runs on n: chat on b"
    assert found.steps == ()


def empty(name):
    return gpu(name, node="n", mig_enabled=False, convertible=True, backend="mig-manager")


def test_mig_modes_of_an_empty_node_change_before_anything_starts_there():
    wanted = packing_of(layout("a", (4, "3g.40gb", "new")), layout("b", (4, "3g.40gb", "new")))

    found = transition(problem_of(empty("a"), empty("b")), wanted)

    assert found.complete
    assert [step.kind for step in found.steps][:3] == ["set-mode", "set-mode", "set-geometry"]
    perform(problem_of(empty("a"), empty("b")), wanted, Pace(), {"new": 0}, {"new": 2}, found.steps)


def test_who_starts_first_leaves_a_node_empty_until_the_mig_modes_have_changed():
    old = [gpu(name, ("7g.80gb", 0, f"old-{name}"), node="n", backend="mig-manager") for name in "bc"]
    problem = problem_of(empty("a"), *old, gpu("d"), gpu("e"))
    half = [layout(name, (4, "3g.40gb", f"new-{name}")) for name in "abc"]
    away = [layout(name, (0, "7g.80gb", owner)) for name, owner in (("d", "old-b"), ("e", "old-c"))]

    found = transition(problem, packing_of(*half, *away))

    assert found.complete
    assert not any(step.restart for step in found.steps)
    owners = [*(f"new-{name}" for name in "abc"), "old-b", "old-c"]
    minimum = {owner: int(owner.startswith("old")) for owner in owners}
    perform(problem, packing_of(*half, *away), Pace(), minimum, dict.fromkeys(owners, 2), found.steps)


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
    placed = {(each.owner, each.profile, each.start) for each in both.wanted}
    assert {(p.owner, p.profile, p.start) for p in cut.instances if p.owner} == placed


def test_a_growing_demand_starts_side_by_side_up_to_the_nodes_limit():
    slots = [("1g.10gb", start, None) for start in range(7)]
    wanted = packing_of(layout("a", *((start, "1g.10gb", "chat") for start in range(7))))

    found = transition(problem_of(gpu("a", *slots)), wanted, Pace(per_node=3))

    starts = [step for step in found.steps if step.kind == "start-replica"]
    waits = {step.number for step in found.steps if step.kind == "wait-available"}
    assert [len(waits & set(step.after)) for step in starts] == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("pace", [Pace(per_demand=0), Pace(per_node=0), Pace(min_available=(("a", -1),))])
def test_a_pace_at_which_nothing_could_move_is_refused(pace):
    with pytest.raises(InputError, match=r"^pace\."):
        transition(problem_of(), packing_of(), pace)


def test_every_step_says_what_it_needs_and_when_it_is_done():
    for seed in range(20):
        problem, packing = random_ends(seed)
        for step in transition(problem, packing, Pace()).steps:
            assert step.node in str(step) or step.at in str(step)
            assert "{" not in step.precondition + step.done_when


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_simulated_fleet_refuses_scripts_with_a_step_left_out(seed):
    problem, packing = random_ends(seed)
    pace, minimum, most = rules(problem, packing, 99)
    steps = transition(problem, packing, pace).steps
    assert steps

    for left_out in steps:
        if left_out.temporary and left_out.kind == "wait-available":
            continue  # with a minimum of zero nobody has to serve on the way
        kept = [step for step in steps if step is not left_out]
        with pytest.raises(Refused):
            perform(problem, packing, pace, minimum, most, kept).check_ends_as(packing)


def test_the_wanted_end_of_a_layout_that_nobody_names_is_the_layout_as_it_is():
    problem, _ = halves("chat", "code")

    both = end_states(problem, packing_of())

    assert both.now == both.wanted == both.kept


def test_a_spare_place_may_have_the_shape_that_the_demand_gets_in_the_end():
    before = gpu("a", ("1g.20gb", 2, "chat"), ("3g.40gb", 4, "chat"))
    wanted = packing_of(layout("a", (4, "2g.20gb", "chat"), (6, "1g.20gb", "chat")))

    found = transition(problem_of(before), wanted)

    assert found.complete
    assert not any(step.restart for step in found.steps)


def test_who_only_grows_waits_where_others_need_the_room_on_their_way():
    slots = ("1g.20gb", 0, "b"), ("2g.20gb", 2, "a"), ("2g.20gb", 4, "b"), ("1g.20gb", 6, "b")
    wanted = packing_of(layout("a", (0, "3g.40gb", "a"), (4, "2g.20gb", "new"), (6, "1g.20gb", "b")))

    found = transition(problem_of(gpu("a", *slots)), wanted)

    assert found.complete
    assert kinds(found)[-2:] == [("start-replica", "new"), ("wait-available", "new")]


def cleared(name, *instances):
    """A GPU of node n0 of which mig-manager has to change the counts."""
    return gpu(name, *instances, node="n0", backend="mig-manager")


def test_a_replica_waits_on_a_gpu_that_mig_manager_has_yet_to_clear():
    before = problem_of(
        cleared("a", ("1g.10gb", 4, None), ("1g.10gb", 5, None), ("1g.10gb", 6, "chat")),
        cleared("b", ("1g.10gb", 6, "code")),
    )
    wanted = packing_of(
        layout("a", (4, "2g.20gb", "code"), (6, "1g.10gb", "chat")),
        layout("b", (5, "1g.10gb", None), (6, "1g.10gb", "code")),
    )

    found = transition(before, wanted)

    assert found.complete
    assert not any(step.restart for step in found.steps)
    pace, minimum, most = rules(before, wanted, 0)
    perform(before, wanted, pace, minimum, most, found.steps).check_ends_as(wanted)


def test_growth_takes_no_slice_through_which_the_others_have_to_go():
    before = problem_of(
        cleared("a", ("1g.10gb", 4, "code"), ("1g.10gb", 5, "chat"), ("1g.10gb", 6, "code")),
        cleared("b", ("1g.10gb", 6, "code")),
    )
    wanted = packing_of(
        layout("a", (4, "1g.10gb", "code"), (5, "1g.10gb", "chat"), (6, "1g.10gb", "chat")),
        layout("b", (5, "1g.10gb", "code"), (6, "1g.10gb", "code")),
    )

    found = transition(before, wanted, Pace((("chat", 0), ("code", 2))))

    assert found.complete
    assert [(step.owner, step.gpus) for step in found.steps if step.restart] == [("code", ("b",))]
