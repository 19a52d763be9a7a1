"""The status of a GPUPool: its conditions, what belongs to it, and how much of that is free. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tangram.api.pool import MAX_RESOURCES
from tangram.catalog import InputError
from tangram.eligibility.devices.device_rules import WHOLE
from tangram.fleet import FleetSnapshot, InvalidPool, Node, Pool, PoolUse
from tangram.fleet.times import rfc3339
from tangram.recommendation.documents.nodes import inferred_gpus as gpus_of
from tangram.recommendation.documents.pools import claiming_pools
from tangram.shell.objects.kinds import Object
from tangram.shell.report.pool_conditions import accepted, offers, ready

MAX_MESSAGE = 2000


def pool_statuses(
    objects: tuple[Object, ...],
    seen: FleetSnapshot,
    used: Mapping[str, PoolUse] | None,
    now: float,
    skipped: Callable[[Object, Exception], None] = lambda _obj, _error: None,
) -> list[tuple[Object, Object]]:
    """Return each GPUPool with the status that it should have; `skipped` takes those that have none.

    `used` is None while nobody has looked yet: what the status says of it stays.
    """
    members = _members(seen)
    held = Counter[tuple[str, str]]()
    for claim in seen.claims:
        held[claim.node, claim.resource] += claim.count
    everyone: tuple[Pool | InvalidPool, ...] = (*seen.pools, *seen.invalid_pools)
    pools = {pool.name: pool for pool in everyone}
    found = []
    for obj in objects:
        pool = pools.get(obj["metadata"]["name"])
        if pool is None:
            continue
        try:
            found.append((obj, _status(obj, pool, members, held, used, now)))
        except Exception as error:  # noqa: BLE001 - costs this GPUPool alone
            skipped(obj, error)
    return found


def _members(seen: FleetSnapshot) -> dict[Node, list[str]]:
    """Return the names of the pools that claim each node; the first has it."""
    return {node: names for node in seen.nodes if (names := claiming_pools(node, seen.pools))}


def _status(
    obj: Object,
    pool: Pool | InvalidPool,
    members: Mapping[Node, list[str]],
    held: Mapping[tuple[str, str], int],
    used: Mapping[str, PoolUse] | None,
    now: float,
) -> Object:
    before = obj.get("status") or {}
    mine = sorted((node for node, names in members.items() if names[0] == pool.name), key=_name)
    verdicts = {"Accepted": accepted(pool, members), "Ready": ready(pool, mine)}
    status = {
        "observedGeneration": obj["metadata"]["generation"],
        "conditions": [_condition(obj, kind, *verdict, before, now) for kind, verdict in verdicts.items()],
    }
    if isinstance(pool, InvalidPool):
        return status
    status |= {"nodes": len(mine), "gpus": sum(_gpus(node) for node in mine), **_devices(mine, held)}
    if used is None:
        return status | {key: before[key] for key in ("freeGPUs", "costPerHour") if key in before}
    use = used.get(pool.name)
    if use is not None:
        status["freeGPUs"] = use.free
        if use.cost_per_hour is not None:
            status["costPerHour"] = f"{use.cost_per_hour:.2f}"
    return status


def _name(node: Node) -> str:
    return node.name


def _gpus(node: Node) -> int:
    """Return how many GPUs a node has: what its label says, else the whole ones of its capacity and, of cut
    ones, as few as its slices fit on.
    """
    if node.gpus is not None:
        return node.gpus
    full = Counter(dict(node.unhealthy))
    full.update(dict(node.allocatable))
    if node.sku is None:
        return full[WHOLE]
    try:
        there = gpus_of(replace(node, allocatable=tuple(sorted(full.items())), unhealthy=()), "node")
    except InputError:  # its slices fit no layout of the GPU that its label names
        return full[WHOLE]
    return len(there)


def _devices(mine: Iterable[Node], held: Mapping[tuple[str, str], int]) -> Object:
    """Return what the nodes offer, and how much of it a new pod may be given."""
    offered, free = Counter[str](), Counter[str]()
    for node in mine:
        if not offers(node):
            continue
        for resource, count in node.allocatable:
            offered[resource] += count
            free[resource] += max(0, count - held.get((node.name, resource), 0)) if node.usable else 0
    return {"allocatable": _bounded(offered), "free": _bounded(free)}


def _bounded(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items())[:MAX_RESOURCES])


def _condition(
    obj: Object, kind: str, status: str, reason: str, message: str, before: Object, now: float
) -> Object:
    old = next((c for c in before.get("conditions") or () if c.get("type") == kind), None)
    stays = old is not None and old.get("status") == status
    return {
        "type": kind,
        "status": status,
        "observedGeneration": obj["metadata"]["generation"],
        "lastTransitionTime": old["lastTransitionTime"] if old is not None and stays else rfc3339(now),
        "reason": reason,
        "message": message[:MAX_MESSAGE],
    }
