"""CPU and memory of hosts: whether a pod fits on any node that offers its GPUs, were the node empty."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tangram.eligibility.host_resources import cpu_cores, memory_bytes
from tangram.fleet import HostResources, Node, PodNeeds, Shape
from tangram.plan.fleet_input.fleet import PoolNames, may_use
from tangram.plan.reasons.placement import NoLargeEnoughHost


@dataclass(frozen=True, slots=True, order=True)
class HostCapacity:
    """The allocatable CPU and memory of nodes in the same GPUPools, and their GPUs."""

    pools: PoolNames  # that select the nodes
    cpu: float  # cores; infinite: not known
    memory: float  # bytes; infinite: not known
    gpus: int = 1

    @classmethod
    def of(cls, node: Node, pools: PoolNames, gpus: int) -> "HostCapacity":
        """Return the capacity of a node."""
        cpu = math.inf if node.host_cpu is None else node.host_cpu
        return cls(pools, cpu, math.inf if node.host_memory is None else node.host_memory, gpus)

    def covers(self, other: "HostCapacity") -> bool:
        """Whether whatever fits on the other host fits on this one."""
        is_larger = self.cpu >= other.cpu and self.memory >= other.memory and self.gpus >= other.gpus
        return is_larger and self.pools == other.pools


def largest_hosts(hosts: Iterable[HostCapacity]) -> tuple[HostCapacity, ...]:
    """Return the hosts that no other one covers: mostly one for the same GPUPools."""
    largest: list[HostCapacity] = []
    for host in sorted(set(hosts), reverse=True):
        if not any(other.covers(host) for other in largest):
            largest.append(host)
    return tuple(largest)


def host_shortage(
    hosts: Iterable[HostCapacity],
    shape: Shape,
    requests: HostResources,
    needs: PodNeeds,
    pools: PoolNames,
) -> NoLargeEnoughHost | None:
    """Return why a pod of `shape` fits on none of `hosts` in `pools`; None: it fits, or there is no host."""
    cpu, memory = cpu_cores(requests, shape, needs), memory_bytes(requests, shape, needs)
    own = tuple(host for host in hosts if may_use(pools, host.pools) and host.gpus >= shape.gpus)
    if not own or any(host.cpu >= cpu and host.memory >= memory for host in own):
        return None
    amounts = sorted({(host.cpu, host.memory) for host in own}, reverse=True)
    return NoLargeEnoughHost(shape, cpu, memory, tuple(amounts))
