"""What NVML calls do to the state of a node, code by code as nvml.h documents them."""

import pytest

from e2e.silicon.catalog import load_board
from e2e.silicon.nvml import calls
from e2e.silicon.nvml import state as operations
from e2e.silicon.nvml.calls import Caller
from e2e.silicon.nvml.state import Fault
from tests.support.nvml_driver import SimulatedDriver, nvml_state

MIB = 1 << 20
WHOLE = {}
EMPTY = {"mig": []}


def h100(*gpus, **fields):
    return SimulatedDriver(nvml_state("H100-80GB-SXM", *gpus, **fields))


def a100(*gpus, **fields):
    return SimulatedDriver(nvml_state("A100-40GB-SXM", *gpus, **fields))


def mig_uuids(driver, index=0):
    return [uuid for uuid, _, _ in driver.state.mig_devices(driver.state.gpus[index])]


def test_a_board_without_mig_supports_no_mig_call():
    driver = SimulatedDriver(nvml_state("L4", WHOLE))

    assert driver.call("nvmlDeviceGetMigMode", driver.gpu())[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlDeviceSetMigMode", driver.gpu(), 1)[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlDeviceGetGpuInstanceProfileInfo", driver.gpu(), 0)[0] == "NOT_SUPPORTED"
    assert driver.value("nvmlDeviceGetMaxMigDeviceCount", driver.gpu()) == 0


def test_hopper_switches_mig_at_once_and_old_handles_become_invalid():
    driver = h100(WHOLE)
    old = driver.gpu()

    assert driver.value("nvmlDeviceSetMigMode", old, 1) == 0

    assert driver.call("nvmlDeviceGetMigMode", old)[0] == "INVALID_ARGUMENT"
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == [1, 1]


def test_hopper_leaves_the_mode_pending_while_a_process_holds_the_gpu():
    driver = h100(WHOLE)
    driver.change(operations.start_process, driver.state.gpus[0].uuid)

    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(), 1) == 19  # IN_USE
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == [0, 1]


def test_another_client_with_a_handle_keeps_the_mode_from_changing_until_it_shuts_down():
    driver, exporter = h100(WHOLE, WHOLE), Caller("exporter")
    driver.gpu(caller=exporter)

    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(0), 1) == 19
    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(1), 1) == 0  # it holds the other GPU only
    driver.value("nvmlShutdown", caller=exporter)
    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(0), 1) == 0


def test_ampere_needs_a_reset_that_open_handles_prevent():
    driver = a100(WHOLE)

    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(), 1) == 16  # RESET_REQUIRED
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == [0, 1]
    with pytest.raises(operations.CallFailed, match="IN_USE"):
        driver.change(operations.reset, driver.state.gpus[0].uuid)
    driver.value("nvmlShutdown")
    driver.change(operations.reset, driver.state.gpus[0].uuid)
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == [1, 1]


def test_ampere_on_bare_metal_resets_an_idle_gpu_by_itself():
    driver = a100(WHOLE, self_resets=True)

    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(), 1) == 0
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == [1, 1]


def test_a_pending_mode_can_be_taken_back():
    driver = a100(WHOLE)
    driver.value("nvmlDeviceSetMigMode", driver.gpu(), 1)

    assert driver.value("nvmlDeviceSetMigMode", driver.gpu(), 0) == 0
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == [0, 0]


def test_a_mode_that_is_neither_on_nor_off_is_an_invalid_argument():
    driver = h100(WHOLE)

    assert driver.call("nvmlDeviceSetMigMode", driver.gpu(), 2)[0] == "INVALID_ARGUMENT"


def test_switching_mig_off_takes_instances_away():
    driver = h100({"mig": ["3g.40gb@0"]})

    driver.value("nvmlDeviceSetMigMode", driver.gpu(), 0)
    driver.value("nvmlDeviceSetMigMode", driver.gpu(), 1)

    assert driver.layout() == []


