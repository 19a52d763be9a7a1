"""Quota of Kueue by slice: read from its objects, and kept by plans."""

from dataclasses import replace

from tangram.fleet import (
    Claim,
    FactsKey,
    MIGLayout,
    MIGSlice,
    NodePartition,
    PartitionedGPU,
    PartitionView,
    Pool,
    PoolPolicy,
    PromisedSlices,
)
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.recommend import plan_fleet
from tangram.plan.result.layout_changes import layout_changes
from tangram.shell.snapshot.promised_slices import promised_slices
from tangram.shell.watch.kept_fields import cluster_queue, resource_flavor
from tangram.shell.watch.mirror_view import MirrorView
from tests.support.fleet import CHECKPOINTS, IMAGE, intent, node, snapshot

SLICE = "nvidia.com/mig-1g.10gb"
UUID = "GPU-00000000-0000-0000-0000-000000000000"


def queue(*resources, flavor="mig"):
    listed = [{"name": name, "nominalQuota": amount} for name, amount in resources]
    spec = {"resourceGroups": [{"flavors": [{"name": flavor, "resources": listed}]}]}
    return cluster_queue({"metadata": {"name": "team"}, "spec": spec})


def view(*queues, labels):
    flavor = resource_flavor({"metadata": {"name": "mig"}, "spec": {"nodeLabels": labels}})
    nodes = tuple({"metadata": {"name": name, "labels": {"pool": name}}} for name in ("a", "b"))
    return MirrorView(nodes=nodes, cluster_queues=queues, resource_flavors=(flavor,))


def test_quota_counts_on_the_nodes_of_its_flavor():
    granted = queue((SLICE, 4), ("nvidia.com/gpu", 8), ("cpu", "40"))

    assert promised_slices(view(granted, labels={"pool": "a"})) == (PromisedSlices(("a",), SLICE, 4),)
    assert promised_slices(view(granted, labels={})) == (PromisedSlices(("a", "b"), SLICE, 4),)


def test_quota_of_unknown_flavors_and_other_resources_is_left_out():
    assert cluster_queue({"metadata": {"name": "team"}, "spec": {"resourceGroups": []}}) is None
    assert queue(("cpu", "40")) is None
    assert promised_slices(view(queue((SLICE, 4), flavor="other"), labels={})) == ()
    assert promised_slices(view(queue((SLICE, 0)), labels={})) == ()


def test_a_queue_that_cannot_be_read_costs_no_other_one():
    skipped = []
    listed = (queue((SLICE, "many")), queue((SLICE, "2")))
    found = promised_slices(view(*listed, labels={}), lambda obj, _error: skipped.append(obj))

    assert [each.count for each in found] == [2]
    assert skipped == [listed[0]]


def recut(promised, claims=()):
    """The small slices after the plan of a GPU with three of them; a model needs the place of one."""
    model = intent("chat", "image:///m/70b", tpot=None)
    layout = MIGLayout(True, tuple(MIGSlice(start, "1g.10gb") for start in (0, 1, 6)))
    held = tuple((start, "team/job") for start, _ in zip((0, 1, 6), claims, strict=False))
    part = NodePartition(
        "a", "nvml", "", True, True, (PartitionedGPU(UUID, layout, "H100-80GB-SXM", held=held),)
    )
    seen = snapshot(
        replace(node("a", mig_1g_10gb=3), gpus=1, labels=(("pool", "x"),)),
        claims=tuple(claims),
        facts=((FactsKey("ns", model.model_uri, IMAGE), CHECKPOINTS["image:///m/8b"]),),
        desired=((model.uid, 1),),
        pools=(Pool("x", (("pool", "x"),), policy=PoolPolicy.FULL, backend="nvml"),),
        partition=PartitionView((part,), promised=promised),
    )
    planned = plan_fleet(snapshot_input(seen, (model,)))
    (change,), _ = layout_changes(planned.fleet, planned.packing, seen, planned.document["steps"])
    return [part for part in change.changes[0].after.slices if part.profile == "1g.10gb"]


def test_a_plan_cuts_no_promised_slice_away():
    assert len(recut(())) == 2
    assert len(recut((PromisedSlices(("a",), SLICE, 3),))) == 3


def test_what_others_use_already_counts_as_promised():
    used = (Claim("a", SLICE, 1, None, pod="team/job"),)

    assert len(recut((PromisedSlices(("a",), SLICE, 1),), used)) == len(recut((), used))
