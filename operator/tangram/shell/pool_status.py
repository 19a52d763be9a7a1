"""The status of a GPUPool: whether it is understood, and what belongs to it. Pure."""

from collections.abc import Callable, Iterator, Mapping

from tangram.fleet import FleetSnapshot, InvalidPool, Node, Pool
from tangram.planner.joint.pools import claiming
from tangram.planner.node_devices import left_out_notes
from tangram.planner.times import rfc3339
from tangram.shell.advising import PoolUse
from tangram.shell.kinds import Object

WHOLE = "nvidia.com/gpu"


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
    everyone: tuple[Pool | InvalidPool, ...] = (*seen.pools, *seen.invalid_pools)
    pools = {pool.name: pool for pool in everyone}
    found = []
    for obj in objects:
        pool = pools.get(obj["metadata"]["name"])
        if pool is None:
            continue
        try:
            found.append((obj, _status(obj, pool, members, used, now)))
        except Exception as error:  # noqa: BLE001 - costs this GPUPool alone
            skipped(obj, error)
    return found


def _members(seen: FleetSnapshot) -> dict[Node, list[str]]:
    """Return the names of the pools that claim each node; the first has it."""
    return {node: names for node in seen.nodes if (names := claiming(node, seen.pools))}


def _status(
    obj: Object,
    pool: Pool | InvalidPool,
    members: Mapping[Node, list[str]],
    used: Mapping[str, PoolUse] | None,
    now: float,
) -> Object:
    before = obj.get("status") or {}
    mine = [node for node, names in members.items() if names[0] == pool.name]
    accepted = _accepted(pool, members)
    status = {
        "observedGeneration": obj["metadata"]["generation"],
        "conditions": [_condition(obj, accepted, before, now)],
    }
    if isinstance(pool, InvalidPool):
        return status
    status |= {"nodes": len(mine), "gpus": sum(_gpus(node) for node in mine)}
    if used is None:
        return status | {key: before[key] for key in ("freeGPUs", "costPerHour") if key in before}
    use = used.get(pool.name)
    if use is not None:
        status["freeGPUs"] = use.free
        if use.cost_per_hour is not None:
            status["costPerHour"] = f"{use.cost_per_hour:.2f}"
    return status


def _gpus(node: Node) -> int:
    """Return how many GPUs a node has: what its label says, else those that it offers whole."""
    return dict(node.allocatable).get(WHOLE, 0) if node.gpus is None else node.gpus


def _accepted(pool: Pool | InvalidPool, members: Mapping[Node, list[str]]) -> tuple[str, str, str]:
    """Return status, reason and message of Accepted."""
    if isinstance(pool, InvalidPool):
        return "False", "InvalidSpec", pool.message
    lost = sorted((node.name, names[0]) for node, names in members.items() if pool.name in names[1:])
    if lost:
        (node, owner), more = lost[0], len(lost) - 1
        others = f" (and {more} more of its nodes to others)" if more else ""
        return (
            "False",
            "Conflict",
            f"node {node} belongs to GPUPool {owner} already{others}: make the selectors exclude each other",
        )
    return "True", "Valid", "; ".join(("the spec is valid", *_remarks(pool, members)))


def _remarks(pool: Pool, members: Mapping[Node, list[str]]) -> Iterator[str]:
    """Say what a person may not have meant."""
    mine = [node for node, names in members.items() if names[0] == pool.name]
    skus = sorted({node.sku for node in mine if node.sku})
    if not mine:
        yield "no GPU node has all of its labels"
    yield from left_out_notes(mine)
    if pool.max_nodes is None or pool.max_nodes <= len(mine):
        return
    if not skus and pool.sku is None:
        yield "plans add no nodes, because nodes.sku does not say what they would have"
    if len({*skus, *([pool.sku] if pool.sku else [])}) > 1:
        yield f"plans add no nodes, because its own have {', '.join(skus)}" + (
            f" and nodes.sku is {pool.sku}" if pool.sku else ""
        )


def _condition(obj: Object, verdict: tuple[str, str, str], before: Object, now: float) -> Object:
    status, reason, message = verdict
    old = next((c for c in before.get("conditions") or () if c.get("type") == "Accepted"), None)
    stays = old is not None and old.get("status") == status
    return {
        "type": "Accepted",
        "status": status,
        "observedGeneration": obj["metadata"]["generation"],
        "lastTransitionTime": old["lastTransitionTime"] if old is not None and stays else rfc3339(now),
        "reason": reason,
        "message": message[:2000],
    }
