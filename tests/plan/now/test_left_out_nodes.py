"""Plans of fleets with left-out devices: new replicas do not use them, running ones keep them."""

import json
from dataclasses import replace

import pytest

from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.fleet import (
    WHOLE_GPU,
    ApplyDeployment,
    Claim,
    LeftOut,
    MIGLayout,
    MIGSlice,
    NodePartition,
    PartitionedGPU,
    PartitionView,
    Pool,
    Refusal,
)
from tangram.plan import plan, render_status
from tangram.plan.fleet_input.documents.snapshot_file import read_snapshot, snapshot_document
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.place.best.packing_problem import fleet_problem
from tangram.plan.recommend import recommend
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, whole_gpu_price, workload

PENDING = LeftOut("MIGChanging", "label nvidia.com/mig.config.state=pending: wait")
SHARED = LeftOut("Shared", "label nvidia.com/gpu.sharing-strategy=mps: stop sharing", "nvidia.com/gpu")
GPU = shape(WHOLE_GPU)


def changing(name, **offer):
    return replace(node(name, usable=False, **offer), left_out=(PENDING,))


def decided(observed, *owners):
    new_plan = plan(observed, owners, NOW)
    applied = {a.owner_uid: a.replicas for a in new_plan.actions if isinstance(a, ApplyDeployment)}
    return {d.owner_uid: d for d in new_plan.decisions}, applied


def running(owner, on, count):
    return {"workloads": (workload(owner, GPU, count),), "claims": claims(owner, GPU, on, count)}


def test_a_node_under_change_keeps_its_replicas_and_takes_no_new_ones():
    old, new = intent("old", min_replicas=2, max_replicas=4), intent("new")
    observed = snapshot(changing("n", gpu=8), **running(old, "n", 2))

    decisions, applied = decided(observed, old, new)

    assert (decisions[old.uid].placed, decisions[old.uid].placed_reason) == (2, "Placed")
    assert applied == {old.uid: 2}
    assert decisions[new.uid].placed == 0
    assert "devices of 1 node are left out: node n (label nvidia.com/mig.config.state=pending" in (
        decisions[new.uid].placed_message
    )


def test_replicas_keep_their_devices_on_a_node_with_nothing_allocatable():
    old, new = intent("old", min_replicas=2, max_replicas=2), intent("new")
    observed = snapshot(node("n"), node("m", gpu=1), **running(old, "n", 2))

    decisions, applied = decided(observed, old, new)

    assert (decisions[old.uid].placed, decisions[new.uid].placed) == (2, 1)
    assert applied == {old.uid: 2, new.uid: 1}


def test_shared_devices_are_not_free_and_a_shortage_names_the_reason():
    new = intent("new")
    decisions, applied = decided(snapshot(replace(node("n"), left_out=(SHARED,))), new)

    assert applied == {}
    assert SHARED.message in decisions[new.uid].placed_message


def test_a_message_names_only_nodes_that_the_llmdeployment_could_use():
    new = intent("new", pools=("p",))
    elsewhere = replace(node("n"), left_out=(SHARED,))
    decisions, _ = decided(snapshot(elsewhere, node("m", gpu=0), pools=(Pool("p", (("x", "y"),)),)), new)

    assert "left out" not in decisions[new.uid].placed_message


def test_pods_get_no_affinity_to_the_product_label_of_shared_gpus():
    new = intent("new")
    shared = replace(node("n"), product="NVIDIA-H100-80GB-HBM3-SHARED", usable=False, left_out=(SHARED,))
    new_plan = plan(snapshot(shared, node("m", gpu=1)), (new,), NOW)

    (applied,) = (a for a in new_plan.actions if isinstance(a, ApplyDeployment))
    assert applied.products == ("NVIDIA-H100-80GB-HBM3",)


def test_a_saved_snapshot_gives_the_same_plan():
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig.config.state": "pending"}
    changing_node = gpu_node(NodeFacts("n", labels, {"nvidia.com/gpu": "7"}, {"nvidia.com/gpu": "8"}), ())
    old = intent("old", min_replicas=2, max_replicas=2)
    observed = snapshot(changing_node, node("m", gpu=1), **running(old, "n", 2))

    again, owners = read_snapshot(json.loads(json.dumps(snapshot_document(observed, (old,)))), "f")

    assert (again, owners) == (observed, (old,))
    assert plan(again, owners, NOW) == plan(observed, (old,), NOW)


# --- what runs is placed and paid, wherever it runs

SLICE = shape("1g.10gb")
SLICES, WHOLE = {SLICE.resource: "7"}, {GPU.resource: "1"}
H100 = "NVIDIA-H100-80GB-HBM3"
HOUR = whole_gpu_price("H100-80GB-SXM")


def left_out(labels=(), offers=WHOLE, product=H100, **spec):
    labels = dict(labels) | ({"nvidia.com/gpu.product": product} if product else {})
    return gpu_node(NodeFacts("n", labels, offers, offers, **spec))


