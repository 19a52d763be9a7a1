"""The states of the large fleets: the same for every version, and what the former menu answered is kept."""

import json
from functools import cache

import pytest

from benchmarks.packing import scale
from tangram.packing import Problem, validate


@cache
def asked(state):
    return scale.asked("100", 0, state)


def answers():
    return json.loads(scale.FORMER.read_text())["answers"]


@pytest.mark.parametrize("state", scale.STATES)
def test_every_state_is_a_problem_without_contradictions(state):
    found = asked(state)

    validate(Problem(found.now.gpus, ()))
    assert len(found.now.gpus) == 8 * sum(round(100 / 8 * part) for part in scale.PARTS)
    assert len(found.deployments) == 20


@pytest.mark.parametrize("state", ["replan", "short, running", "scattered"])
def test_what_runs_is_what_was_kept(state):
    owners = {i.owner for gpu in asked(state).now.gpus for i in gpu.instances if i.owner}

    assert owners <= {each.requirements.id for each in asked(state).deployments}
    assert len(owners) == 20


def test_slices_stay_where_replicas_have_gone():
    before = [gpu.instances for gpu in asked("replan").now.gpus if gpu.mig_enabled]
    after = [gpu.instances for gpu in asked("scattered").now.gpus if gpu.mig_enabled]

    assert [[(i.profile, i.start) for i in each] for each in before] == [
        [(i.profile, i.start) for i in each] for each in after
    ]
    slices = [i for each in after for i in each]
    assert 0.2 < sum(i.owner is None for i in slices) / len(slices) < 0.4


def test_deployments_that_are_spread_share_two_pools():
    found = asked("spread")

    assert {gpu.pool for gpu in found.now.gpus} == set(scale.POOLS)
    assert {each.requirements.pools for each in found.deployments} == {("east",), ("west",), ()}
    assert {each.requirements.intent.spread.node for each in found.deployments} == {scale.APART}


def test_the_former_menu_has_an_answer_to_every_state():
    kept = answers()

    assert set(kept) == {f"{name} {seed} {state}" for name, seed in scale.seeds() for state in scale.STATES}
    assert all("dollars" in each for key, each in kept.items() if not key.startswith("10000"))
