"""Free devices: how many replicas of a shape still fit, and which LLMDeployment holds how many devices.

A device is one GPU or slice. A replica stands on one, or on several GPUs of one node. Devices of one resource
and SKU, on nodes in the same GPUPools, are interchangeable, so counts are enough, of GPUs by the replicas of
each size that nodes can hold. Devices are taken, in this order, by foreign pods; by own
pods where they run, whatever their node offers; by replicas that Deployments have and whose pods are missing,
in order of priority, if need be from what a node withholds; and by the replicas that the plan adds.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.eligibility.devices.node_devices import holds_replicas
from tangram.fleet import (
    WHOLE_GPU,
    DeviceKind,
    FleetSnapshot,
    Intent,
    ParsedIntent,
    Shape,
    Spread,
    resource_name,
)
from tangram.packing.geometry.gangs import GANG_SIZES, GangCapacity
from tangram.plan.fleet_input.fleet import Fleet, FleetNode, PoolNames, may_use

_WHOLE = resource_name(WHOLE_GPU)


class DeviceGroup(NamedTuple):
    """Interchangeable devices."""

    sku: str
    resource: str
    pools: PoolNames  # that select their nodes, sorted
    coming: bool = False  # GPUs are being cut for them: a replica that gets one waits


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one kind on one node, without those of foreign pods, as observed."""

    zone: str
    free: int
    held: Mapping[tuple[str, int], int]  # replicas by owner uid and devices of each
    product: str = ""  # label of the node
    withheld: int = 0

    def replicas(self, uid: str, shape: Shape) -> int:
        """Return how many replicas of `shape` `uid` has here, or would have if it got all that is free."""
        return self.held.get((uid, shape.gpus), 0) + self.free // shape.gpus

    def in_place_of_own(self, uid: str, shape: Shape) -> int:
        """Return how many replicas of `shape` fit on what is free and what `uid` has, of whatever shape."""
        own = sum(gpus * count for (owner, gpus), count in self.held.items() if owner == uid)
        return (self.free + own) // shape.gpus


_NONE = GangCapacity()


