"""The status of a GPUPool: Ready, allocatable and free devices of its nodes; and how often it is written."""

from dataclasses import replace
from typing import Any

import pytest

from tangram.eligibility.devices.device_rules import LeftOutReason, NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.fleet import Claim, FleetSnapshot, LeftOut, Node, Pool
from tangram.shell.report.pool_status import StatusPacer, pool_statuses

NOW = 1_800_000_000.0
GPU, S1, S3 = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
POOL = Pool("p", (("pool", "p"),), sku="H100-80GB-SXM")
OBJECT: dict[str, Any] = {"metadata": {"name": "p", "uid": "uid-p", "generation": 4}, "spec": {}}
UNTOLERATED = {"key": "team", "value": "ml", "effect": "NoSchedule"}


def node(name: str = "n", offered: dict[str, int] | None = None, **facts: Any) -> Node:
    """A node without NVIDIA labels, unless `labels` has some."""
    offered = {GPU: 8} if offered is None else offered
    labels = {"pool": "p"} | facts.pop("labels", {})
    fields = {"allocatable": offered, "capacity": offered, "declared": ("H100-80GB-SXM",)} | facts
    return gpu_node(NodeFacts(name, labels, **fields), (), labels)


def status(*nodes: Node, obj: dict[str, Any] = OBJECT, now: float = NOW, **changes: Any) -> dict[str, Any]:
    snapshot = FleetSnapshot(nodes=nodes, pools=(POOL,), **changes)
    ((_, status_block),) = pool_statuses((obj,), snapshot, {}, now)
    return status_block


def ready(status_block: dict[str, Any]) -> tuple[str, str, str]:
    (condition,) = (candidate for candidate in status_block["conditions"] if candidate["type"] == "Ready")
    return condition["status"], condition["reason"], condition["message"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((), ("False", "NoNodes", "no GPU node has all labels of spec.nodeSelector")),
        ((node(),), ("True", "NodesReady", "its node is Ready and offers its GPUs")),
        ((node("a"), node("b")), ("True", "NodesReady", "all 2 nodes are Ready and offer their GPUs")),
        (
            tuple(node(name, ready=name > "d") for name in "abcde"),
            ("False", "NodesNotReady", "4 of 5 nodes are not Ready: a, b, c and 1 more"),
        ),
        (
            (node("a"), node("b", {GPU: 0})),
            ("False", "GPUsLeftOut", "1 of 2 nodes is Ready but does not offer all its GPUs: b"),
        ),
    ],
)
def test_ready_states_whether_nodes_are_ready_and_offer_their_gpus(nodes, expected) -> None:
    assert ready(status(*nodes)) == expected


@pytest.mark.parametrize(
    ("gpu_node", "words"),
    [
        (node("a", {GPU: 6}, capacity={GPU: 8}), "capacity 8, allocatable 6: 2 unhealthy"),
        (node("a", labels={f"{GPU}.replicas": "4"}), "several pods share each device"),
        (node("a", declared=()), "no label nvidia.com/gpu.product"),
        (
            replace(
                node("a"),
                left_out=(LeftOut(LeftOutReason.NOT_OFFERED, "offers 0, 8 fewer than before", GPU),),
            ),
            "8 fewer than before",
        ),
    ],
)
def test_gpus_that_a_ready_node_does_not_offer_are_reported_with_the_reason(
    gpu_node: Node, words: str
) -> None:
    verdict, reason, message = ready(status(gpu_node))

    assert (verdict, reason) == ("False", "GPUsLeftOut")
    assert words in message


@pytest.mark.parametrize("away", [{"unschedulable": True}, {"taints": (UNTOLERATED,)}])
def test_a_cordoned_or_tainted_node_is_ready_and_has_no_free_devices(away) -> None:
    status_block = status(node("a"), node("b", **away))

    assert ready(status_block)[:2] == ("True", "NodesReady")
    assert "left out: node b" in ready(status_block)[2]
    assert (status_block["allocatable"], status_block["free"]) == ({GPU: 16}, {GPU: 8})


