"""Bare Nodes, as `kubectl get nodes -o yaml` prints them: GPUs with the layout that their counts imply.

A Node says how many slices of each profile it offers, not where they lie nor who holds them. The layout is
one of those that fit, and marked as inferred; re-cutting such a GPU is planned as if all of it were cleared.
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
from tangram.recommendation.documents import document_fields as read

MOST_PER_NODE = 64
_MOST_TRIED = 2000  # ways of sharing slices out over the GPUs of one node
MOST_UNITS = 16 * MOST_PER_NODE  # of one resource


@dataclass(frozen=True, slots=True)
class InferredNode:
    """A node, before pools claim it."""

    node: Node
    gpus: tuple[GPUState, ...]  # all of them inferred
    problem: str = ""  # why its GPUs cannot be planned though newcomers could be given them
    facts: NodeFacts | None = None  # until the pools are known
    where: str = ""  # file, number and kind, likewise

    @property
    def name(self) -> str:
        """What it is called."""
        return self.node.name


def read_node(document: Mapping[str, Any], where: str) -> InferredNode:
    """Read one Node as the operator does. Raises `InputError` where it is no Node.

    Engine pods are taken to tolerate what they always tolerate; an operator's settings may hold more.
    """
    outer = Fields(document, where)
    meta = outer.under("metadata")
    if meta is None:
        raise outer.error("metadata", "is missing")
    spec = outer.under("spec") or Fields({}, f"{where}: spec")
    status = outer.under("status") or Fields({}, f"{where}: status")
    labels = {str(k): str(v) for k, v in _values(meta, "labels").items()}
    ready = [c for c in read.objects(status, "conditions") if c.values.get("type") == "Ready"]
    facts = NodeFacts(
        name=read.word(meta, "name"),
        labels=labels,
        allocatable=_values(status, "allocatable"),
        capacity=_values(status, "capacity"),
        taints=tuple(each.values for each in read.objects(spec, "taints")),
        unschedulable=spec.flag("unschedulable"),
        ready=not ready or ready[0].values.get("status") == "True",
    )
    return replace(_seen(facts, where), facts=facts, where=where)


def with_declared_sku(seen: InferredNode, pools: Iterable[Pool]) -> InferredNode:
    """Return a node as it is among `pools`: they may declare which GPU it has."""
    facts = seen.facts
    if facts is None:
        return seen
    declared = declared_skus(facts.labels, pools)
    if not declared:
        return replace(seen, facts=None, where="")
    return _seen(replace(facts, declared=declared), seen.where)


def _seen(facts: NodeFacts, where: str) -> InferredNode:
    found = gpu_node(facts, (), facts.labels)
    if not (found.usable and found.allocatable):
        return InferredNode(found, ())
    try:
        return InferredNode(found, inferred_gpus(found, where))
    except InputError as error:
        return InferredNode(found, (), f"{error.field} {error.problem}; its GPUs are left out")


def _values(fields: Fields, key: str) -> Mapping[str, Any]:
    found = fields.under(key)
    return {} if found is None else found.values


def _is_gpu(resource: str) -> bool:
    return resource == resource_name(WHOLE_GPU) or resource.startswith("nvidia.com/mig-")


def inferred_gpus(node: Node, where: str) -> tuple[GPUState, ...]:
    """Return the GPUs of a node whose SKU is known. Raises `InputError` where its counts fit no layout.

    A slice that is unhealthy has its place in the layout; a whole GPU that is unhealthy is left out.
    """
    sku, counts = node.sku or "", {r: n for r, n in node.allocatable if _is_gpu(r)}
    for resource, n in sorted(counts.items()):
        if n > MOST_UNITS:
            raise InputError(f"{where}: {node.name}: {resource}", f"is {n}, more than a node can have")
    whole = counts.pop(resource_name(WHOLE_GPU), 0)
    slices: dict[str, int] = {}
    for resource, n in sorted(counts.items()):
        profile = profile_of_resource(sku, resource)
        if profile is None:
            raise InputError(f"{where}: {node.name}: {resource}", f"is no slice of {sku}")
        slices[profile.name] = n
    sick = dict(node.unhealthy)
    told = node.gpus is not None and node.gpus <= MOST_PER_NODE
    cut = node.gpus - whole - sick.get(resource_name(WHOLE_GPU), 0) if told and node.gpus else None
    layouts = _layouts_of(node, slices, cut, f"{where}: {node.name}") if slices else ()
    states = [(False, ())] * whole + [(True, layout) for layout in layouts]
    return tuple(
        GPUState(
            id=f"{node.name}/{index}",
            node=node.name,
            sku=sku,
            zone=node.zone,
            mig_enabled=mig,
            convertible=board(sku) is not None,  # whoever holds it takes that back
            nvlink=read.has_nvlink(sku),
            backend="mig-manager",  # the worst case: what is re-cut is cleared
            instances=layout,
        )
        for index, (mig, layout) in enumerate(states)
    )


def _layouts_of(
    node: Node, slices: Mapping[str, int], cut: int | None, where: str
) -> tuple[tuple[Instance, ...], ...]:
    """Return one layout per cut GPU, with the slices that are unhealthy.

    A resource of which nothing is allocatable may be what was there before the GPU was cut anew: the kubelet
    counts it for some minutes. It is left away where it does not fit beside the others.
    """
    sku, there = node.sku or "", dict(slices)
    for resource, n in node.unhealthy:
        profile = profile_of_resource(sku, resource)
        if profile is not None:
            there[profile.name] = there.get(profile.name, 0) + n
    stale = there.keys() - slices.keys()
    try:
        return _layouts(sku, tuple(sorted(there.items())), cut, where)
    except InputError:
        if not stale:
            raise
    return _layouts(sku, tuple(sorted((p, n) for p, n in there.items() if p not in stale)), cut, where)


def _layouts(sku: str, slices: Multiset, gpus: int | None, where: str) -> tuple[tuple[Instance, ...], ...]:
    """Return one layout per GPU such that all slices are there."""
    cut = board(sku)
    if cut is None:
        raise InputError(where, f"offers slices of {sku}, of which nobody has published the geometry")
    found = _shared_out(cut, slices, gpus if gpus is not None and gpus > 0 else None)
    if found is None:
        offered = ", ".join(f"{n} x {profile}" for profile, n in slices)
        raise InputError(where, f"{offered} fit no layout of {gpus or 'so many'} {sku}")
    return found


@lru_cache(maxsize=4096)
def _shared_out(cut: Board, wanted: Multiset, gpus: int | None) -> tuple[tuple[Instance, ...], ...] | None:
    """Share the slices out over so many GPUs, None: as few as can be. Even shares first, as operators cut."""
    for count in range(1, MOST_PER_NODE + 1) if gpus is None else [gpus]:
        found = _even(cut, wanted, count) or _split(cut, dict(wanted), count)
        if found is not None:
            return tuple(_instances(cut, each) for each in found)
    return None


def _even(cut: Board, wanted: Multiset, gpus: int) -> list[Multiset] | None:
    if any(n % gpus for _, n in wanted):
        return None
    share = tuple((profile, n // gpus) for profile, n in wanted)
    return [share] * gpus if layout_of(cut, share) is not None else None


def _split(cut: Board, left: Mapping[str, int], gpus: int) -> list[Multiset] | None:
    """Give each GPU in turn the multiset that takes most of what is left; the first that works out."""
    size = {o.profile: o.mask.bit_count() for o in cut.options}
    fits = [m for m in multisets(cut) if m and all(left.get(p, 0) >= n for p, n in m)]
    fits.sort(key=lambda m: (-sum(size[p] * n for p, n in m), -len(m), m))
    dead: set[tuple[Multiset, int]] = set()  # what was tried in vain: GPUs are alike, so orders do not matter

    def share(left: Mapping[str, int], gpus: int) -> list[Multiset] | None:
        if not any(left.values()):
            return [()] * gpus
        asked = (tuple(sorted(left.items())), gpus)
        too_much = sum(size[p] * n for p, n in left.items()) > gpus * cut.memory_slices
        if too_much or asked in dead or len(dead) > _MOST_TRIED:
            return None
        fitting = (m for m in fits if all(left[p] >= n for p, n in m))
        for chosen in itertools.islice(fitting, 4):
            rest = {p: n - dict(chosen).get(p, 0) for p, n in left.items()}
            found = share(rest, gpus - 1)
            if found is not None:
                return [chosen, *found]
        dead.add(asked)
        return None

    return share(left, gpus) if all(p in size for p, n in left.items() if n) else None


def _instances(cut: Board, wanted: Multiset) -> tuple[Instance, ...]:
    layout = layout_of(cut, wanted)
    return tuple(Instance(p.profile, p.start) for p in layout or ())