@pytest.mark.parametrize(
    ("sku", "mode"),
    [("A100-40GB-SXM", [1, 1]), ("H100-80GB-SXM", [0, 0])],
)
def test_a_reboot_takes_instances_and_processes_and_from_hopper_on_the_mode(sku, mode):
    driver = SimulatedDriver(nvml_state(sku, {"mig": ["1g.5gb@0" if sku.startswith("A") else "1g.10gb@0"]}))
    driver.change(operations.start_process, mig_uuids(driver)[0])
    uuid, handle = driver.state.gpus[0].uuid, driver.gpu()

    driver.change(operations.reboot)

    assert driver.layout() == []
    assert driver.state.processes == ()
    assert driver.call("nvmlDeviceGetUUID", handle)[0] == "INVALID_ARGUMENT"
    assert driver.value("nvmlDeviceGetUUID", driver.gpu()) == uuid
    assert driver.value("nvmlDeviceGetMigMode", driver.gpu()) == mode


def test_a_reset_keeps_the_mode_and_takes_the_instances_of_that_gpu_only():
    driver = h100({"mig": ["1g.10gb@0"]}, {"mig": ["1g.10gb@0"]})

    driver.change(operations.reset, driver.state.gpus[0].uuid)

    assert (driver.layout(0), driver.layout(1)) == ([], ["1g.10gb@0"])
    assert driver.state.gpus[0].mig_mode


def test_indexes_change_after_a_reboot_and_uuids_do_not():
    driver = h100(WHOLE, WHOLE, WHOLE)
    uuids = [gpu.uuid for gpu in driver.state.gpus]

    driver.change(operations.reboot, order=[2, 0, 1])

    assert [driver.value("nvmlDeviceGetUUID", driver.gpu(index)) for index in range(3)] == [
        uuids[2],
        uuids[0],
        uuids[1],
    ]
    moved = driver.value("nvmlDeviceGetHandleByUUID", uuids[0])
    assert (driver.value("nvmlDeviceGetIndex", moved), driver.value("nvmlDeviceGetMinorNumber", moved)) == (
        1,
        0,
    )


def test_gpu_instances_need_mig_to_be_on():
    driver = h100(WHOLE)
    gpu, profile = driver.gpu(), driver.profile("1g.10gb")

    assert driver.call("nvmlDeviceCreateGpuInstance", gpu, profile)[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile, [0, 1])[0] == "NOT_SUPPORTED"


def test_questions_about_gpu_instances_while_mig_is_off_are_not_supported_before_branch_580():
    driver = h100(WHOLE, driver="570.169")
    gpu, profile = driver.gpu(), driver.profile("1g.10gb")

    assert driver.call("nvmlDeviceGetGpuInstances", gpu, profile)[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlDeviceGetGpuInstanceById", gpu, 0)[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlDeviceGetGpuInstanceRemainingCapacity", gpu, profile)[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, 0)[0] == "NOT_SUPPORTED"


@pytest.mark.parametrize(("driver", "code"), [("580.95.05", "SUCCESS"), ("535.104.05", "NOT_SUPPORTED")])
def test_profiles_are_known_while_mig_is_off_except_to_branch_535(driver, code):
    simulated = h100(WHOLE, driver=driver)

    assert simulated.call("nvmlDeviceGetGpuInstanceProfileInfo", simulated.gpu(), 0)[0] == code
    assert simulated.call("nvmlDeviceGetGpuInstancePossiblePlacements", simulated.gpu(), 19)[0] == code


@pytest.mark.parametrize(
    ("driver", "count"),
    [("550.54.15", 10), ("570.169", 17), ("580.95.05", 17), ("615.71", 18)],
)
def test_kinds_that_a_board_lacks_are_not_supported_and_those_of_later_drivers_invalid(driver, count):
    simulated = h100(EMPTY, driver=driver)

    def code(kind):
        return simulated.call("nvmlDeviceGetGpuInstanceProfileInfo", simulated.gpu(), kind)[0]

    assert [code(kind) for kind in (4, 5, 9)] == ["SUCCESS", "NOT_SUPPORTED", "SUCCESS"]
    assert {code(kind) for kind in range(10, count)} <= {"NOT_SUPPORTED"}
    assert [code(kind) for kind in range(count, 20)] == ["INVALID_ARGUMENT"] * (20 - count)


