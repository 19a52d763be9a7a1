"""How many replicas of a shape still fit: what usable nodes offer, less what is taken.

A unit is one GPU or slice. With one unit per replica every unit of one resource on one SKU in the same
GPUPools is as good as another, so counts are enough. Taken is, in this order: pods of strangers; our own pods
where they run, whatever their node offers; replicas that our Deployments were given and whose pods are still
to come (in turn), at last of what a node offered until lately; and what this plan gives.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tangram.eligibility.devices.node_devices import holds_replicas
from tangram.fleet import FleetSnapshot, Intent, ParsedIntent, Shape, Spread

Kind = tuple[str, str]  # (SKU, resource)
Place = tuple[str, ...]  # names of the GPUPools that select a node, sorted
Unit = tuple[str, str, Place]  # units of a kind in one place are alike


def kind_of(shape: Shape) -> Kind:
    """Return the kind of unit that replicas of `shape` stand on."""
    return shape.sku, shape.resource


def allowed(pools: tuple[str, ...], place: Place) -> bool:
    """Whether somebody who names `pools` may run in `place`; who names none may run anywhere."""
    return not pools or any(name in pools for name in place)


@dataclass(frozen=True, slots=True)
class NodeUnits:
    """Units of one kind on one node that strangers leave."""

    zone: str
    free: int
    held: Mapping[str, int]  # by owner uid
    product: str = ""  # label of the node


@dataclass(slots=True)
class Room:
    """Free units, and who holds how many. Changes while a plan is made."""

    free: dict[Unit, int]
    held: dict[tuple[str, Unit], int] = field(default_factory=dict)  # by (owner uid, unit)
    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # GPUPools that an owner names
    by_kind: dict[Kind, tuple[Unit, ...]] = field(default_factory=dict)
    spots: Mapping[Unit, list[NodeUnits]] = field(
        default_factory=dict
    )  # as observed; what is given has no node
    withheld: dict[Unit, int] = field(default_factory=dict)  # for replicas that were given one before

    def units(self, uid: str, kind: Kind) -> tuple[Unit, ...]:
        """Units of `kind` that `uid` may use, those first that the fewest others may."""
        mine, there = self.pools.get(uid), self.by_kind.get(kind, ())
        return there if mine is None else tuple(unit for unit in there if allowed(mine, unit[2]))

    def holds(self, uid: str, kind: Kind) -> int:
        """Units that `uid` holds where it may run."""
        return sum(self.held.get((uid, unit), 0) for unit in self.units(uid, kind))

    def left(self, uid: str, kind: Kind) -> int:
        """Units that nobody holds, of those that `uid` may use."""
        return sum(self.free.get(unit, 0) for unit in self.units(uid, kind))

    def apart(self, uid: str, kind: Kind, count: int, spread: Spread) -> bool:
        """Whether `count` replicas could stand as far apart as `spread` asks, if they got every free unit."""
        on_node, in_zone = spread.allows(count)
        zones: dict[str, int] = defaultdict(int)
        for unit in self.units(uid, kind):
            for spot in self.spots.get(unit, ()):
                zones[spot.zone] += min(on_node, spot.free + spot.held.get(uid, 0))
        return sum(min(in_zone, n) for n in zones.values()) >= count

    def within(
        self, uid: str, kind: Kind, products: Collection[str], pools: Collection[frozenset[str]]
    ) -> int:
        """Units that `uid` holds, and those that were free, on nodes with one of these products and, without
        a product label, in all of one of these sets of pools.
        """
        return sum(
            spot.free + spot.held.get(uid, 0)
            for unit in self.units(uid, kind)
            for spot in self.spots.get(unit, ())
            if (spot.product in products if spot.product else any(names <= set(unit[2]) for names in pools))
        )

    def give(self, uid: str, unit: Unit, count: int) -> int:
        """Let `uid` hold `count` more units of one place, or as many as there are. Returns how many more."""
        more = max(0, min(count, self.free.get(unit, 0)))
        if more:
            self.free[unit] -= more
            self.held[(uid, unit)] = self.held.get((uid, unit), 0) + more
        return more

    def take(self, uid: str, kind: Kind, count: int) -> int:
        """Let `uid` hold `count` units of `kind`, or as many as there are. Returns how many it holds then."""
        holds = self.holds(uid, kind)
        for unit in self.units(uid, kind):
            if holds >= count:
                break
            holds += self.give(uid, unit, count - holds)
        return holds

    def keep(self, uid: str, kind: Kind, count: int) -> int:
        """`take`, for replicas that were given a place before: of what nodes withhold, too, if need be."""
        holds = self.take(uid, kind, count)
        for unit in self.units(uid, kind):
            more = max(0, min(count - holds, self.withheld.get(unit, 0)))
            if more:
                self.withheld[unit] -= more
                self.held[(uid, unit)] = self.held.get((uid, unit), 0) + more
                holds += more
        return holds


def room(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...]) -> Room:
    """Return the room that pods leave, those of ours where they run."""
    owners = {intent.uid for intent in intents}
    free: dict[Unit, int] = defaultdict(int)
    held: dict[tuple[str, Unit], int] = defaultdict(int)
    strangers: dict[tuple[str, str], int] = defaultdict(int)
    resources: dict[str, set[str]] = defaultdict(set)  # that our pods hold, by node
    ours: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for claim in snapshot.claims:
        if claim.owner_uid in owners and claim.owner_uid is not None:
            ours[(claim.node, claim.resource)][claim.owner_uid] += claim.count
            resources[claim.node].add(claim.resource)
        else:
            strangers[(claim.node, claim.resource)] += claim.count
    kept: dict[Unit, int] = defaultdict(int)
    spots: dict[Unit, list[NodeUnits]] = defaultdict(list)
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        if node.sku is None or not holds_replicas(node):
            continue
        place, offered = place_of(snapshot, dict(node.labels)), dict(node.allocatable)
        withheld = dict(node.withheld)
        for resource in sorted(offered.keys() | withheld.keys() | resources.get(node.name, set())):
            unit = (node.sku, resource, place)
            here = ours.get((node.name, resource), {})
            for uid in sorted(here):  # whatever the node offers: its pods run
                held[(uid, unit)] += here[uid]
            taken = strangers[(node.name, resource)] + sum(here.values())
            left = max(0, offered.get(resource, 0) - taken) if node.usable else 0
            free[unit] += left
            had = offered.get(resource, 0) + withheld.get(resource, 0)
            kept[unit] += max(0, min(had - taken, withheld.get(resource, 0)))
            spots[unit].append(NodeUnits(node.zone, left, here, node.product))
    pools = {intent.uid: intent.pools for intent in intents if isinstance(intent, Intent) and intent.pools}
    return Room(dict(free), dict(held), pools, _by_kind(free, pools), spots, dict(kept))


def place_of(snapshot: FleetSnapshot, labels: Mapping[str, str]) -> Place:
    """Return which GPUPools select a node."""
    return tuple(sorted(pool.name for pool in snapshot.pools if pool.selects(labels)))


def _by_kind(free: Mapping[Unit, int], pools: Mapping[str, tuple[str, ...]]) -> dict[Kind, tuple[Unit, ...]]:
    """Units of each kind. Who may run anywhere takes first what nobody asks for by name."""
    named = [names for _, names in sorted(pools.items())]

    def sought(unit: Unit) -> tuple[int, Place]:
        return sum(allowed(names, unit[2]) for names in named), unit[2]

    found: dict[Kind, list[Unit]] = defaultdict(list)
    for unit in free:
        found[unit[:2]].append(unit)
    return {kind: tuple(sorted(units, key=sought)) for kind, units in found.items()}


def keep_promises(
    result: Room,
    snapshot: FleetSnapshot,
    intents: tuple[ParsedIntent, ...],
    wanted: Mapping[str, int],
    most: Callable[[str, Shape], int],
) -> None:
    """Keep room for the pods of our Deployments that are still to come, before anything new is given.

    No more than are `wanted` (replicas by uid), and no more than there may be (`most`, by uid and shape):
    room is not kept for pods that cannot come to be.
    """
    promised: dict[str, dict[Kind, int]] = defaultdict(lambda: defaultdict(int))
    counted = dict(snapshot.desired_of)
    for workload in snapshot.workloads:
        uid = workload.owner_uid
        limit = min(workload.replicas, most(uid, workload.shape))
        if workload.refused and workload.settled:
            limit = min(limit, workload.total)
        if counted.get(uid, workload.shape) == workload.shape:
            limit = min(limit, wanted.get(uid, limit))
        promised[uid][kind_of(workload.shape)] += limit
    for intent in intents:
        for kind, count in sorted(promised[intent.uid].items()):
            result.keep(intent.uid, kind, count)
