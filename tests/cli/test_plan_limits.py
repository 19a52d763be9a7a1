"""What an LLMDeployment says about its limits reaches the plan: spread, budget, links; typos do not."""

from collections import Counter

import pytest

from tests.support.plans import H100, Planner, gpu, inventory

OBJECTIVES = {"ttft": {"milliseconds": 500}, "tpot": {"milliseconds": 40}}
TRAFFIC = {"requestsPerSecond": 12, "inputTokens": {"mean": 1024}, "outputTokens": {"mean": 256}}


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def chat(placement=None, model="llama-3.1-8b", **spec):
    spec = {"model": {"uri": f"pvc://m/{model}"}, "engine": {"maxModelLen": 8192}, **spec}
    return {
        "kind": "LLMDeployment",
        "metadata": {"name": "chat"},
        "spec": spec | ({"placement": placement} if placement else {}),
    }


def fleet(count=4, sku=H100, node=lambda i: f"n{i}", **more):
    zone = [f"z{int(node(i)[1:]) % 2}" for i in range(count)]
    return inventory(*(gpu(f"g{i}", node=node(i), sku=sku, zone=zone[i], **more) for i in range(count)))


def per(plan, key):
    """Replicas of `chat` by node, or by zone: node i is in zone i mod 2."""
    at = {g["id"]: g["node"] if key == "node" else int(g["node"][1:]) % 2 for g in plan["gpus"]}
    return Counter(at[g["id"]] for g in plan["gpus"] for i in g["instances"] if i["owner"] == "chat")


POOL = {"nodeSelector": {"x": "y"}, "migPolicy": "Full"}
FOUR = {"scaling": {"minReplicas": 4, "maxReplicas": 4}}


def test_without_spread_all_replicas_share_a_gpu_and_with_it_no_node_has_more_than_its_share(planner):
    together = planner.plan(fleet(), chat({"mig": "Required"}, **FOUR))
    spread = planner.plan(fleet(), chat({"mig": "Required", "spread": {"node": "0.25"}}, **FOUR))
    zones = planner.plan(fleet(), chat({"mig": "Required", "spread": {"zone": "0.5"}}, **FOUR))

    assert max(per(together, "node").values()) == 4
    assert sorted(per(spread, "node").values()) == [1, 1, 1, 1]
    assert sorted(per(zones, "zone").values()) == [2, 2]
    assert together["unmet"] == spread["unmet"] == zones["unmet"] == []
    assert together["costPerHour"] < zones["costPerHour"] < spread["costPerHour"]


def test_spread_that_the_fleet_has_no_nodes_for_is_told(planner):
    one_node = fleet(2, node=lambda _: "n0")

    plan = planner.plan(one_node, chat({"mig": "Required", "spread": {"node": "0.5"}}, **FOUR))

    assert [u["name"] for u in plan["unmet"]] == ["chat"]
    assert per(plan, "node").total() < 4


def test_a_budget_bounds_what_is_chosen_and_what_it_leaves_out_is_told(planner):
    free = planner.plan(
        fleet(), chat(objectives=OBJECTIVES, traffic=TRAFFIC, scaling={"minReplicas": 1, "maxReplicas": 20})
    )
    cost = free["deployments"][0]["costPerHour"]
    for part, served in ((1.01, True), (0.6, False)):
        asked = chat(
            {"budgetPerHour": f"{cost * part:.4f}"},
            objectives=OBJECTIVES,
            traffic=TRAFFIC,
            scaling={"minReplicas": 1, "maxReplicas": 20},
        )
        plan = planner.plan(fleet(), asked)
        assert plan["deployments"][0]["costPerHour"] <= cost * part
        assert (plan["unmet"] == []) == served


