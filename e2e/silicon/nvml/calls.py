"""What each NVML call does to the state of a node: `perform(state, name, arguments, caller)`.

Names are those of nvml.h without the version suffix. Arguments and values are JSON: a handle is a number.
Codes are those that nvml.h documents for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from e2e.silicon.catalog import Profile
from e2e.silicon.nvml import state as operations
from e2e.silicon.nvml.codes import CallFailed, ReturnCode
from e2e.silicon.nvml.placements import default_start, remaining_capacity
from e2e.silicon.nvml.state import MIB, ComputeInstance, Fault, Gpu, GpuInstance, NvmlState

# NVML_GPU_INSTANCE_PROFILE_COUNT by the branch from which on it holds: 570 brought the kinds of RTX PRO 6000,
# 580.159 does not know 3_SLICE_GFX yet (recorded), and the nvml.h of 615 does.
PROFILE_COUNTS = {0: 10, 570: 17, 581: 18}
COMPUTE_PROFILE_COUNT = 9  # NVML_COMPUTE_INSTANCE_PROFILE_COUNT
NO_INSTANCE = 0xFFFFFFFF  # gpuInstanceId of a process on a whole GPU
ARCHITECTURES = {"8.0": 7, "8.6": 7, "8.9": 8, "9.0": 9, "10.0": 10, "12.0": 10}  # NVML_DEVICE_ARCH_*
# A handle is an address that nothing lives at: a serial and what it is a handle of.
HANDLE_BASE = 0x7F00_0000_0000
DEVICE, MIG_DEVICE, GPU_INSTANCE, COMPUTE_INSTANCE = 1, 2, 3, 4
# Branch 535 and older answer questions about profiles only while MIG is on.
FIRST_BRANCH_WITH_PROFILES_WHILE_OFF = 550


@dataclass(frozen=True, slots=True)
class Caller:
    """The process that calls. `privileged`: root, or the capability to configure MIG."""

    client: str = "client"
    privileged: bool = True
    initialized: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returns: a code, and with SUCCESS a value."""

    code: ReturnCode
    value: Any = None


@dataclass(frozen=True, slots=True)
class Prospect:
    """What will become of a call that has begun: how long it takes, and whether something goes wrong."""

    wait_s: float = 0.0
    fault: Fault | None = None

    @property
    def hangs(self) -> bool:
        """Whether the call never returns."""
        return self.fault is not None and self.fault.hangs


def begin(state: NvmlState, name: str) -> tuple[NvmlState, Prospect]:
    """Count a call of `name`, and return how long it takes and what goes wrong with it."""
    left, hit = [], None
    for fault in state.faults:
        if fault.call != name:
            left.append(fault)
        elif fault.nth > 1:
            left.append(replace(fault, nth=fault.nth - 1))
        elif hit is not None:
            left.append(fault)
        else:
            hit = fault
            if fault.times != 1:
                left.append(replace(fault, times=max(fault.times - 1, 0)))
    wait_s = dict(state.latencies).get(name, 0.0) + (hit.delay_s if hit else 0.0)
    state = replace(state, faults=tuple(left)) if state.faults else state
    return state, Prospect(wait_s, hit)


def finish(
    state: NvmlState, name: str, arguments: Sequence[Any], caller: Caller, prospect: Prospect
) -> tuple[NvmlState, Answer]:
    """Do what a call does once its time has passed. Of a call that hangs, the answer is never delivered."""
    fault = prospect.fault
    if fault is None or fault.takes_effect or not (fault.hangs or fault.code):
        state, answer = perform(state, name, arguments, caller)
    else:
        answer = Answer(ReturnCode.TIMEOUT)
    return state, Answer(ReturnCode[fault.code]) if fault and fault.code else answer


def call(
    state: NvmlState, name: str, arguments: Sequence[Any] = (), caller: Caller | None = None
) -> tuple[NvmlState, Answer]:
    """Begin and finish a call in no time."""
    state, prospect = begin(state, name)
    return finish(state, name, arguments, caller or Caller(), prospect)


