"""GPUPools: which GPUs belong to which, what they cost, and what may be done to them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tangram.api.pool import GPUPoolSpec, parse_pool
from tangram.catalog import InputError
from tangram.catalog.fields import Fields
from tangram.fleet import InvalidPool, Node, Pool, PoolPolicy
from tangram.packing import GPUState, GrowablePool, Instance
from tangram.planner.joint import known, read

_NO_NODE = {"tangram.dev/none": ""}


def pool(document: Mapping[str, Any], where: str) -> Pool:
    """Read one GPUPool, with the API's rules and words. Raises `InputError` naming the key.

    In files a pool may go without a selector: GPUs of an Inventory name theirs.
    """
    name = read.name_of(document, where)
    if name is None:
        raise InputError(f"{where}: metadata: name", "is missing")
    fields = Fields(document, where).under("spec") or Fields({}, f"{where}: spec")
    known.check(fields, GPUPoolSpec)
    selector = fields.under("nodeSelector")
    values = {} if selector is None else (selector.under("matchLabels") or selector).values
    found = parse_pool(
        {"metadata": {"name": name}, "spec": {**fields.values, "nodeSelector": values or _NO_NODE}}
    )
    if isinstance(found, InvalidPool):
        raise InputError(f"{where} {name}", found.message)
    return found if values else replace(found, selector=())


def unique(pools: tuple[Pool, ...]) -> dict[str, Pool]:
    """Return pools by name. Raises `InputError` where two have one name."""
    found: dict[str, Pool] = {}
    for each in pools:
        if each.name in found:
            raise InputError(f"GPUPool {each.name}", "is there more than once")
        found[each.name] = each
    return found


def claiming(node: Node, pools: Iterable[Pool]) -> list[str]:
    """Return the names of the pools whose selector matches a node, sorted."""
    labels = dict(node.labels)
    return sorted(pool.name for pool in pools if pool.selects(labels))


def pool_of(node: Node, pools: Iterable[Pool]) -> str:
    """Return the pool of a node, the empty string where there is none. Raises where two claim it."""
    names = claiming(node, pools)
    if len(names) > 1:
        raise InputError(
            f"GPUPool {names[1]}", f"claims node {node.name}, which belongs to GPUPool {names[0]}"
        )
    return names[0] if names else ""


def governed(gpu: GPUState, pools: Mapping[str, Pool]) -> GPUState:
    """Return the GPU as its pool allows it to be treated. In no pool anything may be recommended."""
    mine = pools.get(gpu.pool)
    if mine is None:
        return gpu
    busy = any(instance.owner is not None for instance in gpu.instances)
    frozen = mine.policy is PoolPolicy.IGNORE or (mine.policy is PoolPolicy.IDLE_ONLY and busy)
    return replace(
        gpu,
        price_per_hour=mine.price_per_gpu_hour if gpu.price_per_hour is None else gpu.price_per_hour,
        cuttable=gpu.cuttable and not frozen,
        convertible=gpu.convertible and not frozen,
        backend=mine.backend or gpu.backend,
        instances=tuple(_still(i) for i in gpu.instances) if frozen else gpu.instances,
    )


def _still(instance: Instance) -> Instance:
    return replace(instance, movable=False) if instance.owner is not None else instance


def growable(each: Pool, gpus: tuple[GPUState, ...], default_price: float | None) -> GrowablePool | None:
    """Return by how many nodes a pool may grow; None: not at all."""
    mine = [gpu for gpu in gpus if gpu.pool == each.name]
    nodes = {gpu.node for gpu in mine}
    if each.max_nodes is None or each.max_nodes <= len(nodes):
        return None
    skus = {gpu.sku for gpu in mine} | ({each.sku} if each.sku else set())
    if len(skus) != 1:
        problem = (
            f"conflicts: its nodes have {', '.join(sorted(skus))}"
            if skus
            else "is missing: what new nodes have"
        )
        raise InputError(f"GPUPool {each.name}: spec: nodes: sku", problem)
    price = each.price_per_gpu_hour if each.price_per_gpu_hour is not None else default_price
    if price is None:
        raise InputError(
            f"GPUPool {each.name}: spec: pricePerGPUHour", "is missing, and the catalog has no price"
        )
    size = len(mine) // len(nodes) if nodes else each.gpus_per_node
    sku = skus.pop()
    return GrowablePool(
        name=each.name,
        sku=sku,
        node_size=size,
        max_nodes=each.max_nodes - len(nodes),
        price_per_gpu_hour=price,
        mig_enabled=each.mig_enabled,
        zone=each.zone,
        nvlink=read.has_nvlink(sku),
    )
