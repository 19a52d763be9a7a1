"""The driver: what it reports of its GPUs, and one operation at a time on them. A typed layer over `pynvml`.

Profiles, their ids and their placements are asked of the driver, never assumed: ids differ between boards.
The calls and their order: NVML API Reference Guide, "Multi Instance GPU Management". NVML locks nothing
against other clients, so nothing is kept between two calls: GPUs are found by UUID each time, and each
operation looks at what is there first.
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pynvml

from tangram import catalog
from tangram.packing.geometry.board import Board, Option
from tangram.packing.geometry.board import board as board_of_sku
from tangram.packing.geometry.layouts import Placement
from tangram.partition.difference import LayoutOperation
from tangram.partition.layouts import ObservedInstance, ObservedLayout

_ERROR = "NVML_ERROR_"
ERROR_NAMES = {
    value: name.removeprefix(_ERROR) for name, value in vars(pynvml).items() if name.startswith(_ERROR)
}
# What passes by itself, or with another look at what is there. A lost GPU, a missing permission, a reset that
# is due and a library that no longer fits its driver do not.
RETRYABLE = frozenset(
    [
        pynvml.NVML_ERROR_UNINITIALIZED,  # the driver was loaded again
        pynvml.NVML_ERROR_NOT_FOUND,  # an instance that was there a moment ago
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_TIMEOUT,
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_MEMORY,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,  # another client created an instance
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_UNKNOWN,
    ]
)
# How the driver says that a board has no such profile, or a GPU no such kind of process.
_ABSENT = frozenset([pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT])
_NO_INSTANCE = 0xFFFFFFFF  # as GPU instance of a process: it runs on the GPU as a whole
Processes = Mapping[int | None, frozenset[int]]  # by GPU instance; None: on the GPU as a whole


class NVMLFailure(Exception):
    """A call of NVML that failed."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.error = ERROR_NAMES.get(code, f"ERROR_{code}")
        super().__init__(f"{call}: {self.error} ({code})")

    @property
    def is_retryable(self) -> bool:
        """Whether the same operation may succeed later without a reset or a person."""
        return self.code in RETRYABLE


@dataclass(frozen=True, slots=True)
class _DriverProfile:
    """A profile of GPU instances as the driver of this board lists it."""

    id: int  # the argument of later calls; not the value that it is asked by
    name: str
    compute: int  # compute slices
    engines: tuple[tuple[str, int], ...]
    memory_mib: int
    most: int  # instances of it on one GPU
    sizes: Mapping[int, int]  # start -> memory slices; empty: this driver does not tell


@dataclass(frozen=True, slots=True)
class _GPUInstance:
    """A GPU instance that exists."""

    handle: Any
    id: int
    placement: Placement
    profile: _DriverProfile


@dataclass(frozen=True, slots=True)
class _ComputeInstance:
    """A compute instance that exists."""

    handle: Any
    id: int
    compute: int  # compute slices


