"""Problems that contradict themselves are refused by the name of the field, before anything is built."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from tangram.catalog import InputError
from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement, check
from tangram.packing.problem.statement import (
    ANY_SKU,
    Allotment,
    Demand,
    GPUState,
    GrowablePool,
    Instance,
    Part,
    Problem,
)


def validate(problem: Problem) -> None:
    """Raise `InputError` naming the first field that is wrong, with what would be right."""
    _unique("gpus", (gpu.id for gpu in problem.gpus))
    _unique("demands", (demand.id for demand in problem.demands))
    _unique("growable", (pool.name for pool in problem.growable))
    _number("horizonHours", problem.horizon_h, positive=True)
    _number("moveBudget", problem.move_budget or 0)
    _unique("move_budgets", (pool for pool, _ in problem.move_budgets))
    for name, budget in problem.move_budgets:
        _number(f"moveBudget of pool {name}", budget)
    for sku, price in problem.prices:
        _number(f"prices.{sku}", price)
    for gpu in problem.gpus:
        _gpu(problem, gpu)
    _nodes(problem.gpus)
    for demand in problem.demands:
        _demand(problem, demand)
    for pool in problem.growable:
        _pool(problem, pool)
    for item in problem.headroom:
        _number(f"headroom.{item.sku}.{item.profile}", item.count)
        _shape(problem, f"headroom.{item.sku}", Part(item.sku, item.profile, 1, item.count))
    _chain(problem)


def _gpu(problem: Problem, gpu: GPUState) -> None:
    where = f"gpus[{gpu.id}]"
    if not gpu.id or not gpu.node:
        raise InputError(where, "id and node must not be empty")
    _number(f"{where}.pricePerGPUHour", problem.price(gpu))
    for instance in gpu.instances:
        _number(f"{where}.instances[{instance.profile}@{instance.start}].moveCost", instance.move_cost or 0.0)
    if not gpu.mig_enabled:
        _whole(where, gpu.instances)
        return
    mig_board = problem.board(gpu.sku)
    if mig_board is None:
        raise InputError(f"{where}.migEnabled", f"MIG cannot cut {gpu.sku}, or where is not published")
    if any(i.gang is not None for i in gpu.instances):
        raise InputError(f"{where}.instances", "a GPU in MIG mode joins no gang")
    board = replace(mig_board, key=gpu.sku)  # as people name it
    check(board, (Placement(i.start, i.profile) for i in gpu.instances), f"{where}.instances")


def _whole(where: str, instances: tuple[Instance, ...]) -> None:
    if not instances:
        return
    if len(instances) > 1 or instances[0].profile != WHOLE_GPU or instances[0].start != 0:
        raise InputError(
            f"{where}.instances",
            f"out of MIG mode a GPU holds nothing but one instance {WHOLE_GPU!r} at 0; "
            "say migEnabled: true if it is cut",
        )
    if instances[0].owner is None:
        raise InputError(f"{where}.instances", "a whole GPU that is free has no instance; leave it out")


def _nodes(gpus: tuple[GPUState, ...]) -> None:
    zones: dict[str, str] = {}
    gangs: dict[str, tuple[str, str | None]] = {}
    for gpu in gpus:
        if zones.setdefault(gpu.node, gpu.zone) != gpu.zone:
            raise InputError(f"gpus[{gpu.id}].zone", f"node {gpu.node} lies in {zones[gpu.node]!r} already")
        for instance in gpu.instances:
            if instance.gang is None:
                continue
            home = (gpu.node, instance.owner)
            if gangs.setdefault(instance.gang, home) != home:
                raise InputError(
                    f"gpus[{gpu.id}].instances", f"gang {instance.gang} has one node and one owner"
                )


def _demand(problem: Problem, demand: Demand) -> None:
    where = f"demands[{demand.id}]"
    if not demand.id:
        raise InputError(where, "id must not be empty")
    _number(f"{where}.startHours", demand.start_h)
    _number(f"{where}.budgetPerHour", demand.budget_per_hour or 0.0)
    if not (0 < demand.spread.node <= 1 and 0 < demand.spread.zone <= 1):
        raise InputError(f"{where}.spread", "shares lie above 0 and at most at 1")
    if bool(demand.offers) + bool(demand.slices) + bool(demand.allotments) > 1:
        raise InputError(f"{where}.offers", "a demand has offers, slices or allotments, not both")
    _number(f"{where}.rate", demand.rate)
    most = demand.min_replicas if demand.max_replicas is None else demand.max_replicas
    if not 0 <= demand.min_replicas <= most:
        raise InputError(f"{where}.maxReplicas", "minReplicas is at least 0 and maxReplicas not below it")
    _unique(f"{where}.offers", (str(offer.shape) for offer in demand.offers))
    for offer in demand.offers:
        _number(f"{where}.offers[{offer.shape}].rate", offer.rate, positive=True)
        _number(f"{where}.offers[{offer.shape}].pricePerHour", offer.price_per_hour)
        _shape(problem, f"{where}.offers", Part(*offer.shape, 1))
        if offer.sku == ANY_SKU:
            raise InputError(f"{where}.offers", "only requested slices may leave the SKU open")
    _unique(f"{where}.slices", (str(part.shape) for part in demand.slices))
    for part in demand.slices:
        _shape(problem, f"{where}.slices", part)
    _allotments(problem, f"{where}.allotments", demand.allotments)


def _allotments(problem: Problem, where: str, allotments: tuple[Allotment, ...]) -> None:
    _unique(where, (str(allotment.parts) for allotment in allotments))
    if allotments and all(allotment.parts for allotment in allotments):
        raise InputError(where, "one of them has no parts: there may be no room for any other")
    for allotment in allotments:
        for part in allotment.parts:
            _shape(problem, where, part)
        for name in ("unmet", "price_per_hour", "cost"):
            _number(f"{where}.{name}", getattr(allotment, name))
        if allotment.unmet > 1:
            raise InputError(f"{where}.unmet", "is a share from 0 to 1")


def _shape(problem: Problem, where: str, part: Part) -> None:
    if part.count < 0 or part.tensor_parallel < 1:
        raise InputError(where, f"{part.shape}: count is at least 0 and tensor parallelism at least 1")
    if part.profile == WHOLE_GPU:
        return
    if part.tensor_parallel > 1:
        raise InputError(where, f"{part.shape}: slices have no NVLink; tensor parallelism needs whole GPUs")
    skus = problem.skus if part.sku == ANY_SKU else (part.sku,)
    boards = [problem.board(sku) for sku in skus]
    if skus and not any(board is not None and part.profile in board.profiles for board in boards):
        raise InputError(where, f"{part.profile!r} is no MIG profile of {', '.join(skus)}")


def _pool(problem: Problem, pool: GrowablePool) -> None:
    where = f"growable[{pool.name}]"
    _number(f"{where}.pricePerGPUHour", pool.price_per_gpu_hour)
    if pool.node_size < 1 or pool.max_nodes < 0:
        raise InputError(where, "nodeSize is at least 1 and maxNodes at least 0")
    if pool.mig_enabled and problem.board(pool.sku) is None:
        raise InputError(f"{where}.migEnabled", f"MIG cannot cut {pool.sku}")
    if any(gpu.pool == pool.name and gpu.sku != pool.sku for gpu in problem.gpus):
        raise InputError(f"{where}.sku", f"{pool.sku} conflicts with the GPUs that the pool has already")


def _chain(problem: Problem) -> None:
    """Gangs are packed by capacity per size, which is exact only where each size divides the next."""
    sizes = {offer.tensor_parallel for demand in problem.demands for offer in demand.offers}
    sizes |= {part.tensor_parallel for demand in problem.demands for part in demand.slices}
    allotments = (allotment for demand in problem.demands for allotment in demand.allotments)
    sizes |= {part.tensor_parallel for allotment in allotments for part in allotment.parts}
    for small, large in pairwise(sorted(sizes)):
        if large % small:
            raise InputError("demands", f"tensor parallelism {small} and {large}: each must divide the next")


def _unique(where: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(where, f"{twice[0]!r} is there more than once")


def _number(where: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise InputError(
            where, f"{value!r} must be {'above zero' if positive else 'zero or more'} and finite"
        )
