"""`tangram plan` where LLMDeployments run already: what serves is left alone, whatever it stands on."""

import pytest

from tests.cli.test_plan_models import chat, deployment, of, replicas
from tests.support.plans import H100, Planner, gpu, held, inventory

QWEN = "pvc://models/qwen2.5-7b"


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def pool(name, **spec):
    return {"kind": "GPUPool", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("more", [{}, {"cuttable": False}])
def test_a_slice_that_is_the_whole_board_serves(planner, more):
    plan = planner.plan(inventory(gpu("g0", "7g.80gb@0=chat", **more)), chat())

    assert (of(plan)["unmet"], plan["moves"], plan["steps"]) == (0, [], [])
    assert held(plan) == {("g0", "7g.80gb", 0, "chat")}


def test_a_slice_with_media_engines_serves_like_a_plain_one(planner):
    running = inventory(gpu("g0", "1g.18gb+me@0=chat", sku="H200-141GB-SXM"))

    plan = planner.plan(running, deployment("chat", QWEN, engine={"maxModelLen": 4096, "precision": "fp8"}))

    assert (of(plan)["unmet"], plan["moves"], plan["steps"]) == (0, [], [])


def test_a_gang_that_runs_on_half_a_node_stays(planner):
    gang = [{"profile": "gpu", "start": 0, "owner": "big", "gang": "a"}]
    gpus = [gpu(f"g{i}", sku="L40S", **({"instances": gang} if i < 2 else {})) for i in range(4)]
    big = deployment(
        "big",
        "pvc://models/llama-3.1-70b",
        engine={"maxModelLen": 8192, "precision": "fp8"},
        placement={"tensorParallel": [2]},
    )

    plan = planner.plan(inventory(*gpus), big)

    assert (of(plan, "big")["unmet"], plan["moves"], plan["steps"]) == (0, [], [])


def test_a_new_node_is_not_called_like_one_that_an_earlier_plan_added(planner):
    grown = gpu("grow/new-0/0", "gpu=chat", node="grow/new-0", sku="L40S", pool="grow")
    grow = pool("grow", migPolicy="Recommend", sku="L40S", nodes={"max": 2, "gpusPerNode": 1})

    plan = planner.plan(inventory(grown), grow, deployment("chat", scaling={"minReplicas": 2}))

    assert {name for name, *_ in held(plan)} == {"grow/new-0/0", "grow/new-1/0"}
    assert [step["kind"] for step in plan["steps"]] == ["add-node", "start-replica", "wait-available"]


def test_spread_holds_on_nodes_whose_gpus_are_in_several_pools(planner):
    gpus = [gpu("g0", pool="a", migEnabled=False), gpu("g1", pool="b", migEnabled=False)]
    gpus.append(gpu("g2", node="n1", pool="a", migEnabled=False, pricePerGPUHour=4))
    two = deployment(
        "two", scaling={"minReplicas": 2}, placement={"pools": ["a", "b"], "spread": {"node": "0.5"}}
    )

    plan = planner.plan(
        inventory(*gpus, prices={H100: 2.5}), pool("a", migPolicy="Full"), pool("b", migPolicy="Full"), two
    )

    assert (plan["status"], of(plan, "two")["unmet"], replicas(of(plan, "two"))) == ("OPTIMAL", 0, 2)
    assert "g2" in {name for name, *_ in held(plan)}
