"""Pure parts of the node agent: back-off and quarantine, conditions, the device plugin's restart, labels."""

import itertools
import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tangram.api.gpu_node import AttemptsStatus, GPUNodeStatus
from tangram.kube.client import ApiError
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement
from tangram.partition.agent import device_plugin
from tangram.partition.agent.command import EXIT_HANGS, main, run
from tangram.partition.agent.device_plugin import DevicePluginPod, outdated, restart
from tangram.partition.agent.driver_thread import DriverHangs
from tangram.partition.agent.layout_work import layout_work
from tangram.partition.agent.metrics import AgentMetrics
from tangram.partition.agent.node_labels import conflict
from tangram.partition.agent.node_status import node_status
from tangram.partition.agent.round_trigger import RoundTrigger
from tangram.partition.layouts import ObservedInstance, ObservedLayout, WantedLayout
from tangram.partition.status.attempts import (
    FAILURES_BEFORE_QUARANTINE,
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    GPURecord,
    OperationFailure,
    after_failure,
    after_success,
)
from tangram.partition.status.conditions import NodeConditionState, condition
from tangram.partition.status.node_record import FormerStatus, NodeIdentity, NodeStates, former_status
from tangram.partition.status.times import api_time, parse_api_time

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
GPU = "GPU-00000000-0000-0000-0000-00000000000a"
RETRYABLE = OperationFailure("create-instance 3g.40gb@4", "IN_USE", "IN_USE (19)", 19)
FINAL = replace(RETRYABLE, error="NO_PERMISSION", code=4, is_retryable=False)
LOST = replace(RETRYABLE, error="GPU_IS_LOST", code=15, is_retryable=False, is_lost=True)
RESULTS = {"ok": None, "retryable": RETRYABLE, "final": FINAL, "lost": LOST}


def reread(record):
    """The record as a restarted agent reads it from the status."""
    status = node_status(
        NodeIdentity(1, "", "", "0"),
        [ObservedLayout(GPU, 0, "NVIDIA H100 80GB HBM3", None)],
        {},
        [],
        FormerStatus({}, {}, ()),
        {GPU: record},
        NodeStates(NodeConditionState("True", "Running", "x"), NodeConditionState("True", "AsWanted", "x")),
        (),
        NOW,
    )
    GPUNodeStatus.model_validate(status)
    return former_status(status).records.get(GPU, GPURecord())


def test_every_sequence_of_results_ends_in_what_the_rule_says():
    sequences = itertools.product(RESULTS, repeat=FAILURES_BEFORE_QUARANTINE)
    checked = sum(check_sequence(results) for results in sequences)

    assert checked > 2000


def check_sequence(results):
    """Follow the results of one GPU, an hour apart, each by a new agent; return how many were checked."""
    record, in_a_row = GPURecord(), 0
    for number, result in enumerate(results):
        now, failure, was = NOW + timedelta(hours=number), RESULTS[result], record
        record = after_success(record) if failure is None else after_failure(GPU, record, failure, now)
        record = reread(record)
        if was.quarantine is not None:
            assert record.quarantine == was.quarantine, results
            return number
        in_a_row = 0 if failure is None else in_a_row + 1
        is_quarantined = result == "lost" or in_a_row >= FAILURES_BEFORE_QUARANTINE

        assert (record.quarantine is not None) == is_quarantined, results
        assert (record.attempts.count if record.attempts else 0) == in_a_row, results
        assert record.may_be_changed(now) == (failure is None), results
        wait_s = LONGEST_BACK_OFF_S if result == "final" else FIRST_BACK_OFF_S * 2 ** (in_a_row - 1)
        later = now + timedelta(seconds=wait_s)
        assert record.may_be_changed(later) == (not is_quarantined), results
        assert failure is None or not record.may_be_changed(later - timedelta(seconds=1)), results
    return len(results)