LEFT_OUT = {
    "cordoned": (SLICE, left_out(offers=SLICES, unschedulable=True)),
    "tainted": (GPU, left_out(taints=({"key": "team", "effect": "NoSchedule"},))),
    "held": (
        SLICE,
        left_out(offers=SLICES, taints=({"key": "hold.tangram.dev/mig-1g.10gb", "effect": "NoSchedule"},)),
    ),
    "MIG changes": (SLICE, left_out({"nvidia.com/mig.config.state": "pending"}, SLICES)),
    "driver upgrade": (GPU, left_out({"nvidia.com/gpu-driver-upgrade-state": "cordon-required"})),
    "shared, by the product": (GPU, left_out(product=f"{H100}-SHARED")),
    "shared, by the resource": (GPU, left_out({"nvidia.com/gpu.sharing-strategy": "time-slicing"})),
    "DRA": (GPU, left_out({"nvidia.com/dra-kubelet-plugin": "true"})),
    "no GPU": (GPU, left_out({"nvidia.com/gpu.present": "false"})),
    "labels gone": (GPU, left_out(product="")),
}


def status_of(decision, owner, observed):
    return render_status(decision, owner, observed, None, None, {}, NOW)


def serving(owner, at, *nodes, **changes):
    return snapshot(*nodes, claims=claims(owner, at, "n"), workloads=(workload(owner, at),), **changes)


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_replica_that_serves_is_placed_and_paid_whatever_leaves_its_device_out(case):
    at, node_of = LEFT_OUT[case]
    old, new = intent("old"), intent("new", created_at=NOW)
    observed = serving(old, at, node_of)

    decisions, applied = decided(observed, old, new)
    decision, status = decisions[old.uid], status_of(decisions[old.uid], old, observed)
    advised = recommend(observed, (old,))

    hour = HOUR * (1 if at is GPU else 1 / 7)
    assert (decision.placed_of_all_shapes, decision.placed_reason) == (1, "Placed")
    assert decision.cost_per_hour == pytest.approx(hour)
    assert status["placement"]["display"] == f"{at.described} x1"
    assert status["placement"]["placedReplicas"] == 1
    assert status["cost"] == {"perHour": f"{hour:.2f}"}
    assert node_of.left_out[0].message in decision.placed_message
    assert "if it ends, it needs a free" in decision.placed_message
    assert (decisions[new.uid].placed, new.uid in applied) == (0, False)
    assert advised.current_cost_per_hour == pytest.approx(HOUR)
    assert advised.document["costPerHour"] == pytest.approx(HOUR, abs=1e-5)
    assert (advised.document["gpusInUse"], advised.document["unmet"]) == (1, [])
    assert not advised.better


def test_a_replica_that_ends_on_a_cordoned_node_has_its_next_device():
    old = intent("old", min_replicas=2, max_replicas=2)
    cordoned = left_out(offers=SLICES, unschedulable=True)
    observed = snapshot(
        cordoned,
        node("m", mig_1g_10gb=1),
        claims=claims(old, SLICE, "n", 2),
        workloads=(workload(old, SLICE, 2),),
    )

    one_free = decided(observed, old)[0][old.uid].placed_message
    two_free = decided(replace(observed, nodes=(cordoned, node("m", mig_1g_10gb=2))), old)[0][old.uid]

    assert "2 replicas run where no new one is placed: node n (cordoned" in one_free
    assert "if they end, 1 of them needs a free 1g.10gb on H100-80GB-SXM, and there is none" in one_free
    assert "if they end, 2 1g.10gb on H100-80GB-SXM are free for them" in two_free.placed_message


def test_a_pod_that_terminates_or_is_on_a_lost_node_without_serving_is_not_placed():
    old = intent("old")
    leaving = Claim("n", SLICE.resource, 1, old.uid, leaves_at=NOW + 60)
    stopped = (workload(old, SLICE, available=0),)
    drained = snapshot(left_out(offers=SLICES, unschedulable=True), claims=(leaving,), workloads=stopped)
    lost = snapshot(left_out(offers=SLICES, ready=False), claims=claims(old, SLICE, "n"), workloads=stopped)

    for observed in (drained, lost):
        decision = decided(observed, old)[0][old.uid]
        assert (decision.placed, decision.cost_per_hour) == (0, 0.0)
        assert decision.placed_reason == "InsufficientCapacity"
        assert recommend(observed, (old,)).current_cost_per_hour == 0


LATER: dict[str, tuple[dict[str, object], str]] = {
    "paused": ({"paused": True}, "Paused"),
    "its PriorityClass is gone": ({"refusal": Refusal("PriorityClassNotFound", "gone")}, "NotAccepted"),
    "its SKU is excluded": ({"denied_skus": ("H100-80GB-SXM", "L4")}, "Infeasible"),
    "another checkpoint": ({"model_uri": "pvc://not/inspected"}, "WaitingForModel"),
    "its GPUPool is gone": ({"pools": ("gone",)}, "Placed"),
    "another SKU, which is full": ({"allowed_skus": ("L4",)}, "InsufficientCapacity"),
}


