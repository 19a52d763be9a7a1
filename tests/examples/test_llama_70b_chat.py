import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

from tangram.api import parse
from tangram.api.llm_deployment.spec import LLMDeploymentSpec
from tangram.fleet import Intent, MIGPolicy, Objective

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "llama-70b-chat"


@pytest.fixture(scope="module")
def example():
    """The example's modules, imported as its commands import them."""
    names = ("assumed", "markdown", "setups", "start", "walk", "few", "plot")
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def walk(example):
    start = example["start"]
    found = start.judge(start.FOUND, precision_s=2e-6)
    return found, example["walk"].measure(found)


def test_the_teams_three_figures_follow_from_the_naive_setup(walk):
    found, _ = walk

    assert found.seen.tokens_per_s == pytest.approx(280)
    assert found.seen.ttft_p50_s == pytest.approx(1.4, abs=0.15)  # fitted by the launch gap
    assert found.seen.utilisation == pytest.approx(0.38, abs=0.05)  # not fitted
    assert found.seen.tensor_pipes < 0.05
    assert found.seen.memory_wire < 0.5


def test_the_launch_gap_that_is_inferred_is_one_that_others_have_measured(walk):
    found, _ = walk

    assert found.verdict == "**yes**"
    assert found.gap_is_plausible


def test_no_setup_that_serves_one_request_at_a_time_gives_280_tokens_of_answers(example):
    assert example["start"].ceiling_tokens_per_s() < 280


def test_the_walk_ends_at_the_goal_on_fewer_cards(walk):
    _, steps = walk
    end = steps[-1]

    assert end.seen.answer_tokens_per_s == pytest.approx(2000)
    assert end.carries * 211 >= 2000
    assert end.seen.ttft_p50_s <= 1.0
    assert end.seen.tpot_p50_s <= 0.05
    assert end.step.setup.cards < 8
    assert end.step.setup.cards == end.cards_for_goal


def test_every_step_carries_more_than_the_one_before_until_cards_are_given_back(walk):
    _, steps = walk
    carried = [at.carries for at in steps[:-1]]

    assert carried == sorted(carried)
    assert all(at.step.wall for at in steps[1:])


def test_each_step_changes_the_setup(walk):
    _, steps = walk

    assert len({at.step.setup for at in steps}) == len(steps)


def test_time_is_spent_once(walk):
    _, steps = walk

    for at in steps:
        assert sum(at.seen.spent.values()) == pytest.approx(1)
        assert min(at.seen.spent.values()) >= -1e-9


def test_users_near_the_edge_of_what_a_setup_carries_still_meet_the_goal(walk):
    _, steps = walk

    assert [at.step.change for at in steps[1:] if at.seen.ttft_p50_s > 1.0] == []


def test_a_setup_that_holds_no_request_is_refused_with_the_account(example):
    setup = example["setups"].Setup(cards=8, tensor_parallel=1)

    with pytest.raises(ValueError, match=r"needs .* GiB"):
        setup.limits()


def test_fp8_meets_the_goal_on_fewer_cards_than_fp16_and_the_easier_reading_on_fewer_still(example):
    few = example["few"]

    half, eight, easier = (
        few.fewest(weights, kv, tokens, tpot_ms=50)
        for weights, kv, tokens in (("fp16", "fp16", 211), ("fp8", "fp8", 211), ("fp8", "fp8", 1366))
    )

    assert easier.gpus < eight.gpus < half.gpus <= 8


def test_the_walk_and_the_sizing_agree_on_the_cards(example, walk):
    _, steps = walk

    assert example["few"].fewest("fp8", "fp8", 211, tpot_ms=None).gpus == steps[-1].step.setup.cards


def test_every_assumption_has_a_ground():
    sections = yaml.safe_load((FOLDER / "assumptions.yaml").read_text())

    for section in sections.values():
        for entry in section.values():
            assert re.match(r"given|source: .|assumed: .|inferred", entry["ground"])


def test_the_llmdeployment_is_valid_and_asks_for_the_goal():
    obj = yaml.safe_load((FOLDER / "llmdeployment.yaml").read_text())
    obj["metadata"] |= {"uid": "u", "namespace": "chat", "creationTimestamp": "2026-11-21T10:00:00Z"}

    intent = parse(obj)

    assert isinstance(intent, Intent)
    assert intent.ttft == Objective(50, 1000)
    assert intent.mig is MIGPolicy.FORBIDDEN
    assert intent.max_replicas * 2 <= 8
    known = {field.alias or name for name, field in LLMDeploymentSpec.model_fields.items()}
    assert set(obj["spec"]) <= known


def test_the_tables_show_every_step(example, walk):
    _, steps = walk

    predicted, inside = example["walk"].predictions(steps), example["walk"].whereabouts(steps)

    assert len(predicted.splitlines()) == len(inside.splitlines()) == 2 + len(steps)
    assert all(at.step.wall in predicted for at in steps)


def test_the_plot_is_drawn(example, walk, tmp_path):
    _, steps = walk

    example["plot"].draw(steps, tmp_path / "walk.png")

    drawn = (tmp_path / "walk.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) > 30_000
