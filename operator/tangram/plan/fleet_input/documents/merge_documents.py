"""Merge the inputs of several documents and of the command line; contradictions are refused."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.eligibility.devices.node_devices import is_lost, left_out_notes
from tangram.fleet import Node, Pool, pool_price
from tangram.packing import GPUState
from tangram.plan.fleet_input.documents import document_fields as read
from tangram.plan.fleet_input.documents.fleet_input import FleetInput, PlanTerms
from tangram.plan.fleet_input.documents.nodes import InferredNode, gpus_of_held_devices, inferred_node
from tangram.plan.fleet_input.documents.pods import (
    DeviceHolder,
    frozen_gpus,
    unhealthy_devices,
    with_holders,
)
from tangram.plan.fleet_input.documents.pools import pool_of, under_pool_policy

_NO_PODS = "the pods are not listed, so no GPU of a Node is re-cut: add `kubectl get pods -A -o yaml`"


def merged_input(parts: list[FleetInput]) -> FleetInput:
    """Return one input made of many. Raises `InputError` where two contradict each other."""
    pools = tuple(sorted((pool for part in parts for pool in part.pools), key=lambda pool: pool.name))
    _once("GPUPool", [pool.name for pool in pools])
    nodes = tuple(inferred_node(facts, pools, where) for part in parts for where, facts in part.node_facts)
    _once("Node", [node.node.name for node in nodes])
    deployments = tuple(sorted((d for part in parts for d in part.deployments), key=lambda d: d.id))
    _once("LLMDeployment", [deployment.id for deployment in deployments])
    terms, by_name = _terms([part.terms for part in parts]), {pool.name: pool for pool in pools}
    pods = [pod for part in parts for pod in part.pods]
    pods_listed = any(part.pods_listed for part in parts)
    node_gpus, notes = _node_gpus(nodes, pools, pods, pods_listed=pods_listed)
    left_out = [
        gpu for node in nodes if not node.gpus for gpu in _gpus_in_use(node.node, pods, by_name, terms)
    ]
    gpus = [*(gpu for part in parts for gpu in part.gpus), *node_gpus, *left_out]
    inferred = set().union(*(part.inferred for part in parts), {gpu.id for gpu in (*node_gpus, *left_out)})
    _once("GPU", [gpu.id for gpu in gpus])
    requests = [request for part in parts for request in part.requests]
    _once("SliceRequest", [request.name for request in requests])
    return FleetInput(
        gpus=tuple(sorted((under_pool_policy(gpu, by_name) for gpu in gpus), key=lambda gpu: gpu.id)),
        requests=tuple(sorted(requests, key=lambda request: request.name)),
        deployments=deployments,
        pools=pools,
        nodes=nodes,
        headroom=tuple(sorted(item for part in parts for item in part.headroom)),
        terms=terms,
        inferred=frozenset(inferred),
        left_out=frozenset(gpu.id for gpu in left_out),
        notes=(*(note for part in parts for note in part.notes), *_node_notes(nodes), *notes),
    )


def _node_gpus(
    nodes: tuple[InferredNode, ...], pools: tuple[Pool, ...], pods: list[DeviceHolder], *, pods_listed: bool
) -> tuple[list[GPUState], list[str]]:
    """Return the GPUs of nodes with their holders, and notes. Where no pods are listed, every slice may be in
    use.
    """
    gpus = [replace(gpu, pool=pool_of(node.node, pools)) for node in nodes for gpu in node.gpus]
    left_out = {node.node.name for node in nodes if not node.gpus}
    holders = [pod for pod in pods if pod.node not in left_out]
    holders += [holder for node in nodes if node.gpus for holder in unhealthy_devices(node.node)]
    held_gpus, notes = with_holders(gpus, holders)
    if pods_listed:
        return held_gpus, notes
    notes += [_NO_PODS] if held_gpus else []
    return [replace(gpu, cuttable=False, convertible=False) for gpu in held_gpus], notes


def _node_notes(nodes: Iterable[InferredNode]) -> Iterator[str]:
    yield from left_out_notes([node.node for node in nodes])
    yield from (node.problem for node in nodes if node.problem)


def _gpus_in_use(
    node: Node, pods: list[DeviceHolder], pools: Mapping[str, Pool], terms: PlanTerms
) -> tuple[GPUState, ...]:
    """Return the GPUs of a left-out node on which LLMDeployments run, if their price and layout are known."""
    holders = [pod for pod in pods if pod.node == node.name]
    owners = frozenset(pod.owner for pod in holders if pod.movable)
    pool = pool_of(node, pools.values())
    price = pool_price((pool,), pools) if pool else None
    if not owners or is_lost(node) or node.sku is None:
        return ()
    if Prices(dict(terms.prices)).gpu_hour(node.sku, price) is None:
        return ()
    held: Counter[str] = Counter()
    for pod in holders:
        held.update(dict(pod.counts))
    try:
        gpus, _ = with_holders(gpus_of_held_devices(node, held, "node"), holders)
    except InputError:
        return ()
    return tuple(replace(gpu, pool=pool) for gpu in frozen_gpus(gpus, owners))


def _once(kind: str, names: Iterable[str]) -> None:
    if (name := read.duplicate(names)) is not None:
        raise InputError(f"{kind} {name}", "is there more than once")


def _terms(all_terms: list[PlanTerms]) -> PlanTerms:
    def only_value(name: str, key: str) -> Any:
        values = {getattr(terms, name) for terms in all_terms} - {None}
        if len(values) > 1:
            raise InputError(
                f"Inventory: {key}", f"is {' and '.join(map(str, sorted(values)))} in two documents"
            )
        return next(iter(values), None)

    prices: dict[str, float] = {}
    for terms in all_terms:
        for sku, price in terms.prices:
            if prices.setdefault(sku, price) != price:
                raise InputError(
                    f"Inventory: prices: {sku}", f"is {prices[sku]} and {price} in two documents"
                )
    return PlanTerms(
        prices=tuple(sorted(prices.items())),
        move_cost=only_value("move_cost", "moveCost"),
        move_budget=only_value("move_budget", "moveBudget"),
        horizon_h=only_value("horizon_h", "horizonHours"),
    )


def with_command_line_terms(inputs: FleetInput, flags: PlanTerms) -> FleetInput:
    """Return `inputs` with the terms of the command line over its own. Raises `InputError`."""
    for flag, value, least, most in (
        ("--move-cost", flags.move_cost, 0, read.MOST_USD_OF_A_MOVE),
        ("--move-budget", flags.move_budget, 0, 10**9),
        ("--horizon", flags.horizon_h, *read.HORIZON_RANGE_H),
    ):
        if value is not None and not least <= value <= most:
            raise InputError(flag, f"must be between {least:g} and {most:g}, not {value:g}")
    return replace(inputs, terms=inputs.terms.overridden_by(flags))
