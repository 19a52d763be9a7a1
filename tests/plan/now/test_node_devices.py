"""Which devices of a node newcomers are given: one row per way in which a node says that they are not whole,
free and at rest. The healthy cases are what the stand-ins for silicon write.
"""

import pytest

from e2e.silicon.board import parse_machine
from e2e.silicon.labels import gfd_labels
from tangram.eligibility.devices.device_rules import LeftOutReason, NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node, holds_replicas, left_out_notes
from tangram.fleet.pod_requests import gpu_requests

GPU = "nvidia.com/gpu"
S1, S3 = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
H100 = "NVIDIA-H100-80GB-HBM3"
CUT = ["1g.10gb@0", "1g.10gb@1", "3g.40gb@4"]


def labels(*gpus, sku="H100-80GB-SXM", **more):
    name = {"name": "NVIDIA A10G"} if sku == "A10G" else {}
    machine = parse_machine({"sku": sku, "gpus": list(gpus)} | name, "n")
    return gfd_labels(machine, 1) | {key: str(value) for key, value in more.items()}


UNLABELLED = {"pool": "h100"}


def read(labels, allocatable, capacity=None, **facts):
    facts_of_node = NodeFacts("n", labels, allocatable, capacity or allocatable, **facts)
    return gpu_node(facts_of_node)


WHOLE_TWO = (labels({}, {}), {GPU: "2"})
MIXED = (labels({}, {"mig": CUT}), {GPU: "1", S1: "2", S3: "1"})


