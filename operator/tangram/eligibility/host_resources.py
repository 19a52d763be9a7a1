"""CPU and memory of the host: what one engine pod asks for, and what it may.

One formula for the pods' template, ResourceQuotas and the shapes that may be used. Defaults and limits of the
operator's settings are for a whole GPU and follow the share of it that a replica takes: as many replicas as a
GPU can carry never ask for more of its host than one on the whole GPU may.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tangram import catalog
from tangram.fleet import HostResources, PodNeeds, Shape
from tangram.fleet.quantity import cpu_quantity, memory_quantity

_MIB = 2**20


def cpu_cores(asked: HostResources, shape: Shape, needs: PodNeeds) -> float:
    """Return the cores of one pod of `shape`, whole millicores, rounded up."""
    if asked.cpu_milli is not None:
        return asked.cpu_milli / 1000
    return math.ceil(round(needs.cpu_per_gpu * _share(shape) * 1000, 6)) / 1000


def memory_bytes(asked: HostResources, shape: Shape, needs: PodNeeds) -> float:
    """Return the bytes of one pod of `shape`, whole MiB, rounded up."""
    if asked.memory_mib is not None:
        return float(asked.memory_mib * _MIB)
    return float(math.ceil(needs.memory_per_gpu * _share(shape) / _MIB) * _MIB)


def minimum_share(asked: HostResources, needs: PodNeeds) -> float:
    """Return the share of a GPU above which a replica may ask for so much; from 1 on, no shape will do."""
    return max((each.minimum_share for each in _limited(asked, needs)), default=0.0)


def over_limit(asked: HostResources, needs: PodNeeds, share: float, where: str) -> str:
    """Return what is more than the settings allow to a `share` of a GPU; the empty string: nothing is."""
    return "; ".join(
        f"engine.resources.requests.{each.field} is {each.text(each.amount)}, the operator's settings allow "
        f"{each.text(each.most * share)} on {where} ({each.setting})"
        for each in _limited(asked, needs)
        if each.minimum_share >= share
    )


@dataclass(frozen=True, slots=True)
class _Limited:
    field: str
    setting: str
    amount: int  # millicores or MiB that are asked for
    most: float  # the same, that a whole GPU allows
    text: Callable[[float], str]

    @property
    def minimum_share(self) -> float:
        """Limits of a share are rounded up, as amounts are."""
        return (self.amount - 1) / self.most if self.most > 0 else math.inf


def _limited(asked: HostResources, needs: PodNeeds) -> Iterator[_Limited]:
    if asked.cpu_milli is not None and needs.max_cpu_per_gpu is not None:
        yield _Limited("cpu", "maxCPUPerGPU", asked.cpu_milli, needs.max_cpu_per_gpu * 1000, _cores)
    if asked.memory_mib is not None and needs.max_memory_per_gpu is not None:
        yield _Limited("memory", "maxMemoryPerGPU", asked.memory_mib, needs.max_memory_per_gpu / _MIB, _bytes)


def _cores(milli: float) -> str:
    return cpu_quantity(milli / 1000)


def _bytes(mib: float) -> str:
    return memory_quantity(mib * _MIB)


def _share(shape: Shape) -> float:
    return catalog.share(shape.sku, shape.profile, shape.tensor_parallel)
