"""Free devices: how many replicas of a shape still fit, and which LLMDeployment holds how many devices.

A device is one GPU or slice; a replica stands on one. Devices of one resource and SKU, on nodes in the same
GPUPools, are interchangeable, so counts are enough. Devices are taken, in this order, by foreign pods; by own
pods where they run, whatever their node offers; by replicas that Deployments have and whose pods are missing,
in order of priority, if need be from what a node withholds; and by the replicas that the plan adds.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.eligibility.devices.node_devices import holds_replicas
from tangram.fleet import DeviceKind, FleetSnapshot, Intent, ParsedIntent, Shape, Spread, claiming_pools

PoolNames = tuple[str, ...]  # GPUPools that select a node, or that an LLMDeployment names; () there: any


class DeviceGroup(NamedTuple):
    """Interchangeable devices."""

    sku: str
    resource: str
    pools: PoolNames  # that select their nodes, sorted
    coming: bool = False  # GPUs are being cut for them: a replica that gets one waits


def may_use(named: PoolNames, selecting: PoolNames) -> bool:
    """Whether an LLMDeployment that names the GPUPools `named` may use nodes that `selecting` select."""
    return not named or any(name in selecting for name in named)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one kind on one node, without those of foreign pods, as observed."""

    zone: str
    free: int
    held: Mapping[str, int]  # by owner uid
    product: str = ""  # label of the node


@dataclass(slots=True)
class FreeDevices:
    """Free devices, and how many each LLMDeployment holds. Changes while a plan is made."""

    free: dict[DeviceGroup, int]
    held: dict[tuple[str, DeviceGroup], int] = field(default_factory=dict)  # by (owner uid, group)
    withheld: dict[DeviceGroup, int] = field(default_factory=dict)  # only for replicas that exist already
    named_pools: Mapping[str, PoolNames] = field(default_factory=dict)  # by owner uid
    by_kind: Mapping[DeviceKind, tuple[DeviceGroup, ...]] = field(default_factory=dict)
    by_node: Mapping[DeviceGroup, list[NodeDevices]] = field(default_factory=dict)

    def groups(self, uid: str, shape: Shape) -> tuple[DeviceGroup, ...]:
        """Groups on which `uid` may run replicas of `shape`; first those that the fewest others may use."""
        named, groups = self.named_pools.get(uid, ()), self.by_kind.get(shape.device_kind, ())
        return tuple(group for group in groups if may_use(named, group.pools)) if named else groups

    def count_held(self, uid: str, shape: Shape) -> int:
        """Devices for replicas of `shape` that `uid` holds where it may run."""
        return sum(self.held.get((uid, group), 0) for group in self.groups(uid, shape))

    def count_free(self, uid: str, shape: Shape) -> int:
        """Free devices on which `uid` may run replicas of `shape`."""
        return sum(self.free.get(group, 0) for group in self.groups(uid, shape))

    def can_spread(self, uid: str, shape: Shape, count: int, spread: Spread) -> bool:
        """Whether `count` replicas would keep to `spread` if `uid` got every device that was free."""
        on_node, in_zone = spread.allows(count)
        zones: dict[str, int] = defaultdict(int)
        for group in self.groups(uid, shape):
            for node in self.by_node.get(group, ()):
                zones[node.zone] += min(on_node, node.free + node.held.get(uid, 0))
        return sum(min(in_zone, n) for n in zones.values()) >= count

    def count_selected(
        self, uid: str, shape: Shape, products: Collection[str], pools: Collection[frozenset[str]]
    ) -> int:
        """Devices that `uid` holds or that were free, on nodes with one of the product labels `products` and,
        where the label is missing, in all GPUPools of one set of `pools`.
        """
        return sum(
            node.free + node.held.get(uid, 0)
            for group in self.groups(uid, shape)
            for node in self.by_node.get(group, ())
            if (node.product in products if node.product else any(names <= {*group.pools} for names in pools))
        )

    def allocate(self, uid: str, group: DeviceGroup, count: int, *, withheld: bool = False) -> int:
        """Allocate `count` devices of `group` to `uid`, or as many as are free. Returns how many."""
        available = self.withheld if withheld else self.free
        allocated = max(0, min(count, available.get(group, 0)))
        if allocated:
            available[group] -= allocated
            self.held[(uid, group)] = self.held.get((uid, group), 0) + allocated
        return allocated

    def allocate_up_to(self, uid: str, shape: Shape, count: int, *, withheld: bool = False) -> int:
        """Allocate until `uid` holds `count` devices for `shape`, or none is free. Returns how many it holds.

        `withheld`: take what nodes withhold, not what is free.
        """
        held = self.count_held(uid, shape)
        for group in self.groups(uid, shape):
            held += self.allocate(uid, group, count - held, withheld=withheld)
        return held


