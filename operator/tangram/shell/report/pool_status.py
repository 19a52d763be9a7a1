"""Compute the status of each GPUPool: conditions, number of nodes and GPUs, free devices, cost. Pure.

Pods that come and go change the free devices of a GPUPool, and a node or device plugin that flaps changes its
conditions. So the first change is written at once, later ones at most once in PACE_S.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram.api.common.accepted_spec import accepted_spec_block
from tangram.api.pool import MAX_RESOURCES
from tangram.catalog import InputError
from tangram.eligibility.devices.device_rules import WHOLE
from tangram.eligibility.pool_conditions import accepted, offers, ready
from tangram.fleet import FleetSnapshot, InvalidPool, Node, Pool, PoolUse, claiming_pools
from tangram.fleet.times import rfc3339
from tangram.kube.kinds import Object, uid_of
from tangram.plan.fleet_input.documents.nodes import inferred_gpus as gpus_of

MAX_MESSAGE = 2000
PACE_S = 15.0


def pool_statuses(
    objects: tuple[Object, ...],
    snapshot: FleetSnapshot,
    use_by_pool: Mapping[str, PoolUse] | None,
    now: float,
    on_skipped: Callable[[Object, Exception], None] = lambda _obj, _error: None,
) -> list[tuple[Object, Object]]:
    """Return each GPUPool with its new status; `on_skipped` takes those whose status cannot be computed.

    `use_by_pool` is None before the fleet has been planned: the present figures stay.
    """
    members = _members(snapshot)
    claimed = Counter[tuple[str, str]]()
    for claim in snapshot.claims:
        claimed[claim.node, claim.resource] += claim.count
    problems = {partition.node: partition.problem for partition in snapshot.partition.nodes}
    all_pools: tuple[Pool | InvalidPool, ...] = (*snapshot.pools, *snapshot.invalid_pools)
    pools = {pool.name: pool for pool in all_pools}
    statuses = []
    for obj in objects:
        pool = pools.get(obj["metadata"]["name"])
        if pool is None:
            continue
        try:
            statuses.append((obj, _status(obj, pool, members, claimed, problems, use_by_pool, now)))
        except Exception as error:  # noqa: BLE001 - a bug of ours stops this GPUPool alone
            on_skipped(obj, error)
    return statuses


def _members(snapshot: FleetSnapshot) -> dict[Node, tuple[str, ...]]:
    """Return the names of the pools that select each node; it belongs to the first."""
    return {node: names for node in snapshot.nodes if (names := claiming_pools(node, snapshot.pools))}


def _status(
    obj: Object,
    pool: Pool | InvalidPool,
    members: Mapping[Node, tuple[str, ...]],
    claimed: Mapping[tuple[str, str], int],
    problems: Mapping[str, str],
    use_by_pool: Mapping[str, PoolUse] | None,
    now: float,
) -> Object:
    before = obj.get("status") or {}
    nodes = sorted((n for n, names in members.items() if names[0] == pool.name), key=lambda n: n.name)
    conditions = {"Accepted": accepted(pool, members), "Ready": ready(pool, nodes, problems)}
    status = {
        "observedGeneration": obj["metadata"]["generation"],
        "conditions": [condition(obj, kind, *value, before, now) for kind, value in conditions.items()],
    }
    if isinstance(pool, InvalidPool):
        return status
    generation = obj["metadata"]["generation"]
    accepted_spec = before.get("acceptedSpec") if pool.refused_edit else accepted_spec_block(obj, generation)
    status |= {} if accepted_spec is None else {"acceptedSpec": accepted_spec}
    status |= {"nodes": len(nodes), "gpus": sum(map(_gpu_count, nodes)), **_devices(nodes, claimed)}
    if use_by_pool is None:
        return status | {key: before[key] for key in ("freeGPUs", "costPerHour") if key in before}
    use = use_by_pool.get(pool.name)
    if use is not None:
        status["freeGPUs"] = use.free
        if use.cost_per_hour is not None:
            status["costPerHour"] = f"{use.cost_per_hour:.2f}"
    return status


def _gpu_count(node: Node) -> int:
    """Return the GPUs of a node: from its label, else whole GPUs plus the fewest that its slices fit on."""
    if node.gpus is not None:
        return node.gpus
    capacity = Counter(dict(node.unhealthy))
    capacity.update(dict(node.allocatable))
    if node.sku is None:
        return capacity[WHOLE]
    try:
        gpus = gpus_of(replace(node, allocatable=tuple(sorted(capacity.items())), unhealthy=()), "node")
    except InputError:  # its slices fit no layout of its SKU
        return capacity[WHOLE]
    return len(gpus)


def _devices(nodes: Iterable[Node], claimed: Mapping[tuple[str, str], int]) -> Object:
    """Return the devices that the nodes offer, and those that are free for new pods, by resource.

    Without any, both are left out: of a map whose last key goes, server-side apply leaves null, which the
    schema refuses.
    """
    offered, free = Counter[str](), Counter[str]()
    for node in nodes:
        if not offers(node):
            continue
        for resource, count in node.allocatable:
            offered[resource] += count
            free[resource] += max(0, count - claimed.get((node.name, resource), 0)) if node.usable else 0
    counts = {"allocatable": _bounded(offered), "free": _bounded(free)}
    return {key: value for key, value in counts.items() if value}


def _bounded(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items())[:MAX_RESOURCES])


def condition(
    obj: Object, kind: str, status: str, reason: str, message: str, before: Object, now: float
) -> Object:
    """Return a condition; the time of its last transition stays while its status does."""
    old = next((c for c in before.get("conditions") or () if c.get("type") == kind), None)
    return {
        "type": kind,
        "status": status,
        "observedGeneration": obj["metadata"]["generation"],
        "lastTransitionTime": old["lastTransitionTime"]
        if old is not None and old.get("status") == status
        else rfc3339(now),
        "reason": reason,
        "message": message[:MAX_MESSAGE],
    }


@dataclass(slots=True)
class StatusPacer:
    """Remembers when the status of each GPUPool last changed."""

    _changed_at: dict[str, float] = field(default_factory=dict)  # by UID; seconds

    def paced(self, obj: Object, status: Object, now: float) -> Object:
        """Return `status`, or the present one while `now` (seconds) is too early for a change.

        The first status of a new generation is never too early.
        """
        before = obj.get("status") or {}
        if status == before:
            return status
        last = self._changed_at.get(uid_of(obj))
        is_same_generation = before.get("observedGeneration") == status.get("observedGeneration")
        if last is not None and 0 <= now - last < PACE_S and is_same_generation:
            return before
        self._changed_at[uid_of(obj)] = now
        return status

    def forget(self, existing_uids: set[str]) -> None:
        """Forget deleted objects."""
        for uid in self._changed_at.keys() - existing_uids:
            del self._changed_at[uid]
