"""The mig-manager backend on a node: the pure step, and the stand-in of mig-manager on a simulated driver."""

import json
from datetime import timedelta

import pytest

from e2e.silicon.mig_manager import CONFIG, STATE
from e2e.silicon.nvml import state as simulated
from tangram.api.gpu_node import GPUNodeStatus
from tangram.partition.mig_manager.config_entries import CONFIG_KEY
from tangram.partition.mig_manager.node_counts import RETRY
from tests.support.mig_manager_node import DEPLOYED, OURS, Killed, MemoryNode

H100 = "H100-80GB-SXM"
CUT = ["4g.40gb@0", "3g.40gb@4"]
OTHER = ["3g.40gb@0", "3g.40gb@4"]
SEVEN = [f"1g.10gb@{start}" for start in range(7)]
PAUSE = "paused-for-mig-change"


def node_of(*gpus, **more):
    return MemoryNode(H100, *(gpus or ({}, {})), **more)


@pytest.fixture
def node():
    return node_of()


@pytest.fixture
def cut_node():
    """A node whose two GPUs this backend has cut."""
    made = node_of()
    made.want((0, CUT), (1, SEVEN))
    made.settle()
    made.log.clear()
    return made


def test_the_first_cut_writes_the_entry_waits_for_the_file_and_confirms_by_the_offer(node):
    node.want((0, CUT))

    node.settle()

    assert (node.layout(0), node.layout(1)) == (["3g.40gb", "4g.40gb"], None)
    assert [entry for entry in node.log if not entry.startswith("status")] == ["entry", "request"]
    reasons = [entry.removeprefix("status ") for entry in node.log if entry.startswith("status")]
    assert reasons[0] == "WritingEntry"
    assert list(dict.fromkeys(reasons[1:])) == ["ConfigSyncing", "Applying", "AsWanted"]
    assert node.condition()["status"] == "True"
    assert node.stored["migConfig"] == node.labels[CONFIG]
    assert (node.stored["appliedDisplay"], node.stored["gpuCount"]) == ("1/1", 2)
    assert node.stored["layoutDisplay"] == "1x 4g.40gb+3g.40gb, 1x gpu"
    assert node.stored["gpus"][0]["instances"] == [
        {"profile": "3g.40gb", "usage": "Unknown"},
        {"profile": "4g.40gb", "usage": "Unknown"},
    ]
    assert node.stored["gpus"][0].get("attempts") is None


def test_in_steady_state_nothing_is_written(cut_node):
    for _ in range(5):
        cut_node.now += timedelta(hours=1)
        assert not cut_node.round()

    assert cut_node.log == []


def test_a_node_that_is_as_wanted_gets_no_label(node):
    node.want((0, None), (1, None))

    node.settle()

    assert node.log == ["status AsWanted"]
    assert node.labels[CONFIG] == "all-disabled"


def test_the_layout_of_a_gpu_that_the_spec_does_not_list_stays(cut_node):
    cut_node.want((0, OTHER))

    cut_node.settle()

    assert (cut_node.layout(0), cut_node.layout(1)) == (["3g.40gb", "3g.40gb"], ["1g.10gb"] * 7)


def test_success_in_the_label_alone_confirms_nothing(cut_node):
    cut_node.want((0, OTHER))
    cut_node.until("Applying")
    cut_node.steps = iter(["idle"] * 1000)  # mig-manager does nothing more
    cut_node.labels[STATE] = "success"

    cut_node.round()
    assert cut_node.reason == "Confirming"
    assert cut_node.condition()["waitsFor"] == "allocatable of Node node-a"
    assert cut_node.stored["gpus"][0]["migMode"] == "Unknown"

    cut_node.now += timedelta(seconds=301)
    cut_node.round()
    assert (cut_node.reason, cut_node.attempts()["error"]) == ("BackOff", "NOT_CONFIRMED")


def test_an_unhealthy_device_does_not_undo_a_confirmed_layout(cut_node):
    cut_node.unhealthy["nvidia.com/mig-1g.10gb"] = 1

    assert not cut_node.round()


def test_a_layout_with_an_unhealthy_device_is_confirmed_in_the_end(node):
    node.unhealthy["nvidia.com/mig-3g.40gb"] = 1
    node.want((0, CUT))

    node.settle()

    assert (node.reason, node.attempts()) == ("AsWanted", {})
    assert "retry" not in node.log