@pytest.mark.parametrize(
    ("profile", "placement", "code"),
    [
        (19, [7, 1], "INVALID_ARGUMENT"),  # 1g may not start at 7
        (19, [0, 2], "INVALID_ARGUMENT"),  # nor have two slices
        (14, [1, 2], "INVALID_ARGUMENT"),
        (77, [0, 1], "INVALID_ARGUMENT"),  # no such profile on the board
        (9, [4, 4], "INSUFFICIENT_RESOURCES"),
        (9, [0, 4], "SUCCESS"),
    ],
)
def test_a_placement_is_illegal_or_taken_or_free(profile, placement, code):
    driver = h100({"mig": ["1g.10gb@5"]})

    made = driver.call("nvmlDeviceCreateGpuInstanceWithPlacement", driver.gpu(), profile, placement)

    assert made[0] == code


def test_an_instance_without_a_compute_instance_is_no_device():
    driver = h100(EMPTY)
    made = driver.create("3g.40gb", 4)

    assert mig_uuids(driver) == []
    assert driver.call("nvmlDeviceGetMigDeviceHandleByIndex", driver.gpu(), 0)[0] == "NOT_FOUND"
    compute = driver.create_compute(made)
    device = driver.value("nvmlDeviceGetMigDeviceHandleByIndex", driver.gpu(), 0)
    assert driver.value("nvmlDeviceGetUUID", device) == mig_uuids(driver)[0]
    assert driver.value("nvmlDeviceGetName", device) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert (
        driver.value("nvmlDeviceGetGpuInstanceId", device)
        == driver.value("nvmlGpuInstanceGetInfo", made)["id"]
    )
    assert (
        driver.value("nvmlDeviceGetComputeInstanceId", device)
        == driver.value("nvmlComputeInstanceGetInfo", compute)["id"]
    )


