"""The functions of libnvidia-ml.so as C functions in Python, over the real structs of `pynvml`.

A C function checks its addresses, asks the driver, and writes what the driver answers to the addresses.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

from e2e.silicon.nvml.codes import ReturnCode

NO_INSTANCE = 0xFFFFFFFF
EVENT_POLL_S = 0.02
log = logging.getLogger("nvml")


class DriverLink(Protocol):
    """Where calls go: to a daemon, or to a state in the same process."""

    def call(self, name: str, arguments: Sequence[Any], *, initialized: bool) -> tuple[ReturnCode, Any]:
        """Make one call, and return its code and value."""


@dataclass
class EventSet:
    """What an event set waits for: kinds of events by the UUID of a GPU, after an event."""

    after: int
    kinds: dict[str, int] = field(default_factory=dict)


class NvmlLibrary:
    """What libnvidia-ml.so holds in one process: how often it was initialised, and event sets."""

    def __init__(self, link: DriverLink, pynvml: ModuleType) -> None:
        self.structs = pynvml
        self._link = link
        self._initialized = 0
        self._lock = threading.Lock()
        self._event_sets: dict[int, EventSet] = {}
        self.samples: dict[int, dict[str, Any] | None] = {}  # of GPM, by handle; None: not taken yet
        self._newest_sample = 0
        self._texts: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def call(self, name: str, *arguments: Any) -> tuple[ReturnCode, Any]:
        """Make a call of the driver."""
        return self._link.call(name, arguments, initialized=self._initialized > 0)

    def init(self) -> ReturnCode:
        """Count an initialisation."""
        code, _ = self.call("nvmlInit")
        if code is ReturnCode.SUCCESS:
            with self._lock:
                self._initialized += 1
        return code

    def shutdown(self) -> ReturnCode:
        """Count back; after the last, the driver forgets what this process holds."""
        if not self._initialized:
            return ReturnCode.UNINITIALIZED
        if self._initialized == 1:
            code, _ = self.call("nvmlShutdown")
            if code is not ReturnCode.SUCCESS:
                return code
        with self._lock:
            self._initialized -= 1
        return ReturnCode.SUCCESS

    def text(self, code: int) -> int:
        """Return the address of a code's description, which stays."""
        if code not in self._texts:
            known = code in set(ReturnCode)
            words = ReturnCode(code).name.replace("_", " ").title() if known else "Unknown Error"
            self._texts[code] = ctypes.create_string_buffer(words.encode())
        return ctypes.addressof(self._texts[code])

    def create_event_set(self) -> tuple[ReturnCode, int]:
        """Return the handle of a new event set, which sees what happens from now on."""
        code, newest = self.call("newestEvent")
        number = 0x7E00_0000_0000 + 16 * (len(self._event_sets) + 1)
        if code is ReturnCode.SUCCESS:
            self._event_sets[number] = EventSet(newest)
        return code, number

    def register_events(self, device: int, kinds: int, event_set: int) -> ReturnCode:
        """Let an event set wait for events of a GPU, too."""
        code, uuid = self.call("nvmlDeviceGetUUID", device)
        if code is not ReturnCode.SUCCESS:
            return code
        known = self._event_sets.get(event_set)
        if known is None:
            return ReturnCode.INVALID_ARGUMENT
        known.kinds[uuid] = known.kinds.get(uuid, 0) | kinds
        return ReturnCode.SUCCESS

    def wait_for_event(self, event_set: int, timeout_ms: int) -> tuple[ReturnCode, list[Any]]:
        """Return the oldest event that an event set waits for and has not had, or TIMEOUT."""
        known, deadline = self._event_sets.get(event_set), time.monotonic() + timeout_ms / 1000
        if known is None:
            return ReturnCode.INVALID_ARGUMENT, []
        while True:
            code, events = self.call("eventsAfter", known.after)
            if code is not ReturnCode.SUCCESS:
                return code, []
            for event in events:
                known.after = event[0]
                if known.kinds.get(event[2], 0) & event[3]:
                    return code, event
            if time.monotonic() >= deadline:
                return ReturnCode.TIMEOUT, []
            time.sleep(EVENT_POLL_S)

    def free_event_set(self, event_set: int) -> ReturnCode:
        """Forget an event set."""
        known = self._event_sets.pop(event_set, None)
        return ReturnCode.INVALID_ARGUMENT if known is None else ReturnCode.SUCCESS

    def create_sample(self) -> int:
        """Return the handle of a new sample of GPM, which is empty."""
        self._newest_sample += 1
        number = 0x7D00_0000_0000 + 16 * self._newest_sample
        self.samples[number] = None
        return number

    def free_sample(self, number: int) -> ReturnCode:
        """Forget a sample."""
        known = number in self.samples
        self.samples.pop(number, None)
        return ReturnCode.SUCCESS if known else ReturnCode.INVALID_ARGUMENT

    def take_sample(self, name: str, device: int, *arguments: int) -> ReturnCode:
        """Fill a sample: (device, GPU instance if it is of one, sample)."""
        *instance, number = arguments
        if number not in self.samples:
            return ReturnCode.INVALID_ARGUMENT
        code, value = self.call(name, device, *instance)
        if code is ReturnCode.SUCCESS:
            self.samples[number] = value
        return code


