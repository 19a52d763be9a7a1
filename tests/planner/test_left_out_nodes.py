"""Plans of fleets with left-out devices: new replicas do not use them, running ones keep them."""

import json
from dataclasses import replace

from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.fleet import WHOLE_GPU, ApplyDeployment, LeftOut, Pool
from tangram.planner import plan
from tangram.recommendation.documents.snapshot_file import read_snapshot, snapshot_document
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

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