def test_a_stuck_pending_is_healed_after_our_own_deadline(cut_node):
    cut_node.want((0, OTHER))
    cut_node.faults.stuck = 1
    cut_node.until("Applying")
    began = cut_node.now
    cut_node.until("BackOff")
    assert timedelta(seconds=900) <= cut_node.now - began < timedelta(seconds=930)
    assert cut_node.attempts()["error"] == "STUCK_PENDING"
    assert cut_node.labels["nvidia.com/gpu.deploy.device-plugin"] == PAUSE

    cut_node.settle()

    assert cut_node.layout(0) == ["3g.40gb", "3g.40gb"]
    done = [entry for entry in cut_node.log if not entry.startswith("status")]
    assert done == ["entry", "request", "restore", "retry", "request"]
    assert {cut_node.labels[f"nvidia.com/gpu.deploy.{name}"] for name in DEPLOYED} == {"true"}
    assert (cut_node.reason, cut_node.attempts()) == ("AsWanted", {})


def test_a_mig_manager_that_never_reacts_is_not_waited_for_for_ever(node):
    node.want((0, CUT))
    node.until("Applying")
    node.steps = iter(["idle"] * 10_000)

    node.until("Blocked", limit=2000)

    assert node.attempts()["count"] == 5
    assert "next_try" not in node.attempts()
    written = len(node.log)
    for _ in range(20):
        node.now += timedelta(hours=1)
        node.round()
    assert len(node.log) == written


def test_a_failure_that_leaves_the_gpu_empty_is_tried_again_after_a_back_off(cut_node):
    cut_node.want((0, OTHER))
    cut_node.faults.fails = 1
    cut_node.until("BackOff")
    assert cut_node.layout(0) == []
    assert cut_node.attempts()["error"] == "MIG_MANAGER_FAILED"
    assert cut_node.condition()["deadline"] > cut_node.condition()["since"]

    cut_node.settle()

    assert cut_node.layout(0) == ["3g.40gb", "3g.40gb"]
    assert [entry for entry in cut_node.log if entry in ("request", "retry")] == [
        "request",
        "retry",
        "request",
    ]


def test_after_five_failures_in_a_row_a_node_is_blocked_until_another_layout_is_wanted(cut_node):
    cut_node.want((0, OTHER))
    cut_node.faults.fails = 5
    cut_node.settle()
    assert (cut_node.reason, cut_node.attempts()["count"]) == ("Blocked", 5)

    cut_node.want((0, ["7g.80gb@0"]))
    cut_node.settle()

    assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["7g.80gb"])


def test_a_block_ends_where_a_person_removes_the_attempts(cut_node):
    cut_node.want((0, OTHER))
    cut_node.faults.fails = 5
    cut_node.settle()

    for gpu in cut_node.stored["gpus"]:
        gpu.pop("attempts", None)
    cut_node.settle()

    assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["3g.40gb", "3g.40gb"])


def test_a_file_that_lags_longer_than_expected_costs_a_retry(node):
    node = node_of(lag_s=400.0)
    node.want((0, CUT))

    node.settle()

    assert node.layout(0) == ["3g.40gb", "4g.40gb"]
    assert "retry" in node.log


def test_a_reboot_by_mig_manager_is_waited_for():
    node = node_of({}, {})
    node.want((0, CUT))
    node.faults.needs_reboot = 1
    node.until("Rebooting")
    assert node.condition()["waitsFor"] == "Node node-a"

    node.settle()

    assert (node.reason, node.layout(0)) == ("AsWanted", ["3g.40gb", "4g.40gb"])


def test_a_node_that_rebooted_by_itself_gets_its_layout_again(cut_node):
    cut_node.reboot_node()
    cut_node.start()
    assert cut_node.layout(0) is None
    cut_node.round()
    assert cut_node.stored["gpus"][0]["migMode"] != "Enabled"
    cut_node.steps = cut_node.manager.run()  # its pod started again

    cut_node.settle()

    assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["3g.40gb", "4g.40gb"])


def test_a_label_that_is_changed_from_outside_is_set_again_and_not_for_ever(cut_node):
    writes = 0
    for _ in range(8):
        cut_node.labels[CONFIG] = "all-disabled"
        cut_node.settle(every_s=15)
        if cut_node.reason == "Blocked":
            break
        assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["3g.40gb", "4g.40gb"])
        writes += 1

    assert cut_node.reason == "Blocked"
    assert writes == 4
    assert "nvidia.com/mig.config was set to all-disabled from outside" in cut_node.condition()["message"]
    assert cut_node.labels[CONFIG] == "all-disabled"


