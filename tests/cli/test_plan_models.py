"""`tangram plan` of LLMDeployments: shapes by capacity, chosen jointly, every other with its reason."""

import json

import pytest

from tests.support.plans import H100, Planner, gpu, held, inventory, run, used

LLAMA = "pvc://models/llama-3.1-8b"
STRICT = {"tpot": {"percentile": 90, "milliseconds": 3}}


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def deployment(name, uri=LLAMA, **spec):
    spec = {"model": {"uri": uri}, "engine": {"maxModelLen": 8192}, **spec}
    return {
        "apiVersion": "tangram.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": spec,
    }


def chat(name="chat", rps=12, **spec):
    objectives = {
        "ttft": {"percentile": 90, "milliseconds": 500},
        "tpot": {"percentile": 90, "milliseconds": 40},
    }
    traffic = {"requestsPerSecond": rps, "inputTokens": {"mean": 1024}, "outputTokens": {"mean": 256}}
    return deployment(
        name,
        **{
            "objectives": objectives,
            "traffic": traffic,
            "scaling": {"minReplicas": 1, "maxReplicas": 20},
            **spec,
        },
    )


def fleet(count=4, sku=H100, **more):
    return inventory(*(gpu(f"g{i}", node=f"n{i // 4}", sku=sku) for i in range(count)), **more)


def of(plan, name="chat"):
    return next(d for d in plan["deployments"] if d["name"] == name)


def replicas(found):
    return sum(shape["replicas"] for shape in found["chosen"])


def test_plan_and_size_give_one_rate_to_one_slice(planner):
    """Objectives so loose that the default of the requests at a time is what limits the rate."""
    objectives = {
        "ttft": {"percentile": 90, "milliseconds": 5000},
        "tpot": {"percentile": 90, "milliseconds": 100},
    }
    traffic = {"requestsPerSecond": 1, "inputTokens": {"mean": 256}, "outputTokens": {"mean": 128}}
    there = {**gpu("g", "3g.40gb@0"), "cuttable": False}
    flags = ["--model", "llama-3.1-8b", "--ttft-ms", 5000, "--tpot-ms", 100, "--input", 256, "--output", 128]
    only = ["--max-model-len", 8192, "--sku", H100, "--mig", "3g.40gb", "--precision", "bf16"]

    plan = planner.plan(inventory(there), deployment("chat", objectives=objectives, traffic=traffic))
    status, out, _ = run("size", *flags, *only, "-o", "json")

    ((shape,), (row,)) = of(plan)["chosen"], json.loads(out)["rows"]
    assert (status, shape["replicas"]) == (0, 1)
    assert shape["requestsPerSecond"] == pytest.approx(row["max_rps_per_replica"], rel=1e-3)


def test_a_deployment_gets_the_cheapest_shapes_that_carry_its_traffic(planner):
    plan = planner.plan(fleet(), chat())

    found = of(plan)
    assert (found["unmet"], plan["unmet"], plan["status"]) == (0, [], "OPTIMAL")
    assert sum(shape["requestsPerSecond"] for shape in found["chosen"]) >= 12
    assert len([owner for *_, owner in held(plan) if owner == "chat"]) == replicas(found)
    assert found["costPerHour"] <= plan["costPerHour"]


def test_alternatives_say_why_they_lost(planner):
    found = of(planner.plan(fleet(), chat()))

    assert 1 <= len(found["alternatives"]) <= 5
    for other in found["alternatives"]:
        assert other["chosen"] != found["chosen"]
        if other["rejectedBecause"] == "Dearer":
            assert other["costPerHour"] > found["costPerHour"]


def test_shapes_that_cannot_serve_are_alternatives_with_what_would_help(planner):
    found = of(planner.plan(fleet(1, sku="L4"), chat(rps=1, objectives=STRICT)))

    assert found["chosen"] == []
    assert found["unmet"] == 1
    reasons = {other["rejectedBecause"] for other in found["alternatives"]}
    assert reasons <= {"TTFT", "TPOT", "DoesNotFit", "Precision", "TensorParallel"}


