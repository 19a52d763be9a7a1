"""Count the GPUs of each GPUPool that are in use, and what they cost. Pure."""

from collections import defaultdict

from tangram.catalog.prices import Prices
from tangram.fleet import FleetSnapshot, PoolUse
from tangram.packing import GPUState
from tangram.plan.fleet_input.documents.fleet_input import FleetInput


def pool_use(fleet_input: FleetInput, snapshot: FleetSnapshot) -> tuple[tuple[str, PoolUse], ...]:
    """Return the use of each GPUPool by name. Of nodes that take no pods, the GPUs count on which
    LLMDeployments run."""
    prices, gpus_by_pool = Prices(dict(snapshot.prices)), defaultdict[str, list[GPUState]](list)
    for gpu in fleet_input.gpus:
        gpus_by_pool[gpu.pool].append(gpu)
    names = sorted({pool.name for pool in snapshot.pools})
    return tuple((name, _use(gpus_by_pool[name], prices)) for name in names)


def _use(gpus: list[GPUState], prices: Prices) -> PoolUse:
    used = [gpu for gpu in gpus if any(instance.owner is not None for instance in gpu.instances)]
    costs = [cost for gpu in used if (cost := prices.gpu_hour(gpu.sku, gpu.price_per_hour)) is not None]
    return PoolUse(
        gpus=len(gpus),
        free=len(gpus) - len(used),
        cost_per_hour=sum(costs) if len(costs) == len(used) else None,
    )
