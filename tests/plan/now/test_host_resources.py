"""CPU and memory of the host: requested within the operator's limits, and counted as they are rendered."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram import catalog
from tangram.eligibility.acceptance import acceptance
from tangram.eligibility.host_resources import over_limit
from tangram.fleet import (
    BUNDLED,
    WHOLE_GPU,
    ApplyDeployment,
    HostResources,
    Intent,
    MIGPolicy,
    Plan,
    PodNeeds,
    QuotaLimit,
    Shape,
)
from tangram.fleet.quantity import parse_quantity
from tangram.plan import plan
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.offers.fleet_shapes import fleet_shapes
from tangram.plan.offers.host_capacity import HostCapacity, largest_hosts
from tangram.plan.place.now.quotas import pod_amounts
from tangram.runtimes.runtime import RuntimeRequest
from tangram.shell.objects.engine_pod import engine_template
from tangram.shell.settings import EnginePodSettings, Settings
from tests.support.fleet import NOW, intent, node, snapshot

GIB = 2.0**30
NEEDS = PodNeeds(8.0, 64 * GIB, max_cpu_per_gpu=16.0, max_memory_per_gpu=128 * GIB)
SETTINGS = Settings(
    engine_image="e", engine=EnginePodSettings(max_cpu_per_gpu="16", max_memory_per_gpu="128Gi")
)
SHAPES = tuple(
    Shape(sku, profile)
    for sku in catalog.skus()
    for profile in (WHOLE_GPU, *(p.name for p in catalog.gpu(sku).profiles))
)
SLICES = {"mig_1g_10gb": 2, "mig_3g_40gb": 2}


def asking(cpu: float | None = None, memory_gib: float | None = None, **changes: object) -> Intent:
    resources = HostResources(
        None if cpu is None else int(cpu * 1000), None if memory_gib is None else int(memory_gib * 1024)
    )
    return replace(intent("m", **changes), resources=resources)


def planned(demand: Intent, **changes: object) -> Plan:
    fleet = snapshot(node("whole", gpu=2), node("cut", **SLICES), pod_needs=NEEDS, **changes)
    return plan(fleet, (demand,), NOW)


@given(
    st.sampled_from(SHAPES),
    st.none() | st.integers(500, 1_024_000),
    st.none() | st.integers(2048, 16 << 20),
)
def test_quotas_count_the_requests_of_pods(shape: Shape, cpu: int | None, memory: int | None) -> None:
    demand = replace(intent("m"), resources=HostResources(cpu, memory))
    action = ApplyDeployment("u", shape, 1, ("p",), 4096)

    pod = engine_template(demand, action, SETTINGS, {})["spec"]["containers"][0]["resources"]
    counted = pod_amounts(demand.resources, shape, SETTINGS.pod_needs)

    assert pod["requests"] == pod["limits"]  # QoS Guaranteed
    for resource in ("cpu", "memory"):
        for name in (resource, f"requests.{resource}", f"limits.{resource}"):
            assert counted[name] == pytest.approx(parse_quantity(pod["limits"][resource]), rel=1e-12)


def test_a_request_equal_to_the_default_is_allowed_without_a_limit() -> None:
    needs = Settings(engine_image="e").pod_needs
    for shape in SHAPES:
        usual = pod_amounts(HostResources(), shape, needs)
        cpu, memory = round(usual["cpu"] * 1000), round(usual["memory"] / 2**20)
        share = catalog.share(shape.sku, shape.profile)

        assert over_limit(HostResources(cpu, memory), needs, share, "x") == ""
        assert "requests.cpu" in over_limit(HostResources(cpu + 1, None), needs, share, "x")
        assert "requests.memory" in over_limit(HostResources(None, memory + 1), needs, share, "x")


def test_a_shape_whose_share_of_the_limit_is_too_small_is_rejected_with_both_numbers() -> None:
    cheapest = planned(asking()).decisions[0]
    (decision,) = planned(asking(cpu=6, memory_gib=20)).decisions

    assert cheapest.shape.profile == "1g.10gb"
    assert decision.shape.profile == "3g.40gb"
    lost = {a.shape.profile: a for a in decision.alternatives}["1g.10gb"]
    assert lost.rejected_because == "NotAllowed"
    assert "requests.cpu is 6, the operator's settings allow 2286m on" in lost.message
    assert "requests.memory is 20Gi, the operator's settings allow 18725Mi on" in lost.message


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        (
            asking(cpu=17),
            "engine.resources.requests.cpu is 17, the operator's settings allow 16 on a whole GPU",
        ),
        (
            asking(memory_gib=256),
            "requests.memory is 256Gi, the operator's settings allow 128Gi on a whole GPU",
        ),
        (
            asking(cpu=65, tensor_parallel=(1, 4)),
            "requests.cpu is 65, the operator's settings allow 64 on 4 whole GPUs",
        ),
    ],
    ids=["cpu", "memory", "cpu of several GPUs"],
)
def test_a_request_above_the_limit_of_every_shape_is_not_accepted(demand: Intent, expected: str) -> None:
    new_plan = planned(demand)

    (decision,) = new_plan.decisions
    assert (decision.accepted, decision.accepted_reason) == (False, "AboveLimit")
    assert expected in decision.accepted_message
    assert "request less, or let an administrator raise the setting" in decision.accepted_message
    assert new_plan.actions == ()


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"tensor_parallel": (1, 4)}, 64),
        ({"runtime": RuntimeRequest("vllm")}, 128),
        ({"runtime": RuntimeRequest(BUNDLED), "tensor_parallel": (1, 4)}, 16),
        ({"mig": MIGPolicy.REQUIRED, "tensor_parallel": (1, 4)}, 16),
        ({}, 16),
    ],
    ids=["by the spec", "any on a runtime", "bundled engine", "slices", "nothing is said"],
)
def test_limits_are_those_of_all_gpus_that_a_replica_may_have(spec: dict[str, Any], cpu: int) -> None:
    first, second = (replace(asking(amount), **spec) for amount in (cpu, cpu + 1))

    assert acceptance((first,), NEEDS)[first.uid].accepted
    assert acceptance((second,), NEEDS)[second.uid].reason == "AboveLimit"


def test_without_limits_in_a_file_any_amount_is_accepted() -> None:
    new_plan = plan(snapshot(node("n", gpu=1)), (asking(cpu=900, memory_gib=9000),), NOW)

    assert new_plan.decisions[0].accepted


@pytest.mark.parametrize(
    ("resource", "hard", "expected"), [("requests.cpu", 50, 4), ("limits.memory", 70 * GIB, 3)]
)
def test_a_quota_allows_as_many_replicas_as_their_requests_fit(
    resource: str, hard: float, expected: int
) -> None:
    quota = QuotaLimit("ns", "q", resource, float(hard), 0.0)
    demand = asking(cpu=12, memory_gib=20, min_replicas=1, max_replicas=8)
    fleet = snapshot(node("n", gpu=8), pod_needs=NEEDS, quotas=(quota,), desired=((demand.uid, 8),))

    (decision,) = plan(fleet, (demand,), NOW).decisions

    assert decision.placed == expected
    assert "ResourceQuota q" in decision.placed_message


def test_a_recommended_plan_uses_no_shape_that_the_operator_would_not() -> None:
    fleet = snapshot(node("whole", gpu=2), node("cut", **SLICES), pod_needs=NEEDS)

    def profiles(demand: Intent) -> set[str]:
        (deployment,) = snapshot_input(fleet, (demand,)).deployments
        return {
            offer.shape.profile
            for offer in fleet_shapes(deployment, ("H100-80GB-SXM",), {"H100-80GB-SXM": 3.0}).serving
        }

    assert "1g.10gb" in profiles(asking())
    few = profiles(asking(cpu=6))
    assert few >= {"gpu", "3g.40gb"}
    assert not few & {"1g.10gb", "1g.20gb", "2g.20gb"}


def on_hosts(demand: Intent, *hosts: tuple[float | None, float | None], **changes: object) -> Plan:
    """Plan on nodes of one GPU each, with these cores and GiB."""
    nodes = (
        replace(node(f"n{i}", gpu=1), host_cpu=cores, host_memory=None if memory is None else memory * GIB)
        for i, (cores, memory) in enumerate(hosts)
    )
    return plan(snapshot(*nodes, pod_needs=PodNeeds(8.0, 64 * GIB), **changes), (demand,), NOW)


@pytest.mark.parametrize("host", [(8, 64), (None, 64), (8, None), (None, None)])
def test_a_pod_whose_requests_fit_on_a_node_or_may_fit_is_placed(host) -> None:
    (decision,) = on_hosts(asking(), (4, 32), host).decisions

    assert decision.placed_reason == "Placed"


def test_a_pod_that_fits_on_no_node_is_explained_with_its_requests_and_the_largest_nodes() -> None:
    fleet = ((4, 512), (96, 32), (95, 32), (4, 256))
    (decision,) = on_hosts(asking(cpu=12, memory_gib=48), *fleet).decisions

    assert decision.shape is None
    assert decision.placed_reason == "Infeasible"
    assert (
        "a pod requests 12 cores and 48Gi memory, and no node with H100-80GB-SXM has both:"
        " the largest has 96 cores and 32Gi memory, 4 cores and 512Gi memory" in decision.placed_message
    )


def test_thousands_of_slightly_different_hosts_are_one_host() -> None:
    hosts = (HostCapacity((), 96.0, 512 * GIB - i) for i in range(3000))

    assert largest_hosts(hosts) == (HostCapacity((), 96.0, 512 * GIB),)
