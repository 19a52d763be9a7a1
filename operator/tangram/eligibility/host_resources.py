"""CPU and memory that one engine pod requests of its host, and the limits of the operator's settings.

One formula for the pod template, ResourceQuotas and the shapes that may be used. Defaults and limits are for
a whole GPU, and a replica gets its share of the GPU: all replicas that fit on a GPU never request more of the
host than one replica on the whole GPU may.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tangram import catalog
from tangram.fleet import HostResources, PodNeeds, Shape
from tangram.fleet.quantity import cpu_quantity, memory_quantity

_MIB = 2**20


def cpu_cores(requests: HostResources, shape: Shape, needs: PodNeeds) -> float:
    """Return the cores of one pod of `shape`, whole millicores, rounded up."""
    if requests.cpu_milli is not None:
        return requests.cpu_milli / 1000
    return math.ceil(round(needs.cpu_per_gpu * _share(shape) * 1000, 6)) / 1000


def memory_bytes(requests: HostResources, shape: Shape, needs: PodNeeds) -> float:
    """Return the bytes of one pod of `shape`, whole MiB, rounded up."""
    if requests.memory_mib is not None:
        return float(requests.memory_mib * _MIB)
    return float(math.ceil(needs.memory_per_gpu * _share(shape) / _MIB) * _MIB)


def over_limit(requests: HostResources, needs: PodNeeds, share: float, where: str) -> str:
    """Return the requests that exceed what a `share` of a GPU allows; the empty string if none does."""
    return "; ".join(
        f"engine.resources.requests.{limit.field} is {limit.text(limit.amount)}, the operator's settings "
        f"allow {limit.text(limit.maximum * share)} on {where} ({limit.setting})"
        for limit in exceeded_limits(requests, needs, share)
    )


def exceeded_limits(requests: HostResources, needs: PodNeeds, share: float) -> "tuple[HostLimit, ...]":
    """Return the limits of a `share` of a GPU that the requests exceed."""
    return tuple(limit for limit in _limits(requests, needs) if limit.minimum_share >= share)


@dataclass(frozen=True, slots=True)
class HostLimit:
    """One request of an engine pod, and its limit for a whole GPU."""

    field: str
    setting: str
    amount: int  # millicores or MiB that are requested
    maximum: float  # the same, allowed on a whole GPU
    text: Callable[[float], str]

    @property
    def minimum_share(self) -> float:
        """Limits of a share are rounded up, as amounts are."""
        return (self.amount - 1) / self.maximum if self.maximum > 0 else math.inf


def _limits(requests: HostResources, needs: PodNeeds) -> Iterator[HostLimit]:
    cores, memory = needs.max_cpu_per_gpu, needs.max_memory_per_gpu
    if requests.cpu_milli is not None and cores is not None:
        yield HostLimit("cpu", "maxCPUPerGPU", requests.cpu_milli, cores * 1000, _cores)
    if requests.memory_mib is not None and memory is not None:
        yield HostLimit("memory", "maxMemoryPerGPU", requests.memory_mib, memory / _MIB, _bytes)


def _cores(milli: float) -> str:
    return cpu_quantity(milli / 1000)


def _bytes(mib: float) -> str:
    return memory_quantity(mib * _MIB)


def _share(shape: Shape) -> float:
    return catalog.share(shape.sku, shape.profile, shape.gpus)