# One C function: its parameters' types, and what it does with the addresses that it gets.
Body = Callable[..., ReturnCode | int]
HANDLE = OUT = c_void_p


def _write(address: int, kind: Any, value: Any) -> None:
    kind.from_address(address).value = value


def _ask(library: NvmlLibrary, name: str, *arguments: Any) -> tuple[ReturnCode, Any]:
    """Make a call whose handles may be NULL, which ctypes gives as None."""
    return library.call(name, *(0 if one is None else one for one in arguments))


def _numbers(name: str, kinds: Sequence[Any]) -> Body:
    """A getter of numbers or handles: (inputs..., an address for each of `kinds`)."""

    def body(library: NvmlLibrary, *parameters: Any) -> ReturnCode:
        inputs, outputs = parameters[: -len(kinds)], parameters[-len(kinds) :]
        if None in outputs:
            return ReturnCode.INVALID_ARGUMENT
        code, value = _ask(library, name, *inputs)
        if code is ReturnCode.SUCCESS:
            values = value if isinstance(value, list) else [value]
            for address, kind, one in zip(outputs, kinds, values, strict=True):
                _write(address, kind, one)
        return code

    return body


def _order(name: str) -> Body:
    """A call without a result."""

    def body(library: NvmlLibrary, *parameters: Any) -> ReturnCode:
        return _ask(library, name, *parameters)[0]

    return body


def _string(name: str) -> Body:
    """A getter of a text: (inputs..., buffer, its length)."""

    def body(library: NvmlLibrary, *parameters: Any) -> ReturnCode:
        *inputs, buffer, length = parameters
        if buffer is None:
            return ReturnCode.INVALID_ARGUMENT
        code, value = _ask(library, name, *inputs)
        if code is not ReturnCode.SUCCESS:
            return code
        text = str(value).encode() + b"\0"
        if len(text) > length:
            return ReturnCode.INSUFFICIENT_SIZE
        ctypes.memmove(buffer, text, len(text))
        return code

    return body


def _by_name(name: str) -> Body:
    """A handle by a text: (text, address)."""

    def body(library: NvmlLibrary, text: bytes | None, address: int | None) -> ReturnCode:
        if text is None or address is None:
            return ReturnCode.INVALID_ARGUMENT
        code, value = library.call(name, text.decode())
        if code is ReturnCode.SUCCESS:
            _write(address, c_void_p, value)
        return code

    return body


def _struct(name: str, kind: str, version: str | None = None) -> Body:
    """A getter of a struct: (inputs..., its address). `version`: the constant that its field must hold."""

    def body(library: NvmlLibrary, *parameters: Any) -> ReturnCode:
        *inputs, address = parameters
        if address is None:
            return ReturnCode.INVALID_ARGUMENT
        struct = getattr(library.structs, kind).from_address(address)
        if version is not None and struct.version != getattr(library.structs, version):
            return ReturnCode.INVALID_ARGUMENT
        code, value = _ask(library, name, *inputs)
        if code is ReturnCode.SUCCESS:
            _fill(struct, value)
        return code

    return body


def _fill(struct: Any, values: Mapping[str, Any]) -> None:
    """Set the fields that a struct has; a list is a placement, a handle an address."""
    for name, kind in struct._fields_:
        if name not in values:
            continue
        value = values[name]
        if isinstance(value, list):
            placement = getattr(struct, name)
            placement.start, placement.size = value
        elif isinstance(value, str):
            setattr(struct, name, value.encode())
        elif issubclass(kind, ctypes._Pointer):  # noqa: SLF001 - the base of every pointer type
            setattr(struct, name, ctypes.cast(value, kind))
        else:
            setattr(struct, name, value)