def test_what_no_shape_serves_is_unmet_with_the_nearest_and_status_zero(planner):
    plan = planner.plan(fleet(1, sku="L4"), chat(rps=1, objectives=STRICT))

    (unmet,) = plan["unmet"]
    assert (unmet["name"], unmet["share"]) == ("chat", 1)
    assert unmet["reason"].startswith("the smallest TPOT that can be reached is 11.12 ms, on L4 TP8: ")


def test_without_traffic_the_fewest_replicas_run(planner):
    plan = planner.plan(fleet(), deployment("quiet", scaling={"minReplicas": 3, "maxReplicas": 5}))

    assert replicas(of(plan, "quiet")) == 3


def test_the_precision_policy_holds(planner):
    assert {
        s["precision"] for s in of(planner.plan(fleet(), chat(engine={"precision": "AsStored"})))["chosen"]
    } == {"bf16"}
    assert {
        s["precision"] for s in of(planner.plan(fleet(), chat(engine={"precision": "fp8"})))["chosen"]
    } == {"fp8"}


def test_the_reason_says_which_limit_binds(planner):
    few = planner.plan(fleet(), chat(rps=200, scaling={"minReplicas": 1, "maxReplicas": 2}))
    small = planner.plan(fleet(1), chat(rps=200, scaling={"minReplicas": 1, "maxReplicas": 200}))

    assert "scaling.maxReplicas allows 2 replicas" in few["unmet"][0]["reason"]
    assert few["unmet"][0]["share"] == of(few)["unmet"]
    assert small["unmet"][0]["reason"] == "the whole fleet has no room for all of it"


def test_explain_tells_what_binds_and_what_would_help(planner):
    low, high = chat("low", rps=12), chat("high", rps=12, priorityClassName="tangram-high")

    found = planner.plan(fleet(1), low, high, flags=("--explain", "low"))["explained"]

    assert any(text.startswith("gpus") for text in found["because"])
    more = next(change for change in found["relaxations"] if change["dimension"] == "gpus")
    assert more["value"] >= 1


def test_placement_holds(planner):
    slices = of(planner.plan(fleet(), chat(placement={"mig": "Required"})))
    whole = of(planner.plan(fleet(), chat(placement={"mig": "Forbidden"})))
    pairs = of(planner.plan(fleet(), chat(placement={"tensorParallel": [2]})))

    assert "gpu" not in {shape["profile"] for shape in slices["chosen"]}
    assert {shape["profile"] for shape in whole["chosen"]} == {"gpu"}
    assert {(shape["profile"], shape["tensorParallel"]) for shape in pairs["chosen"]} == {("gpu", 2)}


def test_a_sku_that_is_denied_leaves_nothing(planner):
    plan = planner.plan(fleet(), chat(placement={"deniedSKUs": [H100]}))

    assert plan["unmet"][0]["reason"] == "no GPU of this fleet is allowed by spec.placement"


def test_a_budget_bounds_what_is_chosen(planner):
    free = of(planner.plan(fleet(), chat()))
    held_back = of(
        planner.plan(fleet(), chat(placement={"budgetPerHour": f"{free['costPerHour'] * 0.6:.4f}"}))
    )

    assert held_back["costPerHour"] <= free["costPerHour"] * 0.6
    assert 0 < held_back["unmet"] < 1
    assert "Budget" in {other["rejectedBecause"] for other in held_back["alternatives"]}


def test_more_traffic_than_the_fleet_carries_is_served_in_part(planner):
    plan = planner.plan(fleet(1), chat(rps=1000, scaling={"minReplicas": 1, "maxReplicas": 500}))

    assert 0 < of(plan)["unmet"] < 1
    assert len(used(plan)) == 1


def test_priority_decides_who_goes_short(planner):
    low, high = (chat(name, rps=12, priorityClassName=f"tangram-{name}") for name in ("low", "high"))

    plan = planner.plan(fleet(1), low, high)

    assert of(plan, "high")["unmet"] == 0
    assert of(plan, "low")["unmet"] > 0


def test_joint_choice_is_never_dearer_than_each_alone(planner):
    names = ("a", "b", "c")
    together = planner.plan(fleet(6), *(chat(name, rps=2 + 3 * i) for i, name in enumerate(names)))
    apart = [planner.plan(fleet(6), chat(name, rps=2 + 3 * i)) for i, name in enumerate(names)]

    assert together["costPerHour"] <= sum(plan["costPerHour"] for plan in apart) + 1e-6


