"""What is read of a driver and done to it, through the real pynvml on a simulated driver."""

from collections.abc import Iterator
from dataclasses import replace

import pynvml
import pytest

from e2e.silicon.nvml import state as simulated
from e2e.silicon.nvml.in_process import StateLink
from e2e.silicon.nvml.library import installed
from e2e.silicon.nvml.state import Fault
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, layouts
from tangram.partition import LayoutOperation, WantedLayout, difference
from tangram.partition.nvml import ERROR_NAMES, NVMLDriver, NVMLFailure
from tests.support.nvml_driver import nvml_state

H100, A100, A30 = "H100-80GB-SXM", "A100-80GB-SXM", "A30"
FOUR, THREE = Placement(0, "4g.40gb"), Placement(4, "3g.40gb")
CHANGING = ("Create", "Destroy", "Set")  # in the names of calls that change something on a GPU


class Killed(BaseException):
    """The process ended."""


class Bindings:
    """The module pynvml, of which the process is killed before it changes something once more than `left`."""

    def __init__(self):
        self.left = None  # it lives on

    def __getattr__(self, name):
        if self.left is not None and any(verb in name for verb in CHANGING):
            if self.left == 0:
                raise Killed
            self.left -= 1
        return getattr(pynvml, name)


class Node:
    """A node with a simulated driver, which the real pynvml calls, and the operator's layer over it."""

    def __init__(self, link):
        self.link, self.bindings = link, Bindings()
        self.driver = NVMLDriver(self.bindings)
        pynvml.nvmlInit()
        self.gpu = self.driver.gpus()[0]

    def observe(self):
        return self.driver.observe(self.gpu)

    def apply(self, kind, placement=None, **more):
        self.driver.apply(LayoutOperation(kind, self.gpu, placement, **more))

    def start_process(self, placement=None):
        devices = {i.placement: i.devices[0] for i in self.observe().instances}
        return self.link.change(simulated.start_process, devices.get(placement, self.gpu))

    def fail(self, call, code, **more):
        self.link.change(simulated.add_fault, Fault(call, code=code, **more))

    def changes(self):
        """Calls that changed something, or tried to."""
        names = [name for name in self.link.made if any(verb in name for verb in CHANGING)]
        return [name.removeprefix("nvml") for name in names]


@pytest.fixture
def node(request) -> Iterator[Node]:
    """A node of the parameters: SKU, GPUs, more of its state; else an H100 in MIG mode without instances."""
    sku, gpus, more = getattr(request, "param", None) or (H100, [{"mig": []}], {})
    link = StateLink(nvml_state(sku, *gpus, **more))
    with installed(link):
        yield Node(link)


def with_node(sku=H100, *gpus, **more):
    """Let a test run on another node."""
    return pytest.mark.parametrize(
        "node", [(sku, list(gpus) or [{"mig": []}], more)], indirect=True, ids=[sku]
    )


def on_each(*skus):
    """Let a test run on a node of each SKU, in MIG mode without instances."""
    return pytest.mark.parametrize(
        "node", [(sku, [{"mig": []}], {}) for sku in skus], indirect=True, ids=skus
    )


def cut(*placements):
    return {"mig": [f"{placement.profile}@{placement.start}" for placement in placements]}


def board_of(node):
    return board(node.link.state.board.sku)


@on_each(H100, A100, A30, "H200-141GB-SXM", "RTX-PRO-6000-SERVER")
def test_the_board_of_a_driver_allows_the_layouts_of_the_catalog(node):
    found, expected = node.observe().board, board_of(node)

    assert layouts(found) == layouts(expected)
    assert (found.memory_slices, found.compute_slices) == (expected.memory_slices, expected.compute_slices)


# tests/silicon/test_nvml_recorded.py has the calls of a real H200 that the simulated driver answers alike.
@with_node("H200-141GB-SXM", {}, driver="580.159.04")
def test_a_whole_h200_has_memory_engines_and_placements_of_the_catalog(node):
    observed = node.observe()

    assert observed.board == replace(board_of(node), key="NVIDIA H200")
    assert (observed.mig_enabled, observed.pending_mig_enabled, observed.instances) == (False, False, ())


@with_node(H100, {})
def test_a_board_is_known_while_mig_mode_is_off(node):
    assert node.observe().board.key == node.observe().product == "NVIDIA H100 80GB HBM3"


@with_node(H100, {}, driver="535.129.03")
def test_a_driver_that_lists_no_profiles_while_mig_mode_is_off_leaves_the_board_to_the_catalog(node):
    assert node.observe().board == board(H100)


@with_node("L4", {})
def test_a_board_without_mig_is_observed_as_whole(node):
    pid = node.start_process()

    observed = node.observe()

    assert (observed.board, observed.mig_enabled, observed.instances) == (None, False, ())
    assert observed.processes == (pid,)