def test_allocatable_and_free_devices_are_counted_by_resource() -> None:
    cut = node("b", {GPU: 1, S1: 7, S3: 0})
    held = (Claim("a", GPU, 3, None), Claim("b", S1, 2, "uid-one"), Claim("c", GPU, 1, None))

    status_block = status(node("a"), cut, node("c", ready=False), claims=held)

    assert status_block["allocatable"] == {GPU: 9, S1: 7}
    assert status_block["free"] == {GPU: 6, S1: 5}
    assert (status_block["nodes"], status_block["gpus"]) == (3, 8 + 2 + 8)


def test_a_pool_whose_nodes_offer_nothing_has_no_map_of_devices() -> None:
    assert not {"allocatable", "free"} & status(node(offered={})).keys()


def test_pods_that_hold_more_than_a_node_offers_leave_zero_free_devices() -> None:
    status_block = status(node("a", {GPU: 1}, capacity={GPU: 2}), claims=(Claim("a", GPU, 2, None),))

    assert (status_block["allocatable"], status_block["free"]) == ({GPU: 1}, {GPU: 0})


@pytest.mark.parametrize(
    ("gpu_node", "gpus"),
    [
        (node(offered={S1: 7}), 1),
        (node(offered={S1: 8, S3: 3}), 3),
        (node(offered={GPU: 6}, capacity={GPU: 8}), 8),
        (node(offered={S1: 3}, labels={f"{GPU}.count": "8"}), 8),
        (node(offered={GPU: 0}, labels={f"{GPU}.count": "8"}), 8),
    ],
)
def test_a_gpu_counts_once_if_it_is_sliced_unhealthy_or_without_device_plugin(
    gpu_node: Node, gpus: int
) -> None:
    assert status(gpu_node)["gpus"] == gpus


def test_an_unchanged_condition_keeps_its_time_and_messages_are_bounded() -> None:
    first = status(node("a"))
    again = status(node("a"), obj=OBJECT | {"status": first}, now=NOW + 60)
    assert again == first

    many = tuple(node(f"{'x' * 60}-{i}", labels={f"{GPU}.replicas": str(i + 2)}) for i in range(40))
    later = status(*many, obj=OBJECT | {"status": first}, now=NOW + 60)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in later["conditions"]}
    assert times["Accepted"] == first["conditions"][0]["lastTransitionTime"] != times["Ready"]
    assert max(len(condition["message"]) for condition in later["conditions"]) == 2000


def paced(pacer: StatusPacer, before: dict[str, Any], status: dict[str, Any], now: float) -> dict[str, Any]:
    return pacer.paced(OBJECT | {"status": before}, status, now)


def test_a_changed_status_is_written_at_once_and_then_at_most_every_fifteen_seconds() -> None:
    pacer = StatusPacer()
    first, two, three = ({"observedGeneration": 4, "free": {GPU: n}} for n in (1, 2, 3))

    assert paced(pacer, first, two, 100.0) == two
    assert paced(pacer, two, three, 101.0) == two
    assert paced(pacer, two, three, 114.9) == two
    assert paced(pacer, two, three, 115.0) == three


def test_a_node_that_flaps_each_second_causes_four_writes_a_minute() -> None:
    pacer, live, writes = StatusPacer(), {}, 0
    for second in range(60):
        new_status = {
            "observedGeneration": 4,
            "conditions": [{"type": "Ready", "status": str(second % 2 == 0)}],
        }
        written = paced(pacer, live, new_status, float(second))
        writes, live = writes + (written != live), written

    assert writes <= 5


def test_the_status_of_a_new_spec_is_written_at_once_and_deleted_pools_are_forgotten() -> None:
    pacer = StatusPacer()
    old, new = {"observedGeneration": 3}, {"observedGeneration": 4}
    assert paced(pacer, {}, old, 100.0) == old
    assert paced(pacer, old, new, 100.1) == new

    pacer.forget(set())
    assert paced(pacer, new, new | {"nodes": 1}, 100.2)["nodes"] == 1
