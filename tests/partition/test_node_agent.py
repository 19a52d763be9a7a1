"""What a node agent does to its GPUs, and what it says of them: the real pynvml on a simulated driver."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from e2e.silicon.nvml import state as simulated
from e2e.silicon.nvml.library import installed
from tangram import __version__
from tangram.kube.client import ApiError
from tangram.packing.geometry.layouts import Placement
from tangram.partition.agent.device_plugin import RESTART_S
from tangram.partition.agent.driver_thread import DriverHangs
from tangram.partition.agent.loop import FREED_PAUSE_S, FREED_TRIES, RESTART_ROUND_S
from tangram.partition.status.attempts import (
    FAILURES_BEFORE_QUARANTINE,
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
)
from tests.support.node_agent import START, AgentNode, Killed

H100 = "H100-80GB-SXM"
FOUR, THREE, TWO = Placement(0, "4g.40gb"), Placement(4, "3g.40gb"), Placement(4, "2g.20gb")


@pytest.fixture
def node(request, tmp_path) -> Iterator[AgentNode]:
    """A node of the parameters; else with an uncut H100."""
    gpus = getattr(request, "param", None) or [{}]
    built = AgentNode(tmp_path, H100, *gpus)
    with installed(built.link), built.kubelet.serving():
        yield built


def with_gpus(*gpus):
    return pytest.mark.parametrize("node", [list(gpus)], indirect=True, ids=["gpus"])


def cut(*placements):
    return {"mig": [f"{placement.profile}@{placement.start}" for placement in placements]}


def test_an_uncut_gpu_is_cut_and_the_device_plugin_is_restarted(node):
    node.want(FOUR, THREE)

    node.settle()

    assert node.layout() == ["4g.40gb@0", "3g.40gb@4"]
    assert [name for kind, name in node.objects.log if kind == "deleted"] == ["plugin-0"]
    assert node.objects.condition()["status"] == "True"
    assert node.objects.condition("Ready")["status"] == "True"
    assert node.objects.status["appliedDisplay"] == "1/1"
    assert node.objects.status["layoutDisplay"] == "1x 4g.40gb+3g.40gb"
    assert node.objects.status["backendVersion"] == __version__
    assert (node.objects.status["nodeUID"], node.objects.status["bootID"]) == ("node-uid", "boot-1")
    assert [i["usage"] for i in node.objects.status["gpus"][0]["instances"]] == ["Free", "Free"]


def test_each_operation_comes_after_a_status_that_announces_it(node):
    node.want(FOUR, THREE)

    node.settle()

    before = node.objects.log[: node.objects.log.index(("nvml", "nvmlDeviceSetMigMode"))]
    assert before == [("status", "Applying")]
    reasons = [name for kind, name in node.objects.log if kind == "status"]
    assert list(dict.fromkeys(reasons)) == ["Applying", "DevicePluginRestarting", "AsWanted"]


def test_in_steady_state_nothing_is_written_and_no_restart_changes_that(node):
    node.want(FOUR, THREE)
    node.settle()
    written = len(node.objects.log)

    for _ in range(3):
        node.now += timedelta(hours=1)
        assert not node.agent().round()

    assert len(node.objects.log) == written


def watched(node):
    """The copies that watches show once they are up to date."""
    return node.objects.obj, node.objects.node_obj


def test_a_round_in_which_nothing_is_due_reads_watched_copies_and_calls_no_api_server(node):
    node.want(FOUR, THREE)
    node.settle()
    agent = node.agent()
    agent.copies = lambda: watched(node)
    node.objects.api_fails = True  # a read would fail

    assert not agent.round(from_copies=True)


def test_what_a_round_by_copies_would_do_rests_on_the_objects_as_they_are(node):
    node.want(FOUR, THREE)
    node.settle()
    spec = json.loads(json.dumps(node.objects.obj))
    node.objects.write_spec({"gpus": []})  # the copies still show the spec before
    agent = node.agent()
    agent.copies = lambda: (spec | {"spec": {"gpus": [{"id": node.gpus[0], "migEnabled": False}]}}, spec)
    made = len(node.changes())

    agent.round(from_copies=True)

    assert len(node.changes()) == made
    assert node.objects.status["observedGeneration"] == 3


def test_copies_that_lag_behind_the_own_status_write_nothing(node):
    node.want(FOUR, THREE)
    node.settle()
    old = json.loads(json.dumps(node.objects.obj))
    old["status"]["conditions"][0]["reason"] = "InUse"
    written = len(node.objects.log)
    agent = node.agent()
    agent.copies = lambda: (old, node.objects.node_obj)

    assert not agent.round(from_copies=True)

    assert len(node.objects.log) == written


def test_a_holder_is_published_by_a_round_that_began_with_copies(node):
    node.want(FOUR, THREE)
    node.settle()
    node.kubelet.held = {("ml", "chat-0"): [node.device(THREE)]}
    agent = node.agent()
    agent.copies = lambda: watched(node)

    agent.round(from_copies=True)

    assert node.objects.status["gpus"][0]["instances"][1]["usage"] == "Held"


def test_a_driver_that_hangs_in_a_round_by_copies_is_published(node):
    node.settle()
    node.driver_deadline_s = 0.5
    node.fail("nvmlDeviceGetMigMode", hangs=True)
    agent = node.agent()
    agent.copies = lambda: watched(node)

    with pytest.raises(DriverHangs):
        agent.round(from_copies=True)

    assert node.objects.condition("Ready")["reason"] == "DriverHangs"
    node.link.released.set()


def test_the_next_round_is_due_when_a_back_off_ends_and_soon_while_the_device_plugin_restarts(node):
    node.want(FOUR)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "IN_USE")
    agent = node.agent()
    while node.objects.reason != "BackOff":
        agent.round()
    agent.round()
    assert agent.due_s == FIRST_BACK_OFF_S

    node.now += timedelta(seconds=agent.due_s)
    node.objects.plugin_returns = False
    while agent.round():
        pass
    assert (node.objects.reason, agent.due_s) == ("DevicePluginRestarting", RESTART_ROUND_S)

    node.now += timedelta(seconds=RESTART_S)  # past the deadline, it is a matter for a person
    agent.round()
    assert agent.due_s is None


def test_without_a_wanted_layout_nothing_is_touched_whatever_the_node_offers(node):
    node.objects.node_obj["status"]["allocatable"] = {"nvidia.com/gpu": "4"}  # shared in time

    node.settle()

    assert node.changes() == []
    assert [kind for kind, _ in node.objects.log] == ["status"]
    assert node.objects.status["gpus"][0]["usage"] == "Free"


@with_gpus(cut(FOUR, THREE))
def test_what_a_pod_holds_is_never_destroyed_even_before_its_process_starts(node):
    node.kubelet.held = {("ml", "chat-0"): [node.device(THREE)]}
    node.want(FOUR, TWO)

    node.settle()

    assert node.layout() == ["4g.40gb@0", "3g.40gb@4"]
    applied = node.objects.condition()
    assert (applied["reason"], applied["waitsFor"]) == ("InUse", "Pod ml/chat-0")
    assert applied["deadline"] > applied["since"]
    holders = [i.get("holder") for i in node.objects.status["gpus"][0]["instances"]]
    assert holders == [None, {"namespace": "ml", "name": "chat-0"}]

    node.kubelet.held = {}
    node.settle()

    assert node.layout() == ["4g.40gb@0", "2g.20gb@4"]


@with_gpus(cut(FOUR, THREE), {})
def test_a_claim_whose_device_is_not_known_keeps_every_gpu_of_the_node_as_it_is(node):
    node.kubelet.claimed = {("ml", "trainer"): [("gpu.nvidia.com", ["k8s.gpu.nvidia.com/claim=1-gpu-0"])]}
    node.want(FOUR)
    node.want(FOUR, gpu=1)

    node.settle()

    assert node.changes() == []
    assert (node.objects.reason, node.objects.condition()["waitsFor"]) == ("InUse", "Pod ml/trainer")
    cut_gpu, whole_gpu = node.objects.status["gpus"]
    assert [i["usage"] for i in cut_gpu["instances"]] == ["Held", "Held"]
    assert (whole_gpu["usage"], whole_gpu["holder"]["name"]) == ("Held", "trainer")

    node.kubelet.claimed = {}
    node.settle()

    assert (node.layout(), node.layout(1)) == (["4g.40gb@0"], ["4g.40gb@0"])


@with_gpus(cut(FOUR, THREE))
def test_a_claim_that_the_kubelet_lists_after_the_operation_was_announced_stops_it(node):
    node.want(FOUR)
    apply_status = node.objects.apply_status

    def claim_then_write(version, status):
        node.kubelet.claimed = {("ml", "trainer"): [("gpu.nvidia.com", [])]}
        apply_status(version, status)

    node.objects.apply_status = claim_then_write
    node.settle()

    assert node.changes() == []
    assert node.objects.reason == "InUse"


def test_a_gpu_that_pods_share_in_time_is_held_and_not_cut(node):
    node.kubelet.held = {("ml", "notebook"): [f"{node.gpus[0]}::3"]}
    node.want(FOUR)

    node.settle()

    assert node.changes() == []
    assert (node.objects.reason, node.objects.condition()["waitsFor"]) == ("InUse", "Pod ml/notebook")
    assert node.objects.status["gpus"][0]["usage"] == "Held"


@with_gpus(cut(FOUR, THREE))
def test_what_a_process_uses_is_never_destroyed(node):
    pid = node.link.change(simulated.start_process, node.device(THREE))
    node.want(FOUR)

    node.settle()

    assert node.layout() == ["4g.40gb@0", "3g.40gb@4"]
    assert node.objects.condition()["waitsFor"].startswith(f"process {pid} ")


@with_gpus(cut(FOUR, THREE))
def test_holders_are_read_again_immediately_before_a_destroy(node):
    node.want(FOUR)
    device, write = node.device(THREE), node.objects.apply_status

    def allocate_meanwhile(version, status):
        write(version, status)
        node.kubelet.held = {("ml", "chat-0"): [device]}

    node.objects.apply_status = allocate_meanwhile
    node.agent().round()

    assert node.layout() == ["4g.40gb@0", "3g.40gb@4"]
    assert node.changes() == []


@with_gpus({})
def test_a_gpu_that_a_pod_holds_whole_is_not_put_into_mig_mode(node):
    node.kubelet.held = {("ml", "chat-0"): [f"{node.gpus[0]}::2"]}  # a replica of a shared device
    node.want(FOUR)

    node.settle()

    assert node.changes() == []
    assert node.objects.condition()["waitsFor"] == "Pod ml/chat-0"


@with_gpus(cut(FOUR, THREE), cut(THREE))
def test_a_gpu_that_waits_does_not_hold_up_another_one(node):
    node.kubelet.held = {("ml", "chat-0"): [node.device(THREE)]}
    node.want(FOUR, gpu=0)
    node.want(FOUR, gpu=1)

    node.settle()

    assert node.layout(0) == ["4g.40gb@0", "3g.40gb@4"]
    assert node.layout(1) == ["4g.40gb@0"]
    assert node.objects.reason == "InUse"


@pytest.mark.parametrize("calls", range(7))
@with_gpus(cut(FOUR, Placement(4, "3g.40gb")))
def test_killed_before_any_call_that_changes_something_the_wanted_layout_is_reached(node, calls):
    node.want(Placement(0, "2g.20gb"), THREE)  # destroys 4g, creates 2g: two calls each
    node.bindings.left = calls
    try:
        node.settle()
    except Killed:
        assert calls < 4

    node.bindings.left = None
    node.settle()

    assert node.layout() == ["2g.20gb@0", "3g.40gb@4"]
    assert node.objects.reason == "AsWanted"
    assert len(node.changes()) == 4
    assert "deleted" in [kind for kind, _ in node.objects.log]


@pytest.mark.parametrize("write", range(6))
def test_where_the_api_fails_at_any_write_the_wanted_layout_is_reached_later(node, write):
    node.want(FOUR)
    apply_status, left = node.objects.apply_status, [write]

    def failing(version, status):
        left[0] -= 1
        if left[0] == -1:
            raise ApiError(0, "Unreachable", "no API server")
        apply_status(version, status)

    node.objects.apply_status = failing
    try:
        node.settle()
    except ApiError:
        node.settle()

    assert node.layout() == ["4g.40gb@0"]
    assert node.objects.reason == "AsWanted"
    assert any(kind == "deleted" for kind, _ in node.objects.log)


def test_no_operation_of_a_spec_that_has_changed_begins(node):
    node.want(FOUR)
    read_node = node.objects.node

    def decide_anew():
        node.objects.write_spec({"gpus": [{"id": node.gpus[0], "migEnabled": False}]})
        return read_node()

    node.objects.node = decide_anew  # read after the GPUNode
    with pytest.raises(ApiError, match="409"):
        node.agent().round()

    assert node.changes() == []


def test_where_the_status_cannot_be_written_no_operation_begins(node):
    node.want(FOUR)
    node.objects.api_fails = True

    with pytest.raises(ApiError):
        node.agent().round()

    assert node.changes() == []


def test_a_device_plugin_that_does_not_come_back_is_waited_for_with_a_deadline(node):
    node.want(FOUR)
    node.objects.plugin_returns = False

    node.settle()
    first = node.objects.condition()
    node.now += timedelta(hours=1)
    node.settle()

    assert first["reason"] == "DevicePluginRestarting"
    assert "plugin-0" in first["waitsFor"]
    assert node.objects.condition() == first
    assert [name for kind, name in node.objects.log if kind == "deleted"] == ["plugin-0"]


def test_a_restart_that_is_due_outlasts_a_kubelet_that_does_not_answer(node):
    node.want(FOUR)
    agent = node.agent()
    while node.layout() != ["4g.40gb@0"]:
        agent.round()
    assert node.objects.reason == "Applying"
    node.kubelet.fails = True
    node.settle()
    node.kubelet.fails = False

    node.settle()

    assert [name for kind, name in node.objects.log if kind == "deleted"] == ["plugin-0"]
    assert node.objects.reason == "AsWanted"


@with_gpus(cut(FOUR, Placement(4, "2g.20gb")))
def test_equal_counts_of_a_plugin_that_was_not_restarted_are_not_taken_for_the_new_devices(node):
    node.want(FOUR, Placement(6, "1g.20gb"))
    node.settle()
    moved = Placement(4, "1g.20gb")  # the same profile elsewhere
    deletions = sum(kind == "deleted" for kind, _ in node.objects.log)

    node.want(FOUR, moved)
    node.settle()

    assert sum(kind == "deleted" for kind, _ in node.objects.log) == deletions + 1


def test_a_failed_operation_is_tried_again_after_a_back_off_and_then_forgotten(node):
    node.want(FOUR)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "INSUFFICIENT_RESOURCES")

    node.settle()

    (gpu,) = node.objects.status["gpus"]
    assert (gpu["attempts"]["count"], gpu["attempts"]["error"]) == (1, "INSUFFICIENT_RESOURCES")
    assert node.objects.reason == "BackOff"
    assert node.objects.condition()["waitsFor"] == f"GPU {node.gpus[0]}"

    node.now += timedelta(seconds=LONGEST_BACK_OFF_S)
    node.settle()

    assert node.objects.reason == "AsWanted"
    assert "attempts" not in node.objects.status["gpus"][0]


@with_gpus({"mig": []})
def test_only_failures_in_a_row_count(node):
    node.want(FOUR, THREE)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN")
    node.settle()
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN", nth=2)  # after one that succeeds
    node.now += timedelta(seconds=LONGEST_BACK_OFF_S)

    node.settle()

    assert node.layout() == ["4g.40gb@0"]
    assert node.objects.status["gpus"][0]["attempts"]["count"] == 1


def test_repeated_failures_end_in_a_quarantine_that_survives_restarts(node):
    node.want(FOUR)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "UNKNOWN", times=0)

    for _ in range(FAILURES_BEFORE_QUARANTINE + 3):
        node.settle()
        node.now += timedelta(seconds=LONGEST_BACK_OFF_S)
    node.settle()

    (quarantine,) = node.objects.status["quarantine"]
    assert (quarantine["uuid"], quarantine["reason"]) == (node.gpus[0], "RepeatedFailure")
    assert node.objects.reason == "Quarantined"
    assert node.changes().count("DeviceCreateGpuInstanceWithPlacement") == FAILURES_BEFORE_QUARANTINE


@with_gpus({}, {})
def test_a_lost_gpu_is_quarantined_at_once_and_the_others_are_cut(node):
    node.settle()
    node.link.change(simulated.raise_xid, node.gpus[0], simulated.XID_FELL_OFF_THE_BUS)
    node.want(FOUR, gpu=0)
    node.want(THREE, gpu=1)

    node.settle()

    assert [q["uuid"] for q in node.objects.status["quarantine"]] == [node.gpus[0]]
    assert node.objects.status["quarantine"][0]["reason"] == "GPULost"
    assert node.layout(1) == ["3g.40gb@4"]
    assert node.objects.reason == "Quarantined"
    assert [gpu["id"] for gpu in node.objects.status["gpus"]] == node.gpus


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (
            {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/gpu.deploy.mig-manager": "true"},
            "BackendConflict",
        ),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-mig-change"}, "ComponentsPaused"),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, "SharedDevices"),
    ],
    ids=["mig-manager", "paused", "shared"],
)
def test_nothing_is_changed_while_another_component_is_at_work_or_devices_are_shared(node, labels, reason):
    node.objects.node_obj["metadata"]["labels"] = labels
    node.want(FOUR)

    node.settle()

    assert node.changes() == []
    assert node.objects.reason == reason

    node.objects.node_obj["metadata"]["labels"] = {}
    node.settle()

    assert node.objects.reason == "AsWanted"


def test_the_status_of_another_backend_is_left_alone(node):
    node.want(FOUR)
    node.objects.obj["status"] = {"backend": "MIGManager"}

    node.settle()

    assert node.objects.log == []


def test_an_invalid_spec_changes_nothing_and_is_named(node):
    node.want(FOUR)
    node.objects.obj["spec"]["gpus"][0]["migEnabled"] = "yes"

    node.settle()

    assert node.changes() == []
    assert node.objects.reason == "InvalidSpec"
    assert "migEnabled" in node.objects.condition()["message"]


@pytest.mark.parametrize(
    ("placements", "reason"),
    [((Placement(1, "3g.40gb"),), "IllegalLayout"), ((FOUR, Placement(0, "3g.40gb")), "InvalidSpec")],
    ids=["start", "two-at-one-start"],
)
def test_a_layout_that_the_board_cannot_hold_changes_nothing(node, placements, reason):
    node.want(*placements)

    node.settle()

    assert node.changes() == []
    assert node.objects.reason == reason


def test_a_wanted_gpu_that_is_not_there_is_named(node):
    node.objects.obj["spec"] = {"gpus": [{"id": "index-3", "migEnabled": False}]}

    node.settle()

    assert node.objects.reason == "GPUMissing"
    assert "index-3" in node.objects.condition()["message"]


def test_a_missing_gpu_node_or_node_is_waited_for(node):
    obj, node.objects.obj = node.objects.obj, None
    assert not node.agent().round()
    node.objects.obj, node.objects.node_obj = obj, None
    assert not node.agent().round()

    assert node.objects.log == []


@with_gpus(cut(FOUR, THREE))
def test_without_the_kubelets_answer_nothing_is_changed_and_the_last_state_stays_published(node):
    node.settle()
    gpus = node.objects.status["gpus"]
    node.kubelet.fails = True
    node.want(FOUR)

    node.settle()

    assert node.changes() == []
    assert node.objects.condition("Ready")["reason"] == "PodResourcesUnavailable"
    assert node.objects.condition()["status"] == "Unknown"
    assert node.objects.status["gpus"] == gpus


def test_a_driver_that_is_not_loaded_is_a_condition(node):
    node.fail("nvmlInit", "DRIVER_NOT_LOADED", times=0)
    node.fail("nvmlInit_v2", "DRIVER_NOT_LOADED", times=0)
    node.want(FOUR)

    node.settle()

    assert node.objects.condition("Ready")["reason"] == "DriverUnavailable"
    assert node.objects.condition()["status"] == "Unknown"


def test_the_device_plugin_is_ended_where_it_keeps_the_mig_mode_from_changing(node):
    node.want(FOUR)
    node.fail("nvmlDeviceSetMigMode", "IN_USE", times=3)  # until its process has ended

    node.settle()

    assert node.layout() == ["4g.40gb@0"]
    names = [entry for entry in node.objects.log if entry[0] == "deleted" or "SetMigMode" in entry[1]]
    assert names[:2] == [("nvml", "nvmlDeviceSetMigMode"), ("deleted", "plugin-0")]
    assert "attempts" not in node.objects.status["gpus"][0]
    assert node.objects.reason == "AsWanted"


def test_a_client_that_keeps_the_mig_mode_from_changing_without_device_plugin_is_a_failure(node):
    node.want(FOUR)
    node.fail("nvmlDeviceSetMigMode", "IN_USE", times=0)

    node.settle()

    assert node.layout() == []
    assert node.objects.status["gpus"][0]["attempts"]["error"] == "IN_USE"
    assert node.changes().count("DeviceSetMigMode") == FREED_TRIES + 1
    assert (node.now - START).total_seconds() >= FREED_TRIES * FREED_PAUSE_S


def test_an_instance_in_use_ends_no_device_plugin(node):
    node.want(FOUR)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "IN_USE")

    node.agent().round()
    node.agent().round()

    assert not [entry for entry in node.objects.log if entry[0] == "deleted"]


def test_an_operation_that_hangs_is_recorded_and_ends_the_process(node):
    node.driver_deadline_s = 0.5
    node.want(FOUR)
    node.fail("nvmlDeviceSetMigMode", hangs=True)

    with pytest.raises(DriverHangs):
        node.settle()

    assert node.objects.condition("Ready")["reason"] == "DriverHangs"
    assert node.objects.status["gpus"][0]["attempts"]["error"] == "TIMEOUT"

    node.link.released.set()
    node.now += timedelta(seconds=LONGEST_BACK_OFF_S)
    node.settle()

    assert node.layout() == ["4g.40gb@0"]


def test_a_driver_that_hangs_while_it_is_observed_is_published(node):
    node.settle()
    node.driver_deadline_s = 0.5
    node.fail("nvmlDeviceGetMigMode", hangs=True)

    with pytest.raises(DriverHangs):
        node.agent().round()

    assert node.objects.condition("Ready")["reason"] == "DriverHangs"
    assert [gpu["id"] for gpu in node.objects.status["gpus"]] == node.gpus
    node.link.released.set()


def test_a_call_that_comes_back_after_its_deadline_is_the_last_one(node):
    """Meanwhile a pod may have got what the next call would destroy."""
    node.driver_deadline_s = 0.5
    node.want(FOUR, THREE)
    node.settle()
    node.want(FOUR)
    node.fail("nvmlComputeInstanceDestroy", hangs=True, takes_effect=True)
    with pytest.raises(DriverHangs):
        node.settle()
    (thread,) = [each for each in threading.enumerate() if each.name == "driver"]

    node.link.released.set()
    thread.join(10)

    assert not thread.is_alive()
    assert node.changes()[-1] == "ComputeInstanceDestroy"


@pytest.mark.parametrize("call", ["nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode"])
def test_a_driver_that_hangs_ends_the_process_even_if_the_api_fails(node, call):
    node.driver_deadline_s = 0.5
    node.want(FOUR)
    node.fail(call, hangs=True)
    agent = node.agent()
    read = node.objects.node

    def fails_from_now_on():
        node.objects.api_fails = True
        return read()

    node.objects.node = fails_from_now_on

    with pytest.raises(DriverHangs):
        agent.round()

    assert node.objects.condition("Ready").get("reason") != "DriverHangs"
    node.link.released.set()


def test_a_gpu_node_deleted_in_mid_cut_does_not_save_the_device_plugin_from_its_restart(node):
    """The new GPUNode wants no layout: the node must not go on to offer devices that are gone."""
    node.want(FOUR, THREE)
    agent = node.agent()
    while node.layout() != ["4g.40gb@0"]:
        assert agent.round()

    node.objects.obj = {
        "metadata": {"name": "node-a", "uid": "uid-2", "generation": 1, "resourceVersion": "1"},
        "spec": {},
    }
    for _ in range(5):
        agent.round()

    assert [name for kind, name in node.objects.log if kind == "deleted"] == ["plugin-0"]
    assert node.objects.reason == "AsWanted"
    assert node.layout() == ["4g.40gb@0"]
    assert node.objects.node_obj["status"]["allocatable"]["nvidia.com/mig-4g.40gb"] == "1"


def test_a_gpu_node_that_stays_deleted_ends_the_cut_after_the_operation_under_way(node):
    node.want(FOUR, THREE)
    agent = node.agent()
    while node.layout() != ["4g.40gb@0"]:
        assert agent.round()

    node.objects.obj = None
    for _ in range(3):
        assert not agent.round()

    assert node.layout() == ["4g.40gb@0"]


@pytest.mark.parametrize("days", [-30, 30])
def test_a_clock_that_jumped_does_not_put_off_the_next_attempt(node, days):
    node.want(FOUR)
    node.fail("nvmlDeviceCreateGpuInstanceWithPlacement", "IN_USE")
    node.settle()

    node.now += timedelta(days=days)
    node.settle()

    assert node.objects.reason == "AsWanted"


@with_gpus(cut(FOUR, THREE))
def test_after_a_reboot_that_lost_all_instances_they_are_made_again(node):
    node.want(FOUR, THREE)
    node.settle()
    node.link.change(simulated.reboot)
    node.objects.node_obj["status"]["nodeInfo"]["bootID"] = "boot-2"
    node.objects.scan()

    node.settle()

    assert node.layout() == ["4g.40gb@0", "3g.40gb@4"]
    assert node.objects.status["bootID"] == "boot-2"


def test_a_status_that_was_edited_into_nonsense_costs_no_quarantine(node):
    node.want(FOUR)
    node.settle()
    kept = {
        "uuid": node.gpus[0],
        "reason": "RepeatedFailure",
        "message": "x",
        "since": "2030-01-01T00:00:00Z",
    }
    node.objects.obj["status"] |= {
        "quarantine": [kept, {"uuid": 7}],
        "gpus": "none",
        "conditions": [{"type": "Applied"}],
    }
    node.want(THREE)

    node.settle()

    assert node.objects.status["quarantine"] == [kept]
    assert node.layout() == ["4g.40gb@0"]
