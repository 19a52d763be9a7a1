"""What the operator makes of a GPUNode that was edited by hand, is of another version, or of another backend.

An agent that hangs, refuses or is not there is a problem of its node: no plan begins there, and its GPUPool
tells why. A spec that no GPU can have promises no devices.
"""

import copy
from typing import Any

import pytest

from tangram.api.gpu_node import DEFAULT_STATUS
from tangram.fleet import FleetSnapshot, NodePartition
from tangram.kube.kinds import Object
from tangram.plan.repartition import ReleaseNode, RepartitionLimits, next_step
from tangram.shell.repartition.fleet_state import Recommended, fleet_state, hold_value, plan_objects
from tangram.shell.report.pool_status import pool_statuses
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.watch import kept_fields
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.apiserver import gpu_node
from tests.support.gpu_nodes import GPU_A, GPU_B, STATUS, WHEN, condition

NOW = 1_800_000_000.0
SETTINGS = Settings.model_validate({"engineImage": "engine"})
UNKNOWN_GPU = "GPU-00000000-0000-0000-0000-0000000000ff"
ILLEGAL = [("4g.40gb", 0), ("4g.40gb", 4)]  # the second one would reach past the end of the board
TAINT = {"key": "hold.tangram.dev/gpu", "effect": "NoSchedule", "value": hold_value(NOW - 9, NOW + 60)}


def reported(**changes: Any) -> Object:
    """The GPUNode of node n1: one uncut H100, and an agent that runs."""
    gpu = {"id": GPU_A, "index": 0, "sku": "H100-80GB-SXM", "migMode": "Disabled", "usage": "Free"}
    conditions = [condition("Ready", "True", "Running"), condition("Applied", "True", "AsWanted")]
    status = {"observedGeneration": 3, "nodeUID": "node-uid", "backend": "NVML", "gpus": [gpu]}
    meta = {"name": "n1", "uid": "uid", "generation": 3, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {}, "status": status | {"conditions": conditions} | changes}


def wanting(*gpus: tuple[str, list[tuple[str, int]]], **changes: Any) -> Object:
    """A GPUNode of which somebody wrote the spec, and its GPU is not as wanted."""
    conditions = [condition("Ready", "True", "Running"), condition("Applied", "False", "Unmade")]
    found = reported(**{"conditions": conditions} | changes)
    for gpu, instances in gpus:
        wanted = [{"profile": profile, "start": start} for profile, start in instances]
        listed = found["spec"].setdefault("gpus", [])
        listed.append({"id": gpu, "migEnabled": True, "instances": wanted})
    return found


def pool(backend: str = "NVML") -> Object:
    spec = {"nodeSelector": {"pool": "p"}, "migPolicy": "IdleOnly", "backend": backend}
    return {"metadata": {"name": "p", "uid": "uid-p", "generation": 1}, "spec": spec}


def observed(gpu_node_object: Object, backend: str = "NVML", node_uid: str = "node-uid") -> FleetSnapshot:
    raw = gpu_node("n1", 1)
    raw["metadata"] |= {"uid": node_uid}
    raw["metadata"]["labels"] |= {"nvidia.com/gpu.count": "1", "pool": "p"}
    raw["status"]["nodeInfo"] = {}
    view = MirrorView(
        nodes=(kept_fields.node(raw),), gpu_nodes=(gpu_node_object,), gpu_pools=(pool(backend),)
    )
    return fleet_snapshot(view, SETTINGS, NOW)


def partition(gpu_node_object: Object, backend: str = "NVML", node_uid: str = "node-uid") -> NodePartition:
    (found,) = observed(gpu_node_object, backend, node_uid).partition.nodes
    return found


def step(gpu_node_object: Object, *taints: dict[str, str]) -> Any:
    node = {"metadata": {"name": "n1"}, "taints": list(taints), "allocatable": {"nvidia.com/gpu": "1"}}
    known = Recommended(nodes=frozenset({"n1"}))
    snapshot = observed(gpu_node_object)
    world = fleet_state(snapshot, (), [node], [], plan_objects([]), known, RepartitionLimits(), NOW)
    return next_step(world)


def test_a_gpu_node_as_it_should_be_has_no_problem():
    assert partition(reported()).problem == ""
    assert partition(reported()).is_applied


@pytest.mark.parametrize(
    "spec",
    [
        [(GPU_A, ILLEGAL)],
        [(GPU_A, [("7g.80gb", 0), ("1g.10gb", 3)])],
        [(GPU_A, [("9g.9000gb", 15)])],
        [(GPU_A, [("1g.10gb", start) for start in range(16)])],
        [(UNKNOWN_GPU, [("1g.10gb", 0)])],
    ],
    ids=["past the end", "overlapping", "unknown profile", "huge", "unknown GPU"],
)
def test_a_spec_by_hand_that_no_gpu_can_have_promises_no_devices_and_no_write_keeps_it(spec):
    found = wanting(*spec)

    assert step(found).coming == ()
    assert step(found).targets == ()
    assert partition(found).wanted == ()  # from which the next spec is written


def test_a_legal_layout_by_hand_is_expected_and_kept():
    found = wanting((GPU_A, [("4g.40gb", 0), ("3g.40gb", 4)]), (UNKNOWN_GPU, []))

    assert [device.resource for device in step(found).coming] == [
        "nvidia.com/mig-3g.40gb",
        "nvidia.com/mig-4g.40gb",
    ]
    assert [gpu for gpu, _ in partition(found).wanted] == [GPU_A]


