"""GPUNodes as the planner reads them: the layouts of GPUs, observed and wanted. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Literal

from tangram import catalog
from tangram.api.gpu_node import (
    GPUNode,
    GPUStatus,
    InstanceHolder,
    WantedGPU,
    parse_gpu_node,
)
from tangram.fleet import (
    WHOLE_GPU,
    Claim,
    MIGLayout,
    MIGSlice,
    Node,
    NodePartition,
    PartitionedGPU,
    Pool,
    claiming_pools,
    fleet_wide_id,
    resource_name,
)
from tangram.kube.kinds import Object, key_of, uid_of
from tangram.packing import board
from tangram.packing.geometry.layouts import Placement, creation_order, is_legal
from tangram.partition.status.conditions import named
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped, living
from tangram.shell.watch.mirror_view import MirrorView

_BACKENDS: Mapping[str, Literal["nvml", "mig-manager"]] = {"NVML": "nvml", "MIGManager": "mig-manager"}
_NAMES = {backend: name for name, backend in _BACKENDS.items()}
_NO_RESET_NEEDED = 9  # major compute capability from which MIG mode changes without a reset of the GPU


def node_partitions(
    view: MirrorView, node_claims: Iterable[Claim], on_skipped: SkipHandler = ignore_skipped
) -> tuple[NodePartition, ...]:
    """Return the partition of each node that exists, by name. A GPUNode that is invalid has a problem.

    `node_claims`: what pods hold. Where the backend does not know which slice that is, each slice of such a
    resource counts as in use.
    """
    nodes = {key_of(node)[1]: node for node in view.nodes}
    listed = [obj for obj in living(view.gpu_nodes) if key_of(obj)[1] in nodes]
    claimed: dict[str, set[str]] = defaultdict(set)
    for claim in node_claims:
        claimed[claim.node].add(claim.resource)

    def partition_of(obj: Object) -> NodePartition:
        name = key_of(obj)[1]
        return _partition(obj, nodes[name], claimed[name])

    partitions = convert_each(listed, partition_of, on_skipped)
    return tuple(sorted(partitions, key=lambda partition: partition.node))


def with_backends_of_pools(
    partitions: Iterable[NodePartition], nodes: Iterable[Node], pools: Iterable[Pool]
) -> tuple[NodePartition, ...]:
    """Return the partitions, with a problem where another backend reports than the node's GPUPool says."""
    by_name, nodes_by_name = {pool.name: pool for pool in pools}, {node.name: node for node in nodes}

    def checked(partition: NodePartition) -> NodePartition:
        node = nodes_by_name.get(partition.node)
        place = claiming_pools(node, by_name.values()) if node is not None else ()
        expected = by_name[place[0]].backend if place else None
        if expected is None or partition.backend in (None, expected):
            return partition
        reporting, in_spec = (_NAMES[backend] for backend in (partition.backend, expected))
        text = f"GPUPool {place[0]} says {in_spec}, and {reporting} reports about node {partition.node}"
        remedy = f"end the one that is not to cut it, then delete GPUNode {partition.node}"
        return replace(partition, problem=f"BackendConflict: {text}: {remedy}")

    return tuple(map(checked, partitions))


def _partition(obj: Object, node: Object, claimed: AbstractSet[str]) -> NodePartition:
    name = key_of(obj)[1]
    parsed = parse_gpu_node(obj)
    if not isinstance(parsed, GPUNode):
        # It may be at work: a hold that no plan needs lasts until its end then.
        backend = _BACKENDS.get(str((obj.get("status") or {}).get("backend")))
        return NodePartition(name, backend, problem=f"GPUNode {name} is invalid: {parsed.message}")
    status, spec = parsed.status, parsed.spec
    ready, applied = named(status.conditions, "Ready"), named(status.conditions, "Applied")
    is_current = (
        status.observed_generation == obj["metadata"].get("generation")
        and status.node_uid == uid_of(node)
        and status.boot_id == (node.get("bootID") or None)
    )
    problem = ""
    if ready is None:
        problem = f"no partition backend has reported about node {name} yet"
    elif status.node_uid != uid_of(node):
        problem = f"the status of GPUNode {name} is about a node that no longer exists"
    elif ready.status != "True":
        problem = f"{ready.reason}: {ready.message}"
    elif applied is not None and applied.status == "False" and applied.reason in _REFUSALS:
        problem = f"{applied.reason}: {applied.message}"
    quarantine = {item.uuid: item.message for item in status.quarantine}
    backend, listed = _BACKENDS.get(status.backend or ""), sorted(status.gpus, key=lambda gpu: gpu.index)
    by_id = {gpu.id: gpu for gpu in listed}
    may_come = (gpu for gpu in spec.gpus if gpu.id in quarantine or _may_have(by_id.get(gpu.id), gpu))
    wanted = tuple(sorted((fleet_wide_id(name, gpu.id), _wanted(gpu)) for gpu in may_come))
    if backend == "mig-manager":
        gpus = [_by_counts(fleet_wide_id(name, gpu.id), gpu, dict(wanted), claimed) for gpu in listed]
    else:
        gpus = [_gpu(gpu, quarantine) for gpu in listed]
    return NodePartition(
        node=name,
        backend=backend,
        problem=problem,
        is_applied=applied is not None and applied.status == "True" and is_current,
        is_current=is_current,
        gpus=tuple(gpus),
        wanted=wanted,
    )


