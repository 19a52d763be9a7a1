"""GPUs of left-out nodes on which LLMDeployments run. They are in use and paid, though nothing new is placed
there: a plan counts them, and leaves them as they are.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from tangram.catalog import InputError
from tangram.eligibility.devices.node_devices import is_lost
from tangram.fleet import Claim, FleetSnapshot, Node
from tangram.packing import GPUState
from tangram.recommendation.documents.nodes import gpus_of_held_devices
from tangram.recommendation.documents.pods import DeviceHolder, frozen_gpus, with_holders
from tangram.recommendation.observed.claim_holders import (
    UNMANAGED_OWNER,
    claim_holder,
    claim_owner,
    pools_and_price,
)
from tangram.recommendation.observed.partitioned_gpus import partitioned_gpus


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
    for node, claims in _left_out_nodes(snapshot, names, planned_nodes):
        pools, price, is_priced = pools_and_price(node, snapshot)
        if not is_priced:
            notes.append(f"node {node.name}: replicas run there that no cost counts: its price is not known")
            continue
        try:
            node_gpus = _gpus(node, claims, snapshot, names)
        except InputError as error:
            notes.append(f"{error.field} {error.problem}; its replicas are not counted")
            continue
        pool = pools[0] if pools else ""
        gpus += (replace(gpu, pool=pool, price_per_hour=price) for gpu in node_gpus)
    left = _replicas_left(snapshot, names, planned_nodes, desired)
    return tuple(_without_surplus(gpus, left, frozenset(names.values()))), tuple(notes)


def _replicas_left(
    snapshot: FleetSnapshot,
    names: Mapping[str, str],
    planned_nodes: Container[str],
    desired: Mapping[str, int],
) -> dict[str, int]:
    """Return how many desired replicas of each LLMDeployment do not run on planned nodes."""
    planned = Counter(names.get(c.owner_uid or "") for c in snapshot.claims if c.node in planned_nodes)
    return {owner: max(0, count - planned[owner]) for owner, count in desired.items()}


def _left_out_nodes(
    snapshot: FleetSnapshot, names: Mapping[str, str], planned_nodes: Container[str]
) -> Iterator[tuple[Node, list[Claim]]]:
    """Yield the nodes on which LLMDeployments run and that are not planned, with the claims that stay."""
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        claims = [c for c in snapshot.claims if c.node == node.name and c.leaves_at is None]
        if node.name in planned_nodes or is_lost(node) or not any(c.owner_uid in names for c in claims):
            continue
        is_labelled = node.sku is not None
        yield node if is_labelled else replace(node, sku=_sku_of_replicas(claims, snapshot)), claims


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
    gpus: Sequence[GPUState] = ()
    placed: Container[str] = ()
    if partition is not None:
        owners = {claim.pod: claim_owner(claim, names, immovable=names) for claim in claims}
        targets = dict(snapshot.partition.targets)
        gpus = partitioned_gpus(node, partition, owners, targets, UNMANAGED_OWNER)
        placed = {pod for gpu in partition.gpus for _, pod in gpu.held} if gpus else ()
    occupied, _ = with_holders(
        gpus or gpus_of_held_devices(node, _claimed_devices(claims), "node"),
        _unplaced_pods(node.name, claims, names, placed),
    )
    return frozen_gpus(occupied, frozenset(names.values()))


def _unplaced_pods(
    node: str, claims: list[Claim], names: Mapping[str, str], placed: Container[str]
) -> Iterator[DeviceHolder]:
    """Yield the pods on a node whose slices its partition backend does not know, in a fixed order."""
    ordered = sorted(claims, key=lambda claim: (claim.resource, claim.owner_uid or "", claim.count))
    for number, claim in enumerate(ordered):
        if claim.pod not in placed:
            yield claim_holder(f"{node}#{number}", claim, claim_owner(claim, names, immovable=names))


def _claimed_devices(claims: list[Claim]) -> Counter[str]:
    """Return how many devices claims ask for, by resource."""
    devices: Counter[str] = Counter()
    for claim in claims:
        devices[claim.resource] += claim.count
    return devices