def test_back_off_is_bounded_and_a_quarantine_names_gpu_reason_and_cause():
    record = GPURecord(AttemptsStatus(count=3, error="IN_USE", message="x"))
    record = after_failure(GPU, record, RETRYABLE, NOW)
    assert parse_api_time(record.attempts.next_try) <= NOW + timedelta(seconds=LONGEST_BACK_OFF_S)

    record = after_failure(GPU, record, RETRYABLE, NOW)

    quarantine = record.quarantine
    assert (quarantine.uuid, quarantine.reason, quarantine.since) == (GPU, "RepeatedFailure", api_time(NOW))
    assert "create-instance 3g.40gb@4 failed: IN_USE (19)" in quarantine.message
    assert record.attempts.next_try is None
    assert after_failure(GPU, GPURecord(), LOST, NOW).quarantine.reason == "GPULost"


@pytest.mark.parametrize("text", ["", "yesterday", "2031-01-01T00:00:00Z", None])
def test_a_time_of_the_next_attempt_that_no_back_off_gives_is_due(text):
    assert GPURecord(AttemptsStatus(count=1, error="X", message="x", next_try=text)).may_be_changed(NOW)


def test_times_are_read_as_they_are_written():
    assert parse_api_time(api_time(NOW)) == NOW
    assert parse_api_time("2030-01-01T12:00:00") == NOW


WAITING = NodeConditionState("False", "InUse", "waits", "Pod a/b", 60.0)


def test_a_condition_keeps_its_times_as_long_as_what_they_date_stays():
    first = condition("Applied", WAITING, None, 1, NOW)
    later = NOW + timedelta(seconds=30)

    assert condition("Applied", WAITING, first, 1, later) == first
    other = condition("Applied", replace(WAITING, waits_for="Pod a/c"), first, 1, later)
    assert (other.since, other.deadline) == (first.since, api_time(later + timedelta(seconds=60)))
    failed = condition("Applied", NodeConditionState("False", "BackOff", "x"), first, 1, later)
    assert (failed.since, failed.last_transition_time) == (api_time(later), first.last_transition_time)
    done = condition("Applied", NodeConditionState("True", "AsWanted", "x"), first, 1, later)
    assert (done.last_transition_time, done.waits_for, done.deadline) == (api_time(later), None, None)


OLD, NEW = (DevicePluginPod("ns", name, name, is_ready=True) for name in ("old", "new"))


def applied(reason, waits_for=None):
    return condition("Applied", NodeConditionState("False", reason, "x", waits_for), None, 1, NOW)


@pytest.mark.parametrize(
    ("former", "pods", "offers_all", "is_cut", "waits_for"),
    [
        (None, [OLD], True, True, None),
        (None, [OLD], False, True, str(OLD)),
        (None, [OLD], False, False, None),  # nothing is wanted: the node is left alone
        (applied("AsWanted"), [OLD], False, True, None),  # an unhealthy device is not a change of layout
        (applied("Applying"), [OLD], True, True, str(OLD)),
        (applied("Applying"), [], True, True, "a Pod of the device plugin on this node"),
        (applied("DevicePluginRestarting", str(OLD)), [OLD], True, True, str(OLD)),
        (applied("DevicePluginRestarting", str(OLD)), [], True, True, str(OLD)),
        (applied("DevicePluginRestarting", str(OLD)), [replace(NEW, is_ready=False)], True, True, str(OLD)),
        (applied("DevicePluginRestarting", str(OLD)), [replace(OLD, is_ending=True)], True, True, str(OLD)),
        (applied("DevicePluginRestarting", str(OLD)), [OLD, NEW], True, True, str(OLD)),
        (applied("DevicePluginRestarting", str(OLD)), [NEW], False, True, str(OLD)),
        (applied("DevicePluginRestarting", str(OLD)), [NEW], True, True, None),
    ],
)
def test_a_restart_is_waited_for_until_another_pod_is_ready_and_the_devices_are_offered(
    former, pods, offers_all, is_cut, waits_for
):
    state = restart(former, pods, offers_all=offers_all, is_cut=is_cut)

    assert (state.waits_for if state else None) == waits_for


def test_of_several_pods_the_one_that_is_named_is_deleted_last():
    current = applied("DevicePluginRestarting", str(OLD))

    assert outdated(current, [OLD, NEW]) == [NEW, OLD]
    assert outdated(current, [NEW]) == []
    assert outdated(applied("Applying"), [OLD]) == []
    assert outdated(None, [OLD]) == []