def test_the_wanted_layout_of_a_gpu_in_quarantine_is_kept_even_while_the_gpu_is_away():
    held = {
        "uuid": GPU_B,
        "reason": "GPULost",
        "message": "fell off the bus",
        "since": WHEN,
    }

    found = partition(wanting((GPU_B, [("1g.10gb", 0)]), quarantine=[held]))

    assert [gpu for gpu, _ in found.wanted] == [GPU_B]


def test_the_layout_of_a_gpu_that_the_catalog_lacks_is_left_to_its_backend():
    gpu = {"id": GPU_A, "index": 0, "migMode": "Disabled", "usage": "Free"}

    assert partition(wanting((GPU_A, ILLEGAL), gpus=[gpu])).wanted != ()


@pytest.mark.parametrize("field", ["spec", "status"])
def test_fields_of_a_newer_version_are_left_out(field):
    newer = copy.deepcopy(reported())
    newer[field]["addedLater"] = {"x": 1}
    newer["status"]["gpus"][0]["addedLater"] = 7

    assert partition(newer) == partition(reported())


BY_ANOTHER_VERSION = [
    {"gpus": [{"id": GPU_A, "index": 0, "migMode": "Sharded"}]},
    {"conditions": [condition("Ready", "Perhaps", "Running")]},
    {"gpus": "many"},
    {"backend": "DRA"},
]


@pytest.mark.parametrize("changes", BY_ANOTHER_VERSION, ids=["mode", "condition", "type", "backend"])
def test_a_status_that_another_version_wrote_is_a_problem_that_names_the_field(changes):
    found = partition(reported(**changes))

    assert found.problem.startswith("GPUNode n1 is invalid: status.")
    assert next(iter(changes)) in found.problem
    assert (found.gpus, found.wanted) == ((), ())


def test_a_hold_outlasts_a_status_that_cannot_be_read_until_its_end():
    """The agent may be at work; of a GPUNode that can be read, a hold that no plan needs is lifted."""
    unreadable = reported(gpus=[{"id": GPU_A, "index": 0, "migMode": "Sharded"}])

    assert step(unreadable, TAINT).actions == ()
    assert step(reported(), TAINT).actions == (ReleaseNode("n1", "nvidia.com/gpu"),)
    over = TAINT | {"value": hold_value(NOW - 99, NOW - 1)}
    assert step(unreadable, over).actions == (ReleaseNode("n1", "nvidia.com/gpu"),)


PROBLEMS = [
    ({"conditions": [condition("Ready", "False", "DriverHangs")]}, "NVML", "DriverHangs: in a sentence"),
    (
        {"conditions": [condition("Ready", "False", "DriverUnavailable")]},
        "NVML",
        "DriverUnavailable: in a sentence",
    ),
    *(
        (
            {"conditions": [condition("Ready", "True", "Running"), condition("Applied", "False", reason)]},
            "NVML",
            f"{reason}: in a sentence",
        )
        for reason in ("InvalidSpec", "BackendConflict", "ComponentsPaused", "SharedDevices")
    ),
    ({"nodeUID": "another"}, "NVML", "the status of GPUNode n1 is about a node that no longer exists"),
    (DEFAULT_STATUS, "NVML", "no partition backend has reported about node n1 yet"),
    ({"conditions": []}, "NVML", "no partition backend has reported about node n1 yet"),
    (
        {},
        "MIGManager",
        "BackendConflict: GPUPool p says MIGManager, and NVML reports about node n1",
    ),
    (
        {"backend": "MIGManager"},
        "NVML",
        "BackendConflict: GPUPool p says NVML, and MIGManager reports about node n1",
    ),
]


@pytest.mark.parametrize(("changes", "backend", "problem"), PROBLEMS)
def test_a_backend_that_changes_nothing_is_a_problem_and_its_gpu_pool_tells_it(changes, backend, problem):
    snapshot = observed(reported(**changes), backend)

    assert snapshot.partition.nodes[0].problem.startswith(problem)
    ((_, status),) = pool_statuses((pool(backend),), snapshot, {}, NOW)
    (ready,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("True", "NoGPUIsCut")  # pods run there all the same
    assert f"no GPU is cut on 1 of 1 nodes: n1: {problem}" in ready["message"]


@pytest.mark.parametrize("policy", ["Ignore", "IdleOnly"])
def test_a_gpu_pool_that_is_not_to_be_cut_tells_no_problem_of_it(policy):
    spec = {"nodeSelector": {"pool": "p"}, "migPolicy": policy} | (
        {"backend": "NVML"} if policy == "Ignore" else {}
    )
    quiet = pool() | {"spec": spec}
    snapshot = observed(reported(conditions=[condition("Ready", "False", "DriverHangs")]))
    parsed = fleet_snapshot(MirrorView(gpu_pools=(quiet,)), SETTINGS, NOW).pools

    ((_, status),) = pool_statuses((quiet,), _with_pools(snapshot, parsed), {}, NOW)

    assert "no GPU is cut" not in str(status)


def _with_pools(snapshot: FleetSnapshot, pools: Any) -> FleetSnapshot:
    return FleetSnapshot(nodes=snapshot.nodes, pools=pools, partition=snapshot.partition)


def test_a_node_that_came_back_as_another_one_is_not_current_and_no_device_of_the_former_one_comes():
    """Same name, another UID and other GPUs; the GPUNode still has the spec and the status of the former."""
    found = wanting((GPU_A, [("4g.40gb", 0), ("3g.40gb", 4)]))

    back = partition(found, node_uid="came-back")

    assert back.problem == "the status of GPUNode n1 is about a node that no longer exists"
    assert not back.is_current
    assert not back.is_applied


def test_every_field_of_a_status_is_understood():
    assert partition({**reported(), "status": {**STATUS, "nodeUID": "node-uid"}}).problem == ""
