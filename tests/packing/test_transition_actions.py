"""The step function: recomputed from what is observed, it ends where it should, whatever happens between."""

import random
from dataclasses import replace

import pytest

from tangram.catalog import InputError
from tangram.packing import GrowablePool, Instance, Placed
from tangram.packing.transition import Pace, blocking, next_actions, transition, transition_goal
from tests.support.packing_async import AsynchronousFleet
from tests.support.packing_transitions import H100, gpu, layout, packing_of, problem_of, random_ends, rules

pytestmark = pytest.mark.slow


def fleet_of(problem, packing, pace):
    return AsynchronousFleet(problem, transition_goal(problem, packing, pace))


def arrive(fleet, rng, **chances):
    while fleet.step(rng, **chances):
        pass
    return fleet


@pytest.mark.parametrize("permitted", [0, 1, 99])
@pytest.mark.parametrize("seed", range(8))
def test_a_transition_recomputed_after_crashes_comes_nearer_with_every_action_and_ends_as_wanted(
    seed, permitted
):
    problem, packing = random_ends(seed, full=1.0)
    pace, _, _ = rules(problem, packing, permitted)

    fleet = arrive(fleet_of(problem, packing, pace), random.Random(seed))

    complete = transition(problem, packing, pace).complete
    assert complete == (blocking(fleet.observed(), fleet.goal) is None)
    if complete:
        fleet.check_ends_as(packing)


def cleared_by_counts():
    """mig-manager switches the modes of an empty node, then makes slices by counts."""
    empty = gpu("a", node="n", mig_enabled=False, convertible=True, backend="mig-manager")
    old = [gpu(name, ("7g.80gb", 0, f"old-{name}"), node="n", backend="mig-manager") for name in "bc"]
    half = [layout(name, (4, "3g.40gb", f"new-{name}")) for name in "abc"]
    away = [layout("d", (0, "7g.80gb", "old-b")), layout("e", (0, "7g.80gb", "old-c"))]
    return problem_of(empty, *old, gpu("d"), gpu("e")), packing_of(*half, *away)


def mode_switched_by_nvml():
    """A whole GPU becomes slices; its replica moves to another one."""
    before = problem_of(
        gpu("a", ("gpu", 0, "chat"), mig_enabled=False, convertible=True), gpu("b", mig_enabled=False)
    )
    return before, packing_of(
        layout("a", (0, "3g.40gb", "code"), (4, "3g.40gb", "code")), layout("b", (0, "gpu", "chat"))
    )


def slices_that_change_places():
    halves = gpu("a", ("3g.40gb", 0, "chat"), ("3g.40gb", 4, "code"))
    return problem_of(halves, gpu("b")), packing_of(
        layout("a", (0, "3g.40gb", "code"), (4, "3g.40gb", "chat"))
    )


def gang_that_moves():
    """Two whole GPUs of one node serve one replica, which moves to another node; one is alone after it."""
    pair = (Instance("gpu", 0, "large", gang="p"),)
    old = [replace(gpu(name, node="n", mig_enabled=False), instances=pair) for name in ("a", "b")]
    new = [gpu(name, node="m", mig_enabled=False) for name in ("c", "d")]
    return problem_of(*old, *new), packing_of(
        layout("a", (0, "gpu", "small")),
        layout("b"),
        *(layout(name, Placed(0, "gpu", "large", "q")) for name in ("c", "d")),
    )


def node_that_is_added():
    pool = GrowablePool("pool", H100, 1, 1, 3.0, mig_enabled=True)
    wanted = layout("a"), layout("pool/new-0/0", (0, "7g.80gb", "chat"))
    return problem_of(gpu("a", ("3g.40gb", 4, "chat")), growable=(pool,)), packing_of(
        *wanted, grown=(("pool", 1),)
    )


ENDS = [
    cleared_by_counts,
    mode_switched_by_nvml,
    slices_that_change_places,
    gang_that_moves,
    node_that_is_added,
]


@pytest.mark.parametrize("ends", ENDS)
def test_a_transition_that_is_killed_after_any_number_of_events_goes_on_to_the_same_layout(ends):
    problem, packing = ends()
    events = arrive(fleet_of(problem, packing, Pace()), random.Random(1), crashes=0).events
    assert events

    for killed_after in range(events):
        fleet, rng = fleet_of(problem, packing, Pace()), random.Random(1)
        while fleet.events < killed_after:
            fleet.step(rng, crashes=0, events=killed_after)
        fleet.crash(random.Random(0), halfway=1)

        arrive(fleet, rng, crashes=0).check_ends_as(packing)


def test_equal_observations_have_equal_actions():
    problem, packing = slices_that_change_places()
    goal = transition_goal(problem, packing, Pace())
    observed = AsynchronousFleet(problem, goal).observed()

    assert next_actions(observed, goal) == next_actions(observed, goal) != ()


def test_operations_on_two_gpus_begin_side_by_side():
    problem = problem_of(gpu("a"), gpu("b"))
    packing = packing_of(layout("a", (4, "3g.40gb", "chat")), layout("b", (4, "3g.40gb", "chat")))
    goal = transition_goal(problem, packing, Pace(per_demand=2))

    actions = next_actions(AsynchronousFleet(problem, goal).observed(), goal)

    assert [(action.kind, action.gpus) for action in actions] == [
        ("create-slice", ("a",)),
        ("create-slice", ("b",)),
    ]


@pytest.mark.parametrize("owner", ["chat", None])
def test_a_foreign_replica_on_a_wanted_place_is_left_alone_and_named(owner):
    before = problem_of(gpu("a"))
    packing = packing_of(layout("a", (4, "3g.40gb", owner)))
    goal = transition_goal(before, packing, Pace())
    foreign = gpu("a", ("1g.10gb", 5, "foreign", False))
    fleet = AsynchronousFleet(problem_of(foreign), goal)

    arrive(fleet, random.Random(0))

    assert [(pod.owner, pod.start) for pod in fleet.pods] == [("foreign", 5)]
    assert "has to wait for foreign on 1g.10gb@5 of a, which stays" in str(blocking(fleet.observed(), goal))


def test_where_no_action_leads_nearer_the_transition_stops_and_asks_for_a_new_goal():
    problem, packing = random_ends(75, full=1.0)
    pace, _, _ = rules(problem, packing, 0)

    fleet = arrive(fleet_of(problem, packing, pace), random.Random(75))

    assert str(blocking(fleet.observed(), fleet.goal)).endswith("plan anew")


def test_a_pace_at_which_nothing_could_move_is_refused():
    with pytest.raises(InputError, match=r"^pace\.per_node"):
        transition_goal(problem_of(), packing_of(), Pace(per_node=0))