def _placements(name: str, kind: str) -> Body:
    """Possible placements: (handle, profile id, array or NULL, count)."""

    def body(
        library: NvmlLibrary, handle: Any, profile: int, array: int | None, count: int | None
    ) -> ReturnCode:
        if count is None:
            return ReturnCode.INVALID_ARGUMENT
        code, value = _ask(library, name, handle, profile)
        if code is ReturnCode.SUCCESS:
            if array is not None:
                placements = (getattr(library.structs, kind) * len(value)).from_address(array)
                for one, (start, size) in zip(placements, value, strict=True):
                    one.start, one.size = start, size
            _write(count, c_uint, len(value))
        return code

    return body


def _handles(name: str) -> Body:
    """Existing instances: (handle, profile id, array, count)."""

    def body(
        library: NvmlLibrary, handle: Any, profile: int, array: int | None, count: int | None
    ) -> ReturnCode:
        if array is None or count is None:
            return ReturnCode.INVALID_ARGUMENT
        code, value = _ask(library, name, handle, profile)
        if code is ReturnCode.SUCCESS:
            (c_void_p * len(value)).from_address(array)[:] = value
            _write(count, c_uint, len(value))
        return code

    return body


def _at_placement(name: str, kind: str) -> Body:
    """Creation at a placement: (handle, profile id, placement, address)."""

    def body(
        library: NvmlLibrary, handle: Any, profile: int, placement: int | None, address: int | None
    ) -> ReturnCode:
        if placement is None or address is None:
            return ReturnCode.INVALID_ARGUMENT
        asked = getattr(library.structs, kind).from_address(placement)
        code, value = _ask(library, name, handle, profile, [asked.start, asked.size])
        if code is ReturnCode.SUCCESS:
            _write(address, c_void_p, value)
        return code

    return body


def _processes(name: str) -> Body:
    """Running processes: (device, count in and out, array or NULL)."""

    def body(library: NvmlLibrary, device: Any, count: int | None, array: int | None) -> ReturnCode:
        if count is None:
            return ReturnCode.INVALID_ARGUMENT
        code, value = _ask(library, name, device)
        if code is not ReturnCode.SUCCESS:
            return code
        room = c_uint.from_address(count).value
        _write(count, c_uint, len(value))
        if len(value) > room or (value and array is None):
            return ReturnCode.INSUFFICIENT_SIZE
        if value and array is not None:
            kind = library.structs.c_nvmlProcessInfo_v3_t
            for one, process in zip((kind * len(value)).from_address(array), value, strict=True):
                one.pid, one.usedGpuMemory, one.gpuInstanceId, one.computeInstanceId = process
        return code

    return body


def _init(library: NvmlLibrary, *_flags: Any) -> ReturnCode:
    return library.init()


def _shutdown(library: NvmlLibrary) -> ReturnCode:
    return library.shutdown()


def _error_string(library: NvmlLibrary, code: int) -> int:
    return library.text(code)


def _event_set_create(library: NvmlLibrary, address: int | None) -> ReturnCode:
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    code, number = library.create_event_set()
    if code is ReturnCode.SUCCESS:
        _write(address, c_void_p, number)
    return code


def _register_events(library: NvmlLibrary, device: Any, kinds: int, event_set: Any) -> ReturnCode:
    return library.register_events(device or 0, kinds, event_set or 0)


def _event_set_wait(library: NvmlLibrary, event_set: Any, address: int | None, timeout_ms: int) -> ReturnCode:
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    code, event = library.wait_for_event(event_set or 0, timeout_ms)
    if code is ReturnCode.SUCCESS:
        _, device, _, kind, data = event
        struct = library.structs.c_nvmlEventData_t.from_address(address)
        instances = {"gpuInstanceId": NO_INSTANCE, "computeInstanceId": NO_INSTANCE}
        _fill(struct, {"device": device, "eventType": kind, "eventData": data} | instances)
    return code


def _event_set_free(library: NvmlLibrary, event_set: Any) -> ReturnCode:
    return library.free_event_set(event_set or 0)


def _memory(library: NvmlLibrary, device: int | None, address: int | None) -> ReturnCode:
    """The first form of the struct has no `reserved`: its `used` holds both (nvml.h)."""
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    code, value = library.call("nvmlDeviceGetMemoryInfo", device or 0)
    if code is ReturnCode.SUCCESS:
        used = value["used"] + value["reserved"]
        _fill(library.structs.c_nvmlMemory_t.from_address(address), value | {"used": used})
    return code


