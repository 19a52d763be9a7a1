"""Pods that stand in the way of a change: those that may hold a device of a GPU that mig-manager clears.

Which pod holds which device is not known here, so a pod is in the way unless the opposite is proved: the
GPUs that change offer none of the resources that it holds. A GPU with a known layout offers what its layout
holds; those without offer no more than the node has beyond the known ones. That enough other GPUs offer a
resource proves nothing. Where a MIG mode changes, or may, mig-manager clears every GPU in MIG mode and resets
GPUs: then every pod with a GPU is in the way.
"""

from collections.abc import Iterable

from tangram.partition.mig_manager.managed_node import GPU_RESOURCE, GPUPod, ManagedNode
from tangram.partition.mig_manager.node_counts import NodeCounts, offered
from tangram.partition.mig_manager.observed_counts import ObservedCounts


def blocking_pods(
    node: ManagedNode, pods: Iterable[GPUPod], observed: ObservedCounts, wanted: NodeCounts
) -> tuple[GPUPod, ...]:
    """Return the pods that have to be gone before a node gets the layout `wanted`."""
    pairs = list(zip(observed, wanted, strict=True))
    if all(current == gpu for current, gpu in pairs):
        return ()
    known_devices = offered(current for current in observed if current is not None)
    has_unknown = None in observed
    if (has_unknown and not node.allocatable) or _mode_may_change(node, observed, wanted):
        return tuple(pods)
    concerned = offered(current for current, gpu in pairs if current is not None and current != gpu)
    if has_unknown:
        concerned += node.most - known_devices
    return tuple(pod for pod in pods if any(concerned[resource] for resource in pod.requests))


def _mode_may_change(node: ManagedNode, observed: ObservedCounts, wanted: NodeCounts) -> bool:
    """Whether the MIG mode of a GPU changes. One that is not known is in MIG mode where the node offers no
    more whole GPUs than the known ones.
    """
    whole = sum(current is not None and not current.mig_enabled for current in observed)
    may_be_whole = node.most[GPU_RESOURCE] > whole
    return any(
        (current.mig_enabled != gpu.mig_enabled)
        if current is not None
        else (not gpu.mig_enabled or may_be_whole)
        for current, gpu in zip(observed, wanted, strict=True)
    )
