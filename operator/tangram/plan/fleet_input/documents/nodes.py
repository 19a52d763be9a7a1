"""Read Nodes, as `kubectl get nodes -o yaml` prints them, and infer the MIG layouts of their GPUs.

A Node has the number of slices of each profile, not their placements nor the pods that hold them. The
inferred layout is one of those that fit. Re-cutting such a GPU is planned as if all its replicas had to stop.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tangram.catalog import InputError, profile_of_resource
from tangram.catalog.reading.fields import Fields
from tangram.eligibility.devices.device_rules import NodeFacts
from tangram.eligibility.devices.node_devices import gpu_node
from tangram.fleet import WHOLE_GPU, Node, Pool, declared_skus, resource_name
from tangram.packing import Board, GPUState, Instance, board
from tangram.packing.geometry.layouts import Multiset, layout_of, multisets
from tangram.plan.fleet_input.documents import document_fields as read

MOST_PER_NODE = 64
_MOST_SPLITS = 2000  # ways to distribute slices over the GPUs of one node
MOST_UNITS = 16 * MOST_PER_NODE  # of one resource


@dataclass(frozen=True, slots=True)
class InferredNode:
    """A node with the GPUs inferred from its counts."""

    node: Node
    gpus: tuple[GPUState, ...]  # none where they cannot be planned
    problem: str = ""  # why its GPUs cannot be planned though pods could be scheduled on them


def read_node(document: Mapping[str, Any], where: str) -> NodeFacts:
    """Read one Node as the operator does. Raises `InputError` where it is no Node.

    Engine pods have their default tolerations; the settings of an operator may add more.
    """
    outer = Fields(document, where)
    meta = read.required(outer, "metadata")
    spec = outer.under("spec") or Fields({}, f"{where}: spec")
    status = outer.under("status") or Fields({}, f"{where}: status")
    ready = [c for c in read.objects(status, "conditions") if c.values.get("type") == "Ready"]
    return NodeFacts(
        name=read.word(meta, "name"),
        labels={str(k): str(v) for k, v in _values(meta, "labels").items()},
        allocatable=_values(status, "allocatable"),
        capacity=_values(status, "capacity"),
        taints=tuple(taint.values for taint in read.objects(spec, "taints")),
        unschedulable=spec.flag("unschedulable"),
        ready=not ready or ready[0].values.get("status") == "True",
    )


def inferred_node(facts: NodeFacts, pools: Iterable[Pool], where: str) -> InferredNode:
    """Return the node with its GPUs, of the model that `pools` declare where it has no product label."""
    node = gpu_node(replace(facts, declared=declared_skus(facts.labels, pools)), (), facts.labels)
    if not (node.usable and node.allocatable):
        return InferredNode(node, ())
    try:
        return InferredNode(node, inferred_gpus(node, where))
    except InputError as error:
        return InferredNode(node, (), f"{error.field} {error.problem}; its GPUs are left out")


def _values(fields: Fields, key: str) -> Mapping[str, Any]:
    inner = fields.under(key)
    return {} if inner is None else inner.values


def _is_gpu(resource: str) -> bool:
    return resource == resource_name(WHOLE_GPU) or resource.startswith("nvidia.com/mig-")


def inferred_gpus(node: Node, where: str) -> tuple[GPUState, ...]:
    """Return the GPUs of a node whose SKU is known. Raises `InputError` where its counts fit no layout.

    An unhealthy slice has a placement in the layout; an unhealthy whole GPU is left out.
    """
    sku, name = node.sku or "", f"{where}: {node.name}"
    whole_gpus, slices = _counted_devices(node, name)
    unhealthy_gpus = dict(node.unhealthy).get(resource_name(WHOLE_GPU), 0)
    gpu_count = node.gpus if node.gpus is not None and node.gpus <= MOST_PER_NODE else 0
    cut_gpus = gpu_count - whole_gpus - unhealthy_gpus if gpu_count else None
    layouts = _layouts_of(node, slices, cut_gpus, name) if slices else ()
    states = [(False, ())] * whole_gpus + [(True, layout) for layout in layouts]
    return tuple(
        GPUState(
            id=f"{node.name}/{index}",
            node=node.name,
            sku=sku,
            zone=node.zone,
            mig_enabled=mig_enabled,
            convertible=board(sku) is not None,
            backend="mig-manager",  # the worst case: a re-cut stops all replicas of the GPU
            instances=layout,
        )
        for index, (mig_enabled, layout) in enumerate(states)
    )


def _counted_devices(node: Node, name: str) -> tuple[int, dict[str, int]]:
    """Return the whole GPUs of a node, and its slices by profile. Raises `InputError`; `name`: for it."""
    counts = {resource: count for resource, count in node.allocatable if _is_gpu(resource)}
    for resource, count in sorted(counts.items()):
        if count > MOST_UNITS:
            raise InputError(f"{name}: {resource}", f"is {count}, more than a node can have")
    whole_gpus = counts.pop(resource_name(WHOLE_GPU), 0)
    slices: dict[str, int] = {}
    for resource, count in sorted(counts.items()):
        profile = profile_of_resource(node.sku or "", resource)
        if profile is None:
            raise InputError(f"{name}: {resource}", f"is no slice of {node.sku or ''}")
        slices[profile.name] = count
    return whole_gpus, slices


def gpus_of_held_devices(node: Node, held: Mapping[str, int], where: str) -> tuple[GPUState, ...]:
    """Return GPUs of a left-out node with at least the devices `held`, by resource. Raises `InputError`.

    From what the node offers, if that has them all; else as few GPUs as the held devices fit on.
    """
    offered = dict(node.allocatable)
    if all(offered.get(resource, 0) >= count for resource, count in held.items()):
        return inferred_gpus(node, where)
    counts = tuple(sorted(held.items()))
    return inferred_gpus(replace(node, allocatable=counts, unhealthy=(), gpus=None), where)


def _layouts_of(
    node: Node, slices: Mapping[str, int], gpus: int | None, where: str
) -> tuple[tuple[Instance, ...], ...]:
    """Return one layout per GPU in MIG mode, with the unhealthy slices.

    A resource without allocatable slices may be left from before a re-cut: the kubelet counts it for some
    minutes. It is ignored where it does not fit beside the others.
    """
    sku, all_slices = node.sku or "", dict(slices)
    for resource, n in node.unhealthy:
        profile = profile_of_resource(sku, resource)
        if profile is not None:
            all_slices[profile.name] = all_slices.get(profile.name, 0) + n
    stale = all_slices.keys() - slices.keys()
    try:
        return _layouts(sku, tuple(sorted(all_slices.items())), gpus, where)
    except InputError:
        if not stale:
            raise
    return _layouts(sku, tuple(sorted((p, n) for p, n in all_slices.items() if p not in stale)), gpus, where)


def _layouts(sku: str, slices: Multiset, gpus: int | None, where: str) -> tuple[tuple[Instance, ...], ...]:
    """Return one layout per GPU that together hold all slices. Raises `InputError` where none do."""
    mig_board = board(sku)
    if mig_board is None:
        raise InputError(where, f"offers slices of {sku}, whose MIG geometry is not published")
    layouts = _distributed(mig_board, slices, gpus if gpus is not None and gpus > 0 else None)
    if layouts is None:
        offered = ", ".join(f"{n} x {profile}" for profile, n in slices)
        raise InputError(where, f"{offered} fit no layout of {gpus or 'so many'} {sku}")
    return layouts


@lru_cache(maxsize=4096)
def _distributed(
    mig_board: Board, slices: Multiset, gpus: int | None
) -> tuple[tuple[Instance, ...], ...] | None:
    """Return a share of the slices for each of `gpus` GPUs; None: of the fewest. Equal shares first."""
    for count in range(1, MOST_PER_NODE + 1) if gpus is None else [gpus]:
        shares = _even(mig_board, slices, count) or _split(mig_board, dict(slices), count)
        if shares is not None:
            return tuple(_instances(mig_board, share) for share in shares)
    return None


def _even(mig_board: Board, slices: Multiset, gpus: int) -> list[Multiset] | None:
    if any(n % gpus for _, n in slices):
        return None
    share = tuple((profile, n // gpus) for profile, n in slices)
    return [share] * gpus if layout_of(mig_board, share) is not None else None


def _split(mig_board: Board, left: Mapping[str, int], gpus: int) -> list[Multiset] | None:
    """Give each GPU in turn a multiset of the remaining slices, largest first; None: not found."""
    size = {o.profile: o.mask.bit_count() for o in mig_board.options}
    fits = [m for m in multisets(mig_board) if m and all(left.get(p, 0) >= n for p, n in m)]
    fits.sort(key=lambda m: (-sum(size[p] * n for p, n in m), -len(m), m))
    failed: set[tuple[Multiset, int]] = set()  # states without a solution; the order of GPUs does not matter

    def share(left: Mapping[str, int], gpus: int) -> list[Multiset] | None:
        if not any(left.values()):
            return [()] * gpus
        state = (tuple(sorted(left.items())), gpus)
        too_much = sum(size[p] * n for p, n in left.items()) > gpus * mig_board.memory_slices
        if too_much or state in failed or len(failed) > _MOST_SPLITS:
            return None
        fitting = (m for m in fits if all(left[p] >= n for p, n in m))
        for chosen in itertools.islice(fitting, 4):
            rest = {p: n - dict(chosen).get(p, 0) for p, n in left.items()}
            shares = share(rest, gpus - 1)
            if shares is not None:
                return [chosen, *shares]
        failed.add(state)
        return None

    return share(left, gpus) if all(p in size for p, n in left.items() if n) else None


def _instances(mig_board: Board, slices: Multiset) -> tuple[Instance, ...]:
    layout = layout_of(mig_board, slices)
    return tuple(Instance(p.profile, p.start) for p in layout or ())
