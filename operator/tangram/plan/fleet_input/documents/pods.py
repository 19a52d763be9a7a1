"""Read Pods, as `kubectl get pods -A -o yaml` prints them, and assign GPUs and slices to them.

A Pod has its node and the number of slices of each profile, not which of the equal slices. The first free
ones are assigned to it.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tangram.catalog.reading.fields import Fields
from tangram.eligibility.shapes.serving_requirements import identity
from tangram.fleet import WHOLE_GPU, Node, resource_name
from tangram.fleet.labels import OWNER_LABEL
from tangram.fleet.pod_requests import FINISHED_PHASES, gpu_requests
from tangram.packing import GPUState, Instance
from tangram.plan.fleet_input.documents import document_fields as read

UNHEALTHY = "(unhealthy)"  # owner of unhealthy slices; no LLMDeployment can have this name


@dataclass(frozen=True, slots=True, order=True)
class DeviceHolder:
    """A pod, or the mark of unhealthy slices, that holds devices of one node."""

    node: str
    name: str  # NAMESPACE/NAME
    owner: str  # the LLMDeployment of the pod, else the pod itself
    movable: bool
    counts: tuple[tuple[str, int], ...]  # (resource, count)


def read_pod(document: Mapping[str, Any], where: str) -> DeviceHolder | None:
    """Read one Pod; None: it requests no GPU, or does not run."""
    outer = Fields(document, where)
    meta, spec = read.required(outer, "metadata"), read.required(outer, "spec")
    status = outer.under("status")
    done = status is not None and status.values.get("phase") in FINISHED_PHASES
    if not spec.has("nodeName") or done:
        return None
    for key in ("containers", "initContainers"):
        read.objects(spec, key)  # raises where it is no list of objects
    counts = gpu_requests(spec.values)
    if not counts:
        return None
    name, namespace = read.word(meta, "name"), read.optional_word(meta, "namespace") or "default"
    labels = meta.under("labels")
    served = labels.values.get(OWNER_LABEL) if labels is not None else None
    owner = identity(namespace, str(served)) if served else f"{namespace}/{name}"
    devices = tuple(sorted(counts.items()))
    return DeviceHolder(read.word(spec, "nodeName"), f"{namespace}/{name}", owner, bool(served), devices)


def unhealthy_devices(node: Node) -> tuple[DeviceHolder, ...]:
    """Return an immovable holder of a node's unhealthy slices, so that they are neither assigned nor cut.

    It sorts after the node's pods, since one of them may hold the unhealthy slice.
    """
    devices = tuple(count for count in node.unhealthy if count[0] != resource_name(WHOLE_GPU))
    holder = DeviceHolder(node.name, "~unhealthy", UNHEALTHY, movable=False, counts=devices)
    return (holder,) if devices else ()


def with_holders(gpus: Iterable[GPUState], pods: Iterable[DeviceHolder]) -> tuple[list[GPUState], list[str]]:
    """Return the GPUs with their holders, and a note about each pod that requests more than is free."""
    by_id = {gpu.id: gpu for gpu in gpus}
    free = free_instances(by_id.values())
    held: dict[str, dict[int, Instance]] = {gpu: {} for gpu in by_id}
    notes = []
    for holder in sorted(pods):
        for resource, count in holder.counts:
            units = free.get((holder.node, resource), deque())
            assigned = [units.popleft() for _ in range(min(count, len(units)))]
            is_gang = resource == resource_name(WHOLE_GPU) and count > 1
            for gpu, instance in assigned:
                held[gpu][instance.start] = _held(instance, holder, is_gang=is_gang)
            if len(assigned) < count and holder.owner != UNHEALTHY:
                held_text = f"pod {holder.name} holds {count} {resource}"
                notes.append(f"{held_text}, more than node {holder.node} has left")
    return [_with_instances(gpu, held[gpu.id]) for gpu in by_id.values()], notes


def _held(instance: Instance, holder: DeviceHolder, *, is_gang: bool) -> Instance:
    gang = holder.name if is_gang else None
    return replace(instance, owner=holder.owner, movable=holder.movable, gang=gang)


def frozen_gpus(gpus: Iterable[GPUState], owners: Container[str]) -> tuple[GPUState, ...]:
    """Return the GPUs of a left-out node that `owners` hold, without their free slices: nothing on them is
    given, cut or moved.
    """

    def frozen(gpu: GPUState) -> GPUState:
        held = tuple(replace(i, movable=False) for i in gpu.instances if i.owner is not None)
        return replace(gpu, instances=held, cuttable=False, convertible=False)

    return tuple(frozen(gpu) for gpu in gpus if any(i.owner in owners for i in gpu.instances if i.owner))


FreeInstances = dict[tuple[str, str], deque[tuple[str, Instance]]]  # by node and resource: GPU id, instance


def free_instances(gpus: Iterable[GPUState]) -> FreeInstances:
    """Return the GPUs and slices that have no holder, in the order of `gpus`."""
    free: FreeInstances = {}
    for gpu in gpus:
        if gpu.mig_enabled:
            left = [instance for instance in gpu.instances if instance.owner is None]
        else:
            left = [] if gpu.instances else [Instance(WHOLE_GPU, 0)]
        for instance in left:
            free.setdefault((gpu.node, resource_name(instance.profile)), deque()).append((gpu.id, instance))
    return free


def _with_instances(gpu: GPUState, held: Mapping[int, Instance]) -> GPUState:
    if not held:
        return gpu
    instances = tuple(held.get(instance.start, instance) for instance in gpu.instances)
    return replace(gpu, instances=instances or tuple(held.values()))