def _utilization(library: NvmlLibrary, device: int | None, address: int | None) -> ReturnCode:
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    code, value = library.call("nvmlDeviceGetUtilizationRates", device or 0)
    if code is ReturnCode.SUCCESS:
        rates = library.structs.c_nvmlUtilization_t.from_address(address)
        rates.gpu, rates.memory = value
    return code


def _gpm_sample_alloc(library: NvmlLibrary, address: int | None) -> ReturnCode:
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    _write(address, c_void_p, library.create_sample())
    return ReturnCode.SUCCESS


def _gpm_sample_free(library: NvmlLibrary, sample: int | None) -> ReturnCode:
    return library.free_sample(sample or 0)


def _gpm_sample_get(library: NvmlLibrary, device: int | None, *arguments: Any) -> ReturnCode:
    name = "nvmlGpmMigSampleGet" if len(arguments) > 1 else "nvmlGpmSampleGet"
    return library.take_sample(name, device or 0, *(one or 0 for one in arguments))


def _gpm_support(library: NvmlLibrary, device: int | None, address: int | None) -> ReturnCode:
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    support = library.structs.c_nvmlGpmSupport_t.from_address(address)
    if support.version != library.structs.NVML_GPM_SUPPORT_VERSION:
        return ReturnCode.ARGUMENT_VERSION_MISMATCH
    code, value = library.call("nvmlGpmQueryDeviceSupport", device or 0)
    if code is ReturnCode.SUCCESS:
        _fill(support, value)
    return code


def _gpm_metrics_get(library: NvmlLibrary, address: int | None) -> ReturnCode:
    """The mean of two samples of the same GPU or GPU instance; each metric has a code of its own."""
    if address is None:
        return ReturnCode.INVALID_ARGUMENT
    asked = library.structs.c_nvmlGpmMetricsGet_t.from_address(address)
    if asked.version != library.structs.NVML_GPM_METRICS_GET_VERSION:
        return ReturnCode.ARGUMENT_VERSION_MISMATCH
    addresses = [ctypes.cast(one, c_void_p).value or 0 for one in (asked.sample1, asked.sample2)]
    first, second = (library.samples.get(one) for one in addresses)
    if first is None or second is None or first["of"] != second["of"] or addresses[0] == addresses[1]:
        return ReturnCode.INVALID_ARGUMENT
    names = {
        library.structs.NVML_GPM_METRIC_SM_UTIL: "sm",
        library.structs.NVML_GPM_METRIC_DRAM_BW_UTIL: "memory",
    }
    for metric in asked.metrics[: asked.numMetrics]:
        name = names.get(metric.metricId)
        metric.nvmlReturn = int(ReturnCode.NOT_SUPPORTED if name is None else ReturnCode.SUCCESS)
        if name is not None:
            metric.value = (first[name] + second[name]) / 2
    return ReturnCode.SUCCESS


_PROFILE = "nvmlDeviceGetGpuInstanceProfileInfo"
_COMPUTE_PROFILE = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
_GPU_PLACEMENT, _COMPUTE_PLACEMENT = "c_nvmlGpuInstancePlacement_t", "c_nvmlComputeInstancePlacement_t"
_TEXT = (OUT, c_uint)  # a buffer and its length
_LIST = (HANDLE, c_uint, OUT, OUT)
_PROCESSES = (HANDLE, OUT, OUT)