@with_node(H100, {}, cut(FOUR))
def test_all_gpus_of_a_node_are_found_by_index_with_their_uuids(node):
    with NVMLDriver() as driver:
        gpus = driver.gpus()
        observed = [driver.observe(gpu) for gpu in gpus]
        assert driver.version() == node.link.state.driver

    assert [each.index for each in observed] == [0, 1]
    assert [each.gpu for each in observed] == list(gpus)
    assert [each.placements for each in observed] == [(), (FOUR,)]


@with_node(H100, cut(FOUR, THREE))
def test_instances_have_their_devices_memory_and_processes(node):
    pid = node.start_process(THREE)

    four, three = node.observe().instances

    assert (four.placement, four.whole, four.processes) == (FOUR, True, ())
    assert (three.placement, three.whole, three.processes) == (THREE, True, (pid,))
    assert len({*four.devices, *three.devices}) == 2
    assert all(device.startswith("MIG-") for device in (*four.devices, *three.devices))
    assert four.memory_mib == board(H100).option("4g.40gb", 0).memory_mib


@with_node(H100, cut(FOUR, THREE))
def test_an_instance_without_a_compute_instance_and_one_that_is_cut_further_are_not_whole(node):
    handles = gpu_instances(node)
    for handle in handles:
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(handle, 0))
    pynvml.nvmlGpuInstanceCreateComputeInstance(handles[1], pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)

    four, three = node.observe().instances

    assert (four.devices, four.whole) == ((), False)
    assert (len(three.devices), three.whole) == (1, False)


def gpu_instances(node):
    """Handles of the GPU instances of the first GPU, by start."""
    device = pynvml.nvmlDeviceGetHandleByUUID(node.gpu)
    (gpu, *_) = node.link.state.gpus
    numbers = [instance.id for instance in sorted(gpu.instances, key=lambda instance: instance.start)]
    return [pynvml.nvmlDeviceGetGpuInstanceById(device, number) for number in numbers]


@on_each(H100, A30, "RTX-PRO-6000-SERVER")
def test_every_placement_of_a_board_can_be_created_and_destroyed(node):
    for option in board_of(node).options:
        placement = Placement(option.start, option.profile)
        node.apply("create-instance", placement)
        assert node.observe().placements == (placement,)
        assert node.observe().instances[0].whole
        node.apply("destroy-instance", placement)
        assert node.observe().placements == ()


@with_node(H100, cut(FOUR))
def test_an_operation_whose_effect_is_there_changes_nothing(node):
    node.apply("create-instance", FOUR)
    node.apply("destroy-instance", THREE)
    node.apply("set-mode", mig_enabled=True)

    assert node.changes() == []


def test_what_is_half_made_is_completed(node):
    node.fail("nvmlGpuInstanceCreateComputeInstance", "UNKNOWN")
    with pytest.raises(NVMLFailure, match="nvmlGpuInstanceCreateComputeInstance: UNKNOWN"):
        node.apply("create-instance", FOUR)
    assert not node.observe().instances[0].whole

    node.apply("create-instance", FOUR)

    assert node.observe().instances[0].whole
    assert node.changes().count("DeviceCreateGpuInstanceWithPlacement") == 1


@with_node(H100, cut(FOUR))
def test_what_is_half_destroyed_is_destroyed(node):
    node.fail("nvmlGpuInstanceDestroy", "IN_USE")
    with pytest.raises(NVMLFailure):
        node.apply("destroy-instance", FOUR)
    assert node.observe().instances[0].devices == ()

    node.apply("destroy-instance", FOUR)

    assert node.observe().instances == ()


@with_node(H100, cut(FOUR, THREE))
def test_an_instance_that_a_process_uses_is_not_touched(node):
    node.start_process(FOUR)

    with pytest.raises(NVMLFailure, match="IN_USE") as caught:
        node.apply("destroy-instance", FOUR)

    assert caught.value.is_retryable
    assert node.changes() == []
    assert all(instance.whole for instance in node.observe().instances)


@with_node(H100, cut(FOUR, THREE))
def test_a_neighbour_is_created_and_destroyed_while_a_process_runs(node):
    pid = node.start_process(FOUR)

    node.apply("destroy-instance", THREE)
    node.apply("create-instance", Placement(4, "2g.20gb"))

    four, two = node.observe().instances
    assert (four.placement, four.processes) == (FOUR, (pid,))
    assert two.whole


@with_node(H100, {})
def test_mig_mode_is_not_set_on_a_gpu_that_a_process_uses(node):
    node.start_process()

    with pytest.raises(NVMLFailure, match="nvmlDeviceSetMigMode: IN_USE"):
        node.apply("set-mode", mig_enabled=True)

    assert node.changes() == []


@with_node(H100, {})
def test_from_hopper_on_mig_mode_changes_at_once(node):
    node.apply("set-mode", mig_enabled=True)
    node.apply("create-instance", FOUR)

    assert node.observe().mig_enabled
    assert node.observe().placements == (FOUR,)


@with_node(A100, {})
def test_before_hopper_mig_mode_changes_by_a_reset(node):
    with pytest.raises(NVMLFailure, match="RESET_REQUIRED") as caught:
        node.apply("set-mode", mig_enabled=True)

    assert not caught.value.is_retryable
    observed = node.observe()
    assert (observed.mig_enabled, observed.pending_mig_enabled) == (False, True)