# Reasons of Applied for which the backend changes no GPU of the node at all.
_REFUSALS = frozenset({"InvalidSpec", "BackendConflict", "ComponentsPaused", "SharedDevices"})


def _may_have(gpu: GPUStatus | None, layout: WantedGPU) -> bool:
    """Whether a GPU is there and may have a layout, by the catalog. One that was written by hand may be
    illegal, or of a GPU that has gone: no device of it comes, and the next write of the spec leaves it out.
    """
    mig_board = board(gpu.sku) if gpu is not None and gpu.sku else None
    placements = [Placement(instance.start, instance.profile) for instance in layout.instances]
    return gpu is not None and (mig_board is None or is_legal(mig_board, placements))


def _pod(holder: InstanceHolder | None) -> str:
    return f"{holder.namespace}/{holder.name}" if holder is not None else ""


def _wanted(gpu: WantedGPU) -> MIGLayout:
    slices = (MIGSlice(instance.start, instance.profile) for instance in gpu.instances)
    return MIGLayout(gpu.mig_enabled, tuple(sorted(slices)))


def _gpu(gpu: GPUStatus, quarantine: Mapping[str, str]) -> PartitionedGPU:
    placed = [(instance, instance.start) for instance in gpu.instances if instance.start is not None]
    slices = tuple(sorted(MIGSlice(start, instance.profile) for instance, start in placed))
    held: list[tuple[int | None, str]] = [
        (start, _pod(instance.holder)) for instance, start in placed if instance.usage != "Free"
    ]
    if gpu.mig_mode != "Enabled" and gpu.usage not in ("Free", None):
        held.append((None, _pod(gpu.holder)))
    enabled = gpu.mig_mode == "Enabled"
    facts = catalog.gpu(gpu.sku) if gpu.sku else None
    needs_reset = facts is None or int(facts.compute_capability.partition(".")[0]) < _NO_RESET_NEEDED
    return PartitionedGPU(
        id=gpu.id,
        layout=MIGLayout(enabled, slices),
        sku=gpu.sku,
        is_cuttable=gpu.mig_mode in ("Enabled", "Disabled")
        and gpu.pending_mig_mode is None
        and gpu.id not in quarantine
        and gpu.attempts is None
        and len(placed) == len(gpu.instances),
        changes_mode=not needs_reset,
        held=tuple(held),
        failure=gpu.attempts.message if gpu.attempts else "",
        quarantine=quarantine.get(gpu.id, ""),
        is_known=gpu.mig_mode != "Unknown" and len(placed) == len(gpu.instances),
    )


def _by_counts(
    gpu_id: str, gpu: GPUStatus, wanted_layouts: Mapping[str, MIGLayout], claimed: AbstractSet[str]
) -> PartitionedGPU:
    """Return a GPU of which the backend knows the number of slices by profile: they stand where they are
    wanted, else where the driver puts them by default.
    """
    mig_board = board(gpu.sku) if gpu.sku else None
    counts = tuple(sorted(Counter(instance.profile for instance in gpu.instances).items()))
    placed = creation_order(mig_board, counts) if mig_board is not None else None
    slices = tuple(sorted(MIGSlice(place.start, place.profile) for place in placed or ()))
    layout, wanted = MIGLayout(gpu.mig_mode == "Enabled", slices), wanted_layouts.get(gpu_id)
    if wanted is not None and layout.mig_enabled == wanted.mig_enabled and layout.devices == wanted.devices:
        layout = wanted
    starts = [(part.start, resource_name(part.profile)) for part in layout.slices]
    devices = starts if layout.mig_enabled else [(None, resource_name(WHOLE_GPU))]
    return PartitionedGPU(
        id=gpu_id,
        layout=layout,
        sku=gpu.sku,
        is_cuttable=gpu.mig_mode in ("Enabled", "Disabled") and placed is not None and gpu.attempts is None,
        held=tuple((start, "") for start, resource in devices if resource in claimed),
        failure=gpu.attempts.message if gpu.attempts else "",
        is_known=gpu.mig_mode != "Unknown" and placed is not None,
    )
