"""The GPUs of observed nodes, with the LLMDeployments and foreign pods that hold their slices."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from tangram.catalog import InputError
from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.fleet import Claim, FleetSnapshot, Node
from tangram.packing import GPUState
from tangram.plan.fleet_input.documents.nodes import inferred_gpus
from tangram.plan.fleet_input.documents.pods import (
    DeviceHolder,
    free_instances,
    unhealthy_devices,
    with_holders,
)
from tangram.plan.fleet_input.documents.pools import under_pool_policy
from tangram.plan.fleet_input.fleet import Fleet, FleetNode
from tangram.plan.fleet_input.observed.claim_holders import (
    SliceOwner,
    claim_holder,
    claim_owner,
)
from tangram.plan.fleet_input.observed.partitioned_gpus import partitioned_gpus

PROMISED = "(quota)"  # owner of free slices that foreign quota grants


def observed_gpus(
    fleet: Fleet, names: Mapping[str, str], unplanned: frozenset[str]
) -> tuple[tuple[GPUState, ...], tuple[str, ...]]:
    """Return every GPU that can be planned with its holders, sorted by id, and notes on what is left out.

    Foreign pods, and those of the `unplanned`, do not move. `names`: LLMDeployments by uid.
    """
    snapshot = fleet.snapshot
    owners = [claim_owner(claim, names, unplanned) for claim in snapshot.claims]
    notes = left_out_notes(snapshot.nodes)
    gpus = list(_empty_gpus(fleet, owners, notes))
    nodes = {gpu.node for gpu in gpus}
    unhealthy = [
        holder for place in fleet.nodes if place.name in nodes for holder in unhealthy_devices(place.node)
    ]
    gpus, overflow_notes = with_holders(gpus, [*_unplaced_pods(snapshot, owners, nodes), *unhealthy])
    gpus, _ = with_holders(gpus, _unscheduled_replicas(gpus, snapshot, names, unplanned))
    gpus, _ = with_holders(gpus, _promised(gpus, snapshot))
    planned_gpus = sorted((under_pool_policy(gpu, fleet.pools) for gpu in gpus), key=lambda gpu: gpu.id)
    return tuple(planned_gpus), (*notes, *overflow_notes)


def _empty_gpus(fleet: Fleet, owners: Iterable[SliceOwner], notes: list[str]) -> Iterator[GPUState]:
    """Yield the GPUs of each node, by name, with the holders that partition backends know alone.

    `owners`: of the snapshot's claims. What is left out is added to `notes`.
    """
    claims, targets = fleet.snapshot.claims, dict(fleet.snapshot.partition.targets)
    owners_by_pod = {claim.pod: owner for claim, owner in zip(claims, owners, strict=True) if claim.pod}
    for place in fleet.nodes:
        known = () if place.node.sku is None else partitioned_gpus(place, owners_by_pod, targets)
        yield from _of_node(place, known, notes)


def _unplaced_pods(
    snapshot: FleetSnapshot, owners: Iterable[SliceOwner], nodes: Container[str]
) -> Iterator[DeviceHolder]:
    """Yield the pods on `nodes` whose slices no partition backend knows, in a fixed order."""
    observed = (gpu for node in snapshot.partition.nodes for gpu in node.gpus)
    placed = {pod for gpu in observed for _, pod in gpu.held if pod}
    unplaced = [
        (claim, owner)
        for claim, owner in zip(snapshot.claims, owners, strict=True)
        if claim.pod not in placed
    ]
    for number, (claim, owner) in enumerate(sorted(unplaced, key=lambda pair: _claim_order(pair[0]))):
        if claim.node in nodes:
            yield claim_holder(f"{claim.node}#{number}", claim, owner)


def _promised(gpus: list[GPUState], snapshot: FleetSnapshot) -> list[DeviceHolder]:
    """Return immovable holders of the free slices that foreign quota grants and no pod uses yet."""
    foreign: Counter[tuple[str, str]] = Counter()
    for claim in snapshot.claims:
        foreign[claim.node, claim.resource] += claim.count if claim.owner_uid is None else 0
    free = {place: len(units) for place, units in free_instances(gpus).items()}
    holders = []
    for number, promise in enumerate(snapshot.partition.promised):
        left = promise.count - sum(foreign[node, promise.resource] for node in promise.nodes)
        for node in promise.nodes:
            reserved = min(max(0, left), free.get((node, promise.resource), 0))
            if reserved:
                left -= reserved
                free[node, promise.resource] -= reserved
                counts = ((promise.resource, reserved),)
                name = f"~{PROMISED}{number}"
                holders.append(DeviceHolder(node, name, PROMISED, movable=False, counts=counts))
    return holders


def _claim_order(claim: Claim) -> tuple[str, str, str, int]:
    return claim.node, claim.resource, claim.owner_uid or "", claim.count


def _of_node(place: FleetNode, known: tuple[GPUState, ...], notes: list[str]) -> Iterator[GPUState]:
    """Yield the GPUs of a node: those that its partition backend knows, else inferred ones."""
    node = place.node
    if node.withheld and not node.allocatable:  # its device plugin restarts: the devices are unchanged
        node = replace(node, allocatable=node.withheld)
    if not ((node.allocatable or known) and node.usable and node.sku):
        if node.allocatable and not node.left_out:
            notes.append(f"node {node.name}: {_unusable_because(node)}; its GPUs are left out")
        return
    if place.gpu_hour is None:
        notes.append(f"node {node.name}: no price is known for {node.sku}, so its GPUs are left out")
        return
    if len(place.pools) > 1:
        names = ", ".join(place.pools)
        notes.append(f"node {node.name}: GPUPools {names} claim it; it belongs to {place.pool}")
    gpus = known
    if not gpus:
        try:
            gpus = inferred_gpus(node, "node")
        except InputError as error:
            notes.append(f"{error.field} {error.problem}; its GPUs are left out")
            return
    yield from (replace(gpu, pool=place.pool, price_per_hour=place.pool_price) for gpu in gpus)


def _unusable_because(node: Node) -> str:
    """Return why a node is left out, where the snapshot does not hold the reason."""
    if node.sku is not None:
        return "takes no pods of the engine"
    return f"has GPUs {node.product!r} that the catalog does not know" if node.product else "has no product"


def _unscheduled_replicas(
    gpus: list[GPUState], snapshot: FleetSnapshot, names: Mapping[str, str], unplanned: frozenset[str]
) -> Iterator[DeviceHolder]:
    """Yield the replicas of our Deployments that are not scheduled yet, on free devices of their shape.

    Without them the plan would change with every pod that is scheduled.
    """
    skus = {node.name: node.sku for node in snapshot.nodes}
    free = _free_devices_by_node(gpus, skus)
    scheduled = Counter(
        (claim.owner_uid, skus.get(claim.node), claim.resource, claim.count) for claim in snapshot.claims
    )
    for workload in sorted(snapshot.workloads, key=lambda w: (w.owner_uid, w.shape, w.name, w.uid)):
        uid, shape = workload.owner_uid, workload.shape
        if uid not in names:
            continue
        running = min(scheduled[uid, *shape.devices], workload.replicas)
        scheduled[uid, *shape.devices] -= running
        nodes = free.get(shape.device_kind, {})
        for number in range(workload.replicas - running):
            node = next((name for name, count in nodes.items() if count >= shape.gpus), None)
            if node is None:
                break
            nodes[node] -= shape.gpus
            if not nodes[node]:
                del nodes[node]
            claim = Claim(node, shape.resource, shape.gpus, uid)
            name = f"{workload.namespace}/{workload.name}+{number}"
            yield claim_holder(name, claim, claim_owner(claim, names, unplanned))


def _free_devices_by_node(
    gpus: list[GPUState], skus: Mapping[str, str | None]
) -> dict[tuple[str | None, str], dict[str, int]]:
    """Return the free devices of each node, sorted by name, by GPU model and resource."""
    nodes: dict[tuple[str | None, str], dict[str, int]] = {}
    for (node, resource), devices in sorted(free_instances(gpus).items()):
        if devices:
            nodes.setdefault((skus[node], resource), {})[node] = len(devices)
    return nodes