def perform(
    state: NvmlState, name: str, arguments: Sequence[Any], caller: Caller
) -> tuple[NvmlState, Answer]:
    """Do what the driver does when nothing goes wrong; a call that fails changes nothing."""
    function = CALLS.get(name)
    if function is None:
        return state, Answer(ReturnCode.FUNCTION_NOT_FOUND)
    if not caller.initialized and name != "nvmlInit":
        return state, Answer(ReturnCode.UNINITIALIZED)
    if name in PRIVILEGED and not caller.privileged:
        return state, Answer(ReturnCode.NO_PERMISSION)
    context = _Context(state, caller)
    try:
        value = function(context, *arguments)
    except CallFailed as failed:
        return state, Answer(failed.code)
    return context.state, Answer(ReturnCode.SUCCESS, value)


@dataclass(slots=True)
class _Context:
    """One call: the state, which the call may replace, and the caller."""

    state: NvmlState
    caller: Caller


@dataclass(frozen=True, slots=True)
class _Device:
    """What a device handle stands for: a GPU, or a MIG device of it."""

    gpu: Gpu
    instance: GpuInstance | None = None
    compute: ComputeInstance | None = None


def handle(serial: int, kind: int) -> int:
    """Return the handle of an object."""
    return HANDLE_BASE + serial * 16 + kind


def _alive(gpu: Gpu) -> Gpu:
    if gpu.is_lost:
        raise CallFailed(ReturnCode.GPU_IS_LOST, gpu.uuid)
    return gpu


def _device(context: _Context, number: int) -> _Device:
    for gpu in context.state.gpus:
        if number == handle(gpu.serial, DEVICE):
            return _Device(_alive(gpu))
        for _, instance, compute in context.state.mig_devices(gpu):
            if number == handle(compute.serial, MIG_DEVICE):
                return _Device(_alive(gpu), instance, compute)
    raise CallFailed(ReturnCode.INVALID_ARGUMENT, "no such device handle, or no longer")


def _gpu(context: _Context, number: int) -> Gpu:
    device = _device(context, number)
    if device.compute is not None:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, "a MIG device, not a GPU")
    return device.gpu


def _mig_device(context: _Context, number: int) -> tuple[Gpu, GpuInstance, ComputeInstance]:
    device = _device(context, number)
    if device.instance is None or device.compute is None:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, "a GPU, not a MIG device")
    return device.gpu, device.instance, device.compute


def _instance(context: _Context, number: int) -> tuple[Gpu, GpuInstance]:
    for gpu in context.state.gpus:
        for instance in gpu.instances:
            if number == handle(instance.serial, GPU_INSTANCE):
                return _alive(gpu), instance
    raise CallFailed(ReturnCode.INVALID_ARGUMENT, "no such GPU instance handle, or no longer")


def _compute(context: _Context, number: int) -> tuple[Gpu, GpuInstance, ComputeInstance]:
    for gpu in context.state.gpus:
        for _, instance, compute in context.state.mig_devices(gpu):
            if number == handle(compute.serial, COMPUTE_INSTANCE):
                return _alive(gpu), instance, compute
    raise CallFailed(ReturnCode.INVALID_ARGUMENT, "no such compute instance handle, or no longer")


def _can_mig(context: _Context, number: int) -> Gpu:
    gpu = _gpu(context, number)
    if not context.state.board.profiles:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, "the board has no MIG")
    return gpu


def _has_mig_on(context: _Context, number: int) -> Gpu:
    gpu = _can_mig(context, number)
    if not gpu.mig_mode:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, "MIG is off")
    return gpu


def _knows_profiles(context: _Context, number: int) -> Gpu:
    known = context.state.branch >= FIRST_BRANCH_WITH_PROFILES_WHILE_OFF
    return (_can_mig if known else _has_mig_on)(context, number)


def _lists_instances(context: _Context, number: int) -> Gpu:
    return (_can_mig if context.state.answers_while_off else _has_mig_on)(context, number)


def _profile(context: _Context, profile_id: int) -> Profile:
    profiles = context.state.board.profiles.values()
    profile = next((one for one in profiles if one.profile_id == profile_id), None)
    if profile is None:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no profile id {profile_id}")
    return profile


# System and devices


def _nothing(_context: _Context) -> None:
    """nvmlInit: there is nothing to do for the driver."""


def _shutdown(context: _Context) -> None:
    context.state = operations.release_holder(context.state, context.caller.client)


def _driver_version(context: _Context) -> str:
    return context.state.driver


