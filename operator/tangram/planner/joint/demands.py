"""LLMDeployments as demands of the packing: every shape sized once, bundles of those that serve."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tangram.catalog import InputError, share
from tangram.catalog import gpu as catalog_gpu
from tangram.fleet import WHOLE_GPU
from tangram.packing import Bundle, Demand, Part, Problem, ShapeKey
from tangram.planner.joint.deployment import Wanted
from tangram.planner.joint.menu import menu
from tangram.planner.joint.room import Rooms
from tangram.planner.joint.shapes import Sized, Slices, sized

Running = Mapping[str, Mapping[ShapeKey, int]]  # replicas by owner and shape
_ANY_ROOM = 10**6


def size_all(
    deployments: Iterable[Wanted],
    skus: frozenset[str],
    prices: Mapping[str, float],
    there: Slices = frozenset(),
) -> dict[str, Sized]:
    """Size every LLMDeployment that is neither paused nor set to no replica, by id."""
    found: dict[str, Sized] = {}
    for wanted in deployments:
        if not (wanted.paused or wanted.is_off):
            try:
                each = sized(wanted, skus, prices, there)
                loaded = _loaded(each)
                found[wanted.id] = each if loaded == wanted else sized(loaded, skus, prices, there)
            except InputError as error:
                raise InputError(f"LLMDeployment {wanted.id}", f"{error.field} {error.problem}") from error
    return found


def _loaded(each: Sized) -> Wanted:
    """Return what is wanted with the load that its replicas carry now.

    So many replicas of the shape that it runs on are wanted: another shape gets the number that carries the
    same rate. Where nothing tells that rate, another shape gets the same number.
    """
    wanted = each.wanted
    if wanted.present is None:
        return wanted
    shape, count = wanted.present
    offer = each.offer(shape)
    if offer is not None and (count > wanted.least or wanted.rps is not None):
        return replace(wanted, rps=count * offer.rate)
    return wanted if wanted.rps is not None else replace(wanted, least=max(wanted.least, count))


def demand(each: Sized, rooms: Rooms, running: Running) -> Demand:
    """Return one LLMDeployment for the solver."""
    inside, mine = rooms.inside(each.wanted.pools), running.get(each.wanted.id, {})
    room = {offer.key: inside.of(offer.key) for offer in each.offers}
    # A gang that runs may go on where no new one of its size would be put, on a part of a node.
    gangs = {key: count + mine.get(key, 0) for key, count in room.items() if key.tensor_parallel > 1}
    return _demand(each, room | gangs, running)


def wide_demand(each: Sized, running: Running) -> Demand:
    """Return the same, with what the fleet has no room for on its menu, too."""
    return _demand(each, {offer.key: _ANY_ROOM for offer in each.offers}, running)


def slices_there(fleet: Problem) -> Slices:
    """Return the slices that exist and, of GPUs that stay in MIG mode, the one that is all of the board."""
    cut = [gpu for gpu in fleet.gpus if gpu.mig_enabled and not gpu.convertible]
    found = {(gpu.sku, instance.profile) for gpu in cut for instance in gpu.instances}
    for sku in {gpu.sku for gpu in cut} | {pool.sku for pool in fleet.growable if pool.mig_enabled}:
        board = catalog_gpu(sku)
        whole = [p.name for p in board.profiles if p.dominant_share == 1] if board else []
        found |= {(sku, name) for name in whole[:1]}
    return frozenset(found)


def stays(demand: Demand) -> bool:
    """Whether nothing but what runs is on the menu: no move of it could be carried out."""
    return [bool(bundle.parts) and bundle.unmet == 1 for bundle in demand.bundles] == [True]


def _demand(each: Sized, room: Mapping[ShapeKey, int], running: Running) -> Demand:
    wanted, mine = each.wanted, running.get(each.wanted.id, {})
    bundles = menu(each, room, mine)
    if wanted.uniform and mine and not any(bundle.parts for bundle in bundles):
        return _as_it_runs(each, mine)
    kept, budget = _kept(each, mine), wanted.budget_per_hour
    if budget is not None and kept:
        bundles = tuple(b for b in bundles if b.price_per_hour <= budget + 1e-9 or b.parts in kept)
        over = (b.price_per_hour for b in bundles if b.parts in kept)
        budget = max(budget, *over, 0.0)
    return Demand(
        id=wanted.id,
        bundles=bundles,
        priority=wanted.priority,
        spread=wanted.spread,
        budget_per_hour=budget,
        pools=wanted.pools,
    )


def _as_it_runs(each: Sized, running: Mapping[ShapeKey, int]) -> Demand:
    """Return what runs where it should not and has no other place. Once pinned, nobody takes that away."""
    prices = each.assessed.prices
    parts, per_hour = [], 0.0
    for key, count in sorted(running.items()):
        parts.append(Part(key.sku, key.profile, key.tensor_parallel, count))
        per_hour += count * key.tensor_parallel * (prices.of(key.sku) or 0.0) * share(key.sku, key.profile)
    return Demand(each.wanted.id, (Bundle(tuple(parts), per_hour, unmet=1.0),), each.wanted.priority)


def _kept(each: Sized, running: Mapping[ShapeKey, int]) -> set[tuple[Part, ...]]:
    """Return what runs of the minimum: a budget does not take it down, here as in the cluster."""
    if not each.wanted.uniform:
        return set()
    return {
        (Part(key.sku, key.profile, key.tensor_parallel, min(count, each.wanted.least)),)
        for key, count in running.items()
        if each.wanted.least
    }


def running_replicas(fleet: Problem) -> Running:
    """Return how many replicas of each shape everybody has now; GPUs of one gang are one replica."""
    found: dict[str, Counter[ShapeKey]] = {}
    gangs: Counter[tuple[str, str, str]] = Counter()
    for gpu in fleet.gpus:
        for instance in gpu.instances:
            if instance.owner is not None and instance.gang is not None:
                gangs[instance.owner, gpu.sku, instance.gang] += 1
            elif instance.owner is not None:
                found.setdefault(instance.owner, Counter())[ShapeKey(gpu.sku, instance.profile)] += 1
    for (owner, sku, _), size in gangs.items():
        found.setdefault(owner, Counter())[ShapeKey(sku, WHOLE_GPU, size)] += 1
    return found
