"""How much of its memory each GPU and each slice uses, and how busy it is, where the driver tells.

`nvmlDeviceGetUtilizationRates` is not supported for a GPU in MIG mode or for its slices. From Hopper on, GPM
tells the activity of both, as the difference of two samples (nvml.h, "GPM"). What is not told is absent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

from tangram.partition.layouts import ObservedLayout
from tangram.partition.nvml import NVMLFailure

_SM, _MEMORY_BANDWIDTH = pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL


class NVMLCalls(Protocol):
    """The driver, call by call."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Make one call. Raises `NVMLFailure`."""


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """What one GPU without MIG, or one slice, uses; None where the driver does not tell. Ratios: 0 to 1."""

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None  # without what the driver reserves
    sm_activity: float | None = None  # SMs that are busy, by GPM
    memory_bandwidth: float | None = None  # of the peak, by GPM
    kernel_time: float | None = None  # with a kernel on it: of a GPU without MIG


@dataclass(frozen=True, slots=True)
class _Device:
    uuid: str
    handle: Any
    parent: Any  # the handle of the GPU
    gpu_instance: int | None = None  # None: the GPU as a whole


def device_usage(
    driver: NVMLCalls, layouts: Iterable[ObservedLayout], pause: Callable[[], None]
) -> Mapping[str, DeviceUsage]:
    """Return the usage of devices by UUID: of slices where MIG is on, else of the GPU.

    `pause` is called between the two samples of GPM. A device that fails is absent and hides no other one.
    """
    devices = [device for layout in layouts for device in _devices(driver, layout)]
    first = {device.uuid: _sample(driver, device) for device in devices}
    if any(first.values()):
        pause()
    usages = {device.uuid: _usage(driver, device, first[device.uuid]) for device in devices}
    for sample in first.values():
        if sample is not None:
            driver.call("nvmlGpmSampleFree", sample)
    return usages


def _devices(driver: NVMLCalls, layout: ObservedLayout) -> Iterator[_Device]:
    gpu = _unless_failing(driver, "nvmlDeviceGetHandleByUUID", layout.gpu)
    if gpu is None:
        return
    if not layout.mig_enabled:
        yield _Device(layout.gpu, gpu, gpu)
    for uuid in (uuid for instance in layout.instances for uuid in instance.devices):
        handle = _unless_failing(driver, "nvmlDeviceGetHandleByUUID", uuid)
        if handle is not None:
            yield _Device(uuid, handle, gpu, driver.call("nvmlDeviceGetGpuInstanceId", handle))


def _usage(driver: NVMLCalls, device: _Device, first: Any) -> DeviceUsage:
    memory = _unless_failing(driver, "nvmlDeviceGetMemoryInfo", device.handle, pynvml.nvmlMemory_v2)
    rates = None
    if device.gpu_instance is None:
        rates = _unless_failing(driver, "nvmlDeviceGetUtilizationRates", device.handle)
    activity = {} if first is None else _activity(driver, device, first)
    return DeviceUsage(
        memory_bytes=None if memory is None else memory.total,
        memory_used_bytes=None if memory is None else memory.used,
        sm_activity=activity.get(_SM),
        memory_bandwidth=activity.get(_MEMORY_BANDWIDTH),
        kernel_time=None if rates is None else rates.gpu / 100,
    )


def _sample(driver: NVMLCalls, device: _Device) -> Any:
    """Return a sample of GPM; None where the GPU has none (before Hopper), or this driver."""
    support = _unless_failing(driver, "nvmlGpmQueryDeviceSupport", device.parent)
    if support is None or not support.isSupportedDevice:
        return None
    sample = _unless_failing(driver, "nvmlGpmSampleAlloc")
    if sample is None:
        return None
    if device.gpu_instance is None:
        taken = _unless_failing(driver, "nvmlGpmSampleGet", device.handle, sample)
    else:
        taken = _unless_failing(driver, "nvmlGpmMigSampleGet", device.parent, device.gpu_instance, sample)
    if taken is None:
        driver.call("nvmlGpmSampleFree", sample)
    return taken


def _activity(driver: NVMLCalls, device: _Device, first: Any) -> dict[int, float]:
    """Return the metrics between a first sample and now, as ratios."""
    second = _sample(driver, device)
    if second is None:
        return {}
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    asked.numMetrics, asked.sample1, asked.sample2 = 2, first, second
    asked.metrics[0].metricId, asked.metrics[1].metricId = _SM, _MEMORY_BANDWIDTH
    answer = _unless_failing(driver, "nvmlGpmMetricsGet", asked)
    driver.call("nvmlGpmSampleFree", second)
    if answer is None:
        return {}
    return {
        metric.metricId: metric.value / 100
        for metric in answer.metrics[:2]
        if metric.nvmlReturn == pynvml.NVML_SUCCESS and 0 <= metric.value <= 100  # not NaN
    }


def _unless_failing(driver: NVMLCalls, name: str, *arguments: Any) -> Any:
    try:
        return driver.call(name, *arguments)
    except NVMLFailure:
        return None
