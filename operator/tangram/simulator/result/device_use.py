"""What the pods of an LLMDeployment cost, and what of it was waste."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tangram.catalog import share
from tangram.simulator.cluster.simulated_pod import SimulatedPod


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """GPU-hours of pods from scheduling until they are gone. A slice counts by its share of the GPU."""

    gpu_hours: float = 0.0
    usd: float = 0.0
    starting_gpu_hours: float = 0.0  # before they were ready
    draining_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0  # of ready engines that computed for less than a fifth of the time
    pending_s: float = 0.0  # of pods without a device
    starts: int = 0


def device_use(
    pods: Iterable[SimulatedPod],
    idle_s: Callable[[SimulatedPod], float],
    usd_per_hour: Callable[[SimulatedPod], float],
    end_s: float,
) -> DeviceUse:
    """Return the use until the end of the run."""
    hours = usd = starting = draining = idle = pending_s = 0.0
    starts = 0
    for pod in pods:
        gone_at = min(pod.gone_at, end_s)
        pending_s += max(0.0, min(pod.scheduled_at, gone_at) - pod.created_at)
        if pod.scheduled_at >= end_s:
            continue
        gpus = share(pod.shape.sku, pod.shape.profile, pod.shape.gpus)
        held_s = gone_at - pod.scheduled_at
        hours += gpus * held_s / 3600
        usd += usd_per_hour(pod) * held_s / 3600
        starting += gpus * (min(pod.ready_at, gone_at) - pod.scheduled_at) / 3600
        draining += gpus * max(0.0, gone_at - pod.draining_at) / 3600
        idle += gpus * idle_s(pod) / 3600
        starts += pod.ready_at > pod.scheduled_at
    return DeviceUse(hours, usd, starting, draining, idle, pending_s, starts)


def usd_by_window(
    pods: Iterable[SimulatedPod],
    usd_per_hour: Callable[[SimulatedPod], float],
    end_s: float,
    window_s: float,
) -> tuple[float, ...]:
    """Return what the devices of the pods cost in each window up to the end of the run."""
    usd = [0.0] * max(1, math.ceil(end_s / window_s))
    for pod in pods:
        begin_s, gone_s = pod.scheduled_at, min(pod.gone_at, end_s)
        if begin_s >= gone_s:
            continue
        usd_per_s = usd_per_hour(pod) / 3600
        for place in range(int(begin_s // window_s), min(len(usd), math.ceil(gone_s / window_s))):
            held_s = min(gone_s, (place + 1) * window_s) - max(begin_s, place * window_s)
            usd[place] += held_s * usd_per_s
    return tuple(usd)
