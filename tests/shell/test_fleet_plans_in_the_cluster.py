"""Recommendations for the whole fleet on a real API server: FleetPlans, GPUPools, events."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tangram.fleet.labels import MANAGED_BY, MANAGED_BY_LABEL
from tangram.kube.client import UNGUARDED
from tangram.kube.kinds import EVENTS, FLEET_PLANS, GPU_POOLS, OPERATOR_LABEL, uid_of
from tangram.shell.report.fleet_plans import KEPT
from tests.support.apiserver import LiveCluster, eventually, llm
from tests.support.fault_proxy import FaultProxy, Rule

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

QUICK = {"settleSeconds": 0.5, "latestSeconds": 3}
COUNTS = ("Recommended", "InForce")
CUT = {"mig": "Required"}  # no GPU of these tests is cut: only a plan that cuts one serves it


def states(plans: list[dict[str, Any]]) -> list[str]:
    return sorted((plan.get("status") or {}).get("state", "none") for plan in plans)


async def counting(cluster: LiveCluster) -> dict[str, Any] | None:
    """The current FleetPlan, once every FleetPlan has a state."""
    plans = await cluster.all(FLEET_PLANS)
    current = [p for p in plans if (p.get("status") or {}).get("state") in COUNTS]
    return current[0] if len(current) == 1 and "none" not in states(plans) else None


async def planned(cluster: LiveCluster, name: str, replicas: int = 1) -> dict[str, Any]:
    """The current FleetPlan, once it has that many replicas of an LLMDeployment."""

    async def check() -> dict[str, Any] | None:
        plan = await counting(cluster)
        matching = [d for d in (plan or {"spec": {}})["spec"].get("deployments", ()) if d["name"] == name]
        return plan if sum(c["replicas"] for d in matching for c in d["chosen"]) == replicas else None

    return await eventually(check, 60, f"a FleetPlan with {replicas} of {name}")


async def test_the_current_fleet_plan_states_what_runs_and_supersedes_the_last(
    cluster: LiveCluster, operator
) -> None:
    for number, product in enumerate(("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB")):
        pool = _pool(f"as-it-is-{number}", {"nvidia.com/gpu.product": product}, migPolicy="Ignore")
        await cluster.apply(pool, GPU_POOLS)
    operator(advice=QUICK)
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    first = await planned(cluster, "tiny")
    assert first["spec"]["inputsHash"] == first["metadata"]["name"]
    assert first["metadata"]["labels"][MANAGED_BY_LABEL] == MANAGED_BY

    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))

    second = await planned(cluster, "tiny", 2)
    before = await cluster.get(FLEET_PLANS, first["metadata"]["name"])
    assert second["status"]["state"] == "InForce"
    assert before["status"]["state"] == "Superseded"
    assert before["spec"] == first["spec"]


async def test_a_better_layout_is_recommended_with_one_event(cluster: LiveCluster, operator) -> None:
    operator(advice=QUICK)
    await cluster.apply(llm("sliced", cluster.namespace, placement=CUT))
    await cluster.until("sliced", "Placed", "False")

    plan = await planned(cluster, "sliced")

    assert plan["status"]["state"] == "Recommended"
    assert any(layout["recut"] for layout in plan["spec"]["layouts"])

    async def events() -> list[dict[str, Any]]:
        every = (await cluster.client.list(EVENTS, "default")).items
        return [e for e in every if e["regarding"].get("uid") == uid_of(plan)]

    (event,) = await eventually(events)
    assert event["reason"] == "PlanRecommended"
    assert event["regarding"]["kind"] == "FleetPlan"
    await asyncio.sleep(3)
    assert len(await events()) == 1


@pytest.mark.parametrize(
    ("verb", "subresource", "act"),
    [("create", "", "kill-after"), ("apply", "status", "kill-before"), ("apply", "status", "kill-after")],
)
async def test_the_next_operator_completes_the_writes_of_a_killed_one(
    cluster: LiveCluster, proxy: FaultProxy, operator, verb: str, subresource: str, act: Any
) -> None:
    rule = Rule(act, verb=verb, plural="fleetplans", subresource=subresource)
    proxy.rules = [rule]
    process = operator(advice=QUICK)
    proxy.kill = process.kill
    await cluster.apply(llm("tiny", cluster.namespace))

    async def killed() -> bool:
        return not process.alive()

    await eventually(killed, 60)
    (written,) = await cluster.all(FLEET_PLANS)
    process.start()

    await planned(cluster, "tiny")
    assert uid_of(await cluster.get(FLEET_PLANS, written["metadata"]["name"])) == uid_of(written)


async def test_the_last_twenty_fleet_plans_are_kept_and_foreign_ones_are_left_alone(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    process = operator(advice=QUICK)
    await cluster.apply(llm("tiny", cluster.namespace))
    first = await planned(cluster, "tiny")
    await process.stop()
    spec = first["spec"]
    labels = first["metadata"]["labels"]
    foreign = [
        await _made(cluster, "theirs", spec, {}),
        await _made(cluster, "of-another-operator", spec, labels | {OPERATOR_LABEL: "elsewhere.tangram"}),
    ]
    for number in range(KEPT + 5):
        await _made(cluster, f"old-{number:02}", spec, labels)

    process.start()
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))

    await planned_among(cluster, "tiny", 2)

    async def pruned() -> bool:
        plans = [p for p in await cluster.all(FLEET_PLANS) if p["metadata"].get("labels") == labels]
        return len(plans) == KEPT and states(plans).count("Superseded") == KEPT - 1

    await eventually(pruned, 90, "twenty are left")
    for plan in foreign:
        live = await cluster.get(FLEET_PLANS, plan["metadata"]["name"])
        assert live["metadata"]["resourceVersion"] == plan["metadata"]["resourceVersion"]
    await proxy.quiet()


async def planned_among(cluster: LiveCluster, name: str, replicas: int) -> None:
    async def check() -> bool:
        return any(
            sum(c["replicas"] for c in d["chosen"]) == replicas and d["name"] == name
            for plan in await cluster.all(FLEET_PLANS)
            if (plan.get("status") or {}).get("state") in COUNTS
            for d in plan["spec"].get("deployments", ())
        )

    await eventually(check, 60)


async def _made(cluster: LiveCluster, name: str, spec: Any, labels: dict[str, str]) -> dict[str, Any]:
    body = {
        "apiVersion": FLEET_PLANS.api_version,
        "kind": FLEET_PLANS.kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
    return await cluster.client.create(FLEET_PLANS, body, manager="someone", guard=UNGUARDED)


async def test_a_deleted_fleet_plan_is_written_again(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    operator(advice=QUICK)
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    await proxy.quiet()  # the plan that counts is the last one
    first = await planned(cluster, "tiny")

    await cluster.delete(FLEET_PLANS, first["metadata"]["name"])

    async def again() -> bool:
        plan = await counting(cluster)
        return plan is not None and uid_of(plan) != uid_of(first) and plan["spec"] == first["spec"]

    await eventually(again, 90)


@pytest.mark.parametrize("code", [404, 403])
async def test_models_are_served_without_optional_crds_or_the_right_to_list_them(
    cluster: LiveCluster, proxy: FaultProxy, operator, code: int
) -> None:
    proxy.rules = [Rule("status", plural=plural, nth=0, code=code) for plural in ("gpupools", "fleetplans")]
    process = operator(advice=QUICK, operator={"tickSeconds": 1})
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    await asyncio.sleep(3)

    assert process.alive()
    assert Counter(r.plural for r in proxy.writes())["fleetplans"] == 0
    assert process.logs().count("mirror of gpupools: unavailable, continuing without it") == 1
    assert process.logs().count("mirror of fleetplans: unavailable, continuing without it") == 1


async def test_a_refused_fleet_plan_is_logged_once_and_the_loop_continues(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    proxy.rules = [Rule("status", verb="create", plural="fleetplans", nth=0, code=403)]
    process = operator(advice=QUICK, operator={"tickSeconds": 0.5})
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    refused = proxy.rules[0]

    async def twice() -> bool:
        return refused.hits >= 2

    await eventually(twice, 60, "it is tried again")
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))
    await cluster.until("tiny", "Ready", "True")
    assert process.logs().count("FleetPlans: not written") == 1


async def test_a_recommendation_that_exceeds_its_deadline_delays_nothing(
    cluster: LiveCluster, operator
) -> None:
    process = operator(advice=QUICK | {"deadlineSeconds": 0.001})
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    await cluster.apply(llm("tiny", cluster.namespace, scaling={"minReplicas": 2}))
    await cluster.until("tiny", "Ready", "True")

    async def deadline_logged() -> bool:
        return "no recommendation (deadline)" in process.logs()

    await eventually(deadline_logged, 90)
    assert await cluster.all(FLEET_PLANS) == []
    assert process.logs().count("no recommendation (deadline)") == 1


async def test_a_new_leader_rewrites_no_fleet_plan(cluster: LiveCluster, proxy: FaultProxy, operator) -> None:
    first = operator("first", advice=QUICK)
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.apply(llm("sliced", cluster.namespace, placement=CUT))
    await cluster.until("tiny", "Ready", "True")
    await planned(cluster, "tiny")
    await proxy.quiet()
    proxy.trace.clear()

    second = operator("second", advice=QUICK)
    await first.stop()

    async def has_planned() -> bool:
        return ": recommendation " in second.logs()

    await eventually(has_planned, 90, "a recommendation of the new leader")
    await asyncio.sleep(2)
    assert "term 1" in second.logs()
    assert proxy.writes() == []


async def test_after_an_upgrade_a_new_fleet_plan_supersedes_the_old_one(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    process = operator(advice=QUICK)
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")
    await proxy.quiet()  # the plan that counts is the last one
    first_plan = await planned(cluster, "tiny")
    await process.stop()
    name, old = first_plan["metadata"]["name"], "0" * 12  # as a version before would have named it
    await cluster.client.delete(FLEET_PLANS, "", name, uid=uid_of(first_plan), guard=UNGUARDED)
    await _made(cluster, old, first_plan["spec"] | {"inputsHash": old}, first_plan["metadata"]["labels"])
    proxy.trace.clear()

    process.start()

    # A plan of the moment before the model served may be there, too: three writes leave it as it is.
    async def replaced() -> bool:
        plans = {p["metadata"]["name"]: p.get("status") for p in await cluster.all(FLEET_PLANS)}
        states = {plan_name: (status or {}).get("state") for plan_name, status in plans.items()}
        return states.items() >= {old: "Superseded", name: first_plan["status"]["state"]}.items()

    await eventually(replaced, 60, "the plan under its new name")
    await proxy.quiet()
    written = [request for request in proxy.writes() if request.plural == "fleetplans"]
    assert len(written) == 3  # one plan, its state, and the state of the one before


async def test_a_pool_counts_its_nodes_and_reports_an_invalid_spec(
    cluster: LiveCluster, proxy: FaultProxy, operator
) -> None:
    operator(advice=QUICK)
    await cluster.apply(_pool("h100", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}), GPU_POOLS)
    await cluster.apply(_pool("zz-h100-too", {"kubernetes.io/hostname": "gpu-1"}), GPU_POOLS)
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True")

    async def counted() -> Any:
        status = (await cluster.get(GPU_POOLS, "h100")).get("status") or {}
        return status if status.get("freeGPUs") == 63 or status.get("freeGPUs") == 64 else None

    status = await eventually(counted, 60)
    assert (status["nodes"], status["gpus"]) == (1, 64)
    assert status["conditions"][0]["status"] == "True"
    other = (await cluster.get(GPU_POOLS, "zz-h100-too"))["status"]
    assert other["conditions"][0]["reason"] == "Conflict"
    assert other["nodes"] == 0
    await proxy.quiet()


def _pool(name: str, selector: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": GPU_POOLS.api_version,
        "kind": GPU_POOLS.kind,
        "metadata": {"name": name},
        "spec": {"nodeSelector": selector, "pricePerGPUHour": "2.50"} | spec,
    }
