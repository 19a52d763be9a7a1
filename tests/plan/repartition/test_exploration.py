"""Every order in which operator, agents, kubelets, scheduler, failures and people act on a small fleet.

In each state the laws hold: nothing under a pod is destroyed, no pod gets a slice that is gone, no plan is
written without consent, no plan ends with something of it left to be done, and the planner is told what the
GPUs will offer. And from each state an end is reached: every plan final, no hold left, GPUs as wanted, their
devices offered.
"""

import re
import time
from dataclasses import replace

import pytest

from tangram.plan.repartition import (
    Hold,
    HoldNode,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    SetLayouts,
    next_step,
)
from tests.support.repartition_model import NONE, Model, Scenario, explore

HALVES, MIXED, WHOLE_SLICE = "2g.12gb@0 2g.12gb@2", "1g.6gb@0 2g.12gb@2", "4g.24gb@0"
# One pod runs on a slice; one waits for such a slice, one for a whole GPU. Two nodes, three GPUs.
PODS = ((2, 1, 2), (2, NONE, NONE), (0, NONE, NONE))
LAYOUTS = ("gpu", HALVES, HALVES)
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("nodes", (0, 0, 1), LAYOUTS, PODS, (((0, HALVES), (2, WHOLE_SLICE)), ((1, MIXED),))),
        Scenario("one GPU", (0, 0, 1), LAYOUTS, PODS, (((1, MIXED),), ((1, WHOLE_SLICE),))),
        Scenario("modes", (0, 0, 1), LAYOUTS, PODS, (((0, MIXED),), ((2, "gpu"),)), policy=1, approved=1),
    )
}


def explored(scenario, depth, seconds=None):
    began = time.process_time()
    spent = (lambda: False) if seconds is None else (lambda: time.process_time() - began > seconds)
    result = explore(scenario, depth, spent=spent)
    took = time.process_time() - began
    print(  # noqa: T201 - the figures of docs/partitioning.md
        f"{scenario.name}: {result.states} states, {result.steps} steps, depth {result.depth}, "
        f"{result.ends} ends, {result.states / took:.0f} states per second"
    )
    assert result.broken == []
    return result


def test_an_undisturbed_run_cuts_every_gpu():
    model = Model(SCENARIOS["nodes"])
    state = model.initial()
    while (step := model.fair_step(state)) is not None:
        state = step[1]

    fleet = model.unpack(state)
    gpus = [gpu for node in fleet.nodes for gpu in node.gpus]
    assert [gpu.actual for gpu in gpus] == [gpu.wanted for gpu in gpus]
    assert [list(PlanState)[plan.state - 1] for plan in fleet.plans] == [PlanState.DONE, PlanState.DONE]


def test_one_disturbance_at_any_point_breaks_no_law():
    """The other fleets follow at the same depth, and this one at twice the depth: that takes longer."""
    assert explored(SCENARIOS["one GPU"], 2).depth == 2


# The defects below are found within three steps, the mutants of tangram.plan.repartition within one.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "depth", "least"), [("one GPU", 4, 50_000), ("nodes", 2, 8_000), ("modes", 2, 6_000)]
)
def test_no_order_of_a_few_steps_breaks_a_law(name, depth, least):
    assert explored(SCENARIOS[name], depth).states > least


@pytest.mark.campaign
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("faults", [0, 1])
@pytest.mark.parametrize("changes", [0, 1])
def test_no_order_of_twelve_steps_breaks_a_law(name, faults, changes):
    result = explored(replace(SCENARIOS[name], faults=faults, changes=changes), 12, seconds=240)

    assert result.depth >= 4


# ---- the exploration finds what is broken -----------------------------------------------------------


def without_holds(world):
    step = next_step(world)
    nodes = tuple(replace(node, holds=(*node.holds, *_pretended(node, step, world))) for node in world.nodes)
    return next_step(replace(world, nodes=nodes))


def _pretended(node, step, world):
    for action in step.actions:
        if isinstance(action, HoldNode) and action.node == node.name:
            yield Hold(action.resource, world.now - 1e3, action.until)


def without_settling(world):
    return next_step(replace(world, limits=replace(world.limits, settle_s=-1e6)))


def without_reading_claims(world):
    return next_step(replace(world, nodes=tuple(replace(node, claimed=()) for node in world.nodes)))


def without_taking_back(world):
    step = next_step(world)
    kept = tuple(a for a in step.actions if not isinstance(a, SetLayouts) or a.plan)
    return replace(step, actions=kept)


def without_release(world):
    step = next_step(world)
    return replace(step, actions=tuple(a for a in step.actions if not isinstance(a, ReleaseNode)))


def with_early_release(world):
    step = next_step(world)
    written = {a.node for a in step.actions if isinstance(a, SetLayouts)}
    early = tuple(ReleaseNode(n.name, h.resource) for n in world.nodes if n.name in written for h in n.holds)
    return replace(step, actions=(*step.actions, *early))


def without_consent(world):
    plans = tuple(replace(plan, approved=True) for plan in world.plans)
    return next_step(replace(world, plans=plans))


def without_deadline(world):
    return next_step(replace(world, limits=RepartitionLimits(world.limits.settle_s, 1e9)))


@pytest.mark.parametrize(
    ("decide", "scenario", "law"),
    [
        (without_holds, "one GPU", "under a pod|that is gone"),
        (without_settling, "one GPU", "under a pod|that is gone"),
        pytest.param(
            without_reading_claims,
            "one GPU",
            "under a pod|that is gone|known to be held",
            marks=pytest.mark.slow,
        ),
        pytest.param(without_taking_back, "nodes", "circles|never ends", marks=pytest.mark.slow),
        (without_release, "nodes", "stays held"),
        (with_early_release, "one GPU", "under a pod|that is gone"),
        (without_consent, "modes", "without consent"),
        (without_deadline, "nodes", "never ends|circles|stays held"),
    ],
)
def test_a_broken_step_function_is_found(decide, scenario, law):
    result = explore(SCENARIOS[scenario], 4, decide)

    assert len(result.broken) == 1
    assert re.search(law, result.broken[0].partition("\n")[0])
