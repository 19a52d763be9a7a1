"""The GPUs of a node whose partition backend knows them: exact layouts, and the holder of each slice."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tangram.catalog.lookup import nvlink_gpus
from tangram.fleet import WHOLE_GPU, MIGLayout, Node, NodePartition, PartitionedGPU
from tangram.packing import GPUState, Instance, board


@dataclass(frozen=True, slots=True)
class SliceOwner:
    """Whose pod holds a slice or a GPU."""

    name: str
    movable: bool


def partitioned_gpus(
    node: Node,
    partition: NodePartition,
    owners: Mapping[str, SliceOwner],
    targets: Mapping[str, MIGLayout],
    stranger: str,
) -> tuple[GPUState, ...]:
    """Return the GPUs of a node as its backend observes them.

    `owners`: by pod, as NAMESPACE/NAME. `targets`: layouts of GPUs that are being cut, by GPU: they count as
    if they were there, and are not changed again. What nobody in `owners` holds belongs to `stranger`, who
    does not move.
    """
    holders = Counter(pod for gpu in partition.gpus for start, pod in gpu.held if start is None)
    return tuple(
        _state(node, partition, gpu, owners, targets.get(gpu.id), stranger, holders) for gpu in partition.gpus
    )


def _state(
    node: Node,
    partition: NodePartition,
    gpu: PartitionedGPU,
    owners: Mapping[str, SliceOwner],
    target: MIGLayout | None,
    stranger: str,
    holders: Counter[str],
) -> GPUState:
    sku, layout = node.sku or "", gpu.layout if target is None else target
    may_change = target is None and gpu.is_cuttable and not partition.problem
    # Where the backend does not know the holders, those of the node's pods are assigned by counts afterwards.
    used = gpu.held if partition.knows_holders else ()
    held = {start: _owned(pod, owners, stranger) for start, pod in used}
    pods = dict(used)
    if layout.mig_enabled:
        slices = frozenset(gpu.layout.slices)  # whoever holds another slice has to leave it
        instances = tuple(
            _instance(s.profile, s.start, held.get(s.start) if s in slices else None) for s in layout.slices
        )
    elif None in held:
        gang = pods[None] if holders[pods[None]] > 1 and pods[None] else None
        instances = (_instance(WHOLE_GPU, 0, held[None], gang),)
    else:
        instances = ()
    return GPUState(
        id=gpu.id,
        node=node.name,
        sku=sku,
        zone=node.zone,
        cuttable=may_change,
        mig_enabled=layout.mig_enabled,
        convertible=may_change and gpu.changes_mode and board(sku) is not None,
        nvlink_gpus=nvlink_gpus(sku),
        backend=partition.backend or "mig-manager",
        instances=instances,
    )


def _owned(pod: str, owners: Mapping[str, SliceOwner], stranger: str) -> SliceOwner:
    return owners.get(pod) or SliceOwner(stranger, movable=False)


def _instance(profile: str, start: int, owner: SliceOwner | None, gang: str | None = None) -> Instance:
    if owner is None:
        return Instance(profile, start)
    return Instance(profile, start, owner.name, movable=owner.movable, gang=gang)
