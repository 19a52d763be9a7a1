"""Which layout each GPU has, as far as it can be known without asking the driver.

A node shows how many devices it offers, not on which GPU they are. A layout is known where mig-manager
reports success for an entry of ours and the node offers exactly that, where all GPUs are offered whole, and
where the status recorded it in this boot and the entry that the label names leaves the GPU as it is.
"""

from collections.abc import Mapping

from tangram.api.gpu_node import GPUStatus
from tangram.partition.mig_manager.config_entries import MIGConfig
from tangram.partition.mig_manager.managed_node import ManagedNode
from tangram.partition.mig_manager.node_counts import (
    RETRY,
    WHOLE,
    GPUCounts,
    NodeCounts,
    offered,
    parse_entry,
)
from tangram.partition.status.node_record import FormerStatus

ObservedCounts = tuple[GPUCounts | None, ...]  # by index of the GPU; None: not known
SUCCESS = "success"


def requested_counts(
    node: ManagedNode, config: MIGConfig, former: FormerStatus, gpu_count: int
) -> NodeCounts | None:
    """Return the layout that the label of a node names, or named before a retry; None: it is none of ours,
    or not one of this node.
    """
    name = (former.mig_config or "") if node.config == RETRY else node.config
    counts = parse_entry(config.entries.get(name), name)
    return counts if counts is not None and len(counts) == gpu_count else None


def observed_counts(
    node: ManagedNode, former: FormerStatus, requested: NodeCounts | None, gpu_count: int
) -> ObservedCounts:
    """Return the layout of each GPU, None for those of which it is not known."""
    if requested is not None and node.state == SUCCESS and node.offers(requested):
        return requested
    whole = (WHOLE,) * gpu_count
    if not node.is_changing and node.offers(whole):
        return whole
    unknown: ObservedCounts = (None,) * gpu_count
    is_same_boot = (former.node_uid, former.boot_id) == (node.uid, node.boot_id)
    if not is_same_boot or requested is None:
        return unknown
    pairs = ((_recorded(former.gpus, index), entry) for index, entry in enumerate(requested))
    recorded = tuple(counts if counts == entry else None for counts, entry in pairs)  # others may be cleared
    return recorded if node.is_changing or _fits(recorded, node) else unknown


def _recorded(gpus: Mapping[str, GPUStatus], index: int) -> GPUCounts | None:
    gpu = gpus.get(gpu_id(index))
    if gpu is None or gpu.mig_mode not in ("Enabled", "Disabled"):
        return None
    names = [instance.profile for instance in gpu.instances]
    return GPUCounts(
        gpu.mig_mode == "Enabled", tuple(sorted((name, names.count(name)) for name in set(names)))
    )


def _fits(recorded: ObservedCounts, node: ManagedNode) -> bool:
    """Whether a node may have these layouts by the devices that it offers; one that offers none may."""
    if not node.allocatable:
        return True
    expected = offered(counts for counts in recorded if counts is not None)
    return expected == node.most if None not in recorded else expected <= node.most


def gpu_id(index: int) -> str:
    """Return the id of a GPU in a GPUNode: mig-manager knows GPUs by index alone."""
    return f"index-{index}"
