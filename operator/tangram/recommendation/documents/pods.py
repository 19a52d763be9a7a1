"""Pods, as `kubectl get pods -A -o yaml` prints them: who holds GPUs and slices on which node.

A Pod tells its node and how many of which profile, not which of the equal slices. It is put on the first that
is free; with a backend that clears a whole GPU that is the worst case for whoever moves.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tangram.catalog.reading.fields import Fields
from tangram.eligibility.shapes.serving_requirements import identity
from tangram.fleet import WHOLE_GPU, Node, resource_name
from tangram.fleet.labels import OWNER_LABEL
from tangram.fleet.pod_requests import gpu_requests
from tangram.packing import GPUState, Instance
from tangram.recommendation.documents import document_fields as read

UNHEALTHY = "(unhealthy)"  # holds the slices that are unhealthy; no LLMDeployment can be called this


@dataclass(frozen=True, slots=True, order=True)
class DeviceHolder:
    """A pod that holds GPUs or slices."""

    node: str
    name: str  # NAMESPACE/NAME
    owner: str  # the LLMDeployment that it serves, else its own name
    ours: bool
    counts: tuple[tuple[str, int], ...]  # (resource, count)


def read_pod(document: Mapping[str, Any], where: str) -> DeviceHolder | None:
    """Read one Pod; None: it holds no GPU, or does not run."""
    outer = Fields(document, where)
    meta, spec = outer.under("metadata"), outer.under("spec")
    if meta is None or spec is None:
        raise outer.error("metadata" if meta is None else "spec", "is missing")
    status = outer.under("status")
    done = status is not None and status.values.get("phase") in {"Succeeded", "Failed"}
    if not spec.has("nodeName") or done:
        return None
    for key in ("containers", "initContainers"):
        read.objects(spec, key)  # raises where it is none
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
    """Return what keeps the unhealthy slices of a node from being given or cut: a holder that stays.

    It comes last of the node's pods, since one of them may hold the slice that is unhealthy.
    """
    devices = tuple(each for each in node.unhealthy if each[0] != resource_name(WHOLE_GPU))
    return (DeviceHolder(node.name, "~unhealthy", UNHEALTHY, ours=False, counts=devices),) if devices else ()


def with_holders(gpus: Iterable[GPUState], pods: Iterable[DeviceHolder]) -> tuple[list[GPUState], list[str]]:
    """Return the GPUs with their holders, and a note about each pod for which nothing was left."""
    by_id = {gpu.id: gpu for gpu in gpus}
    free = free_instances(by_id.values())
    held: dict[str, dict[int, Instance]] = {}
    notes = []
    for holder in sorted(pods):
        for resource, count in holder.counts:
            units = free.get((holder.node, resource), deque())
            assigned = [units.popleft() for _ in range(min(count, len(units)))]
            for gpu, instance in assigned:
                whole = resource == resource_name(WHOLE_GPU) and count > 1
                gang = holder.name if whole else None
                held_instance = replace(instance, owner=holder.owner, movable=holder.ours, gang=gang)
                held.setdefault(gpu, {})[held_instance.start] = held_instance
            if len(assigned) < count and holder.owner != UNHEALTHY:
                notes.append(_too_many(holder, resource))
    return [_held(gpu, held.get(gpu.id, {})) for gpu in by_id.values()], notes


FreeInstances = dict[tuple[str, str], deque[tuple[str, Instance]]]  # by node and resource: GPU id, instance


def free_instances(gpus: Iterable[GPUState]) -> FreeInstances:
    """Return what nobody holds, in the order of GPUs."""
    free: FreeInstances = {}
    for gpu in gpus:
        if gpu.mig_enabled:
            left = [instance for instance in gpu.instances if instance.owner is None]
        else:
            left = [] if gpu.instances else [Instance(WHOLE_GPU, 0)]
        for instance in left:
            free.setdefault((gpu.node, resource_name(instance.profile)), deque()).append((gpu.id, instance))
    return free


def _held(gpu: GPUState, taken: Mapping[int, Instance]) -> GPUState:
    if not taken:
        return gpu
    instances = tuple(taken.get(instance.start, instance) for instance in gpu.instances)
    return replace(gpu, instances=instances or tuple(taken.values()), convertible=False)


def _too_many(holder: DeviceHolder, resource: str) -> str:
    total = dict(holder.counts)[resource]
    return f"pod {holder.name} holds {total} {resource}, of which node {holder.node} offers too few"
