"""The real pynvml on a simulated driver: its structs, buffers and errors, in one process."""

import threading
from ctypes import byref, c_uint
from pathlib import Path

import pynvml
import pytest

from e2e.silicon.nvml import state as operations
from e2e.silicon.nvml.c_functions import FUNCTIONS
from e2e.silicon.nvml.codes import ReturnCode
from e2e.silicon.nvml.in_process import StateLink
from e2e.silicon.nvml.library import installed
from e2e.silicon.nvml.state import Fault
from tests.support.nvml_driver import nvml_state


@pytest.fixture
def link():
    """Three H100: whole, with MIG on and empty, with two instances."""
    link = StateLink(nvml_state("H100-80GB-SXM", {}, {"mig": []}, {"mig": ["1g.10gb@0", "3g.40gb@4"]}))
    with installed(link):
        pynvml.nvmlInit()
        yield link


def gpu(index):
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def placements(device, profile):
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, array, byref(count))
    return [(one.start, one.size) for one in array]


def instances(device, profile):
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(device, profile)
    array, count = (pynvml.c_nvmlGpuInstance_t * info.instanceCount)(), c_uint()
    pynvml.nvmlDeviceGetGpuInstances(device, profile, array, byref(count))
    return list(array[: count.value])


def computes(instance, profile, most):
    array, count = (pynvml.c_nvmlComputeInstance_t * most)(), c_uint()
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile, array, byref(count))
    return list(array[: count.value])


def profiles(device):
    """As an agent discovers them: every kind, without stopping at a gap."""
    known = {}
    for kind in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
        known[info.name] = info
    return known


def test_the_return_codes_are_those_of_the_bindings():
    for code in ReturnCode:
        name = "NVML_SUCCESS" if code is ReturnCode.SUCCESS else f"NVML_ERROR_{code.name}"
        assert getattr(pynvml, name) == code


def test_every_function_of_the_table_is_one_that_the_bindings_look_up():
    source = Path(pynvml.__file__).read_text()

    assert [name for name in FUNCTIONS if f'FunctionPointer("{name}")' not in source] == []


@pytest.mark.usefixtures("link")
def test_versions_names_and_uuids_are_texts():
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
    assert pynvml.nvmlDeviceGetCount() == 3
    assert pynvml.nvmlDeviceGetName(gpu(0)) == "NVIDIA H100 80GB HBM3"
    assert pynvml.nvmlDeviceGetUUID(gpu(0)).startswith("GPU-")
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu(0)) == (9, 0)
    assert pynvml.nvmlDeviceGetArchitecture(gpu(0)) == pynvml.NVML_DEVICE_ARCH_HOPPER
    assert pynvml.nvmlDeviceGetPciInfo(gpu(1)).busId == "00000000:11:00.0"
    assert pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByPciBusId("00000000:11:00.0")) == 1


@pytest.mark.usefixtures("link")
def test_discovery_finds_ids_sizes_and_placements_by_kind():
    known = profiles(gpu(1))

    assert list(known) == [f"MIG {name}" for name in (
        "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb",
    )]  # fmt: skip
    assert known["MIG 3g.40gb"].id == 9
    assert known["MIG 3g.40gb"].multiprocessorCount == 60
    assert placements(gpu(1), 9) == [(0, 4), (4, 4)]
    assert placements(gpu(1), 19) == [(start, 1) for start in range(7)]
    assert (
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(1), 2, version=1).memorySizeMB
        == known["MIG 3g.40gb"].memorySizeMB
    )


