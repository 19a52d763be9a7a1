"""From a GPUNode to wanted layouts, and from what the driver reports to the status of its GPUs."""

import pytest

from tangram.api.gpu_node import GPUNodeSpec, GPUNodeStatus, GPUStatus, InstanceHolder
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, layouts
from tangram.partition import ObservedInstance, ObservedLayout, WantedLayout
from tangram.partition.gpu_node import applied_display, gpu_status, layout_display, wanted_layouts

A, B = (f"GPU-00000000-0000-0000-0000-00000000000{letter}" for letter in "ab")
MIG_A, MIG_B, MIG_C = (f"MIG-00000000-0000-0000-0000-00000000000{letter}" for letter in "abc")
H100 = board("H100-80GB-SXM")
FOUR, THREE = Placement(0, "4g.40gb"), Placement(4, "3g.40gb")
CHAT = InstanceHolder(namespace="d", name="chat-0", uid="u")


def cut(gpu, *instances, index=0):
    modes = {"mig_enabled": True, "pending_mig_enabled": True}
    return ObservedLayout(gpu, index, "NVIDIA H100 80GB HBM3", H100, **modes, instances=instances)


def whole(gpu, **more):
    return ObservedLayout(gpu, 1, "NVIDIA H100 80GB HBM3", H100, **more)


def dumped(status):
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def test_a_spec_is_read_as_layouts_sorted_by_start():
    instances = [{"profile": "3g.40gb", "start": 4}, {"profile": "4g.40gb", "start": 0}]
    gpus = [{"id": A, "migEnabled": True, "instances": instances}, {"id": B, "migEnabled": False}]

    assert wanted_layouts(GPUNodeSpec.model_validate({"gpus": gpus})) == (
        WantedLayout(A, mig_enabled=True, placements=(FOUR, THREE)),
        WantedLayout(B, mig_enabled=False),
    )


def test_the_status_of_a_gpu_says_what_is_there_and_which_pod_holds_it():
    four = ObservedInstance(FOUR, (MIG_A,), memory_mib=40448)
    three = ObservedInstance(THREE, (MIG_B,), memory_mib=40448)

    assert dumped(gpu_status(cut(A, four, three), {MIG_A: CHAT})) == {
        "id": A,
        "index": 0,
        "product": "NVIDIA H100 80GB HBM3",
        "sku": "H100-80GB-SXM",
        "migMode": "Enabled",
        "instances": [
            {"uuid": MIG_A, "profile": "4g.40gb", "start": 0, "memoryMebibytes": 40448, "usage": "Held"}
            | {"holder": {"namespace": "d", "name": "chat-0", "uid": "u"}},
            {"uuid": MIG_B, "profile": "3g.40gb", "start": 4, "memoryMebibytes": 40448, "usage": "Free"},
        ],
    }


def test_a_process_or_an_unknown_pod_holds_an_instance_without_a_holder():
    four = ObservedInstance(FOUR, (MIG_A,), processes=(4711,))
    three = ObservedInstance(THREE, (MIG_B,))

    found = gpu_status(cut(A, four, three), {MIG_B: None})

    assert [(i.usage, i.holder) for i in found.instances] == [("Held", None), ("Held", None)]


def test_an_instance_that_was_cut_further_has_no_single_uuid_and_is_held_by_any_of_its_pods():
    shared = ObservedInstance(FOUR, (MIG_A, MIG_B), whole=False)

    (found,) = gpu_status(cut(A, shared), {MIG_B: CHAT}).instances

    assert (found.uuid, found.usage, found.holder) == (None, "Held", CHAT)


@pytest.mark.parametrize(
    ("layout", "holders", "mode", "pending", "usage"),
    [
        (whole(A), {}, "Disabled", None, "Free"),
        (whole(A), {A: CHAT}, "Disabled", None, "Held"),
        (whole(A, processes=(1,)), {}, "Disabled", None, "Held"),
        (whole(A, pending_mig_enabled=True), {}, "Disabled", "Enabled", "Free"),
        (cut(A), {}, "Enabled", None, None),
        (ObservedLayout(A, 0, "NVIDIA L4", None), {}, "Unsupported", None, "Free"),
    ],
    ids=["free", "pod", "process", "pending", "cut", "no-mig"],
)
def test_the_mode_and_use_of_a_gpu_are_told(layout, holders, mode, pending, usage):
    found = gpu_status(layout, holders)

    assert (found.mig_mode, found.pending_mig_mode, found.usage) == (mode, pending, usage)


def test_a_gpu_that_the_catalog_lacks_has_no_sku():
    assert gpu_status(ObservedLayout(A, 0, "NVIDIA X100", None)).sku is None


@pytest.mark.parametrize("layout", layouts(H100)[::50])
def test_the_status_of_every_layout_is_one_that_the_api_takes(layout):
    status = gpu_status(cut(A, *(ObservedInstance(placement, (MIG_C,)) for placement in layout)))

    read = GPUNodeStatus.model_validate({"gpus": [dumped(status)]})
    assert read.gpus == (GPUStatus.model_validate(dumped(status)),)


def test_equal_layouts_are_shown_together_the_most_frequent_first():
    four, three = ObservedInstance(FOUR, (MIG_A,)), ObservedInstance(THREE, (MIG_B,))

    assert layout_display([whole(A), cut(B, four, three), whole(B), cut(A)]) == (
        "2x gpu, 1x 4g.40gb+3g.40gb, 1x empty"
    )
    assert layout_display([]) == ""


def test_many_different_layouts_are_shown_as_far_as_they_fit():
    various = [cut(A, *(ObservedInstance(p) for p in layout)) for layout in layouts(H100)]

    assert layout_display(various).endswith("...")
    assert len(layout_display(various)) == 256


def test_gpus_that_are_as_wanted_are_counted_over_those_that_are_decided():
    four = ObservedInstance(FOUR, (MIG_A,))
    wanted = [
        WantedLayout(A, mig_enabled=True, placements=(FOUR,)),
        WantedLayout(B, mig_enabled=True, placements=(FOUR,)),
    ]

    assert applied_display(wanted, [cut(A, four), whole(B)]) == "1/2"
    assert applied_display(wanted, [cut(A, four)]) == "1/2"  # the other GPU is gone
    assert applied_display(wanted, [cut(A, ObservedInstance(FOUR, whole=False)), cut(B, four)]) == "1/2"
    assert applied_display([], [whole(A)]) == "0/0"
