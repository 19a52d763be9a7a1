"""The GPUs of a node whose partition backend knows them: exact layouts, and the holder of each slice."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tangram.catalog.lookup import nvlink_gpus
from tangram.fleet import WHOLE_GPU, MIGLayout, Node, NodePartition, PartitionedGPU
from tangram.packing import GPUState, Instance, board


@dataclass(frozen=True, slots=True)
class SliceOwner:
    """The owner of a pod that holds a slice or a GPU."""

    name: str
    movable: bool


def partitioned_gpus(
    node: Node,
    partition: NodePartition,
    owners: Mapping[str, SliceOwner],
    targets: Mapping[str, MIGLayout],
    foreign_owner: str,
) -> tuple[GPUState, ...]:
    """Return the GPUs of a node as its backend observes them.

    `owners`: by pod, as NAMESPACE/NAME. `targets`: layouts of GPUs that are being cut, by GPU: they count as
    if they were there, and are not changed again. What no pod in `owners` holds belongs to `foreign_owner`,
    which does not move.
    """
    gpus_of_pod = Counter(pod for gpu in partition.gpus for start, pod in gpu.held if start is None)
    return tuple(
        _state(node, partition, gpu, owners, targets.get(gpu.id), foreign_owner, gpus_of_pod)
        for gpu in partition.gpus
    )


def _state(
    node: Node,
    partition: NodePartition,
    gpu: PartitionedGPU,
    owners: Mapping[str, SliceOwner],
    target: MIGLayout | None,
    foreign_owner: str,
    gpus_of_pod: Counter[str],
) -> GPUState:
    sku, layout = node.sku or "", gpu.layout if target is None else target
    may_change = target is None and gpu.is_cuttable and not partition.problem
    # Where the backend does not know the holders, those of the node's pods are assigned by counts afterwards.
    held = dict(gpu.held) if partition.knows_holders else {}
    holders = {start: _owned(pod, owners, foreign_owner) for start, pod in held.items()}
    instances: tuple[Instance, ...] = ()
    if layout.mig_enabled:
        instances = _slices(layout, gpu.layout, holders)
    elif None in holders:
        gang = held[None] if gpus_of_pod[held[None]] > 1 and held[None] else None
        instances = (_instance(WHOLE_GPU, 0, holders[None], gang),)
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


def _slices(
    layout: MIGLayout, observed: MIGLayout, holders: Mapping[int | None, SliceOwner]
) -> tuple[Instance, ...]:
    """Return the slices of a layout. Only those that are observed have a holder: a pod on another slice has
    to leave it.
    """
    return tuple(
        _instance(part.profile, part.start, holders.get(part.start) if part in observed.slices else None)
        for part in layout.slices
    )


def _owned(pod: str, owners: Mapping[str, SliceOwner], foreign_owner: str) -> SliceOwner:
    return owners.get(pod) or SliceOwner(foreign_owner, movable=False)


def _instance(profile: str, start: int, owner: SliceOwner | None, gang: str | None = None) -> Instance:
    if owner is None:
        return Instance(profile, start)
    return Instance(profile, start, owner.name, movable=owner.movable, gang=gang)
