"""The GPUs of observed nodes, with the LLMDeployments and foreign pods that hold their slices."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.fleet import Claim, FleetSnapshot, Node, claiming_pools, pool_price
from tangram.packing import GPUState
from tangram.recommendation.documents.nodes import inferred_gpus
from tangram.recommendation.documents.pods import (
    DeviceHolder,
    free_instances,
    unhealthy_devices,
    with_holders,
)
from tangram.recommendation.documents.pools import under_pool_policy
from tangram.recommendation.observed.partitioned_gpus import SliceOwner, partitioned_gpus

PROMISED = "(quota)"  # owner of free slices that foreign quota grants
UNMANAGED_OWNER = "(others)"  # of pods without an LLMDeployment; no LLMDeployment can have this name


def observed_gpus(
    snapshot: FleetSnapshot, names: Mapping[str, str], unplanned: frozenset[str]
) -> tuple[tuple[GPUState, ...], tuple[str, ...]]:
    """Return every GPU that can be planned with its holders, sorted by id, and notes on what is left out.

    Foreign pods, and those of the `unplanned`, do not move. `names`: LLMDeployments by uid.
    """
    notes = left_out_notes(snapshot.nodes)
    nodes = sorted(snapshot.nodes, key=lambda node: node.name)
    owners = {
        claim.pod: SliceOwner(holder.owner, holder.movable)
        for claim in snapshot.claims
        if claim.pod and (holder := _holder(0, claim, names, unplanned))
    }
    partitions, targets = snapshot.partition.by_node, dict(snapshot.partition.targets)

    def known_gpus(node: Node) -> tuple[GPUState, ...]:
        partition = partitions.get(node.name)
        if partition is None or node.sku is None:
            return ()
        return partitioned_gpus(node, partition, owners, targets, UNMANAGED_OWNER)

    empty_gpus = [gpu for node in nodes for gpu in _of_node(node, snapshot, known_gpus(node), notes)]
    node_names = {gpu.node for gpu in empty_gpus}
    placed = {pod for part in snapshot.partition.nodes for gpu in part.gpus for _, pod in gpu.held if pod}
    claims = enumerate(sorted((c for c in snapshot.claims if c.pod not in placed), key=_claim_order))
    pods = [_holder(i, claim, names, unplanned) for i, claim in claims if claim.node in node_names]
    unhealthy = [holder for node in nodes if node.name in node_names for holder in unhealthy_devices(node)]
    occupied, overflow_notes = with_holders(empty_gpus, [*pods, *unhealthy])
    occupied, _ = with_holders(occupied, _unscheduled_replicas(occupied, snapshot, names, unplanned))
    occupied, _ = with_holders(occupied, _promised(occupied, snapshot))
    pools = {pool.name: pool for pool in snapshot.pools}
    gpus = sorted((under_pool_policy(gpu, pools) for gpu in occupied), key=lambda gpu: gpu.id)
    return tuple(gpus), (*notes, *overflow_notes)


def _promised(gpus: list[GPUState], snapshot: FleetSnapshot) -> list[DeviceHolder]:
    """Return immovable holders of the free slices that foreign quota grants and nobody uses yet."""
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


def _of_node(
    node: Node, snapshot: FleetSnapshot, known: tuple[GPUState, ...], notes: list[str]
) -> Iterator[GPUState]:
    """Yield the GPUs of a node: those that its partition backend knows, else inferred ones."""
    if node.withheld and not node.allocatable:  # its device plugin restarts: the devices are unchanged
        node = replace(node, allocatable=node.withheld)
    if not ((node.allocatable or known) and node.usable and node.sku):
        if node.allocatable and not node.left_out:
            notes.append(f"node {node.name}: {_unusable_because(node)}; its GPUs are left out")
        return
    names = claiming_pools(node, snapshot.pools)
    price = pool_price(names, {pool.name: pool for pool in snapshot.pools})
    if Prices(dict(snapshot.prices)).gpu_hour(node.sku, price) is None:
        notes.append(f"node {node.name}: no price is known for {node.sku}, so its GPUs are left out")
        return
    if len(names) > 1:
        notes.append(f"node {node.name}: GPUPools {', '.join(names)} claim it; it belongs to {names[0]}")
    gpus = known
    if not gpus:
        try:
            gpus = inferred_gpus(node, "node")
        except InputError as error:
            notes.append(f"{error.field} {error.problem}; its GPUs are left out")
            return
    yield from (replace(gpu, pool=names[0] if names else "", price_per_hour=price) for gpu in gpus)


def _unusable_because(node: Node) -> str:
    """Return why a node is left out, where the snapshot does not hold the reason."""
    if node.sku is not None:
        return "takes no pods of the engine"
    return f"has GPUs {node.product!r} that the catalog does not know" if node.product else "has no product"


def _holder(number: int, claim: Claim, names: Mapping[str, str], unplanned: frozenset[str]) -> DeviceHolder:
    owner = names.get(claim.owner_uid or "")
    return DeviceHolder(
        node=claim.node,
        name=f"{claim.node}#{number}",
        owner=UNMANAGED_OWNER if owner is None else owner,
        movable=owner is not None and claim.owner_uid not in unplanned,
        counts=((claim.resource, claim.count),),
    )


def _unscheduled_replicas(
    gpus: list[GPUState], snapshot: FleetSnapshot, names: Mapping[str, str], unplanned: frozenset[str]
) -> list[DeviceHolder]:
    """Return the replicas of our Deployments that are not scheduled yet, on free slices of their shape.

    Without them the plan would change with every pod that is scheduled.
    """
    skus = {node.name: node.sku for node in snapshot.nodes}
    scheduled: Counter[tuple[str, str | None, str]] = Counter()
    for claim in snapshot.claims:
        scheduled[claim.owner_uid or "", skus.get(claim.node), claim.resource] += claim.count
    free: dict[tuple[str | None, str], list[str]] = {}
    for (node, resource), units in sorted(free_instances(gpus).items(), reverse=True):
        free.setdefault((skus[node], resource), []).extend([node] * len(units))
    holders = []
    for workload in sorted(snapshot.workloads, key=lambda w: (w.owner_uid, w.shape, w.name, w.uid)):
        if workload.owner_uid not in names or workload.shape.tensor_parallel != 1:
            continue
        key = (workload.owner_uid, workload.shape.sku, workload.shape.resource)
        scheduled_replicas = min(scheduled[key], workload.replicas)
        scheduled[key] -= scheduled_replicas
        nodes = free.get((workload.shape.sku, workload.shape.resource), [])
        for number in range(min(workload.replicas - scheduled_replicas, len(nodes))):
            claim = Claim(nodes.pop(), workload.shape.resource, 1, workload.owner_uid)
            name = f"{workload.namespace}/{workload.name}+{number}"
            holders.append(replace(_holder(0, claim, names, unplanned), name=name))
    return holders