def _nvml_version(context: _Context) -> str:
    return f"13.{context.state.driver}"


def _cuda_version(context: _Context) -> int:
    major, _, minor = context.state.cuda.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10


def _count(context: _Context) -> int:
    return len(context.state.gpus)


def _hold(context: _Context, gpu: Gpu) -> int:
    _alive(gpu)
    pair = (context.caller.client, gpu.uuid)
    context.state = replace(context.state, holders=context.state.holders | {pair})
    return handle(gpu.serial, DEVICE)


def _handle_by_index(context: _Context, index: int) -> int:
    if not 0 <= index < len(context.state.gpus):
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no index {index}")
    return _hold(context, context.state.gpus[index])


def _handle_by_uuid(context: _Context, uuid: str) -> int:
    """A GPU's UUID, or a MIG device's: MIG-UUID, or the older MIG-GPU-UUID/GI/CI."""
    for gpu in context.state.gpus:
        if gpu.uuid == uuid:
            return _hold(context, gpu)
        for name, instance, compute in context.state.mig_devices(gpu):
            if uuid in (name, f"MIG-{gpu.uuid}/{instance.id}/{compute.id}"):
                _hold(context, gpu)
                return handle(compute.serial, MIG_DEVICE)
    raise CallFailed(ReturnCode.NOT_FOUND, uuid)


def bus_id(gpu: Gpu) -> str:
    """Return the PCI address of a GPU, which follows its minor number here."""
    return f"00000000:{0x10 + gpu.minor:02X}:00.0"


def _handle_by_bus_id(context: _Context, address: str) -> int:
    for gpu in context.state.gpus:
        if bus_id(gpu).upper().endswith(address.upper().removeprefix("0000:")):
            return _hold(context, gpu)
    raise CallFailed(ReturnCode.NOT_FOUND, address)


def _index(context: _Context, number: int) -> int:
    device = _device(context, number)
    return device.compute.index if device.compute else context.state.gpus.index(device.gpu)


def _minor(context: _Context, number: int) -> int:
    return _gpu(context, number).minor


def _uuid(context: _Context, number: int) -> str:
    device = _device(context, number)
    if device.instance is None or device.compute is None:
        return device.gpu.uuid
    return operations.mig_uuid(device.gpu.uuid, device.instance.id, device.compute.id)


def _name(context: _Context, number: int) -> str:
    device, name = _device(context, number), context.state.board.name
    return name if device.instance is None else f"{name} MIG {device.instance.profile}"


def _pci_info(context: _Context, number: int) -> dict[str, Any]:
    gpu = _gpu(context, number)
    return {"domain": 0, "bus": 0x10 + gpu.minor, "device": 0, "busId": bus_id(gpu)}


def _compute_capability(context: _Context, number: int) -> list[int]:
    _device(context, number)
    major, _, minor = context.state.board.compute_capability.partition(".")
    return [int(major), int(minor or 0)]


def _architecture(context: _Context, number: int) -> int:
    _device(context, number)
    return ARCHITECTURES.get(context.state.board.compute_capability, NO_INSTANCE)


def _processes_of(context: _Context, device: _Device) -> tuple[operations.GpuProcess, ...]:
    return context.state.processes_on(device.gpu, device.instance, device.compute)


def _memory_info(context: _Context, number: int) -> dict[str, int]:
    """Bytes, `used` without `reserved`. Compute instances of one GPU instance share its memory."""
    device, state = _device(context, number), context.state
    of_gpu = state.board.memory_mib, state.reserved_bytes(device.gpu)
    total_mib, reserved = of_gpu if device.instance is None else (state.memory_mib(device.instance), 0)
    total, used = total_mib * MIB, operations.used_mib(state.processes_on(device.gpu, device.instance)) * MIB
    return {"total": total, "reserved": reserved, "free": total - reserved - used, "used": used}


def _utilization(context: _Context, number: int) -> list[int]:
    """nvidia-smi: not supported on a GPU with MIG on, nor on its MIG devices. Else busy means a process."""
    device = _device(context, number)
    if device.gpu.mig_mode:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, "MIG is on")
    return [100 if _processes_of(context, device) else 0, 0]


def _gpm_support(context: _Context, number: int) -> dict[str, int]:
    """GPM exists from Hopper on (nvml.h)."""
    _device(context, number)
    return {"isSupportedDevice": int(_has_gpm(context))}