@pytest.mark.parametrize("case", LATER)
def test_a_replica_that_serves_is_placed_and_paid_whatever_the_spec_asks_for_later(case):
    changes, reason = LATER[case]
    old = intent("old", **changes)
    full = (node("m", "L4", gpu=1), *claims(None, shape(sku="L4"), "m"))
    observed = serving(old, SLICE, node("n", mig_1g_10gb=7), full[0])
    observed = replace(observed, claims=(*observed.claims, *full[1:]))

    decision = decided(observed, old)[0][old.uid]
    status = status_of(decision, old, observed)

    assert (decision.placed_of_all_shapes, decision.placed_reason) == (1, reason)
    assert decision.cost_per_hour == pytest.approx(HOUR / 7)
    assert status["placement"]["display"] == f"{SLICE.described} x1"
    assert (status["placement"]["placedReplicas"], status["cost"]["perHour"]) == (1, "0.44")


def test_a_cost_is_not_given_where_the_price_of_what_runs_is_not_known():
    at = shape(sku="GB200-186GB")
    old = intent("old")
    observed = serving(old, at, node("n", "GB200-186GB", gpu=1))

    decision = decided(observed, old)[0][old.uid]

    assert (decision.placed_of_all_shapes, decision.cost_per_hour) == (1, None)
    assert "cost" not in status_of(decision, old, observed)
    assert any("no cost counts" in note for note in recommend(observed, (old,)).document["notes"])


def test_a_plan_of_the_fleet_gives_nothing_new_on_a_node_that_is_left_out():
    old, new = intent("old"), intent("new", created_at=NOW)
    observed = serving(old, SLICE, left_out(offers=SLICES, unschedulable=True), node("m", mig_1g_10gb=1))

    document = recommend(observed, (old, new)).document

    where = {i["owner"]: gpu["node"] for gpu in document["gpus"] for i in gpu["instances"]}
    assert where == {"ns/old": "n", "ns/new": "m"}
    assert [slot for gpu in document["gpus"] if gpu["node"] == "n" for slot in gpu["free"]] == []


def test_a_plan_of_the_fleet_gives_the_place_of_a_surplus_replica_on_a_left_out_node_to_none():
    old, new = intent("old", max_replicas=3), intent("new", created_at=NOW)
    observed = snapshot(
        left_out(offers=SLICES, unschedulable=True),
        node("m", mig_1g_10gb=1),
        claims=(*claims(old, SLICE, "n", 2), *claims(old, SLICE, "m")),
        workloads=(workload(old, SLICE, 3),),
        desired=((old.uid, 1), (new.uid, 1)),
    )

    document = recommend(observed, (old, new)).document

    assert {gpu["node"] for gpu in document["gpus"]} == {"m"}


@pytest.mark.parametrize("backend", ["nvml", "mig-manager"])
def test_on_a_left_out_node_the_gpu_that_its_backend_knows_is_in_use(backend):
    old = intent("old")
    slices = tuple(MIGSlice(start, "1g.10gb") for start in range(7))
    held = ((2, "ns/p"),) if backend == "nvml" else ()
    gpus = tuple(
        PartitionedGPU(name, MIGLayout(mig_enabled=True, slices=slices), held=each)
        for name, each in (("GPU-1", ()), ("GPU-2", held))
    )
    partition = PartitionView((NodePartition("n", backend, gpus=gpus),))
    claim = Claim("n", SLICE.resource, 1, old.uid, pod="ns/p")
    observed = serving(old, SLICE, left_out(offers={SLICE.resource: "14"}, unschedulable=True))
    observed = replace(observed, claims=(claim,), partition=partition)

    (gpu,) = recommend(observed, (old,)).document["gpus"]

    start, name = (2, "GPU-2") if backend == "nvml" else (0, "GPU-1")
    assert (gpu["id"], gpu["inferred"], gpu["free"]) == (name, False, [])
    assert gpu["instances"] == [{"profile": "1g.10gb", "start": start, "owner": "ns/old"}]


def test_a_gpu_that_two_nodes_report_counts_once_and_there_is_a_plan():
    old = intent("old")
    whole = PartitionedGPU("GPU-1", MIGLayout(), held=((None, "ns/p"),))
    partition = PartitionView(
        (
            NodePartition("n", "nvml", gpus=(whole,)),
            NodePartition("m", "nvml", gpus=(replace(whole, held=()),)),
        )
    )
    claim = Claim("n", GPU.resource, 1, old.uid, pod="ns/p")
    cordoned = left_out(offers={GPU.resource: "1"}, unschedulable=True)
    observed = serving(old, GPU, cordoned, node("m", gpu=1))
    observed = replace(observed, claims=(claim,), partition=partition)

    assert [gpu["id"] for gpu in recommend(observed, (old,)).document["gpus"]] == ["GPU-1"]


def test_nodes_that_a_pool_may_grow_by_are_as_large_as_its_planned_ones():
    old = intent("old")
    labels = (("pool", "p"),)
    pool = Pool("p", labels, max_nodes=4)
    cordoned = replace(left_out(offers=SLICES, unschedulable=True), labels=labels)
    observed = serving(old, SLICE, cordoned, replace(node("m", gpu=8), labels=labels), pools=(pool,))

    (growable,) = fleet_problem(snapshot_input(observed, (old,))).problem.growable

    assert (growable.node_size, growable.max_nodes) == (8, 2)
