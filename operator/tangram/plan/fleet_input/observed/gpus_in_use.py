"""GPUs of left-out nodes on which LLMDeployments run. They are in use and paid, though nothing new is placed
there: a plan counts them, and leaves them as they are.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from tangram.catalog import InputError
from tangram.eligibility.devices.node_devices import is_lost
from tangram.fleet import Claim, FleetSnapshot
from tangram.packing import GPUState
from tangram.plan.fleet_input.documents.nodes import gpus_of_held_devices
from tangram.plan.fleet_input.documents.pods import DeviceHolder, frozen_gpus, with_holders
from tangram.plan.fleet_input.fleet import Fleet, FleetNode
from tangram.plan.fleet_input.observed.claim_holders import (
    claim_holder,
    claim_owner,
)
from tangram.plan.fleet_input.observed.partitioned_gpus import partitioned_gpus


def gpus_in_use_on_left_out_nodes(
    fleet: Fleet,
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
    for place in _left_out_nodes(fleet, names, planned_nodes):
        node = place.node
        if place.gpu_hour is None:
            notes.append(f"node {node.name}: replicas run there that no cost counts: its price is not known")
            continue
        try:
            node_gpus = _gpus(place, fleet.snapshot, names)
        except InputError as error:
            notes.append(f"{error.field} {error.problem}; its replicas are not counted")
            continue
        gpus += (replace(gpu, pool=place.pool, price_per_hour=place.pool_price) for gpu in node_gpus)
    left = _replicas_left(fleet.snapshot, names, planned_nodes, desired)
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
    fleet: Fleet, names: Mapping[str, str], planned_nodes: Container[str]
) -> Iterator[FleetNode]:
    """Yield the nodes on which LLMDeployments run and that are not planned, with the claims that stay."""
    for place in fleet.nodes:
        claims = tuple(claim for claim in place.claims if claim.leaves_at is None)
        if (
            place.name in planned_nodes
            or is_lost(place.node)
            or not any(c.owner_uid in names for c in claims)
        ):
            continue
        staying = replace(place, claims=claims)
        is_labelled = place.node.sku is not None
        yield staying if is_labelled else fleet.with_sku(staying, _sku_of_replicas(claims, fleet.snapshot))


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


def _sku_of_replicas(claims: Iterable[Claim], snapshot: FleetSnapshot) -> str | None:
    """Return the SKU of a node without its labels, by the shapes that run there; None: not known."""
    held = {(claim.owner_uid, claim.resource) for claim in claims}
    skus = {w.shape.sku for w in snapshot.workloads if (w.owner_uid, w.shape.resource) in held}
    return skus.pop() if len(skus) == 1 else None


def _gpus(place: FleetNode, snapshot: FleetSnapshot, names: Mapping[str, str]) -> tuple[GPUState, ...]:
    """Return the GPUs of one node that LLMDeployments hold, as its partition backend knows them, else
    inferred. Raises `InputError` where what is held fits no layout.
    """
    node, claims = place.node, place.claims
    owners = {claim.pod: claim_owner(claim, names, immovable=names) for claim in claims}
    gpus = partitioned_gpus(place, owners, dict(snapshot.partition.targets))
    observed = place.partition.gpus if gpus and place.partition is not None else ()
    placed = {pod for gpu in observed for _, pod in gpu.held}
    occupied, _ = with_holders(
        gpus or gpus_of_held_devices(node, _claimed_devices(claims), "node"),
        _unplaced_pods(node.name, claims, names, placed),
    )
    return frozen_gpus(occupied, frozenset(names.values()))


def _unplaced_pods(
    node: str, claims: Iterable[Claim], names: Mapping[str, str], placed: Container[str]
) -> Iterator[DeviceHolder]:
    """Yield the pods on a node whose slices its partition backend does not know, in a fixed order."""
    ordered = sorted(claims, key=lambda claim: (claim.resource, claim.owner_uid or "", claim.count))
    for number, claim in enumerate(ordered):
        if claim.pod not in placed:
            yield claim_holder(f"{node}#{number}", claim, claim_owner(claim, names, immovable=names))


def _claimed_devices(claims: Iterable[Claim]) -> Counter[str]:
    """Return how many devices claims ask for, by resource."""
    devices: Counter[str] = Counter()
    for claim in claims:
        devices[claim.resource] += claim.count
    return devices
