"""The steps of a plan: complete, in order, or with what blocks them."""

import pytest

from tests.support.plans import H100, Planner, gpu, inventory, request


@pytest.fixture
def planner(tmp_path):
    return Planner(tmp_path)


def llm(name, least=1):
    spec = {"model": {"uri": "pvc://m/llama-3.1-8b"}, "engine": {"maxModelLen": 8192}}
    spec |= {"scaling": {"minReplicas": least, "maxReplicas": least}, "placement": {"tensorParallel": [1]}}
    return {"kind": "LLMDeployment", "metadata": {"name": name}, "spec": spec}


def replayed(plan, fleet):
    """Who holds what once every step is done, in the order of the numbers."""
    holders = {
        (g["id"], i["profile"], i["start"]): i["owner"]
        for g in fleet["spec"]["gpus"]
        for i in g["instances"]
        if "owner" in i
    }
    done = set()
    for step in plan["steps"]:
        assert set(step["after"]) <= done
        done.add(step["number"])
        sites = [(name, step.get("profile", "gpu"), step.get("start", 0)) for name in step.get("gpus", ())]
        if step["kind"] == "start-replica":
            for site in sites:
                assert site not in holders
                holders[site] = step["owner"]
        if step["kind"] == "drain-replica":
            for site in sites:
                assert holders.pop(site) == step["owner"]
    return holders


def wanted(plan):
    return {(g["id"], i["profile"], i["start"]): i["owner"] for g in plan["gpus"] for i in g["instances"]}


SCATTERED = inventory(
    gpu("g0", "1g.10gb@0=ann", "3g.40gb@4=bob"),
    gpu("g1", "2g.20gb@0=eve", "1g.10gb@4=dan"),
    gpu("g2", node="n1"),
)


def test_steps_lead_from_the_fleet_to_the_plan(planner):
    plan = planner.plan(SCATTERED, request("new", "3g.40gb", 1))

    assert plan["moves"]
    assert "stepsMissing" not in plan
    assert replayed(plan, SCATTERED) == wanted(plan)
    assert [step["number"] for step in plan["steps"]] == list(range(1, len(plan["steps"]) + 1))


def test_a_plan_that_changes_nothing_has_no_steps(planner):
    fleet = inventory(gpu("g0", "7g.80gb@0=ann"))

    plan = planner.plan(fleet)
    _, out, _ = planner.run(fleet)

    assert plan["steps"] == []
    assert "STEPS" not in out


def test_the_table_lists_the_first_steps(planner):
    _, out, _ = planner.run(SCATTERED, request("new", "1g.10gb", 7))

    assert "STEPS" in out
    assert "start-replica" in out
    assert "more steps; -o json has all." in out


def test_a_new_node_of_a_pool_comes_first(planner):
    pool = {
        "kind": "GPUPool",
        "metadata": {"name": "p"},
        "spec": {"sku": H100, "nodes": {"max": 1, "gpusPerNode": 1}},
    }

    plan = planner.plan(pool, llm("chat"))

    assert plan["steps"][0]["kind"] == "add-node"
    assert plan["steps"][0]["pool"] == "p"


CLEARED = inventory(
    gpu("g0", "1g.10gb@0=chat", "2g.20gb@2", "3g.40gb@4", backend="mig-manager", migEnabled=True)
)


def pinned(least=1):
    """`chat` stands on the only GPU, which mig-manager must clear for the request."""
    return llm("chat", least), request("new", "4g.40gb", 1, priority=1)


def test_a_blocked_replica_is_named_with_what_holds_its_place(planner):
    plan = planner.plan(CLEARED, *pinned())
    _, out, _ = planner.run(CLEARED, *pinned())

    missing = plan["stepsMissing"]
    assert plan["steps"] == []
    assert "new on 4g.40gb@0 of g0" in missing["blocked"]
    reason = "new on 4g.40gb@0 of g0 (node n0) waits for chat on 1g.10gb@0 of g0"
    assert any(text.startswith(reason) for text in missing["reasons"])
    assert "No order of direct moves reaches the layout" in " ".join(out.split())


def test_replicas_without_an_llmdeployment_are_not_restarted_either(planner):
    fleet = inventory(
        gpu("g0", "1g.10gb@0=note", "2g.20gb@2", "3g.40gb@4", backend="mig-manager", migEnabled=True)
    )

    plan = planner.plan(fleet, request("new", "4g.40gb", 1))

    assert plan["steps"] == []
    assert "waits for note on 1g.10gb@0 of g0" in plan["stepsMissing"]["text"]
