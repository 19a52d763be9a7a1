"""Read GPUPools, and apply them to GPUs: membership, price, policy, growth."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tangram.api.pool import GPUPoolSpec, parse_pool
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.catalog.reading.fields import Fields
from tangram.fleet import InvalidPool, Node, Pool, PoolPolicy, claiming_pools
from tangram.packing import GPUState, GrowablePool, Instance, board
from tangram.plan.fleet_input.documents import document_fields as read

_NO_NODE = {"tangram.dev/none": ""}


def read_pool(document: Mapping[str, Any], where: str) -> Pool:
    """Read one GPUPool, with the validation of the API. Raises `InputError` with the key.

    In a document a pool needs no selector: the GPUs of an Inventory name their pool.
    """
    name = read.name_of(document, where)
    if name is None:
        raise InputError(f"{where}: metadata: name", "is missing")
    fields = Fields(document, where).under("spec") or Fields({}, f"{where}: spec")
    read.refuse_unknown_keys(fields, GPUPoolSpec)
    selector = fields.under("nodeSelector")
    values = {} if selector is None else (selector.under("matchLabels") or selector).values
    pool = parse_pool(
        {"metadata": {"name": name}, "spec": {**fields.values, "nodeSelector": values or _NO_NODE}}
    )
    if isinstance(pool, InvalidPool):
        raise InputError(f"{where} {name}", pool.message)
    return pool if values else replace(pool, selector=())


def pool_of(node: Node, pools: Iterable[Pool]) -> str:
    """Return the name of a node's pool, empty for none. Raises `InputError` where two pools select it."""
    names = claiming_pools(node, pools)
    if len(names) > 1:
        problem = f"claims node {node.name}, which belongs to GPUPool {names[0]}"
        raise InputError(f"GPUPool {names[1]}", problem)
    return names[0] if names else ""


def under_pool_policy(state: GPUState, pools: Mapping[str, Pool]) -> GPUState:
    """Return the GPU with its pool's price and policy. Without a pool, recommendations may cut and move."""
    pool = pools.get(state.pool)
    if pool is None:
        return state
    backend = pool.backend or state.backend
    busy = any(instance.owner is not None for instance in state.instances)
    idle_only = pool.policy is PoolPolicy.IDLE_ONLY and busy
    # NVML creates and destroys single instances beside those in use: the rest of the GPU is idle.
    frozen = pool.policy is PoolPolicy.IGNORE or (idle_only and not (backend == "nvml" and state.mig_enabled))
    return replace(
        state,
        price_per_hour=pool.price_per_gpu_hour if state.price_per_hour is None else state.price_per_hour,
        cuttable=state.cuttable and not frozen,
        convertible=state.convertible and pool.policy is not PoolPolicy.IGNORE,
        backend=backend,
        instances=tuple(map(_immovable, state.instances)) if frozen or idle_only else state.instances,
    )


def _immovable(instance: Instance) -> Instance:
    return replace(instance, movable=False) if instance.owner is not None else instance


def growable_pool(pool: Pool, gpus: Iterable[GPUState], prices: Prices) -> GrowablePool | None:
    """Return the nodes by which a pool may grow; None: it may not.

    Raises `InputError` where the GPU model or price of new nodes is not known.
    """
    pool_gpus = [gpu for gpu in gpus if gpu.pool == pool.name]
    nodes = {gpu.node for gpu in pool_gpus}
    if pool.max_nodes is None or pool.max_nodes <= len(nodes):
        return None
    skus = {gpu.sku for gpu in pool_gpus} | ({pool.sku} if pool.sku else set())
    where = f"GPUPool {pool.name}: spec"
    if not skus:
        raise InputError(f"{where}: sku", "is missing: the GPU model of new nodes")
    if len(skus) > 1:
        raise InputError(f"{where}: sku", f"conflicts: its nodes have {', '.join(sorted(skus))}")
    sku = skus.pop()
    if pool.mig_enabled and board(sku) is None:
        raise InputError(f"{where}: nodes: migEnabled", f"MIG cannot cut {sku}")
    price = prices.gpu_hour(sku, pool.price_per_gpu_hour)
    if price is None:
        raise InputError(f"{where}: pricePerGPUHour", "is missing, and the catalog has no price")
    return GrowablePool(
        name=pool.name,
        sku=sku,
        node_size=len(pool_gpus) // len(nodes) if nodes else pool.gpus_per_node,
        max_nodes=pool.max_nodes - len(nodes),
        price_per_gpu_hour=price,
        mig_enabled=pool.mig_enabled,
        zone=pool.zone,
    )
