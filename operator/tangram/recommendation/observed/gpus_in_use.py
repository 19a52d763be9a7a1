"""GPUs of left-out nodes on which LLMDeployments run. They are in use and paid, though nothing new is placed
there: a plan counts them, and leaves them as they are.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.eligibility.devices.node_devices import is_lost
from tangram.fleet import Claim, FleetSnapshot, Node, claiming_pools, pool_price
from tangram.packing import GPUState
from tangram.recommendation.documents.nodes import gpus_of_held_devices
from tangram.recommendation.documents.pods import DeviceHolder, frozen_gpus, with_holders
from tangram.recommendation.observed.observed_gpus import UNMANAGED_OWNER
from tangram.recommendation.observed.partitioned_gpus import SliceOwner, partitioned_gpus


def gpus_in_use_on_left_out_nodes(
    snapshot: FleetSnapshot,
    names: Mapping[str, str],
    planned_nodes: Container[str],
    desired: Mapping[str, int],
) -> tuple[tuple[GPUState, ...], tuple[str, ...]]:
    """Return the GPUs beside those of `planned_nodes`, and notes on replicas whose GPUs are not known.

    `names`: LLMDeployments by uid, `desired`: their replicas by name. What runs beyond those is about to end:
    a plan would give its place to others. Pods that terminate, or are on a lost node, hold nothing.
    """
    gpus: list[GPUState] = []
    notes: list[str] = []
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        claims = [c for c in snapshot.claims if c.node == node.name and c.leaves_at is None]
        if node.name in planned_nodes or is_lost(node) or not any(c.owner_uid in names for c in claims):
            continue
        if node.sku is None:
            node = replace(node, sku=_sku_of_replicas(claims, snapshot))  # noqa: PLW2901
        places = claiming_pools(node, snapshot.pools)
        price = pool_price(places, {pool.name: pool for pool in snapshot.pools})
        if node.sku is None or Prices(dict(snapshot.prices)).gpu_hour(node.sku, price) is None:
            notes.append(f"node {node.name}: replicas run there that no cost counts: its price is not known")
            continue
        try:
            node_gpus = _gpus(node, claims, snapshot, names)
        except InputError as error:
            notes.append(f"{error.field} {error.problem}; its replicas are not counted")
            continue
        pool = places[0] if places else ""
        gpus += (replace(gpu, pool=pool, price_per_hour=price) for gpu in node_gpus)
    elsewhere = Counter(names.get(c.owner_uid or "") for c in snapshot.claims if c.node in planned_nodes)
    left = {owner: max(0, count - elsewhere[owner]) for owner, count in desired.items()}
    return tuple(_without_surplus(gpus, left, frozenset(names.values()))), tuple(notes)


def _without_surplus(
    gpus: list[GPUState], left: dict[str, int], owners: frozenset[str]
) -> Iterator[GPUState]:
    """Yield the GPUs with at most `left` instances of each owner: those that it still owns something on."""
    for gpu in gpus:
        staying = []
        for instance in gpu.instances:
            owner = instance.owner or ""
            if owner in left:
                left[owner] -= 1
            if left.get(owner, 0) >= 0:
                staying.append(instance)
        if any(instance.owner in owners for instance in staying):
            yield replace(gpu, instances=tuple(staying))


def _sku_of_replicas(claims: list[Claim], snapshot: FleetSnapshot) -> str | None:
    """Return the SKU of a node without its labels, by the shapes that run there; None: not known."""
    held = {(claim.owner_uid, claim.resource) for claim in claims}
    skus = {w.shape.sku for w in snapshot.workloads if (w.owner_uid, w.shape.resource) in held}
    return skus.pop() if len(skus) == 1 else None


def _gpus(
    node: Node, claims: list[Claim], snapshot: FleetSnapshot, names: Mapping[str, str]
) -> tuple[GPUState, ...]:
    """Return the GPUs of one node that LLMDeployments hold, as its partition backend knows them, else
    inferred. Raises `InputError` where what is held fits no layout.
    """
    partition = snapshot.partition.by_node.get(node.name)
    owned = {claim.pod: names.get(claim.owner_uid or "") for claim in claims}
    owners = {pod: SliceOwner(owner, movable=False) for pod, owner in owned.items() if owner is not None}
    partitioned: tuple[GPUState, ...] = ()
    if partition is not None:
        targets = dict(snapshot.partition.targets)
        partitioned = partitioned_gpus(node, partition, owners, targets, UNMANAGED_OWNER)
    placed = {pod for gpu in partition.gpus for _, pod in gpu.held} if partition is not None else set()
    ordered = sorted(claims, key=lambda claim: (claim.resource, claim.owner_uid or "", claim.count))
    holders = [
        DeviceHolder(
            node.name,
            f"{node.name}#{number}",
            names.get(claim.owner_uid or "", UNMANAGED_OWNER),
            movable=False,
            counts=((claim.resource, claim.count),),
        )
        for number, claim in enumerate(ordered)
        if not (partitioned and claim.pod in placed)
    ]
    held: Counter[str] = Counter()
    for claim in claims:
        held[claim.resource] += claim.count
    gpus, _ = with_holders(partitioned or gpus_of_held_devices(node, held, "node"), holders)
    return frozen_gpus(gpus, frozenset(names.values()))