def test_what_runs_stays_while_nothing_changes(planner):
    first = planner.plan(fleet(), chat())
    after = inventory(*({k: g[k] for k in ("id", "node", "sku", "instances", "free")} for g in first["gpus"]))

    second = planner.plan(after, chat())

    assert second["moves"] == []
    assert held(second) == held(first)
    assert of(second)["chosen"] == of(first)["chosen"]


def test_a_paused_deployment_keeps_what_it_has(planner):
    plan = planner.plan(inventory(gpu("g0", "3g.40gb@4=chat"), gpu("g1", "3g.40gb@4=x")), chat(paused=True))

    assert ("g0", "3g.40gb", 4, "chat") in held(plan)
    assert of(plan)["notes"] == ["paused: its replicas stay as they are"]


def test_replicas_above_min_without_a_max_are_told(planner):
    found = of(planner.plan(fleet(), chat(rps=30, scaling={"minReplicas": 1})))

    assert replicas(found) > 1
    assert any("scaling.maxReplicas" in note for note in found["notes"])


def test_inspected_facts_win_over_names(planner):
    facts = {
        "architecture": "LlamaForCausalLM",
        "digest": "abc",
        "dtype": "bf16",
        "layers": 16,
        "hidden_size": 2048,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "parameters": 1235814400,
        "weight_bytes": 2471645608,
        "embedding_bytes": 525336576,
        "tied_embeddings": True,
        "attention_bias": False,
        "qk_norm": False,
    }
    camel = {"".join(w.title() if i else w for i, w in enumerate(k.split("_"))): v for k, v in facts.items()}
    document = deployment("own", uri="pvc://models/our-own") | {"status": {"model": {"facts": camel}}}

    assert of(planner.plan(fleet(), document), "own")["model"] == "LlamaForCausalLM"


def test_model_facts_name_what_nobody_knows(planner):
    unknown = deployment("own", uri="pvc://models/our-own")

    line = planner.refused(fleet(), unknown)
    assert "spec.model.uri: 'our-own' is no well-known model" in line
    assert "--model-facts own=" in line
    found = of(planner.plan(fleet(), unknown, flags=("--model-facts", "own=qwen2.5-7b")), "own")
    assert found["model"] == "Qwen2.5-7B"


def pool(name, **spec):
    return {"kind": "GPUPool", "metadata": {"name": name}, "spec": spec}


def test_a_pool_can_grow(planner):
    nodes = {"max": 2, "gpusPerNode": 2}
    plan = planner.plan(pool("p", sku=H100, pricePerGPUHour="2.00", nodes=nodes), chat())

    assert plan["newNodes"] == [{"pool": "p", "count": 1}]
    assert plan["costPerHour"] == 4.0
    assert {g["node"] for g in plan["gpus"]} == {"p/new-0"}


@pytest.mark.parametrize(("policy", "moved"), [("Full", 1), ("IdleOnly", 0), ("Ignore", 0)])
def test_a_pool_says_what_may_be_moved(planner, policy, moved):
    fleet = inventory(gpu("g0", "1g.10gb@0=ann", pool="p"), gpu("g1", "1g.10gb@0=bob", node="n1", pool="p"))

    plan = planner.plan(fleet, pool("p", migPolicy=policy, pricePerGPUHour="1.00"))

    assert len(plan["moves"]) == moved


def test_a_number_that_is_set_is_planned_whatever_the_traffic(planner):
    plan = planner.plan(fleet(), chat(rps=1000, replicas=3))

    found = of(plan)
    assert (replicas(found), found["unmet"], plan["unmet"]) == (3, 0, [])
    assert "spec.replicas is 3: scaling and traffic decide no number" in found["notes"]


def test_one_that_is_set_to_none_takes_nothing_and_leaves_what_it_has(planner):
    there = inventory(gpu("g0", "gpu@0=chat"), gpu("g1", "gpu@0=chat"))
    plan = planner.plan(there, chat(replicas=0), chat("other", rps=1))

    assert (of(plan)["chosen"], of(plan)["notes"]) == ([], ["spec.replicas is 0: no replica runs"])
    assert replicas(of(plan, "other")) == 1
    assert "chat" not in held(plan)
    assert plan["unmet"] == []