# By the name that pynvml looks up, with the version suffix of its newest form.
FUNCTIONS: dict[str, tuple[tuple[Any, ...], Body]] = {
    "nvmlInitWithFlags": ((c_uint,), _init),
    "nvmlShutdown": ((), _shutdown),
    "nvmlErrorString": ((c_int,), _error_string),
    "nvmlSystemGetDriverVersion": (_TEXT, _string("nvmlSystemGetDriverVersion")),
    "nvmlSystemGetNVMLVersion": (_TEXT, _string("nvmlSystemGetNVMLVersion")),
    "nvmlSystemGetCudaDriverVersion": ((OUT,), _numbers("nvmlSystemGetCudaDriverVersion", [c_int])),
    "nvmlDeviceGetCount_v2": ((OUT,), _numbers("nvmlDeviceGetCount", [c_uint])),
    "nvmlDeviceGetHandleByIndex_v2": ((c_uint, OUT), _numbers("nvmlDeviceGetHandleByIndex", [c_void_p])),
    "nvmlDeviceGetHandleByUUID": ((c_char_p, OUT), _by_name("nvmlDeviceGetHandleByUUID")),
    "nvmlDeviceGetHandleByPciBusId_v2": ((c_char_p, OUT), _by_name("nvmlDeviceGetHandleByPciBusId")),
    "nvmlDeviceGetIndex": ((HANDLE, OUT), _numbers("nvmlDeviceGetIndex", [c_uint])),
    "nvmlDeviceGetMinorNumber": ((HANDLE, OUT), _numbers("nvmlDeviceGetMinorNumber", [c_uint])),
    "nvmlDeviceGetUUID": ((HANDLE, *_TEXT), _string("nvmlDeviceGetUUID")),
    "nvmlDeviceGetName": ((HANDLE, *_TEXT), _string("nvmlDeviceGetName")),
    "nvmlDeviceGetPciInfo_v3": ((HANDLE, OUT), _struct("nvmlDeviceGetPciInfo", "nvmlPciInfo_t")),
    "nvmlDeviceGetCudaComputeCapability": (
        (HANDLE, OUT, OUT),
        _numbers("nvmlDeviceGetCudaComputeCapability", [c_int, c_int]),
    ),
    "nvmlDeviceGetArchitecture": ((HANDLE, OUT), _numbers("nvmlDeviceGetArchitecture", [c_uint])),
    "nvmlDeviceGetMemoryInfo": ((HANDLE, OUT), _memory),
    "nvmlDeviceGetMemoryInfo_v2": (
        (HANDLE, OUT),
        _struct("nvmlDeviceGetMemoryInfo", "c_nvmlMemory_v2_t", "nvmlMemory_v2"),
    ),
    "nvmlDeviceGetUtilizationRates": ((HANDLE, OUT), _utilization),
    "nvmlGpmQueryDeviceSupport": ((HANDLE, OUT), _gpm_support),
    "nvmlGpmSampleAlloc": ((OUT,), _gpm_sample_alloc),
    "nvmlGpmSampleFree": ((HANDLE,), _gpm_sample_free),
    "nvmlGpmSampleGet": ((HANDLE, HANDLE), _gpm_sample_get),
    "nvmlGpmMigSampleGet": ((HANDLE, c_uint, HANDLE), _gpm_sample_get),
    "nvmlGpmMetricsGet": ((OUT,), _gpm_metrics_get),
    "nvmlDeviceGetComputeRunningProcesses_v3": (
        _PROCESSES,
        _processes("nvmlDeviceGetComputeRunningProcesses"),
    ),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (
        _PROCESSES,
        _processes("nvmlDeviceGetGraphicsRunningProcesses"),
    ),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": (
        _PROCESSES,
        _processes("nvmlDeviceGetMPSComputeRunningProcesses"),
    ),
    "nvmlDeviceGetMigMode": ((HANDLE, OUT, OUT), _numbers("nvmlDeviceGetMigMode", [c_uint, c_uint])),
    "nvmlDeviceSetMigMode": ((HANDLE, c_uint, OUT), _numbers("nvmlDeviceSetMigMode", [c_uint])),
    _PROFILE: ((HANDLE, c_uint, OUT), _struct(_PROFILE, "c_nvmlGpuInstanceProfileInfo_t")),
    f"{_PROFILE}V": (
        (HANDLE, c_uint, OUT),
        _struct(_PROFILE, "c_nvmlGpuInstanceProfileInfo_v2_t", "nvmlGpuInstanceProfileInfo_v2"),
    ),
    f"{_PROFILE}ByIdV": (
        (HANDLE, c_uint, OUT),
        _struct(f"{_PROFILE}ById", "c_nvmlGpuInstanceProfileInfo_v2_t", "nvmlGpuInstanceProfileInfo_v2"),
    ),
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": (
        _LIST,
        _placements("nvmlDeviceGetGpuInstancePossiblePlacements", _GPU_PLACEMENT),
    ),
    "nvmlDeviceGetGpuInstanceRemainingCapacity": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlDeviceGetGpuInstanceRemainingCapacity", [c_uint]),
    ),
    "nvmlDeviceCreateGpuInstance": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlDeviceCreateGpuInstance", [c_void_p]),
    ),
    "nvmlDeviceCreateGpuInstanceWithPlacement": (
        _LIST,
        _at_placement("nvmlDeviceCreateGpuInstanceWithPlacement", _GPU_PLACEMENT),
    ),
    "nvmlGpuInstanceDestroy": ((HANDLE,), _order("nvmlGpuInstanceDestroy")),
    "nvmlDeviceGetGpuInstances": (_LIST, _handles("nvmlDeviceGetGpuInstances")),
    "nvmlDeviceGetGpuInstanceById": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlDeviceGetGpuInstanceById", [c_void_p]),
    ),
    "nvmlGpuInstanceGetInfo": ((HANDLE, OUT), _struct("nvmlGpuInstanceGetInfo", "c_nvmlGpuInstanceInfo_t")),
    _COMPUTE_PROFILE: (
        (HANDLE, c_uint, c_uint, OUT),
        _struct(_COMPUTE_PROFILE, "c_nvmlComputeInstanceProfileInfo_t"),
    ),
    f"{_COMPUTE_PROFILE}V": (
        (HANDLE, c_uint, c_uint, OUT),
        _struct(
            _COMPUTE_PROFILE, "c_nvmlComputeInstanceProfileInfo_v2_t", "nvmlComputeInstanceProfileInfo_v2"
        ),
    ),
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", [c_uint]),
    ),
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements": (
        _LIST,
        _placements("nvmlGpuInstanceGetComputeInstancePossiblePlacements", _COMPUTE_PLACEMENT),
    ),
    "nvmlGpuInstanceCreateComputeInstance": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlGpuInstanceCreateComputeInstance", [c_void_p]),
    ),
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": (
        _LIST,
        _at_placement("nvmlGpuInstanceCreateComputeInstanceWithPlacement", _COMPUTE_PLACEMENT),
    ),
    "nvmlComputeInstanceDestroy": ((HANDLE,), _order("nvmlComputeInstanceDestroy")),
    "nvmlGpuInstanceGetComputeInstances": (_LIST, _handles("nvmlGpuInstanceGetComputeInstances")),
    "nvmlGpuInstanceGetComputeInstanceById": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlGpuInstanceGetComputeInstanceById", [c_void_p]),
    ),
    "nvmlComputeInstanceGetInfo_v2": (
        (HANDLE, OUT),
        _struct("nvmlComputeInstanceGetInfo", "c_nvmlComputeInstanceInfo_t"),
    ),
    "nvmlDeviceIsMigDeviceHandle": ((HANDLE, OUT), _numbers("nvmlDeviceIsMigDeviceHandle", [c_uint])),
    "nvmlDeviceGetGpuInstanceId": ((HANDLE, OUT), _numbers("nvmlDeviceGetGpuInstanceId", [c_uint])),
    "nvmlDeviceGetComputeInstanceId": ((HANDLE, OUT), _numbers("nvmlDeviceGetComputeInstanceId", [c_uint])),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": (
        (HANDLE, OUT),
        _numbers("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", [c_void_p]),
    ),
    "nvmlDeviceGetMaxMigDeviceCount": ((HANDLE, OUT), _numbers("nvmlDeviceGetMaxMigDeviceCount", [c_uint])),
    "nvmlDeviceGetMigDeviceHandleByIndex": (
        (HANDLE, c_uint, OUT),
        _numbers("nvmlDeviceGetMigDeviceHandleByIndex", [c_void_p]),
    ),
    "nvmlDeviceGetAttributes_v2": (
        (HANDLE, OUT),
        _struct("nvmlDeviceGetAttributes", "c_nvmlDeviceAttributes"),
    ),
    "nvmlDeviceGetSupportedEventTypes": (
        (HANDLE, OUT),
        _numbers("nvmlDeviceGetSupportedEventTypes", [c_ulonglong]),
    ),
    "nvmlEventSetCreate": ((OUT,), _event_set_create),
    "nvmlDeviceRegisterEvents": ((HANDLE, c_ulonglong, HANDLE), _register_events),
    "nvmlEventSetWait_v2": ((HANDLE, OUT, c_uint), _event_set_wait),
    "nvmlEventSetFree": ((HANDLE,), _event_set_free),
}


def _c_function(library: NvmlLibrary, name: str, parameters: tuple[Any, ...], body: Body) -> Any:
    def function(*arguments: Any) -> int:
        try:
            return int(body(library, *arguments))
        except Exception:  # an exception cannot cross C: ctypes would print it and return a success
            log.exception("%s", name)
            return int(ReturnCode.UNKNOWN)

    result = c_size_t if name == "nvmlErrorString" else c_int
    return ctypes.CFUNCTYPE(result, *parameters)(function)


class FunctionTable:
    """The shared library as pynvml sees it: an attribute for each function that it has."""

    def __init__(self, library: NvmlLibrary) -> None:
        for name, (parameters, body) in FUNCTIONS.items():
            setattr(self, name, _c_function(library, name, parameters, body))
