"""A device plugin restart costs no replica its device; devices that stay away are lost, with the reason."""

from dataclasses import replace
from typing import Literal

import pytest

from tangram.fleet import (
    ApplyDeployment,
    LeftOut,
    MIGLayout,
    MIGSlice,
    Node,
    NodePartition,
    PartitionedGPU,
    RemoveDeployment,
)
from tangram.plan import plan
from tangram.shell.snapshot.offered_devices import WITHHELD_S, OfferedDevices
from tests.support.fleet import NOW, claims, intent, node, shape, snapshot, workload

GPU, WHOLE, L4 = "nvidia.com/gpu", shape(), shape(sku="L4")
GONE = NOW + WITHHELD_S


def offering(count: int, unhealthy: int = 0) -> Node:
    gpu_node = node("n1", gpu=count)
    offered = ((GPU, count),) if count else ()
    return replace(gpu_node, allocatable=offered, unhealthy=((GPU, unhealthy),) if unhealthy else ())


def looked(*looks: tuple[float, Node]) -> Node:
    memory = OfferedDevices()
    for at, observed in looks:
        (remembered,) = memory.remember([observed], at)
    return remembered


# --- devices that are remembered


@pytest.mark.parametrize("unhealthy", [0, 8], ids=["capacity gone", "capacity kept"])
def test_devices_that_a_node_stops_offering_are_withheld_for_five_minutes(unhealthy: int) -> None:
    away = offering(0, unhealthy)
    assert looked((NOW, offering(8)), (NOW + 1, away)).withheld == ((GPU, 8),)
    assert looked((NOW, offering(8)), (NOW + 1, away), (GONE, away)).withheld == ((GPU, 8),)
    assert looked((NOW, offering(8)), (NOW + 1, away), (GONE + 1, away)).withheld == ()


def test_a_node_that_offers_its_devices_again_withholds_none() -> None:
    looks = ((NOW, offering(8)), (NOW + 1, offering(0)), (NOW + 60, offering(8)))
    assert looked(*looks) == offering(8)
    assert looked(*looks, (GONE + 60, offering(0))).withheld == ((GPU, 8),)


def test_a_restarted_operator_reads_withheld_devices_from_the_capacity() -> None:
    assert looked((NOW, offering(0, 8))).withheld == ((GPU, 8),)
    assert looked((NOW, offering(0, 8)), (GONE, offering(0, 8))).withheld == ()
    assert looked((NOW, offering(0))).withheld == ()


def test_a_failed_device_does_not_hide_a_later_device_plugin_restart() -> None:
    failed = offering(7, 1)
    looks = ((NOW, offering(8)), (NOW + 1, failed), (GONE + 1, failed))
    assert looked(*looks).withheld == ()
    assert looked(*looks, (GONE + 99, offering(0, 8))).withheld == ((GPU, 7),)


def test_devices_withheld_too_long_are_lost_and_node_and_resource_are_named() -> None:
    (note,) = looked((NOW, offering(8)), (NOW + 1, offering(0)), (GONE + 1, offering(0))).left_out
    assert isinstance(note, LeftOut)
    assert (note.reason, note.resource) == ("NotOffered", GPU)
    assert "offers 0 nvidia.com/gpu, 8 fewer than before" in note.message


def test_gpus_with_a_new_mig_layout_are_not_withheld() -> None:
    cut = node("n1", mig_1g_10gb=7)
    remembered = looked((NOW, offering(1)), (NOW + 1, offering(0)), (NOW + 30, cut), (GONE + 31, cut))
    assert remembered == cut


CUT = MIGLayout(mig_enabled=True, slices=tuple(MIGSlice(start, "1g.10gb") for start in range(7)))


def cut_gpu(backend: Literal["nvml", "mig-manager"] = "nvml", *, is_known: bool = True) -> NodePartition:
    gpus = (PartitionedGPU("GPU-0", CUT if is_known else MIGLayout(), is_known=is_known),)
    return NodePartition("n1", backend, is_applied=True, is_current=True, gpus=gpus)


@pytest.mark.parametrize("backend", ["nvml", "mig-manager"])
def test_a_gpu_that_was_cut_is_not_withheld_from_then_on(backend: Literal["nvml", "mig-manager"]) -> None:
    memory, cut = OfferedDevices(), node("n1", mig_1g_10gb=7)
    memory.remember([offering(1)], NOW)

    assert memory.remember([cut], NOW + 30, [cut_gpu(backend)]) == (cut,)
    (away,) = memory.remember([offering(0)], NOW + 60, [cut_gpu(backend)])  # the device plugin restarts
    assert away.withheld == (("nvidia.com/mig-1g.10gb", 7),)


@pytest.mark.parametrize(
    "partition",
    [
        cut_gpu("mig-manager", is_known=False),
        replace(cut_gpu(), problem="of another node"),
    ],
)
def test_where_layouts_are_not_known_devices_are_withheld(partition: NodePartition) -> None:
    memory = OfferedDevices()
    memory.remember([offering(1)], NOW)

    (away,) = memory.remember([offering(0)], NOW + 30, [partition])

    assert away.withheld == ((GPU, 1),)


