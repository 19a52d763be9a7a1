"""How many replicas of a shape still fit: what usable nodes offer, less what is taken.

A pool is all units of one resource on one SKU. With one unit per replica every unit of a pool is as good as
another, so counts are enough. Taken is, in this order: pods of strangers; our own pods where they run;
replicas that our Deployments were given and whose pods are still to come (older LLMDeployments first); and
what this plan gives.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.fleet import FleetSnapshot, Shape
from tangram.planner.order import Wanted

Pool = tuple[str, str]  # (SKU, resource)


def pool_of(shape: Shape) -> Pool:
    """Return the pool that replicas of `shape` take from."""
    return shape.sku, shape.resource


@dataclass(slots=True)
class Room:
    """Free units per pool, and who holds how many. Changes while a plan is made."""

    free: dict[Pool, int]
    held: dict[tuple[str, Pool], int] = field(default_factory=dict)  # by (owner uid, pool)

    def for_owner(self, uid: str, shape: Shape) -> int:
        """Units that `uid` may use for replicas of `shape`: those it holds and the free ones."""
        pool = pool_of(shape)
        return self.held.get((uid, pool), 0) + self.free.get(pool, 0)

    def take(self, uid: str, pool: Pool, count: int) -> int:
        """Let `uid` hold `count` units of `pool`, or as many as there are. Returns how many it holds then."""
        holds = self.held.get((uid, pool), 0)
        more = max(0, min(count - holds, self.free.get(pool, 0)))
        self.free[pool] = self.free.get(pool, 0) - more
        self.held[(uid, pool)] = holds + more
        return holds + more


def room(snapshot: FleetSnapshot, intents: tuple[Wanted, ...], wanted: Mapping[str, int]) -> Room:
    """Return the room before anything new is given. `wanted`: replicas by uid, a promise's limit."""
    owners = {intent.uid for intent in intents}
    free: dict[Pool, int] = defaultdict(int)
    held: dict[tuple[str, Pool], int] = defaultdict(int)
    skus = {node.name: node.sku for node in snapshot.nodes if node.usable and node.sku is not None}
    strangers: dict[tuple[str, str], int] = defaultdict(int)
    ours: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for claim in snapshot.claims:
        if claim.owner_uid in owners and claim.owner_uid is not None:
            ours[(claim.node, claim.resource)][claim.owner_uid] += claim.count
        else:
            strangers[(claim.node, claim.resource)] += claim.count
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        sku = skus.get(node.name)
        if sku is None:
            continue
        for resource, count in node.allocatable:
            left = max(0, count - strangers[(node.name, resource)])
            for uid in sorted(ours[(node.name, resource)]):
                used = min(left, ours[(node.name, resource)][uid])
                held[(uid, (sku, resource))] += used
                left -= used
            free[(sku, resource)] += left
    result = Room(dict(free), dict(held))
    _keep_promises(result, snapshot, intents, wanted)
    return result


def _keep_promises(
    result: Room, snapshot: FleetSnapshot, intents: tuple[Wanted, ...], wanted: Mapping[str, int]
) -> None:
    promised: dict[str, dict[Pool, int]] = defaultdict(lambda: defaultdict(int))
    for workload in snapshot.workloads:
        uid = workload.owner_uid
        promised[uid][pool_of(workload.shape)] += min(workload.replicas, wanted.get(uid, workload.replicas))
    for intent in intents:
        for pool, count in sorted(promised[intent.uid].items()):
            result.take(intent.uid, pool, count)
