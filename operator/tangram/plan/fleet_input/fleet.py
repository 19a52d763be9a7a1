"""The observed fleet, read once for both horizons: each node with its GPUPools, its price and its holders."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tangram.catalog.prices import Prices
from tangram.fleet import (
    Claim,
    FleetSnapshot,
    Node,
    NodePartition,
    Pool,
    ProvisionedLoad,
    Shape,
    Workload,
    claiming_pools,
    pool_price,
)

PoolNames = tuple[str, ...]  # GPUPools that select a node, or that an LLMDeployment names; () there: any


def may_use(named: PoolNames, selecting: PoolNames) -> bool:
    """Whether an LLMDeployment that names the GPUPools `named` may use nodes that `selecting` select."""
    return not named or any(name in selecting for name in named)


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node with what GPUPools, prices, pods and its partition backend say of it."""

    node: Node
    pools: PoolNames  # that select it, sorted; its GPUs belong to the first
    pool_price: float | None  # USD per GPU-hour that its pools set
    gpu_hour: float | None  # USD of one of its GPUs; None: no price is known
    claims: tuple[Claim, ...] = ()  # of its pods
    coming: tuple[tuple[str, int], ...] = ()  # (resource, count) for which GPUs are being cut
    going: tuple[tuple[str, int], ...] = ()  # (resource, count) that a cut takes away
    partition: NodePartition | None = None  # None: no backend observes its GPUs

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name

    @property
    def pool(self) -> str:
        """The GPUPool that its GPUs belong to; empty: none."""
        return self.pools[0] if self.pools else ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A snapshot, with what belongs together put together."""

    snapshot: FleetSnapshot
    nodes: tuple[FleetNode, ...]  # sorted by name
    pools: Mapping[str, Pool]
    prices: Prices  # of GPU models
    # By uid of an LLMDeployment:
    workloads: Mapping[str, tuple[Workload, ...]]  # its Deployments, sorted
    desired: Mapping[str, int]  # replicas, as the scaling law sets them
    desired_shapes: Mapping[str, Shape]  # whose replicas `desired` counts
    loads: Mapping[str, ProvisionedLoad]  # that `desired` carries

    def with_sku(self, place: FleetNode, sku: str | None) -> FleetNode:
        """Return a node without the labels of its GPUs as one of `sku`, with the price of these."""
        price = None if sku is None else self.prices.gpu_hour(sku, place.pool_price)
        return replace(place, node=replace(place.node, sku=sku), gpu_hour=price)

    def running_replica_hour(self, uid: str, shape: Shape) -> float | None:
        """Return USD per hour of one replica of a shape that `uid` runs, on the dearest of its nodes.

        None: no price is known. A replica without a node has no pool, and costs what its GPU model costs.
        """
        hourly = [
            self.prices.replica_hour(*shape.key, place.pool_price)
            for place in self.nodes
            if place.node.sku == shape.sku
            and any(claim.owner_uid == uid and claim.resource == shape.resource for claim in place.claims)
        ] or [self.prices.replica_hour(*shape.key)]
        return max((price for price in hourly if price is not None), default=None)


def read_fleet(snapshot: FleetSnapshot) -> Fleet:
    """Return the fleet that a snapshot shows, whatever the order of its nodes and GPUPools."""
    pools, prices = {pool.name: pool for pool in snapshot.pools}, Prices(dict(snapshot.prices))
    workloads = dict[str, tuple[Workload, ...]]()
    for workload in sorted(snapshot.workloads, key=lambda w: (w.owner_uid, w.shape, w.name, w.uid)):
        workloads[workload.owner_uid] = (*workloads.get(workload.owner_uid, ()), workload)
    return Fleet(
        snapshot,
        tuple(_nodes(snapshot, pools, prices)),
        pools,
        prices,
        workloads,
        desired=dict(snapshot.desired),
        desired_shapes=dict(snapshot.desired_of),
        loads=dict(snapshot.provisioned),
    )


def _nodes(snapshot: FleetSnapshot, pools: Mapping[str, Pool], prices: Prices) -> Iterator[FleetNode]:
    claims, partitions = defaultdict[str, list[Claim]](list), snapshot.partition.by_node
    coming, going = (defaultdict[str, dict[str, int]](dict) for _ in range(2))
    for claim in snapshot.claims:
        claims[claim.node].append(claim)
    for device in snapshot.partition.coming:
        coming[device.node][device.resource] = device.count
    for name, resource, count in snapshot.partition.going:
        going[name][resource] = count
    for node in sorted(snapshot.nodes, key=lambda node: node.name):
        selecting = claiming_pools(node, pools.values())
        price = pool_price(selecting, pools)
        yield FleetNode(
            node,
            selecting,
            price,
            gpu_hour=None if node.sku is None else prices.gpu_hour(node.sku, price),
            claims=tuple(claims[node.name]),
            coming=tuple(sorted(coming[node.name].items())),
            going=tuple(going[node.name].items()),
            partition=partitions.get(node.name),
        )
