"""GPUNodes as the planner reads them: the layouts of GPUs, observed and wanted. Pure."""

from collections.abc import Mapping
from typing import Literal

from tangram import catalog
from tangram.api.gpu_node import (
    GPUNode,
    GPUNodeStatus,
    GPUStatus,
    InstanceHolder,
    WantedGPU,
    parse_gpu_node,
)
from tangram.fleet import MIGLayout, MIGSlice, NodePartition, PartitionedGPU
from tangram.shell.objects.kinds import Object, key_of, uid_of
from tangram.shell.snapshot.conversion import SkipHandler, convert_each, ignore_skipped, living
from tangram.shell.watch.mirror_view import MirrorView

_BACKENDS: Mapping[str, Literal["nvml", "mig-manager"]] = {"NVML": "nvml", "MIGManager": "mig-manager"}
_NO_RESET_NEEDED = 9  # major compute capability from which MIG mode changes without a reset of the GPU


def node_partitions(view: MirrorView, on_skipped: SkipHandler = ignore_skipped) -> tuple[NodePartition, ...]:
    """Return the partition of each node that exists, by name. A GPUNode that is invalid has a problem."""
    nodes = {key_of(node)[1]: node for node in view.nodes}
    listed = [obj for obj in living(view.gpu_nodes) if key_of(obj)[1] in nodes]
    partitions = convert_each(listed, lambda obj: _partition(obj, nodes[key_of(obj)[1]]), on_skipped)
    return tuple(sorted(partitions, key=lambda partition: partition.node))


def _partition(obj: Object, node: Object) -> NodePartition:
    name = key_of(obj)[1]
    parsed = parse_gpu_node(obj)
    if not isinstance(parsed, GPUNode):
        return NodePartition(name, problem=f"GPUNode {name} is invalid: {parsed.message}")
    status, spec = parsed.status, parsed.spec
    conditions = {condition.type: condition for condition in status.conditions}
    ready, applied = conditions.get("Ready"), conditions.get("Applied")
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
    return NodePartition(
        node=name,
        backend=_BACKENDS.get(status.backend or ""),
        problem=problem,
        is_applied=applied is not None and applied.status == "True" and is_current,
        is_current=is_current,
        gpus=tuple(_gpu(gpu, status, quarantine) for gpu in sorted(status.gpus, key=lambda g: g.index)),
        wanted=tuple(sorted((gpu.id, _wanted(gpu)) for gpu in spec.gpus)),
        plan=spec.plan_hash or "",
    )


# Reasons of Applied for which the backend changes no GPU of the node at all.
_REFUSALS = frozenset({"InvalidSpec", "BackendConflict", "ComponentsPaused"})


def _pod(holder: InstanceHolder | None) -> str:
    return f"{holder.namespace}/{holder.name}" if holder is not None else ""


def _wanted(gpu: WantedGPU) -> MIGLayout:
    slices = (MIGSlice(instance.start, instance.profile) for instance in gpu.instances)
    return MIGLayout(gpu.mig_enabled, tuple(sorted(slices)))


def _gpu(gpu: GPUStatus, status: GPUNodeStatus, quarantine: Mapping[str, str]) -> PartitionedGPU:
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
    )