def test_changes_of_the_label_count_for_an_hour(cut_node):
    cut_node.labels[CONFIG] = "all-disabled"
    cut_node.settle()
    assert cut_node.attempts()["error"] == "LABEL_CHANGED"

    cut_node.now += timedelta(seconds=3601)
    cut_node.round()

    assert cut_node.attempts() == {}


def test_changes_of_the_label_by_a_clock_that_was_ahead_do_not_count_until_then(cut_node):
    cut_node.now += timedelta(days=3650)
    cut_node.labels[CONFIG] = "all-disabled"
    cut_node.settle()
    assert cut_node.attempts()["error"] == "LABEL_CHANGED"

    cut_node.now -= timedelta(days=3650)
    cut_node.round()

    assert cut_node.attempts() == {}
    assert cut_node.reason == "AsWanted"


@pytest.mark.parametrize("jump", [timedelta(hours=3), timedelta(days=3650)], ids=["hours", "years"])
@pytest.mark.parametrize("sign", [1, -1], ids=["ahead", "behind"])
@pytest.mark.parametrize("is_set_right", [True, False], ids=["is set right", "stays wrong"])
def test_a_clock_that_jumps_between_any_two_rounds_ends_in_the_wanted_layout(jump, sign, is_set_right):
    for at in range(0, 20, 2):
        node = node_of()
        node.want((0, CUT))
        node.turn(at)
        node.wrong = sign * jump
        node.turn(5)
        node.wrong = timedelta() if is_set_right else node.wrong

        node.settle()

        assert (node.reason, node.layout(0), node.layout(1)) == ("AsWanted", ["3g.40gb", "4g.40gb"], None), at
        assert node.attempts().get("count", 0) <= 1, at


def device(node, profile, index=0):
    state = node.link.state
    pairs = state.mig_devices(state.gpus[index])
    return next(uuid for uuid, instance, _ in pairs if instance.profile == profile)


def test_nothing_is_done_while_a_pod_may_hold_a_device_of_a_gpu_that_changes(cut_node):
    cut_node.pod("chat-0", "nvidia.com/mig-3g.40gb")
    cut_node.want((0, OTHER))

    cut_node.settle()

    assert (cut_node.reason, cut_node.condition()["waitsFor"]) == ("InUse", "Pod ml/chat-0")
    assert "request" not in cut_node.log
    cut_node.pods.clear()
    cut_node.settle()
    assert cut_node.layout(0) == ["3g.40gb", "3g.40gb"]


def test_a_pod_on_a_gpu_that_stays_as_it_is_keeps_running(cut_node):
    cut_node.pod("embed-0", "nvidia.com/mig-1g.10gb")
    pid = cut_node.link.change(simulated.start_process, device(cut_node, "1g.10gb", 1))
    cut_node.want((0, OTHER))

    cut_node.settle()

    assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["3g.40gb", "3g.40gb"])
    assert [process.pid for process in cut_node.link.state.processes] == [pid]


def test_a_retry_goes_on_beside_pods_on_other_gpus(cut_node):
    cut_node.pod("embed-0", "nvidia.com/mig-1g.10gb")
    cut_node.want((0, OTHER))
    cut_node.faults.fails = 1

    cut_node.settle()

    assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["3g.40gb", "3g.40gb"])


def test_a_mig_mode_changes_only_on_a_node_without_any_gpu_work(cut_node):
    cut_node.pod("embed-0", "nvidia.com/mig-1g.10gb")
    cut_node.want((0, None))

    cut_node.settle()

    assert cut_node.reason == "InUse"
    assert cut_node.layout(0) == ["3g.40gb", "4g.40gb"]


def test_a_finished_pod_holds_nothing(cut_node):
    cut_node.pod("job-0", "nvidia.com/mig-3g.40gb", phase="Succeeded")
    cut_node.want((0, OTHER))

    cut_node.settle()

    assert cut_node.reason == "AsWanted"


def test_a_process_without_a_pod_makes_mig_manager_fail_and_is_not_ended(cut_node):
    pid = cut_node.link.change(simulated.start_process, device(cut_node, "4g.40gb"))
    cut_node.want((0, OTHER))

    cut_node.settle()

    assert cut_node.reason == "Blocked"
    assert [process.pid for process in cut_node.link.state.processes] == [pid]


def test_the_entry_is_there_before_cluster_policy_names_our_config_map(node):
    node.named = "default-mig-parted-config"
    node.want((0, CUT))

    node.settle()

    assert "entry" in node.log
    assert "request" not in node.log
    assert (node.reason, node.condition("Ready")["reason"]) == ("ConfigMapNotNamed", "ConfigMapNotNamed")
    command = (
        "kubectl patch clusterpolicies.nvidia.com cluster-policy --type merge -p "
        '\'{"spec":{"migManager":{"config":{"name":"tangram-mig-config"}}}}\''
    )
    assert node.condition()["message"].endswith(command)

    node.named = OURS
    node.settle()
    assert node.reason == "AsWanted"