def test_an_unusable_node_withholds_nothing_and_is_remembered() -> None:
    away = replace(offering(0), usable=False, left_out=(LeftOut("NotReady", "is not ready"),))
    assert looked((NOW, offering(8)), (NOW + 1, away)) == away
    assert looked((NOW, offering(8)), (NOW + 1, away), (GONE + 99, offering(0))).withheld == ((GPU, 8),)


def test_a_deleted_node_is_forgotten() -> None:
    memory = OfferedDevices()
    memory.remember([offering(8)], NOW)
    memory.remember([], NOW + 1)
    assert memory.remember([offering(0)], NOW + 2) == (offering(0),)


def test_a_clock_set_back_withholds_devices_for_one_more_period_at_most() -> None:
    looks = ((NOW, offering(8)), (NOW + 1, offering(0)), (NOW - 9e6, offering(0)))
    assert looked(*looks).withheld == ((GPU, 8),)
    assert looked(*looks, (NOW - 9e6 + WITHHELD_S, offering(0))).withheld == ()


# --- plans with withheld devices

M = intent("m", uri="image:///m/8b", min_replicas=3)
SPARE = node("n2", "L4", gpu=4)


def restarting(running: int, seconds: float, offered: int = 3):
    """A Deployment of three runs on a node that offered `offered` GPUs and none since; four L4 are free."""
    memory = OfferedDevices()
    memory.remember([offering(offered), SPARE], NOW)
    memory.remember([offering(0), SPARE], NOW + 1)
    return snapshot(
        *memory.remember([offering(0), SPARE], NOW + 1 + seconds),
        workloads=(workload(M, WHOLE, 3, available=running),),
        claims=claims(M, WHOLE, "n1", running),
        desired_of=((M.uid, WHOLE),),
    )


def moves(new_plan) -> list[object]:
    """Actions that start or end a Deployment, or change its replicas."""
    applied = [a for a in new_plan.actions if isinstance(a, ApplyDeployment)]
    return [a for a in applied if (a.shape, a.replicas) != (WHOLE, 3)] + [
        a for a in new_plan.actions if isinstance(a, RemoveDeployment)
    ]


def decision(new_plan, uid: str = M.uid):
    return next(d for d in new_plan.decisions if d.owner_uid == uid)


@pytest.mark.parametrize("seconds", [0, 60, 299, 301, 90_000])
def test_running_replicas_hold_their_devices_whatever_the_node_offers(seconds: float) -> None:
    new_plan = plan(restarting(3, seconds), (M,), NOW)

    assert moves(new_plan) == []
    assert (decision(new_plan).placed_reason, decision(new_plan).placed) == ("Placed", 3)


@pytest.mark.parametrize("running", [0, 1, 2])
def test_an_expected_replica_keeps_its_device_while_a_device_plugin_restarts(running: int) -> None:
    new_plan = plan(restarting(running, 60), (M,), NOW)

    assert moves(new_plan) == []
    assert decision(new_plan).placed == 3


@pytest.mark.parametrize("running", [0, 1, 2])
def test_devices_that_do_not_return_are_lost_and_reported(running: int) -> None:
    new_plan = plan(restarting(running, WITHHELD_S), (M,), NOW)
    assert [action.shape for action in moves(new_plan)] == [L4]

    stuck = replace(M, allowed_skus=("H100-80GB-SXM",))
    message = decision(plan(restarting(running, WITHHELD_S), (stuck,), NOW)).placed_message
    assert "node n1 (offers 0 nvidia.com/gpu, 3 fewer than before" in message


def test_withheld_devices_are_not_given_to_new_replicas() -> None:
    new = intent("new", uri="image:///m/8b", allowed_skus=("H100-80GB-SXM",))
    grown = replace(M, max_replicas=5)
    observed = replace(restarting(2, 60, offered=8), desired=((M.uid, 5),))
    new_plan = plan(observed, (grown, new), NOW)

    assert decision(new_plan).placed == 3
    assert decision(new_plan, new.uid).placed == 0


def test_a_withheld_device_is_reserved_once() -> None:
    other = intent("other", uri="image:///m/8b", min_replicas=2, created_at=NOW)
    observed = restarting(1, 60)
    with_other = replace(observed, workloads=(*observed.workloads, workload(other, WHOLE, 2, available=0)))
    new_plan = plan(with_other, (M, other), NOW)

    whole = [d.placed for d in new_plan.decisions if d.shape == WHOLE]
    assert sum(whole) <= 3


def test_devices_that_become_shared_are_not_withheld() -> None:
    shared = LeftOut("Shared", "label nvidia.com/gpu.sharing-strategy=mps", GPU)
    after = replace(offering(0), left_out=(shared,))

    remembered = looked((NOW, offering(8)), (NOW + 1, after), (NOW + 2, after))

    assert (remembered.withheld, remembered.left_out) == ((), (shared,))
