"""The stand-in of mig-manager behaves as its source says: states, order of actions, defects."""

from collections import Counter

import pytest

from e2e.silicon.mig_manager import CONFIG, STATE, LaggingFile, _orders
from e2e.silicon.nvml import state as simulated
from tests.support.mig_manager_node import MemoryNode

CUT = {"mig-devices": {"3g.40gb": 1, "4g.40gb": 1}, "mig-enabled": True}
SEVEN = {"mig-devices": {"1g.10gb": 7}, "mig-enabled": True}
ENTRIES = {
    "first": [{"devices": [0], **CUT}, {"devices": [1], **SEVEN}],
    "second": [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"2g.20gb": 3}},
        {"devices": [1], **SEVEN},
    ],
    "partly": [{"devices": [0], **CUT}, {"devices": [1], "mig-enabled": False}],
    "impossible": [{"devices": "all", "mig-enabled": True, "mig-devices": {"4g.40gb": 2}}],
    "one-gpu": [{"devices": [0], **CUT}],
}
PAUSE = "paused-for-mig-change"
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"


@pytest.fixture
def node():
    made = MemoryNode("H100-80GB-SXM", {}, {})
    made.manager.file = lambda: ENTRIES
    return made


def work(node, value=None):
    """Set the label and let mig-manager work; returns what it did."""
    if value is not None:
        node.labels[CONFIG] = value
    done = []
    for step in node.steps:
        if step == "idle":
            return done
        done.append(step)
    raise AssertionError("run never ends")


def serials(node, index):
    return [one.serial for one in node.link.state.gpus[index].instances]


def test_the_states_of_a_change_and_what_is_paused_meanwhile(node):
    node.labels[CONFIG] = "first"
    assert (next(node.steps), node.labels[STATE], node.labels[PLUGIN]) == ("pending", "pending", "true")
    assert (next(node.steps), node.labels[PLUGIN]) == ("paused", PAUSE)
    assert node.allocatable == {"nvidia.com/gpu": "0"}

    assert work(node) == ["modes", "geometry", "success"]

    assert (node.labels[STATE], node.labels[PLUGIN]) == ("success", "true")
    assert node.labels["nvidia.com/gpu.deploy.mig-manager"] == "true"
    assert (node.layout(0), node.layout(1)) == (["3g.40gb", "4g.40gb"], ["1g.10gb"] * 7)
    assert {name: n for name, n in node.allocatable.items() if n != "0"} == {
        "nvidia.com/mig-1g.10gb": "7",
        "nvidia.com/mig-3g.40gb": "1",
        "nvidia.com/mig-4g.40gb": "1",
    }
    assert node.labels["nvidia.com/mig-1g.10gb.count"] == "7"


def test_the_same_value_again_does_nothing(node):
    work(node, "first")
    node.labels[STATE] = "failed"

    assert work(node, "first") == []
    assert node.labels[STATE] == "failed"


def test_a_layout_that_is_there_already_touches_nothing(node):
    work(node, "first")
    before = (serials(node, 0), serials(node, 1))
    work(node, "nonsense")

    assert work(node, "first") == ["unchanged"]
    assert (serials(node, 0), serials(node, 1)) == before


@pytest.mark.parametrize("name", ["nonsense", "one-gpu"])
def test_a_name_that_the_file_does_not_have_is_refused(node, name):
    assert work(node, name) == ["refused"]
    assert (node.labels[STATE], node.layout(0)) == ("failed", None)


def test_gpus_with_equal_counts_are_skipped_and_others_cleared(node):
    work(node, "first")
    before = serials(node, 1)

    work(node, "second")

    assert serials(node, 1) == before
    assert node.layout(0) == ["2g.20gb"] * 3


def test_a_change_of_one_mode_clears_all_gpus_in_mig_mode(node):
    work(node, "first")
    before = serials(node, 0)

    work(node, "partly")

    assert (node.layout(0), node.layout(1)) == (["3g.40gb", "4g.40gb"], None)
    assert set(serials(node, 0)).isdisjoint(before)


def test_a_process_is_not_evicted_and_makes_it_fail(node):
    work(node, "first")
    state = node.link.state
    uuid, _, _ = state.mig_devices(state.gpus[0])[0]
    pid = node.link.change(simulated.start_process, uuid)

    assert work(node, "second")[-1] == "failed"
    assert [process.pid for process in node.link.state.processes] == [pid]
    assert (node.labels[STATE], node.labels[PLUGIN]) == ("failed", "true")


@pytest.mark.parametrize("fault", [0, 1])
def test_a_profile_that_is_refused_leaves_the_gpu_empty(node, fault):
    work(node, "first")
    node.faults.fails = fault

    done = work(node, "second" if fault else "impossible")

    assert done[-1] == "failed"
    assert node.layout(0) == []


def test_stuck_it_leaves_pending_and_the_components_paused(node):
    node.faults.stuck = 1

    assert work(node, "first")[-1] == "stuck"
    assert (node.labels[STATE], node.labels[PLUGIN]) == ("pending", PAUSE)

    assert work(node, "second")[-1] == "success"
    assert node.labels[PLUGIN] == PAUSE  # it takes that for what the component was


def test_a_mode_that_needs_a_reboot_is_applied_after_it(node):
    node.faults.needs_reboot = 1

    done = work(node, "first")

    assert done == ["pending", "paused", "rebooting", "pending", "paused", "modes", "geometry", "success"]
    assert (node.boot, node.layout(0)) == (2, ["3g.40gb", "4g.40gb"])


def test_orders_are_tried_until_one_works():
    names = ["1g.10gb", "1g.10gb", "3g.40gb"]

    orders = list(_orders(names))

    assert len(orders) == 3
    assert all(Counter(order) == Counter(names) for order in orders)


def test_the_mounted_file_follows_later():
    texts, now = [""], [0.0]
    file = LaggingFile(lambda: texts[-1], lambda: now[0], 60.0)
    file.poll()
    texts.append("mig-configs: {a: []}")
    now[0] = 100.0
    file.poll()

    now[0] = 159.0
    assert file.entries() == {}
    now[0] = 160.0
    assert file.entries() == {"a": []}