FOUR, ME = Placement(0, "4g.40gb"), Placement(4, "1g.10gb+me")
CUT = ObservedLayout(
    GPU,
    0,
    "NVIDIA H100 80GB HBM3",
    board("H100-80GB-SXM"),
    mig_enabled=True,
    pending_mig_enabled=True,
    instances=(ObservedInstance(FOUR, ("MIG-a",)), ObservedInstance(ME, ("MIG-b",))),
)
WHOLE = ObservedLayout("GPU-b", 1, "NVIDIA H100 80GB HBM3", board("H100-80GB-SXM"))


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/mig-4g.40gb": "1", "nvidia.com/mig-1g.10gb.me": "1"}, True),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/mig-4g.40gb": "1", "nvidia.com/mig-1g.10gb.me": "1"}
            | {"nvidia.com/mig-7g.80gb": "0", "cpu": "8"},
            True,
        ),
        ({"nvidia.com/gpu": "2", "nvidia.com/mig-4g.40gb": "1", "nvidia.com/mig-1g.10gb.me": "1"}, False),
        ({"nvidia.com/gpu": "1", "nvidia.com/mig-4g.40gb": "1"}, False),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/mig-4g.40gb": "1", "nvidia.com/mig-1g.10gb.me": "1"}
            | {"nvidia.com/mig-2g.20gb": "1"},
            False,
        ),
    ],
)
def test_a_node_offers_its_devices_if_the_counts_of_all_resources_are_right(allocatable, expected):
    assert device_plugin.offers([CUT, WHOLE], allocatable) == expected


def test_an_instance_without_a_device_is_not_offered():
    half = replace(CUT, instances=(ObservedInstance(FOUR, (), whole=False),))

    assert device_plugin.offers([half], {})


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({}, None),
        ({"nvidia.com/mig.config": "x"}, None),
        ({"nvidia.com/mig.config": "x", "nvidia.com/gpu.deploy.mig-manager": "false"}, None),
        ({"nvidia.com/gpu.deploy.mig-manager": "true"}, None),
        ({"nvidia.com/mig.config": "x", "nvidia.com/gpu.deploy.mig-manager": "true"}, "BackendConflict"),
        ({"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, "ComponentsPaused"),
        ({"nvidia.com/gpu.deploy.dcgm": "true"}, None),
        ({"nvidia.com/gpu.sharing-strategy": "time-slicing"}, "SharedDevices"),
        ({"nvidia.com/mig-1g.10gb.sharing-strategy": "mps"}, "SharedDevices"),
        ({"nvidia.com/gpu.replicas": "4"}, "SharedDevices"),  # of a GFD without the label of the strategy
        ({"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}, None),
        ({"example.com/gpu.replicas": "4"}, None),
    ],
)
def test_labels_by_which_the_gpu_operator_says_that_nothing_may_be_changed(labels, reason):
    state = conflict(labels)

    assert (state.reason if state else None) == reason


def test_a_gpu_that_backs_off_or_is_quarantined_has_no_operation_and_others_go_on():
    wanted = [WantedLayout(GPU, mig_enabled=True), WantedLayout("GPU-b", mig_enabled=True)]
    observed = {GPU: CUT, "GPU-b": WHOLE}
    failed = after_failure(GPU, GPURecord(), RETRYABLE, NOW)
    lost = after_failure(GPU, GPURecord(), LOST, NOW)

    assert layout_work(wanted, observed, {}, {}, NOW).operation.gpu == GPU
    assert layout_work(wanted, observed, {}, {GPU: failed}, NOW).operation.gpu == "GPU-b"
    assert layout_work(wanted[:1], observed, {}, {GPU: failed}, NOW).state().reason == "BackOff"
    assert layout_work(wanted[:1], observed, {}, {GPU: lost}, NOW).state().reason == "Quarantined"


def test_the_gravest_reason_is_the_condition_and_names_all_gpus_that_it_holds_for():
    wanted = [
        WantedLayout("index-0", mig_enabled=False),
        WantedLayout("index-1", mig_enabled=False),
        WantedLayout(GPU, mig_enabled=True),
    ]
    held = {"MIG-a": None, "MIG-b": None}

    state = layout_work(wanted, {GPU: CUT}, held, {}, NOW).state()

    assert state.reason == "GPUMissing"
    assert "index-0" in state.message
    assert "index-1" in state.message
    assert layout_work(wanted[2:], {GPU: CUT}, held, {}, NOW).state().reason == "InUse"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "contexts: []",
        "{current-context: a, contexts: []}",
        "{current-context: a, contexts: [{name: a, context: {cluster: b, user: c}}]}",
    ],
)
def test_without_usable_access_the_command_ends_with_the_name_of_the_file(text, tmp_path, capsys):
    kubeconfig = tmp_path / "kubeconfig"
    if text is not None:
        kubeconfig.write_text(text)

    assert main(["--node-name", "node-a", "--kubeconfig", str(kubeconfig)]) == 2

    assert str(kubeconfig) in capsys.readouterr().err