class NVMLDriver:
    """The NVIDIA driver of this machine, between `with` and its end."""

    def __init__(self, functions: Any = pynvml) -> None:
        self._functions = functions
        self._is_abandoned = False

    def __enter__(self) -> Self:
        self.call("nvmlInit")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call("nvmlShutdown")

    def version(self) -> str:
        """Return the version of the driver."""
        return str(self.call("nvmlSystemGetDriverVersion"))

    def gpus(self) -> tuple[str, ...]:
        """Return the UUIDs of all GPUs, by their index."""
        indexes = range(self.call("nvmlDeviceGetCount"))
        handles = [self.call("nvmlDeviceGetHandleByIndex", index) for index in indexes]
        return tuple(str(self.call("nvmlDeviceGetUUID", handle)) for handle in handles)

    def observe(self, gpu: str) -> ObservedLayout:
        """Return what is there on one GPU. Raises `NVMLFailure`: half an answer is never returned."""
        device = self._device(gpu)
        product = str(self.call("nvmlDeviceGetName", device))
        modes = self._unless_absent("nvmlDeviceGetMigMode", device)  # None: MIG cannot cut this board
        enabled, pending = (mode == pynvml.NVML_DEVICE_MIG_ENABLE for mode in modes or (0, 0))
        profiles = self._profiles(device) if modes else ()
        processes = self._processes(device)
        instances = self._observed_instances(device, profiles, processes) if enabled else ()
        return ObservedLayout(
            gpu=gpu,
            index=self.call("nvmlDeviceGetIndex", device),
            product=product,
            board=_board(product, profiles) if modes else None,
            mig_enabled=enabled,
            pending_mig_enabled=pending,
            instances=tuple(sorted(instances)),
            processes=tuple(sorted(processes.get(None, ()))),
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """Make one call. Raises `NVMLFailure`."""
        if self._is_abandoned:
            raise NVMLFailure(name, pynvml.NVML_ERROR_TIMEOUT)
        try:
            return getattr(self._functions, name)(*arguments)
        except pynvml.NVMLError as error:
            raise NVMLFailure(name, error.value) from error

    def abandon(self) -> None:
        """Let every further call fail. Called from another thread, while one hangs."""
        self._is_abandoned = True

    def apply(self, operation: LayoutOperation) -> None:
        """Do one operation; where its effect is there already, nothing. Raises `NVMLFailure`.

        A failure may leave it half done: observe the GPU again, and compute the difference anew.
        """
        device = self._device(operation.gpu)
        if operation.placement is None:
            self._set_mode(device, enabled=operation.mig_enabled)
        elif operation.kind == "create-instance":
            self._create(device, operation.placement)
        else:
            self._destroy(device, operation.placement)

    def _set_mode(self, device: Any, *, enabled: bool) -> None:
        mode = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
        current, pending = self.call("nvmlDeviceGetMigMode", device)
        if current == pending == mode:
            return
        if current != mode and any(self._processes(device).values()):
            raise NVMLFailure("nvmlDeviceSetMigMode", pynvml.NVML_ERROR_IN_USE)
        activation = self.call("nvmlDeviceSetMigMode", device, mode)
        if (
            activation != pynvml.NVML_SUCCESS
        ):  # the mode is pending: other clients are there, or a reset is due
            raise NVMLFailure("activation by nvmlDeviceSetMigMode", activation)

    def _destroy(self, device: Any, placement: Placement) -> None:
        instance = self._find(device, placement)
        if instance is None:
            return
        computes = self._compute_instances(instance.handle)
        if self._processes_of(instance, computes, self._processes(device), self._mig_devices(device)):
            raise NVMLFailure("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
        for compute in computes:
            self.call("nvmlComputeInstanceDestroy", compute.handle)
        self.call("nvmlGpuInstanceDestroy", instance.handle)

    def _create(self, device: Any, placement: Placement) -> None:
        instance = self._find(device, placement)
        handle = self._create_gpu_instance(device, placement) if instance is None else instance.handle
        if not self._compute_instances(handle):
            self.call("nvmlGpuInstanceCreateComputeInstance", handle, self._whole_compute_profile(handle))

    def _create_gpu_instance(self, device: Any, placement: Placement) -> Any:
        profile = next((p for p in self._profiles(device) if p.name == placement.profile), None)
        size = None if profile is None else profile.sizes.get(placement.start)
        if profile is None or size is None:
            raise NVMLFailure("nvmlDeviceCreateGpuInstanceWithPlacement", pynvml.NVML_ERROR_INVALID_ARGUMENT)
        at = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, size)
        return self.call("nvmlDeviceCreateGpuInstanceWithPlacement", device, profile.id, ctypes.byref(at))

    def _whole_compute_profile(self, gpu_instance: Any) -> int:
        """Return the id of the profile of compute instances that takes all of a GPU instance: the largest."""
        profiles: dict[int, int] = {info.id: info.sliceCount for info in self._compute_profiles(gpu_instance)}
        if not profiles:
            call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            raise NVMLFailure(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
        return max(profiles, key=lambda number: profiles[number])  # the first of several

    def _find(self, device: Any, placement: Placement) -> _GPUInstance | None:
        instances = self._gpu_instances(device, self._profiles(device))
        return next((instance for instance in instances if instance.placement == placement), None)

    def _observed_instances(
        self, device: Any, profiles: Iterable[_DriverProfile], processes: Processes
    ) -> Iterator[ObservedInstance]:
        mig_devices = self._mig_devices(device)
        for instance in self._gpu_instances(device, profiles):
            computes = self._compute_instances(instance.handle)
            handles = [_of(mig_devices, instance, compute) for compute in computes]
            yield ObservedInstance(
                placement=instance.placement,
                devices=tuple(str(self.call("nvmlDeviceGetUUID", handle)) for handle in handles),
                whole=[compute.compute for compute in computes] == [instance.profile.compute],
                processes=tuple(sorted(self._processes_of(instance, computes, processes, mig_devices))),
                memory_mib=instance.profile.memory_mib,
            )

    def _processes_of(
        self,
        instance: _GPUInstance,
        computes: Iterable[_ComputeInstance],
        of_gpu: Processes,
        mig_devices: Mapping[tuple[int, int], Any],
    ) -> set[int]:
        """Return the processes in a GPU instance: those of the GPU's list, and of its MIG devices' lists."""
        process_ids = set(of_gpu.get(instance.id, ()))
        for compute in computes:
            process_ids |= {process.pid for process in self._running(_of(mig_devices, instance, compute))}
        return process_ids

    def _profiles(self, device: Any) -> tuple[_DriverProfile, ...]:
        """Return the profiles of a board. Their numbering has gaps, which differ from board to board.

        Drivers of branch 535 list none while MIG mode is off.
        """
        profiles_by_id: dict[int, _DriverProfile] = {}
        for value in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._unless_absent("nvmlDeviceGetGpuInstanceProfileInfo", device, value)
            if info is not None:
                profiles_by_id.setdefault(info.id, self._profile(device, info))
        return tuple(profiles_by_id.values())

    def _profile(self, device: Any, info: Any) -> _DriverProfile:
        engines = {
            "copy": info.copyEngineCount,
            "decoder": info.decoderCount,
            "encoder": info.encoderCount,
            "jpeg": info.jpegCount,
            "ofa": info.ofaCount,
        }
        return _DriverProfile(
            id=info.id,
            name=str(info.name).removeprefix("MIG ").strip(),
            compute=info.sliceCount,
            engines=tuple(engines.items()),
            memory_mib=info.memorySizeMB,
            most=info.instanceCount,
            sizes=self._sizes(device, info.id),
        )

    def _sizes(self, device: Any, profile: int) -> dict[int, int]:
        """Return start and size of the placements of a profile; empty where the driver does not tell."""
        count, call = ctypes.c_uint(0), "nvmlDeviceGetGpuInstancePossiblePlacements"
        if self._unless_absent(call, device, profile, None, ctypes.byref(count)) is None or not count.value:
            return {}
        placements = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        self.call(call, device, profile, placements, ctypes.byref(count))
        return {placement.start: placement.size for placement in placements[: count.value]}

    def _gpu_instances(self, device: Any, profiles: Iterable[_DriverProfile]) -> Iterator[_GPUInstance]:
        for profile in profiles:
            handles = (pynvml.c_nvmlGpuInstance_t * profile.most)()
            count = ctypes.c_uint(profile.most)
            self.call("nvmlDeviceGetGpuInstances", device, profile.id, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                info = self.call("nvmlGpuInstanceGetInfo", handle)
                yield _GPUInstance(handle, info.id, Placement(info.placement.start, profile.name), profile)

    def _compute_profiles(self, gpu_instance: Any) -> Iterator[Any]:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        for value in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            info = self._unless_absent(call, gpu_instance, value, shared)
            if info is not None:
                yield info

    def _compute_instances(self, gpu_instance: Any) -> list[_ComputeInstance]:
        instances_by_id: dict[int, _ComputeInstance] = {}
        for profile in self._compute_profiles(gpu_instance):
            handles = (pynvml.c_nvmlComputeInstance_t * profile.instanceCount)()
            count = ctypes.c_uint(profile.instanceCount)
            call = "nvmlGpuInstanceGetComputeInstances"
            self.call(call, gpu_instance, profile.id, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                number = self.call("nvmlComputeInstanceGetInfo", handle).id
                instances_by_id[number] = _ComputeInstance(handle, number, profile.sliceCount)
        return [instances_by_id[number] for number in sorted(instances_by_id)]

    def _mig_devices(self, device: Any) -> dict[tuple[int, int], Any]:
        """Return the handles of MIG devices by GPU instance and compute instance."""
        devices = {}
        for index in range(self.call("nvmlDeviceGetMaxMigDeviceCount", device)):
            try:
                handle = self.call("nvmlDeviceGetMigDeviceHandleByIndex", device, index)
            except NVMLFailure as failure:
                if failure.code in {pynvml.NVML_ERROR_NOT_FOUND, *_ABSENT}:  # the numbering has gaps
                    continue
                raise
            gpu_instance = self.call("nvmlDeviceGetGpuInstanceId", handle)
            devices[gpu_instance, self.call("nvmlDeviceGetComputeInstanceId", handle)] = handle
        return devices

    def _processes(self, device: Any) -> Processes:
        ids_by_instance: dict[int | None, frozenset[int]] = {}
        for process in self._running(device):
            number = None if process.gpuInstanceId == _NO_INSTANCE else process.gpuInstanceId
            ids_by_instance[number] = ids_by_instance.get(number, frozenset()) | {process.pid}
        return ids_by_instance

    def _running(self, device: Any) -> list[Any]:
        """Return the processes with a context on a GPU or on a MIG device."""
        return [
            *self.call("nvmlDeviceGetComputeRunningProcesses_v3", device),
            *(self._unless_absent("nvmlDeviceGetGraphicsRunningProcesses_v3", device) or ()),
            *(self._unless_absent("nvmlDeviceGetMPSComputeRunningProcesses_v3", device) or ()),
        ]

    def _device(self, gpu: str) -> Any:
        return self.call("nvmlDeviceGetHandleByUUID", gpu)

    def _unless_absent(self, name: str, *arguments: Any) -> Any:
        """Return the result of a call; None where the driver says that there is no such thing."""
        try:
            return self.call(name, *arguments)
        except NVMLFailure as failure:
            if failure.code in _ABSENT:
                return None
            raise


def _of(mig_devices: Mapping[tuple[int, int], Any], instance: _GPUInstance, compute: _ComputeInstance) -> Any:
    """Return the MIG device of a compute instance; without it, no pod on it would be noticed."""
    handle = mig_devices.get((instance.id, compute.id))
    if handle is None:
        raise NVMLFailure("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_NOT_FOUND)
    return handle


def _board(product: str, profiles: Iterable[_DriverProfile]) -> Board | None:
    """Return the geometry that the driver reports; where it lists no placements, that of the catalog."""
    listed = [profile for profile in profiles if profile.sizes]
    if not listed:
        sku = catalog.match_device_name(product)
        return None if sku is None else board_of_sku(sku)
    caps: dict[str, int] = {}  # what all of them have, the profile of the whole board has
    for profile in listed:
        caps |= {kind: max(count, caps.get(kind, 0)) for kind, count in profile.engines}
    options = (
        Option(
            start,
            profile.name,
            (1 << size) - 1 << start,
            profile.compute,
            profile.engines,
            profile.memory_mib,
        )
        for profile in listed
        for start, size in profile.sizes.items()
    )
    return Board(
        key=product,
        memory_slices=max(start + size for profile in listed for start, size in profile.sizes.items()),
        compute_slices=max(profile.compute for profile in listed),
        engine_caps=tuple(sorted(caps.items())),
        options=tuple(sorted(options)),
    )