def _has_gpm(context: _Context) -> bool:
    return float(context.state.board.compute_capability) >= 9.0


def _gpm_sample(context: _Context, number: int, instance_id: int | None = None) -> dict[str, Any]:
    """A sample: of what, and how busy it is. What a GPU with MIG on gives as a whole, no source says."""
    gpu = _gpu(context, number)
    if not _has_gpm(context) or (instance_id is None) == gpu.mig_mode:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, "no GPM, or of the other kind")
    instance = next((one for one in gpu.instances if one.id == instance_id), None)
    if instance is None and instance_id is not None:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no GPU instance {instance_id}")
    processes = context.state.processes_on(gpu, instance)
    return {
        "of": [gpu.serial, None if instance is None else instance.serial],
        "sm": min(sum(one.sm_percent for one in processes), 100.0),
        "memory": min(sum(one.memory_percent for one in processes), 100.0),
    }


def _compute_processes(context: _Context, number: int) -> list[list[int]]:
    """Pid, bytes, GPU instance and compute instance; of a GPU with MIG on, those of all its MIG devices."""
    return [
        [
            one.pid,
            one.memory_mib * MIB,
            NO_INSTANCE if one.gpu_instance is None else one.gpu_instance,
            NO_INSTANCE if one.compute_instance is None else one.compute_instance,
        ]
        for one in _processes_of(context, _device(context, number))
    ]


def _no_processes(context: _Context, number: int) -> list[list[int]]:
    """Graphics and MPS processes: there are none."""
    _device(context, number)
    return []


# MIG mode and GPU instances


def _mig_mode(context: _Context, number: int) -> list[int]:
    gpu = _can_mig(context, number)
    return [int(gpu.mig_mode), int(gpu.pending_mig_mode)]


def _set_mig_mode(context: _Context, number: int, mode: int) -> int:
    gpu = _can_mig(context, number)
    if mode not in (0, 1):
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"mode {mode}")
    context.state, status = operations.set_mig_mode(context.state, gpu, bool(mode), context.caller.client)
    return int(status)


def _profile_info_of(profile: Profile) -> dict[str, Any]:
    return {
        "version": 0,  # the driver clears it (recorded)
        "id": profile.profile_id,
        "isP2pSupported": 0,
        "sliceCount": profile.compute_slices,
        "instanceCount": profile.max_instances,
        "multiprocessorCount": profile.multiprocessors,
        "copyEngineCount": profile.engines["copy"],
        "decoderCount": profile.engines["decoder"],
        "encoderCount": profile.engines["encoder"],
        "jpegCount": profile.engines["jpeg"],
        "ofaCount": profile.engines["ofa"],
        "memorySizeMB": profile.memory_mib,
        "name": f"MIG {profile.name}",
    }


def _profile_info(context: _Context, number: int, enum_value: int) -> dict[str, Any]:
    _knows_profiles(context, number)
    count = next(count for first, count in reversed(PROFILE_COUNTS.items()) if context.state.branch >= first)
    if not 0 <= enum_value < count:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no kind of profile {enum_value}")
    for profile in context.state.board.profiles.values():
        if profile.enum_value == enum_value:
            return _profile_info_of(profile)
    raise CallFailed(ReturnCode.NOT_SUPPORTED, "this board has none of the kind")


def _profile_info_by_id(context: _Context, number: int, profile_id: int) -> dict[str, Any]:
    _knows_profiles(context, number)
    return _profile_info_of(_profile(context, profile_id))


def _possible_placements(context: _Context, number: int, profile_id: int) -> list[list[int]]:
    _knows_profiles(context, number)
    profile = _profile(context, profile_id)
    return [[start, profile.size] for start in profile.starts]


def _remaining_capacity(context: _Context, number: int, profile_id: int) -> int:
    gpu, state = _lists_instances(context, number), context.state
    return remaining_capacity(state.board, state.placed(gpu), _profile(context, profile_id))


def _create(context: _Context, gpu: Gpu, profile: Profile, start: int) -> int:
    context.state, made = operations.create_instance(context.state, gpu.uuid, profile, start)
    return handle(made.serial, GPU_INSTANCE)