def test_an_entry_that_was_edited_is_written_again_before_it_is_used(cut_node):
    cut_node.want((0, OTHER))
    cut_node.until("ConfigSyncing")
    cut_node.data = {CONFIG_KEY: cut_node.data[CONFIG_KEY].replace("3g.40gb: 2", "3g.40gb: 1")}

    cut_node.settle()

    assert cut_node.layout(0) == ["3g.40gb", "3g.40gb"]
    assert cut_node.log.count("entry") == 2


def writes_of(actions):
    return [entry for entry in actions if not entry.startswith("status")]


@pytest.mark.parametrize("fault", ["none", "stuck", "fails", "needs_reboot"])
def test_killed_before_any_write_the_next_process_reaches_the_same_layout(fault):
    for lives in range(40):
        node = node_of({}, {})
        node.want((0, CUT), (1, SEVEN))
        if fault != "none":
            setattr(node.faults, fault, 1)
        node.lives = lives
        try:
            node.settle()
        except Killed:
            node.lives = None
            node.settle()
        else:
            assert lives > 3
            return
        assert (node.reason, node.layout(0), node.layout(1)) == (
            *("AsWanted", ["3g.40gb", "4g.40gb"]),
            ["1g.10gb"] * 7,
        )
        assert {node.labels[f"nvidia.com/gpu.deploy.{name}"] for name in DEPLOYED} == {"true"}
        assert node.labels[CONFIG] != RETRY
    raise AssertionError("the process was killed each time")


@pytest.mark.parametrize("killed_at", ["pending", "paused", "modes", "geometry", "success"])
def test_a_mig_manager_that_ends_in_the_middle_and_starts_again_costs_no_attempt(cut_node, killed_at):
    cut_node.want((0, OTHER))
    cut_node.until("ConfigSyncing")
    done = ""
    while done != killed_at:
        cut_node.file.poll()
        done = next(cut_node.steps)
        cut_node.round()
        cut_node.now += timedelta(seconds=10)
    cut_node.steps = cut_node.manager.run()

    cut_node.settle()

    assert (cut_node.reason, cut_node.layout(0)) == ("AsWanted", ["3g.40gb", "3g.40gb"])
    assert "retry" not in cut_node.log
    assert {cut_node.labels[f"nvidia.com/gpu.deploy.{name}"] for name in DEPLOYED} == {"true"}


@pytest.mark.parametrize("gone", [0, 1, 2, 3, 5, 8])
def test_a_spec_that_changes_in_the_middle_is_followed(gone):
    node = node_of({}, {})
    node.want((0, CUT))
    for _ in range(gone):
        node.work()
        node.now += timedelta(seconds=45)
    node.want((0, OTHER), (1, SEVEN))

    node.settle()

    assert (node.reason, node.layout(0), node.layout(1)) == (
        *("AsWanted", ["3g.40gb", "3g.40gb"]),
        ["1g.10gb"] * 7,
    )


def test_labels_of_gpu_feature_discovery_may_be_gone_during_a_change(cut_node):
    cut_node.want((0, OTHER))
    cut_node.until("Applying")
    for name in [n for n in cut_node.labels if n.startswith("nvidia.com/gpu.") and "deploy" not in n]:
        del cut_node.labels[name]
    for name in ("nvidia.com/mig.capable", "nvidia.com/mig.strategy"):
        del cut_node.labels[name]
    cut_node.round()

    assert cut_node.reason == "Applying"
    assert cut_node.stored["gpuCount"] == 2
    cut_node.settle()
    assert cut_node.reason == "AsWanted"


def test_another_backend_that_writes_the_status_is_left_alone(node):
    node.stored = {"backend": "NVML"}

    assert node.decide() is None


def test_a_refused_write_is_told_and_not_done(node):
    node.want((0, CUT))
    node.refused = "403 Forbidden: configmaps is forbidden"

    node.round()

    assert (node.reason, node.condition()["message"]) == ("WriteRefused", node.refused)
    assert node.log == ["status WriteRefused"]


def test_every_status_is_a_valid_one(cut_node):
    GPUNodeStatus.model_validate(cut_node.stored)
    assert json.loads(json.dumps(cut_node.stored)) == cut_node.stored
