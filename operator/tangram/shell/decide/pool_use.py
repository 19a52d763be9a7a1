"""How much of each GPUPool is in use, and what that costs. Pure."""

from tangram.catalog.prices import Prices
from tangram.fleet import FleetSnapshot, PoolUse
from tangram.packing import GPUState
from tangram.recommendation.documents.fleet_input import FleetInput


def pool_use(given: FleetInput, snapshot: FleetSnapshot) -> tuple[tuple[str, PoolUse], ...]:
    """Return the use of each GPUPool by name. GPUs on nodes that take no pods are not counted."""
    prices = Prices(dict(snapshot.prices))
    members: dict[str, list[GPUState]] = {pool.name: [] for pool in snapshot.pools}
    for each in given.gpus:
        if each.pool in members:
            members[each.pool].append(each)
    return tuple((name, _use(gpus, prices)) for name, gpus in sorted(members.items()))


def _use(gpus: list[GPUState], prices: Prices) -> PoolUse:
    used = [each for each in gpus if any(i.owner is not None for i in each.instances)]
    costs = [prices.gpu_hour(gpu.sku, gpu.price_per_hour) for gpu in used]
    known = [cost for cost in costs if cost is not None]
    return PoolUse(
        gpus=len(gpus),
        free=len(gpus) - len(used),
        cost_per_hour=sum(known) if len(known) == len(costs) else None,
    )