def test_outside_of_a_pod_and_without_a_kubeconfig_the_command_ends(monkeypatch, capsys):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert main(["--node-name", "node-a"]) == 2

    assert "no pod with a service account" in capsys.readouterr().err


def test_where_the_official_client_is_not_installed_a_kubeconfig_is_a_usage_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "kubernetes", None)

    assert main(["--node-name", "node-a", "--kubeconfig", "any"]) == 2

    assert "needs the package kubernetes" in capsys.readouterr().err


def test_without_the_name_of_its_node_the_command_ends(capsys):
    assert main(["--node-name", "", "--kubeconfig", "none"]) == 2

    assert "NODE_NAME" in capsys.readouterr().err


def test_a_command_that_ends_with_a_usage_error_leaves_the_log_of_its_caller_alone():
    root = logging.getLogger()
    before = (root.level, list(root.handlers))

    assert main(["--node-name", "node-a", "--kubeconfig", "none"]) == 2
    assert main(["--node-name", ""]) == 2

    assert (root.level, root.handlers) == before


class EndlessAgent:
    """An agent whose rounds go as listed; then it is told to stop."""

    def __init__(self, trigger, *rounds):
        self.trigger, self.rounds = trigger, list(rounds)
        self.from_copies, self.due_s = [], None
        self.metrics = AgentMetrics()

    def round(self, *, from_copies=False):
        self.from_copies.append(from_copies)
        result = self.rounds.pop(0)
        if not self.rounds:
            self.trigger.stop()
        if isinstance(result, Exception):
            raise result
        return result


def test_the_process_outlives_an_api_that_fails_and_ends_with_a_driver_that_hangs():
    trigger = RoundTrigger()
    assert run(EndlessAgent(trigger, ApiError(0, "x", ""), True, False), 0.01, trigger) == 0

    trigger = RoundTrigger()
    assert run(EndlessAgent(trigger, False, DriverHangs("x")), 0.01, trigger) == EXIT_HANGS


def test_copies_stand_in_for_reads_only_after_a_wait_in_which_nothing_changed_or_failed():
    trigger = RoundTrigger(least_s=0.0)
    agent = EndlessAgent(trigger, False, True, False, ApiError(0, "x", ""), False, False)

    assert run(agent, 0.01, trigger) == 0

    assert agent.from_copies == [False, True, False, True, False, True]


def test_a_change_begins_a_round_at_once():
    trigger = RoundTrigger()
    agent = EndlessAgent(trigger, False, False)
    trigger.change()

    assert run(agent, 600.0, trigger) == 0

    assert agent.from_copies == [False, False]


def test_a_wait_that_is_over_begins_a_round_before_the_interval_is():
    trigger = RoundTrigger()
    agent = EndlessAgent(trigger, False, False)
    agent.due_s = 0.01

    assert run(agent, 600.0, trigger) == 0


def test_a_storm_of_changes_begins_few_rounds_and_the_last_change_one():
    now = 0.0

    def clock():
        nonlocal now
        now += 0.3
        return now

    trigger = RoundTrigger(clock)
    waited = []
    trigger._next_signal = lambda seconds: waited.append(seconds) or True

    assert trigger.wait(15.0)
    assert waited == [15.0]
    assert trigger.wait(15.0)
    assert waited[1] == 15.0
    assert 0 < waited[2] < 1.0  # until a second after the last round that a change began


def test_the_end_of_the_process_is_not_put_off_by_changes():
    trigger = RoundTrigger()
    trigger.change()
    assert trigger.wait(0.0)
    trigger.change()
    trigger.stop()

    assert trigger.wait(15.0)
    assert trigger.is_stopping
