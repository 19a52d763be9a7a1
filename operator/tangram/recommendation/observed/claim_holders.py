"""Claims of scheduled pods as holders of devices, and the price of the nodes that they are on."""

from collections.abc import Container, Mapping

from tangram.catalog.prices import Prices
from tangram.fleet import Claim, FleetSnapshot, Node, claiming_pools, pool_price
from tangram.recommendation.documents.pods import DeviceHolder
from tangram.recommendation.observed.partitioned_gpus import SliceOwner

UNMANAGED_OWNER = "(others)"  # of pods without an LLMDeployment; no LLMDeployment can have this name


def claim_owner(claim: Claim, names: Mapping[str, str], immovable: Container[str | None]) -> SliceOwner:
    """Return the owner of a claim. `names`: LLMDeployments by uid; `immovable`: uids of those whose replicas
    do not move.
    """
    name = names.get(claim.owner_uid or "")
    if name is None:
        return SliceOwner(UNMANAGED_OWNER, movable=False)
    return SliceOwner(name, movable=claim.owner_uid not in immovable)


def claim_holder(name: str, claim: Claim, owner: SliceOwner) -> DeviceHolder:
    """Return the holder of what one pod claims of one resource. `name`: unique; holders are sorted by it."""
    counts = ((claim.resource, claim.count),)
    return DeviceHolder(claim.node, name, owner.name, movable=owner.movable, counts=counts)


def pools_and_price(node: Node, snapshot: FleetSnapshot) -> tuple[tuple[str, ...], float | None, bool]:
    """Return the GPUPools that claim a node, what they set as the price of a GPU in USD per hour, and whether
    a price is known, from them or for its GPU model.
    """
    pools = claiming_pools(node, snapshot.pools)
    price = pool_price(pools, {pool.name: pool for pool in snapshot.pools})
    prices = Prices(dict(snapshot.prices))
    return pools, price, node.sku is not None and prices.gpu_hour(node.sku, price) is not None