def observe_free_devices(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...]) -> FreeDevices:
    """Count the devices that pods leave free. Pods of `intents` hold theirs, all others are foreign."""
    owners = {intent.uid for intent in intents}
    foreign: dict[tuple[str, str], int] = defaultdict(int)  # by (node, resource)
    coming: dict[str, dict[str, int]] = defaultdict(dict)
    for device in snapshot.partition.coming:
        coming[device.node][device.resource] = device.count
    going = {(node, resource): count for node, resource, count in snapshot.partition.going}
    own: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for claim in snapshot.claims:
        if claim.owner_uid in owners and claim.owner_uid is not None:
            own[claim.node][claim.resource][claim.owner_uid] += claim.count
        else:
            foreign[(claim.node, claim.resource)] += claim.count
    free: dict[DeviceGroup, int] = defaultdict(int)
    held: dict[tuple[str, DeviceGroup], int] = defaultdict(int)
    withheld: dict[DeviceGroup, int] = defaultdict(int)
    by_node: dict[DeviceGroup, list[NodeDevices]] = defaultdict(list)
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        if node.sku is None or not holds_replicas(node):
            continue
        pools, held_here = claiming_pools(node, snapshot.pools), own.get(node.name, {})
        allocatable, withheld_here = dict(node.allocatable), dict(node.withheld)
        for resource in sorted(allocatable.keys() | withheld_here.keys() | held_here.keys()):
            group = DeviceGroup(node.sku, resource, pools)
            holders = held_here.get(resource, {})
            for uid in sorted(holders):
                held[(uid, group)] += holders[uid]
            offered, late = allocatable.get(resource, 0), withheld_here.get(resource, 0)
            used = foreign[(node.name, resource)] + sum(holders.values())
            unused = max(0, offered - going.get((node.name, resource), 0) - used) if node.usable else 0
            free[group] += unused
            withheld[group] += max(0, min(offered + late - used, late))
            by_node[group].append(NodeDevices(node.zone, unused, holders, node.product))
        for resource, count in sorted(coming[node.name].items()) if node.usable else ():
            group = DeviceGroup(node.sku, resource, pools, coming=True)
            free[group] += count
            by_node[group].append(NodeDevices(node.zone, count, {}, node.product))
    named = {intent.uid: intent.pools for intent in intents if isinstance(intent, Intent) and intent.pools}
    return FreeDevices(dict(free), dict(held), dict(withheld), named, _by_kind(free, named), by_node)


def _by_kind(
    groups: Collection[DeviceGroup], named_pools: Mapping[str, PoolNames]
) -> Mapping[DeviceKind, tuple[DeviceGroup, ...]]:
    """Groups by kind, in the order in which they are used up: first those that the fewest owners name."""
    named = list(named_pools.values())
    by_kind: dict[DeviceKind, list[DeviceGroup]] = defaultdict(list)

    def order(group: DeviceGroup) -> tuple[bool, int, PoolNames]:
        return group.coming, sum(may_use(names, group.pools) for names in named), group.pools

    for group in sorted(groups, key=order):
        by_kind[(group.sku, group.resource)].append(group)
    return {kind: tuple(alike) for kind, alike in by_kind.items()}


def reserve_for_missing_pods(
    devices: FreeDevices,
    snapshot: FleetSnapshot,
    intents: tuple[ParsedIntent, ...],
    desired: Mapping[str, int],
    max_replicas: Mapping[tuple[str, Shape], int],
) -> None:
    """Allocate devices to replicas of existing Deployments before new ones: missing pods may be on the way.

    At most for the `desired` replicas (by uid) and for `max_replicas` (by uid and shape): pods that cannot be
    created need no device.
    """
    expected: dict[str, dict[Shape, int]] = defaultdict(lambda: defaultdict(int))  # by uid and kind
    counted = dict(snapshot.desired_of)
    for workload in snapshot.workloads:
        uid, shape = workload.owner_uid, workload.shape
        replicas = min(workload.replicas, max_replicas.get((uid, shape), workload.replicas))
        if workload.refused and workload.settled:
            replicas = min(replicas, workload.total)
        if counted.get(uid, shape) == shape:
            replicas = min(replicas, desired.get(uid, replicas))
        expected[uid][Shape(shape.sku, shape.profile)] += replicas
    for intent in intents:
        for shape, count in expected[intent.uid].items():
            devices.allocate_up_to(intent.uid, shape, count)
            devices.allocate_up_to(intent.uid, shape, count, withheld=True)