@with_node(A100, {})
def test_a_pending_mode_that_is_not_wanted_is_withdrawn(node):
    whole = WantedLayout(node.gpu, mig_enabled=False)
    with pytest.raises(NVMLFailure):
        node.apply("set-mode", mig_enabled=True)
    (operation,) = difference(node.observe(), whole).operations

    node.driver.apply(operation)

    assert whole.is_applied(node.observe())


@with_node(H100, cut(THREE))
@pytest.mark.parametrize(
    ("placement", "error"),
    [
        (Placement(2, "3g.40gb"), "INVALID_ARGUMENT"),
        (Placement(0, "3g.80gb"), "INVALID_ARGUMENT"),
        (Placement(0, "7g.80gb"), "INSUFFICIENT_RESOURCES"),
    ],
    ids=str,
)
def test_an_illegal_placement_is_refused_and_nothing_else_changes(node, placement, error):
    with pytest.raises(NVMLFailure) as caught:
        node.apply("create-instance", placement)

    assert caught.value.error == error
    assert node.observe().placements == (THREE,)


@with_node(H100, cut(FOUR))
def test_a_gpu_that_fell_off_the_bus_is_an_error_and_not_an_empty_gpu(node):
    node.link.change(simulated.raise_xid, node.gpu, simulated.XID_FELL_OFF_THE_BUS)

    with pytest.raises(NVMLFailure, match="GPU_IS_LOST") as caught:
        node.observe()

    assert caught.value.code == pynvml.NVML_ERROR_GPU_IS_LOST
    assert not caught.value.is_retryable


@with_node(H100, cut(FOUR, THREE))
@pytest.mark.parametrize("code", ["UNKNOWN", "TIMEOUT", "NO_PERMISSION", "GPU_IS_LOST"])
@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetGpuInstanceProfileInfo",
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        "nvmlDeviceGetGpuInstances",
        "nvmlGpuInstanceGetInfo",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlComputeInstanceGetInfo",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetUUID",
    ],
)
def test_a_call_that_fails_is_never_half_an_answer(node, call, code):
    node.fail(call, code, times=0)

    with pytest.raises(NVMLFailure, match=f": {code} "):
        node.observe()


@with_node(H100, cut(FOUR))
def test_a_compute_instance_without_a_device_is_an_error_as_no_pod_on_it_would_be_noticed(node):
    node.fail("nvmlDeviceGetMigDeviceHandleByIndex", "NOT_FOUND", times=0)

    with pytest.raises(NVMLFailure, match="NOT_FOUND"):
        node.observe()


def test_errors_have_the_names_of_nvml_h_and_unknown_codes_a_number():
    assert ERROR_NAMES[19] == "IN_USE"
    assert str(NVMLFailure("nvmlInit", 12)) == "nvmlInit: LIBRARY_NOT_FOUND (12)"
    assert NVMLFailure("nvmlInit", 77).error == "ERROR_77"
    assert not NVMLFailure("nvmlInit", 77).is_retryable


def test_without_a_driver_the_layer_fails_with_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr(pynvml, "CDLL", missing_library)

    with pytest.raises(NVMLFailure, match="nvmlInit: LIBRARY_NOT_FOUND"), NVMLDriver():
        pass


def missing_library(name):
    raise OSError(name)


@on_each(H100, A30)
def test_the_operations_of_a_difference_lead_from_one_layout_to_the_next(node):
    few = board_of(node).only(frozenset(board_of(node).profiles[:3]))
    for placements in layouts(few)[::60]:
        wanted = WantedLayout(node.gpu, mig_enabled=True, placements=placements)
        for operation in difference(node.observe(), wanted).operations:
            node.driver.apply(operation)
        assert wanted.is_applied(node.observe()), placements


WANTED = (Placement(0, "1g.10gb"), Placement(1, "1g.10gb"), Placement(2, "2g.20gb"), THREE)
CHANGES = 12  # calls that change the GPU on the way: two for each of two instances, then of four


@with_node(H100, cut(FOUR, Placement(4, "2g.20gb")))
@pytest.mark.parametrize("calls", range(CHANGES))
def test_killed_before_any_call_that_changes_something_the_same_layout_is_reached(node, calls):
    wanted = WantedLayout(node.gpu, mig_enabled=True, placements=WANTED)
    node.bindings.left = calls
    with pytest.raises(Killed):
        reach(node, wanted)
    assert len(node.changes()) == calls

    node.bindings.left = None
    reach(node, wanted)

    assert wanted.is_applied(node.observe())
    assert len(node.changes()) == CHANGES


def reach(node, wanted):
    while operations := difference(node.observe(), wanted).operations:
        node.driver.apply(operations[0])


@with_node(A100, cut(FOUR), {})
def test_an_index_that_changes_with_a_reboot_does_not_confuse_gpus(node):
    before = node.observe()
    node.link.change(simulated.reorder, [1, 0])

    after = node.observe()

    assert (before.index, after.index) == (0, 1)
    assert after.placements == before.placements