def _create_instance(context: _Context, number: int, profile_id: int) -> int:
    gpu, profile = _has_mig_on(context, number), _profile(context, profile_id)
    start = default_start(context.state.board, context.state.placed(gpu), profile)
    if start is None:
        raise CallFailed(ReturnCode.INSUFFICIENT_RESOURCES, f"no room for {profile.name}")
    return _create(context, gpu, profile, start)


def _create_instance_at(context: _Context, number: int, profile_id: int, placement: Sequence[int]) -> int:
    gpu, profile = _has_mig_on(context, number), _profile(context, profile_id)
    start, size = placement
    if start not in profile.starts or size != profile.size:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"{profile.name} has no placement {start}:{size}")
    return _create(context, gpu, profile, start)


def _destroy_instance(context: _Context, number: int) -> None:
    gpu, instance = _instance(context, number)
    context.state = operations.destroy_instance(context.state, gpu, instance)


def _instances(context: _Context, number: int, profile_id: int) -> list[int]:
    gpu, profile = _lists_instances(context, number), _profile(context, profile_id)
    return [handle(one.serial, GPU_INSTANCE) for one in gpu.instances if one.profile == profile.name]


def _instance_by_id(context: _Context, number: int, identity: int) -> int:
    gpu = _lists_instances(context, number)
    for instance in gpu.instances:
        if instance.id == identity:
            return handle(instance.serial, GPU_INSTANCE)
    raise CallFailed(ReturnCode.NOT_FOUND, f"no GPU instance {identity}")


def _instance_info(context: _Context, number: int) -> dict[str, Any]:
    gpu, instance = _instance(context, number)
    profile = context.state.profile(instance)
    return {
        "device": handle(gpu.serial, DEVICE),
        "id": instance.id,
        "profileId": profile.profile_id,
        "placement": [instance.start, profile.size],
    }


# Compute instances and MIG devices


def _compute_size(context: _Context, instance: GpuInstance, profile_id: int) -> int:
    if not 0 <= profile_id < COMPUTE_PROFILE_COUNT:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no compute instance profile {profile_id}")
    size = operations.compute_profiles(context.state.profile(instance)).get(profile_id)
    if size is None:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, f"{instance.profile} has no such compute instance")
    return size


def _multiprocessors(profile: Profile, size: int) -> int:
    return profile.multiprocessors * size // profile.compute_slices


def _compute_profile_info(context: _Context, number: int, profile_id: int, engines: int) -> dict[str, Any]:
    _, instance = _instance(context, number)
    if engines != 0:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, "engines of compute instances are always shared")
    size, profile = _compute_size(context, instance, profile_id), context.state.profile(instance)
    name = profile.name if size == profile.compute_slices else f"{size}c.{profile.name}"
    return {
        "id": profile_id,
        "sliceCount": size,
        "instanceCount": len(operations.compute_starts(profile, size)),
        "multiprocessorCount": _multiprocessors(profile, size),
        "sharedCopyEngineCount": profile.engines["copy"],
        "sharedDecoderCount": profile.engines["decoder"],
        "sharedEncoderCount": profile.engines["encoder"],
        "sharedJpegCount": profile.engines["jpeg"],
        "sharedOfaCount": profile.engines["ofa"],
        "name": f"MIG {name}",
    }


def _compute_capacity(context: _Context, number: int, profile_id: int) -> int:
    _, instance = _instance(context, number)
    size = _compute_size(context, instance, profile_id)
    return len(operations.free_compute_starts(context.state, instance, size))


def _compute_placements(context: _Context, number: int, profile_id: int) -> list[list[int]]:
    _, instance = _instance(context, number)
    size = _compute_size(context, instance, profile_id)
    return [[start, size] for start in operations.compute_starts(context.state.profile(instance), size)]


def _create_compute(context: _Context, number: int, profile_id: int) -> int:
    _, instance = _instance(context, number)
    starts = operations.free_compute_starts(
        context.state, instance, _compute_size(context, instance, profile_id)
    )
    if not starts:
        raise CallFailed(ReturnCode.INSUFFICIENT_RESOURCES, "no room for a compute instance")
    return _create_compute_at_start(context, number, profile_id, starts[0])