@pytest.mark.usefixtures("link")
def test_a_slice_is_made_found_and_taken_down_by_the_calls_of_an_agent():
    device = gpu(1)
    made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        device, 14, byref(pynvml.c_nvmlGpuInstancePlacement_t(start=2, size=2))
    )
    info = pynvml.nvmlGpuInstanceGetInfo(made)
    assert (info.profileId, info.placement.start, info.placement.size) == (14, 2, 2)
    assert pynvml.nvmlDeviceGetUUID(info.device) == pynvml.nvmlDeviceGetUUID(device)

    whole = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        made,
        pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
        pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
    )
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(made, whole.id)
    device_of_slice = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)
    uuid = pynvml.nvmlDeviceGetUUID(device_of_slice)
    assert uuid.startswith("MIG-")
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device_of_slice).value == 1
    assert pynvml.nvmlDeviceGetGpuInstanceId(device_of_slice) == info.id
    assert pynvml.nvmlComputeInstanceGetInfo(compute).id == pynvml.nvmlDeviceGetComputeInstanceId(
        device_of_slice
    )
    attributes = pynvml.nvmlDeviceGetAttributes(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    assert (attributes.gpuInstanceSliceCount, attributes.multiprocessorCount) == (2, 32)
    assert attributes.memorySizeMB == pynvml.nvmlDeviceGetMemoryInfo(device_of_slice).total >> 20

    pynvml.nvmlComputeInstanceDestroy(computes(*instances(device, 14), whole.id, whole.instanceCount)[0])
    pynvml.nvmlGpuInstanceDestroy(instances(device, 14)[0])
    assert instances(device, 14) == []
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID(uuid)


def test_existing_instances_are_listed_by_profile(link):
    found = {
        name: [pynvml.nvmlGpuInstanceGetInfo(one).placement.start for one in instances(gpu(2), info.id)]
        for name, info in profiles(gpu(2)).items()
    }

    assert {name: starts for name, starts in found.items() if starts} == {
        "MIG 1g.10gb": [0],
        "MIG 3g.40gb": [4],
    }
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(2), 19) == 3
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(2)) == 7
    identity = link.state.gpus[2].instances[0].id
    assert pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(gpu(2), identity)).id == identity


def test_processes_come_with_their_instances(link):
    uuid, instance, _ = link.state.mig_devices(link.state.gpus[2])[1]
    pids = [link.change(operations.start_process, uuid, memory_mib=mib) for mib in (10, 20, 30)]

    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))

    assert [one.pid for one in listed] == pids
    assert {one.gpuInstanceId for one in listed} == {instance.id}
    assert [one.usedGpuMemory >> 20 for one in listed] == [10, 20, 30]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0)) == []
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu(0)) == []


@pytest.mark.usefixtures("link")
def test_the_mode_switches_and_handles_have_to_be_taken_again():
    old = gpu(0)

    assert pynvml.nvmlDeviceSetMigMode(old, pynvml.NVML_DEVICE_MIG_ENABLE) == pynvml.NVML_SUCCESS

    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMigMode(old)
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]


def test_on_ampere_the_activation_status_says_that_a_reset_is_required():
    with installed(StateLink(nvml_state("A100-40GB-SXM", {}))):
        pynvml.nvmlInit()

        assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == pynvml.NVML_ERROR_RESET_REQUIRED
        assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 1]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("NO_PERMISSION", pynvml.NVMLError_NoPermission),
        ("INSUFFICIENT_RESOURCES", pynvml.NVMLError_InsufficientResources),
        ("IN_USE", pynvml.NVMLError_InUse),
        ("GPU_IS_LOST", pynvml.NVMLError_GpuIsLost),
        ("UNKNOWN", pynvml.NVMLError_Unknown),
    ],
)
def test_a_fault_arrives_as_the_exception_of_the_bindings(link, code, error):
    link.change(operations.add_fault, Fault("nvmlDeviceCreateGpuInstance", code=code))

    with pytest.raises(error) as failed:
        pynvml.nvmlDeviceCreateGpuInstance(gpu(1), 19)
    assert str(failed.value)
    assert pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceCreateGpuInstance(gpu(1), 19)).placement.start == 6


def test_destroying_under_a_process_is_in_use(link):
    uuid, *_ = link.state.mig_devices(link.state.gpus[2])[0]
    link.change(operations.start_process, uuid)
    (instance,) = instances(gpu(2), 19)

    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(computes(instance, 0, 1)[0])
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)


def test_without_privileges_configuration_is_refused():
    with installed(StateLink(nvml_state("H100-80GB-SXM", {"mig": []}), privileged=False)):
        pynvml.nvmlInit()

        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceCreateGpuInstance(gpu(0), 19)


def test_before_the_first_and_after_the_last_shutdown_nothing_is_initialised(link):
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 3
    gpu(0)
    assert link.state.holders
    pynvml.nvmlShutdown()

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()
    assert not link.state.holders


