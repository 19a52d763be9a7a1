"""Every order in which replicas move while GPUs get new layouts: planner, Deployments, kubelets, failures.

Beside the laws of `test_exploration`: no replica is marked, or ended by the operator, before its replacement
is available, and no slice that a replica has, serving or finishing its requests, is destroyed. And in the end
no surge is left, and every plan is done that nobody disturbs, whatever has failed once.
"""

import re
from dataclasses import replace

import pytest

from tangram.plan.repartition import MarkPod, next_step
from tests.plan.repartition.test_exploration import HALVES, explored, without_holds
from tests.support.repartition_model import NONE, Scenario, explore

QUARTERS = "1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3"
JOINED, SPLIT = "2g.12gb@0 1g.6gb@2 1g.6gb@3", "1g.6gb@0 1g.6gb@1 2g.12gb@2"
NODES, FULL = (0, 0, 1), 3  # two GPUs on one node, one on the other
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        # Both replicas of a GPU leave it for one on another node.
        Scenario(
            "away",
            NODES,
            ("gpu", HALVES, HALVES),
            (),
            (((1, "4g.24gb@0"),),),
            FULL,
            owners=((2, 2),),
            replicas=((0, 1, 0), (0, 1, 2)),
            moved=((0,),),
            succeeds=True,
        ),
        # A replica goes to the other half of its GPU, for its slice and the one beside it to become one.
        Scenario(
            "in place",
            NODES,
            ("gpu", QUARTERS, "gpu"),
            (),
            (((1, JOINED),),),
            FULL,
            owners=((1, 1),),
            replicas=((0, 1, 0),),
            moved=((0,),),
            succeeds=True,
        ),
        # Each of two LLMDeployments leaves one GPU, and may go to the free half of this one or the other.
        Scenario(
            "exchange",
            NODES,
            ("gpu", HALVES, HALVES),
            (),
            (((1, SPLIT), (2, SPLIT)),),
            FULL,
            owners=((2, 1), (2, 1)),
            replicas=((0, 1, 0), (1, 2, 0)),
            moved=((0, 1),),
            succeeds=True,
        ),
        # A plan has ended after its marks: one is on the replica that goes now, one on another that stays.
        Scenario(
            "marked before",
            NODES,
            ("gpu", HALVES, HALVES),
            (),
            (((1, SPLIT),),),
            FULL,
            owners=((2, 2),),
            replicas=((0, 1, 0), (0, 1, 2)),
            marked=((1, 0), (1, 2)),
            moved=((0,),),
            succeeds=True,
        ),
        # A foreign pod may take the free slice on which the replacement is to start.
        Scenario(
            "beside a foreign pod",
            NODES,
            ("gpu", HALVES, HALVES),
            ((2, NONE, NONE),),
            (((1, SPLIT),),),
            FULL,
            owners=((2, 1),),
            replicas=((0, 1, 0),),
            moved=((0,),),
        ),
    )
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "depth"), [(name, 2 if name == "beside a foreign pod" else 1) for name in SCENARIOS]
)
def test_replicas_move_and_no_single_disturbance_breaks_a_law(name, depth):
    assert explored(SCENARIOS[name], depth).depth == depth


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "in place")) for name in SCENARIOS]
)
def test_no_order_of_a_move_that_nothing_disturbs_breaks_a_law(name):
    assert explored(replace(SCENARIOS[name], faults=0, changes=0), 8).depth == 8


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_failure_at_any_point_of_a_move_breaks_a_law(name):
    assert explored(replace(SCENARIOS[name], changes=0), 3).depth == 3


# Each further step takes four times as long with both, three times with faults alone.
DEEP = {(1, 1): 2, (1, 0): 4, (0, 1): 2, (0, 0): 8}  # by faults and changes: within four minutes


@pytest.mark.campaign
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("faults", [0, 1])
@pytest.mark.parametrize("changes", [0, 1])
def test_no_order_of_twelve_steps_of_a_move_breaks_a_law(name, faults, changes):
    result = explored(replace(SCENARIOS[name], faults=faults, changes=changes), 12, seconds=240)

    assert result.depth >= DEEP[faults, changes]


# ---- the exploration finds what is broken -----------------------------------------------------------


def with_early_marks(world):
    more = {name: owner.desired + 1 for name, owner in world.owners.items()}
    owners = {
        name: replace(owner, available=more[name], replicas=more[name])
        for name, owner in world.owners.items()
    }
    return next_step(replace(world, owners=owners))


def without_marks(world):
    step = next_step(world)
    return replace(step, actions=tuple(a for a in step.actions if not isinstance(a, MarkPod)))


def without_end_of_surge(world):
    step = next_step(world)
    moves = tuple(replace(move, surge=max(1, move.surge)) for move in step.moves)
    return replace(step, moves=moves)


def without_surge(world):
    step = next_step(world)
    return replace(step, moves=tuple(replace(move, surge=0) for move in step.moves))


@pytest.mark.parametrize(
    ("decide", "scenario", "law"),
    [
        (with_early_marks, "away", "marked before its replacement"),
        (without_marks, "away", "is not done"),
        (without_end_of_surge, "away", "is not done|surge"),
        (without_surge, "away", "is not done"),
        (without_holds, "beside a foreign pod", "under a pod|that is gone"),
    ],
)
def test_a_broken_move_is_found(decide, scenario, law):
    result = explore(SCENARIOS[scenario], 4, decide)

    assert len(result.broken) == 1
    assert re.search(law, result.broken[0].partition("\n")[0])