def _create_compute_at(context: _Context, number: int, profile_id: int, placement: Sequence[int]) -> int:
    if list(placement) not in _compute_placements(context, number, profile_id):
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no placement {placement}")
    return _create_compute_at_start(context, number, profile_id, placement[0])


def _create_compute_at_start(context: _Context, number: int, profile_id: int, start: int) -> int:
    gpu, instance = _instance(context, number)
    context.state, made = operations.create_compute_instance(
        context.state, gpu.uuid, instance, profile_id, start
    )
    context.state = operations.with_event(context.state, gpu.uuid, operations.EVENT_MIG_CONFIG_CHANGE)
    return handle(made.serial, COMPUTE_INSTANCE)


def _destroy_compute(context: _Context, number: int) -> None:
    gpu, instance, compute = _compute(context, number)
    context.state = operations.destroy_compute_instance(context.state, gpu, instance, compute)
    context.state = operations.with_event(context.state, gpu.uuid, operations.EVENT_MIG_CONFIG_CHANGE)


def _computes(context: _Context, number: int, profile_id: int) -> list[int]:
    _, instance = _instance(context, number)
    _compute_size(context, instance, profile_id)
    found = [one for one in instance.compute_instances if one.profile_id == profile_id]
    return [handle(one.serial, COMPUTE_INSTANCE) for one in found]


def _compute_by_id(context: _Context, number: int, identity: int) -> int:
    _, instance = _instance(context, number)
    for compute in instance.compute_instances:
        if compute.id == identity:
            return handle(compute.serial, COMPUTE_INSTANCE)
    raise CallFailed(ReturnCode.NOT_FOUND, f"no compute instance {identity}")


def _compute_info(context: _Context, number: int) -> dict[str, Any]:
    gpu, instance, compute = _compute(context, number)
    return {
        "device": handle(gpu.serial, DEVICE),
        "gpuInstance": handle(instance.serial, GPU_INSTANCE),
        "id": compute.id,
        "profileId": compute.profile_id,
        "placement": [compute.start, compute.size],
    }


def _is_mig_device(context: _Context, number: int) -> int:
    return int(_device(context, number).compute is not None)


def _instance_id(context: _Context, number: int) -> int:
    return _mig_device(context, number)[1].id


def _compute_id(context: _Context, number: int) -> int:
    return _mig_device(context, number)[2].id


def _parent(context: _Context, number: int) -> int:
    return handle(_mig_device(context, number)[0].serial, DEVICE)


def _most_mig_devices(context: _Context, number: int) -> int:
    """As many as there are compute slices; 0 where MIG is not supported or off."""
    gpu = _gpu(context, number)
    return context.state.board.compute_slices if gpu.mig_mode else 0


def _mig_device_by_index(context: _Context, number: int, index: int) -> int:
    gpu = _lists_instances(context, number)
    if not 0 <= index < context.state.board.compute_slices:
        raise CallFailed(ReturnCode.INVALID_ARGUMENT, f"no index {index}")
    for _, _, compute in context.state.mig_devices(gpu):
        if compute.index == index:
            return handle(compute.serial, MIG_DEVICE)
    raise CallFailed(ReturnCode.NOT_FOUND, f"no MIG device {index}")


def _attributes(context: _Context, number: int) -> dict[str, int]:
    device, state = _device(context, number), context.state
    if device.instance is None or device.compute is None:
        raise CallFailed(ReturnCode.NOT_SUPPORTED, "only MIG devices have attributes")
    profile = state.profile(device.instance)
    return {
        "multiprocessorCount": _multiprocessors(profile, device.compute.size),
        "sharedCopyEngineCount": profile.engines["copy"],
        "sharedDecoderCount": profile.engines["decoder"],
        "sharedEncoderCount": profile.engines["encoder"],
        "sharedJpegCount": profile.engines["jpeg"],
        "sharedOfaCount": profile.engines["ofa"],
        "gpuInstanceSliceCount": profile.compute_slices,
        "computeInstanceSliceCount": device.compute.size,
        "memorySizeMB": state.memory_mib(device.instance),
    }


# Events


def _event_types(context: _Context, number: int) -> int:
    _gpu(context, number)
    return operations.EVENT_XID | operations.EVENT_MIG_CONFIG_CHANGE


def _newest_event(context: _Context) -> int:
    """The number after which an event is new; for `library`, not in nvml.h."""
    return context.state.next_serial - 1


