"""The client of the kubelet's pod-resources API, against a server with the real messages."""

import time

import pytest

from tangram.partition.agent import pod_resources
from tangram.partition.agent.pod_resources import PodResources, PodResourcesFailure
from tests.support.node_agent import Kubelet


@pytest.fixture
def kubelet(tmp_path):
    with Kubelet(tmp_path / "kubelet.sock").serving() as serving:
        yield serving


def held(kubelet, **more):
    return {
        device: (holder.namespace, holder.name)
        for device, holder in PodResources(kubelet.socket, **more).holders().items()
    }


def test_devices_of_gpus_and_slices_have_their_pods_and_other_devices_are_left_out(kubelet):
    kubelet.held = {("ml", "a"): ["GPU-1::3", "MIG-2"], ("web", "b"): ["MIG-3", "mlx5_0"], ("web", "c"): []}

    assert held(kubelet) == {"GPU-1": ("ml", "a"), "MIG-2": ("ml", "a"), "MIG-3": ("web", "b")}


def test_no_pods_hold_nothing(kubelet):
    assert held(kubelet) == {}


def test_an_error_of_the_kubelet_is_a_failure_and_not_an_empty_node(kubelet):
    kubelet.fails = True

    with pytest.raises(PodResourcesFailure, match="the kubelet starts"):
        held(kubelet)


def test_a_missing_socket_is_a_failure(tmp_path):
    with pytest.raises(PodResourcesFailure):
        PodResources(tmp_path / "none.sock", 1.0).holders()


def test_a_kubelet_that_does_not_answer_is_given_up(kubelet):
    kubelet.delay_s = 2.0
    began = time.monotonic()

    with pytest.raises(PodResourcesFailure, match="Deadline"):
        held(kubelet, deadline_s=0.2)

    assert time.monotonic() - began < 2.0


def test_an_answer_that_is_too_long_is_a_failure(kubelet, monkeypatch):
    monkeypatch.setattr(pod_resources, "LONGEST_MESSAGE", 1000)
    kubelet.held = {("ml", f"pod-{number}"): [f"MIG-{number}"] for number in range(200)}

    with pytest.raises(PodResourcesFailure, match="larger than max"):
        held(kubelet)