@pytest.mark.parametrize(
    ("labels", "allocatable"),
    [
        WHOLE_TWO,
        MIXED,
        (labels({"mig": CUT}), {GPU: "0", S1: "2", S3: "1"}),
        (
            labels({}, **{"nvidia.com/mig.config.state": "success", "nvidia.com/mig.config": "all-disabled"}),
            {GPU: 1},
        ),
        (labels({}, **{"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}), {GPU: 1}),
        (labels({}, **{"nvidia.com/gpu-driver-upgrade-state": "upgrade-required"}), {GPU: 1}),
        (labels({}, **{"nvidia.com/gpu.deploy.device-plugin": "true"}), {GPU: 1}),
        (labels({}, **{"nvidia.com/vgpu.present": "false", "nvidia.com/mig.strategy": "single"}), {GPU: 1}),
        ({"nvidia.com/gpu.product": H100}, {GPU: 8}),
    ],
)
def test_a_healthy_node_offers_all_its_devices(labels, allocatable):
    node = read(labels, allocatable)

    assert (node.usable, node.left_out, node.unhealthy) == (True, (), ())
    assert dict(node.allocatable) == {r: int(n) for r, n in allocatable.items() if int(n)}


def test_a_node_without_gpus_leaves_out_no_devices():
    assert read({"nvidia.com/gpu.present": "false"}, {}, unschedulable=True).left_out == ()


WHOLE_NODE = {
    "not ready": ({}, {}, {"ready": False}, LeftOutReason.NOT_READY, "not ready"),
    "cordoned": ({}, {}, {"unschedulable": True}, LeftOutReason.CORDONED, "kubectl uncordon"),
    "taint": (
        {},
        {},
        {"taints": ({"key": "team", "value": "ml", "effect": "NoSchedule"},)},
        LeftOutReason.TAINTED,
        "taint team=ml:NoSchedule",
    ),
    "GPU absent": (
        {"nvidia.com/gpu.present": "false"},
        {},
        {},
        LeftOutReason.NO_GPU,
        "nvidia.com/gpu.present=false",
    ),
    **{
        f"MIG {state}": (
            {"nvidia.com/mig.config.state": state},
            {},
            {},
            LeftOutReason.MIG_CHANGING,
            f"nvidia.com/mig.config.state={state}",
        )
        for state in ("pending", "rebooting", "failed")
    },
    **{
        pause: (
            {"nvidia.com/gpu.deploy.device-plugin": pause},
            {},
            {},
            LeftOutReason.PAUSED,
            f"nvidia.com/gpu.deploy.device-plugin={pause}",
        )
        for pause in ("paused-for-mig-change", "paused-for-driver-upgrade", "paused-for-vgpu-change")
    },
    **{
        state: (
            {"nvidia.com/gpu-driver-upgrade-state": state},
            {},
            {},
            LeftOutReason.DRIVER_UPGRADE,
            f"nvidia.com/gpu-driver-upgrade-state={state}",
        )
        for state in ("cordon-required", "pod-restart-required", "validation-required", "upgrade-failed")
    },
    "vGPU": (
        {"nvidia.com/vgpu.present": "true"},
        {},
        {},
        LeftOutReason.VIRTUAL,
        "nvidia.com/vgpu.present=true",
    ),
    "virtual machines": (
        {"nvidia.com/gpu.workload.config": "vm-passthrough"},
        {},
        {},
        LeftOutReason.VIRTUAL,
        "nvidia.com/gpu.workload.config=vm-passthrough",
    ),
    "less memory": (
        {"nvidia.com/gpu.memory": "20480"},
        {},
        {},
        LeftOutReason.VIRTUAL,
        "nvidia.com/gpu.memory=20480",
    ),
    "DRA": (
        {"nvidia.com/dra-kubelet-plugin": "true"},
        {},
        {},
        LeftOutReason.DRA,
        "nvidia.com/dra-kubelet-plugin=true",
    ),
    "MIG-INVALID": (
        {"nvidia.com/gpu.product": f"{H100}-MIG-INVALID", "nvidia.com/mig.strategy": "single"},
        {},
        {},
        LeftOutReason.MIG_INVALID,
        f"{H100}-MIG-INVALID",
    ),
    "strategy INVALID": (
        {"nvidia.com/mig.strategy": "INVALID"},
        {},
        {},
        LeftOutReason.MIG_INVALID,
        "nvidia.com/mig.strategy=INVALID",
    ),
    "strategy single": (
        {"nvidia.com/gpu.product": f"{H100}-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"},
        {},
        {},
        LeftOutReason.MIG_STRATEGY,
        f"{H100}-MIG-1g.10gb",
    ),
    "GKE partition": (
        {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"},
        {},
        {},
        LeftOutReason.MIG_STRATEGY,
        "cloud.google.com/gke-gpu-partition-size=1g.10gb",
    ),
    "product SHARED": (
        {"nvidia.com/gpu.product": f"{H100}-SHARED"},
        {},
        {},
        LeftOutReason.SHARED,
        f"{H100}-SHARED",
    ),
    "GKE sharing": (
        {"cloud.google.com/gke-max-shared-clients-per-gpu": "4"},
        {},
        {},
        LeftOutReason.SHARED,
        "cloud.google.com/gke-max-shared-clients-per-gpu=4",
    ),
    "unknown GPU": ({"nvidia.com/gpu.product": "Foo-9000"}, {}, {}, LeftOutReason.UNKNOWN, "Foo-9000"),
    "no product": (
        {"nvidia.com/gpu.product": ""},
        {},
        {},
        LeftOutReason.UNKNOWN,
        "no label nvidia.com/gpu.product",
    ),
    "two models under one label": ({}, {GPU: "5"}, {}, LeftOutReason.MIXED, "nvidia.com/gpu.count=2, and 5"),
    "whole GPUs of another model beside slices": (
        {},
        {GPU: "2", S1: "7"},
        {},
        LeftOutReason.MIXED,
        "nvidia.com/gpu.count=2, and 2",
    ),
    "a count that is none": (
        {},
        {GPU: "9" * 5000},
        {},
        LeftOutReason.UNKNOWN,
        "allocatable nvidia.com/gpu is '999",
    ),
}


@pytest.mark.parametrize("case", WHOLE_NODE)
def test_a_node_with_inconsistent_devices_takes_no_new_replicas(case):
    more, offered, facts, reason, words = WHOLE_NODE[case]
    node = read(WHOLE_TWO[0] | more, WHOLE_TWO[1] | offered, **facts)

    assert not node.usable
    assert reason in {left_out.reason for left_out in node.left_out}
    (note,) = (text for text in left_out_notes([node]) if words in text)
    assert note.startswith("left out: node n: ")


DEVICES = {
    "time-sliced A10G under its plain label": (
        labels({}, sku="A10G", **{f"{GPU}.sharing-strategy": "time-slicing", f"{GPU}.replicas": 10}),
        {GPU: "10"},
        {},
        LeftOutReason.SHARED,
        f"label {GPU}.sharing-strategy=time-slicing",
    ),
    "MPS": (
        labels({}, **{f"{GPU}.sharing-strategy": "mps", f"{GPU}.memory": 8155}),
        {GPU: "10"},
        {},
        LeftOutReason.SHARED,
        f"label {GPU}.sharing-strategy=mps",
    ),
    "replicas alone": (
        labels({}, **{f"{GPU}.replicas": 4}),
        {GPU: "4"},
        {},
        LeftOutReason.SHARED,
        f"{GPU}.replicas=4",
    ),
    "renamed": (
        labels({}),
        {f"{GPU}.shared": "4", GPU: "0"},
        {},
        LeftOutReason.SHARED,
        f"4 {GPU}.shared",
    ),
    "renamed, the old name still there": (
        labels({}),
        {f"{GPU}.shared": "4", GPU: "1"},
        {},
        LeftOutReason.SHARED,
        f"4 {GPU}.shared",
    ),
    "shared slices beside a whole GPU": (
        MIXED[0] | {f"{S1}.sharing-strategy": "time-slicing", f"{S1}.replicas": "3"},
        {GPU: "1", S1: "6", S3: "1"},
        {GPU: 1, S3: 1},
        LeftOutReason.SHARED,
        f"label {S1}.sharing-strategy=time-slicing",
    ),
    "renamed slices": (
        MIXED[0],
        {GPU: "1", f"{S1}.shared": "6", S3: "1"},
        {GPU: 1, S3: 1},
        LeftOutReason.SHARED,
        f"6 {S1}.shared",
    ),
    "more slices than the label counts": (
        MIXED[0],
        {GPU: "1", S1: "6", S3: "1"},
        {GPU: 1, S3: 1},
        LeftOutReason.MIXED,
        f"label {S1}.count=2, and 6",
    ),
    "slices of another model": (
        MIXED[0] | {f"{S1}.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"},
        {GPU: "1", S1: "2", S3: "1"},
        {GPU: 1, S3: 1},
        LeftOutReason.MIXED,
        f"label {S1}.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    ),
    "slices that the board has not": (
        labels({}, {}),
        {GPU: "1", "nvidia.com/mig-1g.5gb": "2"},
        {GPU: 1},
        LeftOutReason.MIXED,
        "nvidia.com/mig-1g.5gb is no slice of H100-80GB-SXM",
    ),
    "cut GPUs that strategy none offers whole": (
        labels({}, {}, **{"nvidia.com/mig.strategy": "none", "nvidia.com/mig.config": "all-1g.10gb"}),
        {GPU: "2"},
        {},
        LeftOutReason.MIG_STRATEGY,
        "nvidia.com/mig.strategy=none and nvidia.com/mig.config=all-1g.10gb",
    ),
    "MIG without instances": (
        labels({}, {}, {}),
        {GPU: "1"},
        {GPU: 1},
        LeftOutReason.NOT_OFFERED,
        "2 have MIG enabled",
    ),
}


@pytest.mark.parametrize("case", DEVICES)
def test_shared_or_mislabelled_devices_are_left_out_and_the_others_stay(case):
    labels, allocatable, usable, reason, words = DEVICES[case]
    node = read(labels, allocatable)

    assert (node.usable, dict(node.allocatable)) == (True, usable)
    assert {left_out.reason for left_out in node.left_out} == {reason}
    assert any(words in left_out.message for left_out in node.left_out)


def test_an_unhealthy_device_is_left_out_and_the_others_stay():
    node = read(MIXED[0], {GPU: "0", S1: "1", S3: "1"}, MIXED[1])

    assert (node.usable, dict(node.allocatable)) == (True, {S1: 1, S3: 1})
    assert dict(node.unhealthy) == {GPU: 1, S1: 1}
    assert [left_out.reason for left_out in node.left_out] == [LeftOutReason.UNHEALTHY] * 2
    assert any(f"{S1}: capacity 2, allocatable 1" in left_out.message for left_out in node.left_out)


def hold(resource, effect="NoSchedule"):
    return {"key": f"hold.tangram.dev/{resource}", "effect": effect}


@pytest.mark.parametrize(
    ("resource", "usable"),
    [
        ("mig-1g.10gb", {GPU: 1, S3: 1}),
        ("gpu", {S1: 2, S3: 1}),
        ("mig-7g.80gb", {GPU: 1, S1: 2, S3: 1}),  # which the node does not offer now
        ("mig-9g.90gb", {}),  # no engine tolerates a hold that its board does not know
    ],
)
def test_a_held_resource_takes_no_new_replicas_and_the_others_of_the_node_do(resource, usable):
    node = read(*MIXED, taints=(hold(resource),))

    assert (node.usable, dict(node.allocatable), holds_replicas(node)) == (True, usable, True)
    assert {left_out.reason for left_out in node.left_out} == {LeftOutReason.HELD}
    assert f"nvidia.com/{resource}" in {left_out.resource for left_out in node.left_out}
    assert f"left out: node n: taint hold.tangram.dev/{resource}: " in left_out_notes([node])[0]


def test_a_held_slice_stays_in_the_layout_of_its_gpu():
    node = read(*MIXED, taints=(hold("mig-1g.10gb"),))

    assert dict(node.unhealthy) == {S1: 2}


def test_a_held_resource_counts_once_on_a_node_that_is_left_out_as_a_whole():
    former = {GPU: "2", S1: "7"}  # the kubelet keeps slices of a former layout in the capacity
    node = read(WHOLE_TWO[0], {GPU: "2", S1: "0"}, former, taints=(hold("gpu"),))

    assert [left_out.reason for left_out in node.left_out] == [LeftOutReason.MIXED]
    assert (dict(node.allocatable), dict(node.unhealthy)) == ({GPU: 2}, {S1: 7})


def test_a_hold_that_evicts_is_a_taint_like_any_other():
    node = read(*MIXED, taints=(hold("mig-1g.10gb", "NoExecute"),))

    assert (node.usable, {left_out.reason for left_out in node.left_out}) == (False, {LeftOutReason.TAINTED})


def test_a_taint_by_the_name_of_a_slice_is_tolerated_by_engines_on_that_slice_alone():
    node = read(*MIXED, taints=({"key": S1, "effect": "NoSchedule"},))

    assert (node.usable, dict(node.allocatable), holds_replicas(node)) == (True, {S1: 2}, True)
    assert {(left_out.reason, left_out.resource) for left_out in node.left_out} == {
        (LeftOutReason.TAINTED, r) for r in (GPU, S3)
    }


@pytest.mark.parametrize(
    "taint",
    [
        {"key": GPU, "value": "present", "effect": "NoSchedule"},
        {"key": "sku", "value": "gpu", "effect": "NoSchedule"},
    ],
)
def test_nodes_with_a_usual_gpu_taint_are_usable(taint):
    assert read(*MIXED, taints=(taint,)).left_out == ()


@pytest.mark.parametrize(
    ("facts", "keeps"),
    [
        ({"ready": False}, False),
        ({"unschedulable": True}, False),
        ({"taints": ({"key": "x", "effect": "NoExecute"},)}, False),
        ({}, True),
    ],
)
def test_replicas_keep_their_devices_while_a_node_changes_but_not_when_it_goes_away(facts, keeps):
    pending = WHOLE_TWO[0] | {"nvidia.com/mig.config.state": "pending"}

    assert holds_replicas(read(pending, WHOLE_TWO[1], **facts)) is keeps


def test_a_reason_shared_by_many_nodes_is_one_sentence():
    labels = WHOLE_TWO[0] | {"nvidia.com/mig.config.state": "failed"}
    nodes = [gpu_node(NodeFacts(f"n{i}", labels, WHOLE_TWO[1], {}), ()) for i in range(9)]

    (note,) = left_out_notes(nodes)
    assert note.startswith("left out: nodes n0, n1, n2 and 6 more: label nvidia.com/mig.config.state=failed")


# --- devices that pods hold


def container(count=0, restart=None, resource=GPU):
    fields = {"resources": {"limits": {resource: str(count)} if count else {"cpu": "1"}}}
    return fields | ({"restartPolicy": restart} if restart else {})


ALWAYS = "Always"


@pytest.mark.parametrize(
    ("init", "containers", "held"),
    [
        ([], [container(1), container(2)], 3),
        ([container(2)], [container(1)], 2),  # an init container gives back what it had
        ([container(1)], [container(2)], 2),
        ([container(1, ALWAYS)], [container(2)], 3),  # a sidecar keeps it
        ([container(1, ALWAYS)], [container()], 1),
        ([container(1, ALWAYS), container(3)], [container(1)], 4),  # the sidecar runs beside it
        ([container(3), container(1, ALWAYS)], [container(1)], 3),  # the sidecar comes after it
        ([container(1, ALWAYS), container(1, ALWAYS)], [container(1)], 3),
        ([], [container(2, resource=f"{GPU}.shared")], 2),
    ],
)
def test_a_pod_holds_what_the_scheduler_counts(init, containers, held):
    assert gpu_requests({"initContainers": init, "containers": containers}) == {GPU: held}


def test_requests_without_limits_count_and_invalid_quantities_do_not():
    asks = {"resources": {"requests": {S1: 2, GPU: "-1", S3: "1k", "cpu": "8"}}}

    assert gpu_requests({"containers": [asks, None, {"resources": None}]}) == {S1: 2}


@pytest.mark.parametrize(
    ("labels", "allocatable", "usable"),
    [
        (UNLABELLED, {GPU: "8"}, {GPU: 8}),
        (UNLABELLED, {GPU: "1", S1: "2", S3: "1"}, {GPU: 1, S1: 2, S3: 1}),
        ({}, {S1: 7, GPU: 0}, {S1: 7}),
        (UNLABELLED | {"nvidia.com/gpu.count": "8"}, {GPU: 8}, {GPU: 8}),
        (UNLABELLED | {f"{S1}.product": f"{H100}-MIG-1g.10gb"}, {S1: 7}, {S1: 7}),
    ],
)
def test_a_node_without_the_product_label_has_the_gpus_that_its_pool_declares(labels, allocatable, usable):
    node = read(labels, allocatable, declared=("H100-80GB-SXM",))

    assert (node.sku, node.product, node.usable, node.left_out) == ("H100-80GB-SXM", "", True, ())
    assert dict(node.allocatable) == usable


def test_where_the_label_and_the_pool_disagree_the_label_counts():
    node = read({"nvidia.com/gpu.product": "NVIDIA-A10"}, {GPU: 4}, declared=("H100-80GB-SXM",))
    assert (node.sku, node.usable) == ("A10", True)

    unknown = read({"nvidia.com/gpu.product": "Tesla-K80"}, {GPU: 4}, declared=("H100-80GB-SXM",))
    assert (unknown.sku, unknown.usable) == (None, False)


@pytest.mark.parametrize(
    ("labels", "allocatable", "declared", "why", "words"),
    [
        ({}, {GPU: 8}, (), LeftOutReason.UNKNOWN, "or set sku in a GPUPool that selects the node"),
        (
            {},
            {GPU: 8},
            ("A10", "L4"),
            LeftOutReason.UNKNOWN,
            "its GPUPools declare A10 and L4; let one of them select it",
        ),
        ({}, {S1: 7}, ("A10",), LeftOutReason.MIXED, f"{S1} is no slice of A10"),
        (
            {f"{S1}.product": "NVIDIA-A30-MIG-1g.10gb"},
            {S1: 7},
            ("H100-80GB-SXM",),
            LeftOutReason.MIXED,
            "A30-MIG",
        ),
        (
            {"cloud.google.com/gke-gpu-partition-size": "1g.10gb"},
            *({GPU: 7}, ("H100-80GB-SXM",), LeftOutReason.MIG_STRATEGY, "are MIG slices"),
        ),
        (
            {"nvidia.com/gpu.memory": "10240"},
            {GPU: 7},
            ("A10",),
            LeftOutReason.VIRTUAL,
            "or correct sku in its GPUPool",
        ),
        (
            {"nvidia.com/gpu.replicas": "4"},
            {GPU: 8},
            ("A10",),
            LeftOutReason.SHARED,
            "several pods share each device",
        ),
        ({}, {f"{GPU}.shared": 8}, ("A10",), LeftOutReason.SHARED, "several pods share each device"),
    ],
)
def test_a_declared_model_replaces_only_the_product_label(labels, allocatable, declared, why, words):
    node = read(labels, allocatable, declared=declared)

    assert {left_out.reason for left_out in node.left_out} == {why}
    assert words in node.left_out[0].message
    assert not node.usable or not node.allocatable