@dataclass(slots=True)
class FreeDevices:
    """Free devices, and the replicas for which LLMDeployments hold some. Changes while a plan is made."""

    free: dict[DeviceGroup, GangCapacity] = field(default_factory=dict)
    # Replicas by owner uid, group, and devices of each.
    held: dict[tuple[str, DeviceGroup, int], int] = field(default_factory=dict)
    # Only for replicas that exist already.
    withheld: dict[DeviceGroup, GangCapacity] = field(default_factory=dict)
    named_pools: Mapping[str, PoolNames] = field(default_factory=dict)  # by owner uid
    by_kind: Mapping[DeviceKind, tuple[DeviceGroup, ...]] = field(default_factory=dict)
    by_node: dict[DeviceGroup, list[NodeDevices]] = field(default_factory=dict)

    def groups(self, uid: str, shape: Shape) -> tuple[DeviceGroup, ...]:
        """Groups on which `uid` may run replicas of `shape`; first those that the fewest others may use."""
        named, groups = self.named_pools.get(uid, ()), self.by_kind.get(shape.device_kind, ())
        return tuple(group for group in groups if may_use(named, group.pools)) if named else groups

    def count_held(self, uid: str, shape: Shape) -> int:
        """Replicas of as many devices as one of `shape` has, which `uid` has where it may run."""
        return sum(self.held.get((uid, group, shape.gpus), 0) for group in self.groups(uid, shape))

    def count_free(self, uid: str, shape: Shape) -> int:
        """Further replicas of `shape` for which devices are free where `uid` may run them."""
        return sum(self.fitting(group, shape.gpus) for group in self.groups(uid, shape))

    def count_in_place_of_own(self, uid: str, shape: Shape) -> int:
        """Replicas of `shape` for which devices would do that are free or that `uid` holds, for replicas of
        whatever size: at most as many as there are GPUs, and as fitted on the nodes as they were observed.
        """
        groups = self.groups(uid, shape)
        gpus = sum(self.free.get(group, _NONE).devices for group in groups)
        gpus += sum(size * self.held.get((uid, group, size), 0) for group in groups for size in GANG_SIZES)
        nodes = (node for group in groups for node in self.by_node.get(group, ()))
        return min(gpus // shape.gpus, sum(node.in_place_of_own(uid, shape) for node in nodes))

    def fitting(self, group: DeviceGroup, gpus: int) -> int:
        """Replicas of `gpus` devices each that fit on what is free of a group."""
        return self.free.get(group, _NONE).fitting(gpus)

    def can_spread(self, uid: str, shape: Shape, count: int, spread: Spread) -> bool:
        """Whether `count` replicas would keep to `spread` if `uid` got every device that was free."""
        on_node, in_zone = spread.allows(count)
        zones: dict[str, int] = defaultdict(int)
        for group in self.groups(uid, shape):
            for node in self.by_node.get(group, ()):
                zones[node.zone] += min(on_node, node.replicas(uid, shape))
        return sum(min(in_zone, n) for n in zones.values()) >= count

    def count_selected(
        self, uid: str, shape: Shape, products: Collection[str], pools: Collection[frozenset[str]]
    ) -> int:
        """Replicas that `uid` has, or for which devices were free, on nodes with one of the product labels
        `products` and, where the label is missing, in all GPUPools of one set of `pools`.
        """
        return sum(
            node.replicas(uid, shape)
            for group in self.groups(uid, shape)
            for node in self.by_node.get(group, ())
            if (node.product in products if node.product else any(names <= {*group.pools} for names in pools))
        )

    def allocate(
        self, uid: str, group: DeviceGroup, count: int, gpus: int = 1, *, withheld: bool = False
    ) -> int:
        """Allocate devices of `group` to `uid` for `count` replicas of `gpus` devices each, or for as many
        as fit. Returns for how many.
        """
        available = self.withheld if withheld else self.free
        capacity = available.get(group, _NONE)
        allocated = max(0, min(count, capacity.fitting(gpus)))
        if allocated:
            available[group] = capacity.without(gpus, allocated)
            self.held[uid, group, gpus] = self.held.get((uid, group, gpus), 0) + allocated
        return allocated

    def allocate_up_to(self, uid: str, shape: Shape, count: int, *, withheld: bool = False) -> int:
        """Allocate until `uid` holds devices for `count` replicas of `shape`, or no more fit. Returns for how
        many it holds them.

        `withheld`: take what nodes withhold, not what is free.
        """
        held = self.count_held(uid, shape)
        for group in self.groups(uid, shape):
            held += self.allocate(uid, group, count - held, shape.gpus, withheld=withheld)
        return held


def observe_free_devices(fleet: Fleet, intents: tuple[ParsedIntent, ...]) -> FreeDevices:
    """Count the devices that pods leave free. Pods of `intents` hold theirs, all others are foreign."""
    owners = {intent.uid for intent in intents}
    named = {intent.uid: intent.pools for intent in intents if isinstance(intent, Intent) and intent.pools}
    devices = FreeDevices(named_pools=named)
    for place in fleet.nodes:
        node = place.node
        if node.sku is None or not holds_replicas(node):
            continue
        _add_present(devices, place, node.sku, owners)
        for resource, count in place.coming if node.usable else ():
            group = DeviceGroup(node.sku, resource, place.pools, coming=True)
            devices.by_node.setdefault(group, []).append(NodeDevices(node.zone, count, {}, node.product))
    for group, nodes in devices.by_node.items():
        devices.free[group] = _capacity(group, [node.free for node in nodes])
        devices.withheld[group] = _capacity(group, [node.withheld for node in nodes])
    devices.by_kind = _by_kind(devices.free, named)
    return devices


def _capacity(group: DeviceGroup, nodes: Sequence[int]) -> GangCapacity:
    """Return the capacity of nodes with so many free devices. GPUs that are still to come hold no replica of
    several: they come one by one.
    """
    if group.resource != _WHOLE or group.coming:
        return GangCapacity((sum(nodes),))
    return GangCapacity.on_nodes(nodes)


def _add_present(devices: FreeDevices, place: FleetNode, sku: str, owners: Collection[str]) -> None:
    """Add the devices that a node has, or that pods of `owners` hold there."""
    node, used, holders = place.node, Counter[str](), defaultdict[str, Counter[tuple[str, int]]](Counter)
    for claim in place.claims:
        used[claim.resource] += claim.count
        if claim.owner_uid is not None and claim.owner_uid in owners:
            holders[claim.resource][claim.owner_uid, claim.count] += 1
    allocatable, withheld, going = dict(node.allocatable), dict(node.withheld), dict(place.going)
    for resource in sorted(allocatable.keys() | withheld.keys() | holders.keys()):
        group, own = DeviceGroup(sku, resource, place.pools), holders.get(resource, Counter())
        for uid, gpus in sorted(own):
            devices.held[uid, group, gpus] = devices.held.get((uid, group, gpus), 0) + own[uid, gpus]
        offered, late = allocatable.get(resource, 0), withheld.get(resource, 0)
        unused = max(0, offered - going.get(resource, 0) - used[resource]) if node.usable else 0
        late_unused = max(0, min(offered + late - used[resource], late))
        on_node = NodeDevices(node.zone, unused, own, node.product, late_unused)
        devices.by_node.setdefault(group, []).append(on_node)


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
    expected: dict[str, dict[Shape, int]] = defaultdict(lambda: defaultdict(int))  # by uid and devices
    counted = dict(snapshot.desired_of)
    for workload in snapshot.workloads:
        uid, shape = workload.owner_uid, workload.shape
        replicas = min(workload.replicas, max_replicas.get((uid, shape), workload.replicas))
        if workload.refused and workload.settled:
            replicas = min(replicas, workload.total)
        if counted.get(uid, shape) == shape:
            replicas = min(replicas, desired.get(uid, replicas))
        expected[uid][Shape(shape.sku, shape.profile, shape.gpus)] += replicas
    for intent in intents:
        for shape, count in expected[intent.uid].items():
            devices.allocate_up_to(intent.uid, shape, count)
            devices.allocate_up_to(intent.uid, shape, count, withheld=True)