def test_a_mig_device_is_found_by_both_forms_of_its_uuid_and_leads_to_its_gpu():
    driver = h100({"mig": ["1g.10gb@3"]})
    gpu, uuid = driver.state.gpus[0], mig_uuids(driver)[0]
    device = driver.value("nvmlDeviceGetHandleByUUID", uuid)

    assert driver.value("nvmlDeviceGetHandleByUUID", f"MIG-{gpu.uuid}/{gpu.instances[0].id}/0") == device
    assert driver.value("nvmlDeviceIsMigDeviceHandle", device) == 1
    assert driver.value("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device) == driver.gpu()
    assert (
        driver.call("nvmlDeviceGetHandleByUUID", "MIG-00000000-0000-5000-8000-000000000000")[0] == "NOT_FOUND"
    )


def test_a_slice_that_is_created_again_has_its_uuid_again_and_new_handles():
    driver = h100({"mig": ["1g.10gb@3"]})
    uuid, device = mig_uuids(driver)[0], driver.value("nvmlDeviceGetMigDeviceHandleByIndex", driver.gpu(), 0)
    instance = driver.value("nvmlDeviceGetGpuInstances", driver.gpu(), 19)[0]
    compute = driver.value("nvmlGpuInstanceGetComputeInstances", instance, 0)[0]

    driver.value("nvmlComputeInstanceDestroy", compute)
    driver.value("nvmlGpuInstanceDestroy", instance)
    driver.create("1g.10gb", 3, compute=True)

    assert mig_uuids(driver) == [uuid]
    assert driver.call("nvmlDeviceGetUUID", device)[0] == "INVALID_ARGUMENT"
    assert driver.call("nvmlGpuInstanceGetInfo", instance)[0] == "INVALID_ARGUMENT"
    assert driver.call("nvmlComputeInstanceGetInfo", compute)[0] == "INVALID_ARGUMENT"


def test_a_process_keeps_both_instances_and_a_remaining_compute_instance_its_gpu_instance():
    driver = h100({"mig": ["2g.20gb@4"]})
    pid = driver.change(operations.start_process, mig_uuids(driver)[0])
    instance = driver.value("nvmlDeviceGetGpuInstances", driver.gpu(), 14)[0]
    compute = driver.value("nvmlGpuInstanceGetComputeInstances", instance, 1)[0]

    assert driver.call("nvmlComputeInstanceDestroy", compute)[0] == "IN_USE"
    assert driver.call("nvmlGpuInstanceDestroy", instance)[0] == "IN_USE"
    driver.change(operations.stop_process, pid)
    assert driver.call("nvmlGpuInstanceDestroy", instance)[0] == "IN_USE"
    assert driver.call("nvmlComputeInstanceDestroy", compute)[0] == "SUCCESS"
    assert driver.layout() == ["2g.20gb@4"]  # half cleaned: no device, and still there
    assert driver.call("nvmlGpuInstanceDestroy", instance)[0] == "SUCCESS"


def test_between_allocation_and_the_start_of_the_process_a_slice_can_be_destroyed_under_a_pod():
    driver = h100({"mig": ["2g.20gb@4"]})
    allocated = mig_uuids(driver)[0]
    instance = driver.value("nvmlDeviceGetGpuInstances", driver.gpu(), 14)[0]
    driver.value(
        "nvmlComputeInstanceDestroy", driver.value("nvmlGpuInstanceGetComputeInstances", instance, 1)[0]
    )
    driver.value("nvmlGpuInstanceDestroy", instance)

    with pytest.raises(operations.CallFailed, match="NOT_FOUND"):
        driver.change(operations.start_process, allocated)


def test_processes_are_listed_per_mig_device_with_their_ids_and_together_on_the_gpu():
    driver = h100({"mig": ["1g.10gb@0", "3g.40gb@4"]})
    first, second = mig_uuids(driver)
    one = driver.change(operations.start_process, first, memory_mib=100)
    two = driver.change(operations.start_process, second, memory_mib=200)
    instances = driver.state.gpus[0].instances
    by_uuid = {uuid: instance.id for uuid, instance, _ in driver.state.mig_devices(driver.state.gpus[0])}

    def listed(handle):
        return driver.value("nvmlDeviceGetComputeRunningProcesses", handle)

    assert listed(driver.value("nvmlDeviceGetHandleByUUID", first)) == [[one, 100 * MIB, by_uuid[first], 0]]
    assert listed(driver.value("nvmlDeviceGetHandleByUUID", second)) == [[two, 200 * MIB, by_uuid[second], 0]]
    assert [pid for pid, *_ in listed(driver.gpu())] == [one, two]
    assert {one.id for one in instances} == set(by_uuid.values())


def test_a_process_on_a_whole_gpu_has_no_instance_ids():
    driver = h100(WHOLE)
    pid = driver.change(operations.start_process, driver.state.gpus[0].uuid, memory_mib=7)

    assert driver.value("nvmlDeviceGetComputeRunningProcesses", driver.gpu()) == [
        [pid, 7 * MIB, 0xFFFFFFFF, 0xFFFFFFFF]
    ]
    assert driver.value("nvmlDeviceGetUtilizationRates", driver.gpu()) == [100, 0]


def test_memory_is_that_of_the_slice_and_processes_cannot_have_more():
    driver = h100({"mig": ["1g.10gb@0"]})
    uuid, total = mig_uuids(driver)[0], load_board("H100-80GB-SXM").profiles["1g.10gb"].memory_mib
    driver.change(operations.start_process, uuid, memory_mib=1000)
    device = driver.value("nvmlDeviceGetHandleByUUID", uuid)

    info = driver.value("nvmlDeviceGetMemoryInfo", device)
    assert (info["total"], info["used"], info["free"]) == (total * MIB, 1000 * MIB, (total - 1000) * MIB)
    with pytest.raises(operations.CallFailed, match="MEMORY"):
        driver.change(operations.start_process, uuid, memory_mib=total)
    assert driver.call("nvmlDeviceGetUtilizationRates", device)[0] == "NOT_SUPPORTED"


def test_on_an_a100_40gb_a_3g_on_the_right_shows_more_memory():
    driver = a100({"mig": ["3g.20gb@0", "3g.20gb@4"]})
    gpu = driver.state.gpus[0]
    totals = {
        instance.start: driver.value(
            "nvmlDeviceGetMemoryInfo", driver.value("nvmlDeviceGetHandleByUUID", uuid)
        )["total"]
        for uuid, instance, _ in driver.state.mig_devices(gpu)
    }

    assert totals == {0: 20096 * MIB, 4: 20224 * MIB}


def test_a_gpu_instance_can_have_several_compute_instances_of_fewer_slices():
    driver = h100(EMPTY)
    made = driver.create("3g.40gb", 0)

    assert driver.value("nvmlGpuInstanceGetComputeInstancePossiblePlacements", made, 0) == [
        [0, 1],
        [1, 1],
        [2, 1],
    ]
    one = driver.value("nvmlGpuInstanceCreateComputeInstance", made, 0)
    driver.value("nvmlGpuInstanceCreateComputeInstanceWithPlacement", made, 0, [2, 1])
    assert driver.value("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", made, 0) == 1
    assert driver.call("nvmlGpuInstanceCreateComputeInstance", made, 1)[0] == "INSUFFICIENT_RESOURCES"
    assert driver.call("nvmlGpuInstanceCreateComputeInstance", made, 4)[0] == "NOT_SUPPORTED"
    assert driver.call("nvmlGpuInstanceGetComputeInstanceProfileInfo", made, 0, 1)[0] == "INVALID_ARGUMENT"
    assert len(set(mig_uuids(driver))) == 2
    driver.value("nvmlComputeInstanceDestroy", one)
    assert driver.value("nvmlDeviceGetMigDeviceHandleByIndex", driver.gpu(), 1)
    assert driver.call("nvmlDeviceGetMigDeviceHandleByIndex", driver.gpu(), 0)[0] == "NOT_FOUND"  # a hole


def test_configuring_mig_takes_privileges_and_looking_at_a_gpu_does_not():
    driver, user = h100({"mig": ["1g.10gb@0"]}), Caller("user", privileged=False)
    gpu = driver.gpu()
    instance = driver.value("nvmlDeviceGetGpuInstances", gpu, 19)[0]

    assert driver.call("nvmlDeviceGetMigMode", gpu, caller=user)[0] == "SUCCESS"
    assert driver.call("nvmlDeviceGetGpuInstanceProfileInfo", gpu, 0, caller=user)[0] == "SUCCESS"
    assert driver.call("nvmlDeviceSetMigMode", gpu, 0, caller=user)[0] == "NO_PERMISSION"
    assert driver.call("nvmlDeviceCreateGpuInstance", gpu, 19, caller=user)[0] == "NO_PERMISSION"
    assert driver.call("nvmlGpuInstanceDestroy", instance, caller=user)[0] == "NO_PERMISSION"
    assert driver.call("nvmlDeviceGetGpuInstances", gpu, 19, caller=user)[0] == "NO_PERMISSION"


def test_before_nvmlinit_every_call_is_uninitialized():
    driver, early = h100(WHOLE), Caller("early", initialized=False)

    assert driver.call("nvmlDeviceGetCount", caller=early)[0] == "UNINITIALIZED"
    assert driver.call("nvmlInit", caller=early)[0] == "SUCCESS"


def test_every_call_on_a_lost_gpu_says_so_and_the_others_work():
    driver = h100({"mig": ["1g.10gb@0"]}, WHOLE)
    gpu, other = driver.gpu(0), driver.gpu(1)
    instance = driver.value("nvmlDeviceGetGpuInstances", gpu, 19)[0]

    driver.change(operations.raise_xid, driver.state.gpus[0].uuid, 79)

    assert driver.call("nvmlDeviceGetMigMode", gpu)[0] == "GPU_IS_LOST"
    assert driver.call("nvmlGpuInstanceDestroy", instance)[0] == "GPU_IS_LOST"
    assert driver.call("nvmlDeviceGetHandleByIndex", 0)[0] == "GPU_IS_LOST"
    assert driver.call("nvmlDeviceGetHandleByUUID", driver.state.gpus[0].uuid)[0] == "GPU_IS_LOST"
    assert driver.value("nvmlDeviceGetCount") == 2
    assert driver.value("nvmlDeviceGetMigMode", other) == [0, 0]
    driver.change(operations.reboot)
    assert driver.call("nvmlDeviceGetHandleByIndex", 0)[0] == "SUCCESS"


@pytest.mark.parametrize(
    "name", ["nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo", "nvmlDeviceGetUUID"]
)
def test_null_is_an_invalid_argument(name):
    assert h100(EMPTY).call(name, 0)[0] == "INVALID_ARGUMENT"


def test_handles_of_one_kind_are_none_of_another():
    driver = h100({"mig": ["1g.10gb@0"]})
    device = driver.value("nvmlDeviceGetMigDeviceHandleByIndex", driver.gpu(), 0)

    assert driver.call("nvmlDeviceGetMigMode", device)[0] == "INVALID_ARGUMENT"
    assert driver.call("nvmlGpuInstanceGetInfo", device)[0] == "INVALID_ARGUMENT"
    assert driver.call("nvmlDeviceGetGpuInstanceId", driver.gpu())[0] == "INVALID_ARGUMENT"


def test_a_call_that_nvml_does_not_have_is_not_found():
    assert h100(EMPTY).call("nvmlDeviceMakeCoffee")[0] == "FUNCTION_NOT_FOUND"


def test_the_second_call_from_now_on_fails_once_and_changes_nothing():
    driver = h100(EMPTY)
    driver.change(operations.add_fault, Fault("nvmlDeviceCreateGpuInstance", nth=2, code="UNKNOWN"))

    codes = [driver.call("nvmlDeviceCreateGpuInstance", driver.gpu(), 19)[0] for _ in range(3)]

    assert codes == ["SUCCESS", "UNKNOWN", "SUCCESS"]
    assert driver.layout() == ["1g.10gb@5", "1g.10gb@6"]


def test_a_call_may_take_effect_although_it_fails():
    driver = h100(EMPTY)
    driver.change(
        operations.add_fault, Fault("nvmlDeviceCreateGpuInstance", code="TIMEOUT", takes_effect=True)
    )

    assert driver.call("nvmlDeviceCreateGpuInstance", driver.gpu(), 19)[0] == "TIMEOUT"
    assert driver.layout() == ["1g.10gb@6"]


def test_a_fault_without_end_goes_on_and_a_code_that_does_not_exist_is_refused():
    driver = h100(EMPTY)
    driver.change(operations.add_fault, Fault("nvmlDeviceGetCount", code="DRIVER_NOT_LOADED", times=0))

    assert {driver.call("nvmlDeviceGetCount")[0] for _ in range(4)} == {"DRIVER_NOT_LOADED"}
    with pytest.raises(operations.CallFailed, match="no return code"):
        driver.change(operations.add_fault, Fault("nvmlDeviceGetCount", code="TEAPOT"))


def test_a_call_takes_the_latency_of_its_name_and_the_delay_of_its_fault():
    driver = h100(EMPTY, latencies=tuple(operations.SILICON_LATENCIES.items()))
    driver.change(operations.add_fault, Fault("nvmlGpuInstanceDestroy", delay_s=5))

    waits = [
        calls.begin(driver.state, name)[1].wait_s for name in ("nvmlGpuInstanceDestroy", "nvmlDeviceGetCount")
    ]

    assert waits == [6.0, 0.0]


def test_versions_are_those_of_the_node():
    driver = h100(WHOLE, driver="580.95.05", cuda="13.0")

    assert driver.value("nvmlSystemGetDriverVersion") == "580.95.05"
    assert driver.value("nvmlSystemGetNVMLVersion") == "13.580.95.05"
    assert driver.value("nvmlSystemGetCudaDriverVersion") == 13000


def test_events_name_xids_and_changes_of_the_mig_configuration():
    driver = h100(EMPTY)
    before = driver.value("newestEvent")
    driver.create("1g.10gb", 0, compute=True)
    driver.change(operations.raise_xid, driver.state.gpus[0].uuid, 31)

    kinds = [(kind, data) for *_, kind, data in driver.value("eventsAfter", before)]
    assert kinds == [(0x100, 0), (0x8, 31)]


def test_the_state_survives_json_without_its_clients():
    driver = h100({"mig": ["1g.10gb@0", "3g.40gb@4"]}, WHOLE, latencies=(("nvmlDeviceSetMigMode", 2.0),))
    driver.change(operations.start_process, mig_uuids(driver)[0], memory_mib=5)
    driver.change(operations.add_fault, Fault("nvmlInit", code="UNKNOWN"))
    driver.gpu()

    again = operations.from_json(operations.to_json(driver.state), driver.state.board)

    assert again == operations.release_holder(driver.state, "client")