def _events_after(context: _Context, number: int) -> list[list[Any]]:
    """Events after a number: number, handle of the GPU, UUID, kind, data; for `library`, not in nvml.h."""
    serials = {gpu.uuid: gpu.serial for gpu in context.state.gpus}
    return [
        [one.number, handle(serials[one.gpu], DEVICE), one.gpu, one.kind, one.data]
        for one in context.state.events
        if one.number > number
    ]


CALLS: dict[str, Callable[..., Any]] = {
    "nvmlInit": _nothing,
    "nvmlShutdown": _shutdown,
    "nvmlSystemGetDriverVersion": _driver_version,
    "nvmlSystemGetNVMLVersion": _nvml_version,
    "nvmlSystemGetCudaDriverVersion": _cuda_version,
    "nvmlDeviceGetCount": _count,
    "nvmlDeviceGetHandleByIndex": _handle_by_index,
    "nvmlDeviceGetHandleByUUID": _handle_by_uuid,
    "nvmlDeviceGetHandleByPciBusId": _handle_by_bus_id,
    "nvmlDeviceGetIndex": _index,
    "nvmlDeviceGetMinorNumber": _minor,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetPciInfo": _pci_info,
    "nvmlDeviceGetCudaComputeCapability": _compute_capability,
    "nvmlDeviceGetArchitecture": _architecture,
    "nvmlDeviceGetMemoryInfo": _memory_info,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlGpmQueryDeviceSupport": _gpm_support,
    "nvmlGpmSampleGet": _gpm_sample,
    "nvmlGpmMigSampleGet": _gpm_sample,
    "nvmlDeviceGetComputeRunningProcesses": _compute_processes,
    "nvmlDeviceGetGraphicsRunningProcesses": _no_processes,
    "nvmlDeviceGetMPSComputeRunningProcesses": _no_processes,
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceSetMigMode": _set_mig_mode,
    "nvmlDeviceGetGpuInstanceProfileInfo": _profile_info,
    "nvmlDeviceGetGpuInstanceProfileInfoById": _profile_info_by_id,
    "nvmlDeviceGetGpuInstancePossiblePlacements": _possible_placements,
    "nvmlDeviceGetGpuInstanceRemainingCapacity": _remaining_capacity,
    "nvmlDeviceCreateGpuInstance": _create_instance,
    "nvmlDeviceCreateGpuInstanceWithPlacement": _create_instance_at,
    "nvmlGpuInstanceDestroy": _destroy_instance,
    "nvmlDeviceGetGpuInstances": _instances,
    "nvmlDeviceGetGpuInstanceById": _instance_by_id,
    "nvmlGpuInstanceGetInfo": _instance_info,
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": _compute_profile_info,
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity": _compute_capacity,
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements": _compute_placements,
    "nvmlGpuInstanceCreateComputeInstance": _create_compute,
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": _create_compute_at,
    "nvmlComputeInstanceDestroy": _destroy_compute,
    "nvmlGpuInstanceGetComputeInstances": _computes,
    "nvmlGpuInstanceGetComputeInstanceById": _compute_by_id,
    "nvmlComputeInstanceGetInfo": _compute_info,
    "nvmlDeviceIsMigDeviceHandle": _is_mig_device,
    "nvmlDeviceGetGpuInstanceId": _instance_id,
    "nvmlDeviceGetComputeInstanceId": _compute_id,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _parent,
    "nvmlDeviceGetMaxMigDeviceCount": _most_mig_devices,
    "nvmlDeviceGetMigDeviceHandleByIndex": _mig_device_by_index,
    "nvmlDeviceGetAttributes": _attributes,
    "nvmlDeviceGetSupportedEventTypes": _event_types,
    "newestEvent": _newest_event,
    "eventsAfter": _events_after,
}
# nvml.h: "Requires privileged user."
PRIVILEGED = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        "nvmlDeviceGetGpuInstanceRemainingCapacity",
        "nvmlDeviceCreateGpuInstance",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceDestroy",
        "nvmlDeviceGetGpuInstances",
        "nvmlDeviceGetGpuInstanceById",
        "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
        "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceGetComputeInstances",
        "nvmlGpuInstanceGetComputeInstanceById",
    }
)
