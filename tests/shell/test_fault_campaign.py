"""The operator is killed at any write of a rollout, and the API answers any write with a fault: same final
state.

The workload: an LLMDeployment appears, becomes ready, is moved to another GPU (a new variant beside the
old one, then the old one goes) and scaled. `WRITES` is what a run without faults writes; a learning pass
asserts that it is complete.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tangram.kube.kinds import FLEET_PLANS, LLM_DEPLOYMENTS, PODS
from tests.support.apiserver import LiveCluster, eventually, llm
from tests.support.fault_proxy import FaultProxy, Rule

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400)]

QUICK_LEASE = {"leaseSeconds": 3, "renewSeconds": 2, "retrySeconds": 0.5}

# (verb, plural, subresource): how many of the first such writes are tried, at least that many happen
WRITES = {
    ("create", "jobs", ""): 1,
    ("delete", "jobs", ""): 1,
    ("create", "services", ""): 1,
    ("apply", "deployments", ""): 2,
    ("delete", "deployments", ""): 1,
    ("apply", "llmdeployments", "status"): 4,
    ("create", "events", ""): 3,
    ("create", "fleetplans", ""): 1,
    ("apply", "fleetplans", "status"): 1,
}
POINTS = [(*write, nth) for write, most in WRITES.items() for nth in range(1, most + 1)]
KILLS = [(*point, act) for point in POINTS for act in ("kill-before", "kill-after", "kill-replied")]
ANSWERS = [
    ("status", 401),
    ("status", 404),
    ("status", 409),
    ("status", 429),
    ("status", 500),
    ("status", 503),
]
ANSWERS += [("reset", 0), ("lose-answer", 0), ("garbage", 0), ("truncate", 0)]
FAULTS = [(*point, act, code) for point in POINTS for act, code in ANSWERS]
# One of each in every run, to show that the campaign works; all of them in `make test-faults`.
SAMPLED_KILLS = {
    ("apply", "deployments", "", 2, "kill-before"),
    ("create", "fleetplans", "", 1, "kill-after"),
}
SAMPLED_FAULTS = {
    ("apply", "deployments", "", 1, "lose-answer", 0),
}


def _marked(cases: list, sample: set) -> list:
    def name(case: tuple) -> str:
        return "-".join(str(part) for part in case if part not in ("", 0))

    return [pytest.param(*c, id=name(c), marks=[] if c in sample else [pytest.mark.faults]) for c in cases]


async def workload(cluster: LiveCluster) -> None:
    """Appear, become ready, move to another GPU with two replicas, and be done."""
    await cluster.apply(llm("tiny", cluster.namespace))
    await cluster.until("tiny", "Ready", "True", within_s=60)
    first = await _sku(cluster)
    await cluster.apply(
        llm("tiny", cluster.namespace, placement={"deniedSKUs": [first]}, scaling={"minReplicas": 2})
    )
    await cluster.until("tiny", "Ready", "True", within_s=60)
    await eventually(lambda: _settled(cluster), 30, "one Deployment, two pods, no Job")
    await eventually(lambda: _planned(cluster), 60, "one FleetPlan counts, and has two replicas")


async def ends_like(reference: dict, cluster: LiveCluster) -> None:
    """Wait until the final state is that of the run without faults."""

    async def same() -> bool:
        return anonymous(await cluster.final_state(), cluster) == reference

    try:
        await eventually(same, 30)
    except AssertionError:
        assert anonymous(await cluster.final_state(), cluster) == reference


@pytest.fixture(scope="module")
def reference() -> dict:
    """The final state of the run without faults, filled by the first test that needs it."""
    return {}


async def _reference(reference: dict, cluster: LiveCluster, proxy: FaultProxy, operator) -> dict:
    if not reference:
        process = operator("reference", **_settings(cluster))
        await workload(cluster)
        await proxy.quiet()
        reference["state"] = anonymous(await cluster.final_state(), cluster)
        await process.stop()
        await cluster.empty()
    return reference["state"]


async def test_a_run_without_faults_makes_every_write_of_the_campaign(
    cluster: LiveCluster, proxy: FaultProxy, operator, reference: dict
) -> None:
    await _reference(reference, cluster, proxy, operator)
    writes = Counter((r.verb, r.plural, r.subresource) for r in proxy.writes())
    assert writes.keys() == WRITES.keys()
    assert all(writes[write] >= most for write, most in WRITES.items()), writes


@pytest.mark.parametrize(("verb", "plural", "subresource", "nth", "act"), _marked(KILLS, SAMPLED_KILLS))
async def test_an_operator_killed_at_a_write_reaches_the_same_state(
    cluster: LiveCluster,
    proxy: FaultProxy,
    operator,
    reference: dict,
    verb,
    plural,
    subresource,
    nth,
    act,
) -> None:
    expected = await _reference(reference, cluster, proxy, operator)
    rule = Rule(act, verb=verb, plural=plural, subresource=subresource, nth=nth)
    proxy.rules = [rule]
    process = operator(**_settings(cluster))
    proxy.kill = process.kill

    async def revived_once() -> bool:
        return process.starts == 2

    async with revived(process):
        await workload(cluster)
        await eventually(revived_once, 30, "the operator was killed and started again")
        await ends_like(expected, cluster)  # also where the last write of the workload was its last

    assert rule.hits >= nth, "the fault never happened"


@pytest.mark.parametrize(
    ("verb", "plural", "subresource", "nth", "act", "code"), _marked(FAULTS, SAMPLED_FAULTS)
)
async def test_a_failed_write_is_retried(
    cluster: LiveCluster,
    proxy: FaultProxy,
    operator,
    reference: dict,
    verb,
    plural,
    subresource,
    nth,
    act,
    code,
) -> None:
    expected = await _reference(reference, cluster, proxy, operator)
    rule = Rule(act, verb=verb, plural=plural, subresource=subresource, nth=nth, code=code, retry_after="1")
    proxy.rules = [rule]
    process = operator(**_settings(cluster))

    await workload(cluster)
    await ends_like(expected, cluster)

    assert rule.hits >= nth, "the fault never happened"
    assert process.alive()


@asynccontextmanager
async def revived(process) -> AsyncIterator[None]:
    """Start the operator again whenever it is dead, as the kubelet would."""

    async def forever() -> None:
        while True:
            if not process.alive():
                process.start()
            await asyncio.sleep(0.2)

    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _settings(cluster: LiveCluster) -> dict:
    return {"leaderElection": {"namespace": cluster.namespace, "name": "l"} | QUICK_LEASE}


def anonymous(state: dict, cluster: LiveCluster) -> dict:
    """A final state without the name of the test's namespace."""
    return json.loads(re.sub(cluster.namespace, "NAMESPACE", json.dumps(state)))


async def _sku(cluster: LiveCluster) -> str:
    return (await cluster.get(LLM_DEPLOYMENTS, "tiny"))["status"]["placement"]["sku"]


async def _settled(cluster: LiveCluster) -> bool:
    state = await cluster.final_state()
    return len(state["deployments"]) == 1 and not state["jobs"] and len(await cluster.all(PODS)) == 2


async def _planned(cluster: LiveCluster) -> bool:
    plans = await cluster.all(FLEET_PLANS)
    states = [(plan.get("status") or {}).get("state") for plan in plans]
    counting = [p for p, s in zip(plans, states, strict=True) if s in ("Recommended", "InForce")]
    chosen = [c for p in counting for d in p["spec"].get("deployments", ()) for c in d["chosen"]]
    return None not in states and len(counting) == 1 and sum(c["replicas"] for c in chosen) == 2