TYPOS = {
    "scalling": (chat(scalling={"min": 2}), "spec: scalling: is unknown; did you mean scaling?"),
    "nested": (
        chat(scaling={"minReplica": 2}),
        "spec: scaling: minReplica: is unknown; did you mean minReplicas?",
    ),
    "deep": (
        chat(objectives={"ttft": {"milliseconds": 5, "percentil": 90}}),
        "objectives: ttft: percentil: is unknown; did you mean percentile?",
    ),
    "traffic": (
        chat(traffic={"requestPerSecond": 2}),
        "traffic: requestPerSecond: is unknown; did you mean requestsPerSecond?",
    ),
    "placement": (chat({"allowedSkus": [H100]}), "allowedSkus: is unknown; did you mean allowedSKUs?"),
    "budget": (chat({"budgetPerHours": 3}), "budgetPerHours: is unknown; did you mean budgetPerHour?"),
    "spread": (chat({"spread": {"nodes": "0.5"}}), "spread: nodes: is unknown; did you mean node?"),
    "model": (chat(model="x", engine={"maxmodellen": 1}), "engine: maxmodellen: is unknown"),
    "pool": (
        {"kind": "GPUPool", "metadata": {"name": "p"}, "spec": POOL | {"pricePerGpuHour": "2"}},
        "spec: pricePerGpuHour: is unknown; did you mean pricePerGPUHour?",
    ),
    "nodes of a pool": (
        {"kind": "GPUPool", "metadata": {"name": "p"}, "spec": POOL | {"nodes": {"maxs": 4}}},
        "spec: nodes: maxs: is unknown; did you mean max?",
    ),
}


@pytest.mark.parametrize("case", TYPOS)
def test_a_typo_in_a_spec_is_one_line_that_names_what_was_meant(planner, case):
    document, line = TYPOS[case]
    assert line in planner.refused(fleet(1), document)


def test_only_gpus_of_the_pools_that_placement_names_are_used(planner):
    fleet_of_two = inventory(gpu("g0", pool="mine", node="n0"), gpu("g1", pool="other", node="n1"))
    pools = [{"kind": "GPUPool", "metadata": {"name": n}, "spec": POOL} for n in ("mine", "other")]

    for name, used in (("mine", ["g0"]), ("other", ["g1"])):
        plan = planner.plan(fleet_of_two, *pools, chat({"pools": [name]}, scaling={"minReplicas": 1}))
        assert [g["id"] for g in plan["gpus"] if g["instances"]] == used


def test_a_disruption_budget_is_of_pools_not_of_deployments(planner):
    assert "disruptionBudget: is unknown" in planner.refused(fleet(1), chat({"disruptionBudget": 1}))


@pytest.mark.parametrize(
    ("sku", "gpus", "tensor_parallel"),
    [
        ("H100-94GB-NVL", 4, [2]),  # two pairs, each with a bridge
        ("L40S", 4, [4]),
        ("H100-94GB-NVL", 2, [2]),
        (H100, 4, [2]),
        ("GB200", 4, [2]),  # a domain larger than a node
    ],
)
def test_a_replica_takes_part_of_a_node_only_within_one_nvlink_domain(planner, sku, gpus, tensor_parallel):
    asked = chat(
        {"tensorParallel": [2, 4], "mig": "Forbidden"},
        model="llama-3.1-70b",
        engine={"maxModelLen": 8192, "precision": "AsStored"},
        scaling={"minReplicas": 1},
    )

    plan = planner.plan(fleet(gpus, sku, node=lambda _: "n0", pricePerGPUHour=1.0), asked)

    assert [shape["tensorParallel"] for shape in plan["deployments"][0]["chosen"]] == tensor_parallel


def test_what_links_the_gpus_of_a_replica_is_said(planner):
    asked = chat(
        {"tensorParallel": [2]},
        model="llama-3.1-70b",
        engine={"maxModelLen": 8192, "precision": "Any"},
        scaling={"minReplicas": 1},
    )
    over_pcie = "its replicas are predicted over PCIe: NVLink does not join all GPUs of a node"
    notes = {
        sku: planner.plan(fleet(2, sku, node=lambda _: "n0"), asked)["deployments"][0]["notes"]
        for sku in ("H100-94GB-NVL", "H100-80GB-SXM", "L40S")
    }

    assert notes == {
        "H100-94GB-NVL": [over_pcie],
        "H100-80GB-SXM": [],
        "L40S": [over_pcie],
    }