@pytest.mark.usefixtures("link")
def test_a_function_that_is_not_simulated_is_not_found():
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetFanSpeed(gpu(0))


@pytest.mark.usefixtures("link")
def test_null_addresses_are_invalid_arguments():
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstances(gpu(1), 19, None, byref(c_uint()))
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(1), 19, None)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetUUID(None)


def test_an_event_set_waits_for_the_xids_of_its_gpus(link):
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu(0), pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 0)
    link.change(operations.raise_xid, link.state.gpus[1].uuid, 31)
    link.change(operations.raise_xid, link.state.gpus[0].uuid, 48)

    event = pynvml.nvmlEventSetWait_v2(events, 1000)

    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 48)
    assert pynvml.nvmlDeviceGetIndex(event.device) == 0
    pynvml.nvmlEventSetFree(events)


def test_a_call_that_hangs_holds_up_its_thread_only(link):
    link.change(operations.add_fault, Fault("nvmlDeviceGetName", hangs=True))
    device, outcomes = gpu(0), []

    def ask_for_the_name():
        with pytest.raises(pynvml.NVMLError_Timeout) as failed:
            pynvml.nvmlDeviceGetName(device)
        outcomes.append(failed.value)

    thread = threading.Thread(target=ask_for_the_name)
    thread.start()
    try:
        assert pynvml.nvmlDeviceGetIndex(device) == 0
        assert outcomes == []
    finally:
        link.released.set()
        thread.join(10)
    assert len(outcomes) == 1


def sampled(device, instance=None):
    sample = pynvml.nvmlGpmSampleAlloc()
    if instance is None:
        return pynvml.nvmlGpmSampleGet(device, sample)
    return pynvml.nvmlGpmMigSampleGet(device, instance, sample)


def measured(first, second, *metrics):
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    asked.sample1, asked.sample2 = first, second
    for number, metric in enumerate(metrics):
        asked.metrics[number].metricId = metric
    answer = pynvml.nvmlGpmMetricsGet(asked)
    return [(metric.nvmlReturn, metric.value) for metric in answer.metrics[: len(metrics)]]


def test_gpm_tells_the_activity_of_a_gpu_and_of_its_instances_between_two_samples(link):
    cut = gpu(2)
    (one,) = [instance for instance in link.state.gpus[2].instances if instance.profile == "1g.10gb"]
    device = next(uuid for uuid, each, _ in link.state.mig_devices(link.state.gpus[2]) if each == one)
    before = sampled(cut, one.id)
    link.change(operations.start_process, device)

    activity = measured(
        before, sampled(cut, one.id), pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_FP64_UTIL
    )

    assert activity == [(pynvml.NVML_SUCCESS, 50.0), (pynvml.NVML_ERROR_NOT_SUPPORTED, 0.0)]
    whole = measured(sampled(gpu(0)), sampled(gpu(0)), pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)
    assert whole == [(pynvml.NVML_SUCCESS, 0.0)]


def test_gpm_refuses_samples_of_different_things_freed_ones_and_instances_that_are_not_there(link):
    first, other = sampled(gpu(0)), sampled(gpu(2), link.state.gpus[2].instances[0].id)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        measured(first, other, pynvml.NVML_GPM_METRIC_SM_UTIL)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        sampled(gpu(2), 99)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        sampled(gpu(0), 0)  # MIG is off
    pynvml.nvmlGpmSampleFree(first)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlGpmSampleFree(first)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        measured(first, sampled(gpu(0)), pynvml.NVML_GPM_METRIC_SM_UTIL)
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlGpmMetricsGet(asked)


def test_gpm_is_there_from_hopper_on(link):
    assert pynvml.nvmlGpmQueryDeviceSupport(gpu(2)).isSupportedDevice

    with installed(StateLink(nvml_state("A100-80GB-SXM", {}))):
        pynvml.nvmlInit()
        assert not pynvml.nvmlGpmQueryDeviceSupport(gpu(0)).isSupportedDevice
        with pytest.raises(pynvml.NVMLError_NotSupported):
            sampled(gpu(0))


def test_utilization_is_told_of_a_gpu_without_mig(link):
    link.change(operations.start_process, link.state.gpus[0].uuid)

    assert pynvml.nvmlDeviceGetUtilizationRates(gpu(0)).gpu == 100
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(gpu(2))
