"""The client of the kubelet's pod-resources API, against a server with the real messages."""

import time
from dataclasses import replace

import pytest

from tangram.packing.geometry.layouts import Placement
from tangram.partition.agent import pod_resources
from tangram.partition.agent.pod_resources import (
    DRIVERS_WITHOUT_GPUS,
    PodResources,
    PodResourcesFailure,
)
from tangram.partition.layouts import ObservedInstance, ObservedLayout
from tests.support.node_agent import Kubelet


@pytest.fixture
def kubelet(tmp_path):
    with Kubelet(tmp_path / "kubelet.sock").serving() as serving:
        yield serving


def held(kubelet, **more):
    return {
        device: (holder.namespace, holder.name)
        for device, holder in PodResources(kubelet.socket, **more).allocations().holders.items()
    }


def test_devices_of_gpus_and_slices_have_their_pods_and_other_devices_are_left_out(kubelet):
    kubelet.held = {("ml", "a"): ["GPU-1::3", "MIG-2"], ("web", "b"): ["MIG-3", "mlx5_0"], ("web", "c"): []}

    assert held(kubelet) == {"GPU-1": ("ml", "a"), "MIG-2": ("ml", "a"), "MIG-3": ("web", "b")}


def test_replicas_of_a_device_that_is_shared_in_time_count_as_the_device(kubelet):
    kubelet.held = {("ml", "a"): ["GPU-1::0"], ("ml", "b"): ["MIG-2::11"]}

    assert held(kubelet) == {"GPU-1": ("ml", "a"), "MIG-2": ("ml", "b")}


NVIDIA = "gpu.nvidia.com"
OWN_NAME = "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0"
WHOLE = ObservedLayout("GPU-1", 0, "NVIDIA H100 80GB HBM3", None)
CUT = replace(
    WHOLE,
    gpu="GPU-2",
    mig_enabled=True,
    instances=(
        ObservedInstance(Placement(0, "4g.40gb"), ("MIG-3",)),
        ObservedInstance(Placement(4, "3g.40gb")),
    ),
)


def pods_on_both(kubelet):
    holders = PodResources(kubelet.socket).allocations().among([WHOLE, CUT])
    return {device: holder.name for device, holder in holders.items()}


@pytest.mark.parametrize("driver", [NVIDIA, "gpu.example.com"])
def test_devices_of_claims_are_held_by_the_uuids_in_their_cdi_names(kubelet, driver):
    names = ["nvidia.com/gpu=GPU-1", "k8s.device-plugin.nvidia.com/gpu=MIG-3"]
    kubelet.claimed = {("ml", "a"): [(driver, names)]}

    assert pods_on_both(kubelet) == {"GPU-1": "a", "MIG-3": "a"}


@pytest.mark.parametrize(
    "names", [[OWN_NAME], ["nvidia.com/gpu=0"], ["nvidia.com/gpu=all"], ["GPU-1"], []], ids=str
)
@pytest.mark.parametrize("driver", [NVIDIA, "gpu.example.com", ""])
def test_a_claim_of_a_device_that_is_not_known_holds_all_gpus_and_slices(kubelet, driver, names):
    kubelet.claimed = {("ml", "a"): [(driver, names)]}
    kubelet.held = {("ml", "b"): ["GPU-1"]}

    assert pods_on_both(kubelet) == {"GPU-1": "b", "GPU-2": "a", "MIG-3": "a"}


def test_a_claim_of_which_one_device_is_known_and_one_is_not_holds_all(kubelet):
    kubelet.claimed = {("ml", "a"): [(NVIDIA, ["nvidia.com/gpu=GPU-1"]), (NVIDIA, [OWN_NAME])]}

    assert pods_on_both(kubelet) == {"GPU-1": "a", "GPU-2": "a", "MIG-3": "a"}


def test_claims_of_drivers_that_hand_out_no_gpus_hold_none(kubelet):
    kubelet.claimed = {("ml", "a"): [(driver, []) for driver in sorted(DRIVERS_WITHOUT_GPUS)]}

    assert pods_on_both(kubelet) == {}


def test_no_pods_hold_nothing(kubelet):
    assert held(kubelet) == {}


def test_an_error_of_the_kubelet_is_a_failure_and_not_an_empty_node(kubelet):
    kubelet.fails = True

    with pytest.raises(PodResourcesFailure, match="the kubelet starts"):
        held(kubelet)


def test_a_missing_socket_is_a_failure(tmp_path):
    with pytest.raises(PodResourcesFailure):
        PodResources(tmp_path / "none.sock", 1.0).allocations()


def test_a_kubelet_that_does_not_answer_is_given_up(kubelet):
    kubelet.delay_s = 30.0
    began = time.monotonic()

    with pytest.raises(PodResourcesFailure, match="Deadline"):
        held(kubelet, deadline_s=0.2)

    assert time.monotonic() - began < kubelet.delay_s / 2


def test_an_answer_that_is_too_long_is_a_failure(kubelet, monkeypatch):
    monkeypatch.setattr(pod_resources, "LONGEST_MESSAGE", 1000)
    kubelet.held = {("ml", f"pod-{number}"): [f"MIG-{number}"] for number in range(200)}

    with pytest.raises(PodResourcesFailure, match="larger than max"):
        held(kubelet)
