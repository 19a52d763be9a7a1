"""GPUs and slices that nodes offer, with their prices, and the shapes on them that serve an LLMDeployment."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

from tangram import catalog
from tangram.capacity.sizing import Constraint, Rejection, ServingShape
from tangram.capacity.sizing.candidate_shapes import Device, candidate_shapes
from tangram.eligibility.devices.device_rules import model_of
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.eligibility.shapes.serving_shapes import AssessedShapes, assessed_shapes
from tangram.fleet import (
    WHOLE_GPU,
    HostResources,
    Intent,
    Node,
    NodeSelector,
    Shape,
    ShapeKey,
    resource_name,
)
from tangram.plan.fleet_input.fleet import Fleet, PoolNames, may_use
from tangram.plan.offers.host_capacity import HostCapacity, host_shortage, largest_hosts
from tangram.plan.reasons.placement import NoLargeEnoughHost
from tangram.plan.words.placement import sentence


@dataclass(frozen=True, slots=True)
class NodeOffers:
    """What nodes offer, usable now or not: a node that is away must not turn "no room" into "impossible"."""

    shapes: Mapping[tuple[str, str], tuple[PoolNames, ...]]  # (SKU, profile) -> where there is such a device
    products: Mapping[str, tuple[str, ...]]  # labels nvidia.com/gpu.product by SKU, sorted
    fleet: Fleet
    gpu_hours: Mapping[tuple[str, PoolNames], float | None]  # USD by SKU and the GPUPools of a node
    # By SKU: where nodes without the product label have the SKU that a pool declares.
    unlabelled: Mapping[str, frozenset[PoolNames]] = field(default_factory=dict)
    # By SKU and profile: the largest CPU and memory of the nodes with such a device.
    hosts: Mapping[tuple[str, str], tuple[HostCapacity, ...]] = field(default_factory=dict)
    # GPUs of the largest node, by SKU and the GPUPools of the node.
    node_gpus: Mapping[tuple[str, PoolNames], int] = field(default_factory=dict)
    _devices: dict[PoolNames, tuple[Device, ...]] = field(default_factory=dict)  # computed so far
    _prices: dict[tuple[str, str, PoolNames], float | None] = field(default_factory=dict)

    def devices(self, pools: PoolNames, beside: Iterable[Device] = ()) -> tuple[Device, ...]:
        """Return what nodes in `pools` offer of the catalog, and the devices `beside`: the cheapest first,
        at one price the larger memory first. Computed once for all that name the same pools.
        """

        def in_order(devices: Iterable[Device]) -> tuple[Device, ...]:
            return tuple(sorted(devices, key=lambda device: self._order(device, pools)))

        if pools not in self._devices:
            self._devices[pools] = in_order(d for d in self.shapes if self._where(*d, pools) and _is_known(d))
        offered = self._devices[pools]
        more = {device for device in beside if device not in offered and _is_known(device)}
        return in_order((*offered, *more)) if more else offered

    def replica_hour(self, shape: Shape, pools: PoolNames) -> float | None:
        """Return USD per hour of one replica where it is dearest: the scheduler picks the node.

        None: a price is missing.
        """
        key = (shape.sku, shape.profile, pools)
        if key not in self._prices:
            self._prices[key] = self._price(*key)
        price = self._prices[key]
        return None if price is None else price * shape.gpus

    def largest_node(self, sku: str, pools: PoolNames) -> int:
        """Return the GPUs of the largest node with this SKU in `pools`; 0: there is none."""
        return max(
            (
                gpus
                for (other, place), gpus in self.node_gpus.items()
                if other == sku and may_use(pools, place)
            ),
            default=0,
        )

    def device_hour(self, sku: str, resource: str, place: PoolNames) -> float:
        """Return USD per hour of one device on a node that `place` select, 0 where no price is known."""
        profile = _profile_name(sku, resource)
        per_gpu = self._gpu_hour(sku, place)
        return per_gpu * catalog.share(sku, profile) if per_gpu and profile else 0.0

    def selectors(self, pools: tuple[str, ...]) -> tuple[NodeSelector, ...]:
        """Return the node selectors of those of `pools` that there are, sorted."""
        node_selectors = (self.fleet.pools[name].selector for name in pools if name in self.fleet.pools)
        return tuple(sorted({selector for selector in node_selectors if selector}))

    def model_storage_classes(self, shape: Shape, pools: tuple[str, ...]) -> frozenset[str]:
        """Return the StorageClasses of checkpoints on nodes with devices of `shape`; empty string: none."""
        places = self._where(shape.sku, shape.profile, pools)
        return frozenset(
            min((self.fleet.pools[name].model_storage_class for name in place), default="")
            for place in places
        )

    def declaring(self, sku: str, pools: tuple[str, ...]) -> dict[NodeSelector, frozenset[str]]:
        """Return the selectors of GPUPools that declare `sku`, each with the pools that its nodes are in.

        An LLMDeployment that names `pools` stays in them: where another pool declares the SKU of some of
        their nodes, by the selectors of both.
        """
        pools_by_selector: dict[NodeSelector, frozenset[str]] = {}
        for name, pool in sorted(self.fleet.pools.items()):
            if pool.sku != sku or not pool.selector:
                continue
            if not pools or name in pools:
                pools_by_selector[pool.selector] = frozenset((name,))
                continue
            beside = {other for place in self.unlabelled.get(sku, ()) if name in place for other in place}
            for other in sorted(beside.intersection(pools)):
                selector = tuple(sorted({*pool.selector, *self.fleet.pools[other].selector}))
                pools_by_selector[selector] = frozenset((name, other))
        return pools_by_selector

    def host_shortage(
        self, shape: Shape, requests: HostResources, pools: PoolNames
    ) -> NoLargeEnoughHost | None:
        """Return why no node in `pools` has the CPU and memory of a pod of `shape`; None: some may have."""
        hosts = self.hosts.get((shape.sku, shape.profile), ())
        return host_shortage(hosts, shape, requests, self.fleet.snapshot.pod_needs, pools)

    def left_out(self, intent: Intent) -> tuple[Node, ...]:
        """Return the nodes that `intent` could run on, with devices that no new replica is given."""
        return tuple(
            node
            for place in self.fleet.nodes
            if (node := place.node).left_out
            and may_use(intent.pools, place.pools)
            and node.sku not in intent.denied_skus
            and (not intent.allowed_skus or node.sku is None or node.sku in intent.allowed_skus)
        )

    def _order(self, device: Device, pools: PoolNames) -> tuple[float, int, Device]:
        gpu, cut = catalog.gpu(device[0]), catalog.profile(*device)
        memory = (gpu.memory_mib if gpu else 0) if cut is None else (cut.memory_mib or 0)
        return self.replica_hour(Shape(*device), pools) or 0.0, -memory, device

    def _where(self, sku: str, profile: str, pools: tuple[str, ...]) -> tuple[PoolNames, ...]:
        return tuple(place for place in self.shapes.get((sku, profile), ()) if may_use(pools, place))

    def _price(self, sku: str, profile: str, pools: tuple[str, ...]) -> float | None:
        gpu_hours = [self._gpu_hour(sku, place) for place in self._where(sku, profile, pools) or ((),)]
        prices = [price for price in gpu_hours if price is not None]
        return max(prices) * catalog.share(sku, profile) if len(prices) == len(gpu_hours) else None

    def _gpu_hour(self, sku: str, place: PoolNames) -> float | None:
        known = (sku, place) in self.gpu_hours
        return self.gpu_hours[sku, place] if known else self.fleet.prices.gpu_hour(sku)


def offers(fleet: Fleet) -> NodeOffers:
    """Return what the nodes of a fleet offer, once per plan."""
    places_by_device: dict[tuple[str, str], set[PoolNames]] = defaultdict(set)
    products: dict[str, set[str]] = {}
    unlabelled: dict[str, set[PoolNames]] = defaultdict(set)
    hosts: dict[tuple[str, str], set[HostCapacity]] = defaultdict(set)
    node_gpus = Counter[tuple[str, PoolNames]]()
    for place in fleet.nodes:
        node = place.node
        if node.sku is None:
            continue
        if node.product and model_of(node.product) == node.product:  # not the label of slices or of shares
            products.setdefault(node.sku, set()).add(node.product)
        if not node.product:
            unlabelled[node.sku].add(place.pools)
        gpus = max(node.gpus or 0, dict(node.allocatable).get(resource_name(WHOLE_GPU), 0))
        node_gpus |= Counter({(node.sku, place.pools): gpus})
        host = HostCapacity.of(node, place.pools, max(1, gpus))
        for resource, count in (*node.allocatable, *place.coming):
            profile = _profile_name(node.sku, resource) if count > 0 else None
            if profile is not None:
                places_by_device[(node.sku, profile)].add(place.pools)
                hosts[node.sku, profile].add(host)
    return NodeOffers(
        shapes={shape: tuple(sorted(places)) for shape, places in sorted(places_by_device.items())},
        products={sku: tuple(sorted(labels)) for sku, labels in products.items()},
        fleet=fleet,
        gpu_hours={(p.node.sku, p.pools): p.gpu_hour for p in fleet.nodes if p.node.sku is not None},
        unlabelled={sku: frozenset(places) for sku, places in unlabelled.items()},
        hosts={device: largest_hosts(sizes) for device, sizes in hosts.items()},
        node_gpus=node_gpus,
    )


def node_shapes(
    requirements: ServingRequirements, node_offers: NodeOffers, present: Iterable[Shape]
) -> AssessedShapes:
    """Assess the shapes on the devices of nodes and those that run at present, the cheapest first."""
    running, pools, formats = frozenset(present), requirements.pools, requirements.formats
    own = [s.key[:2] for s in running if s.split in requirements.splits and s.precision in formats]
    candidates = candidate_shapes(
        requirements.architecture,
        node_offers.devices(pools, own),
        tuple(sorted(formats)),
        requirements.splits,
        requirements.runtime_name,
    )
    fitting, too_large = _by_node_size(candidates, node_offers, pools, running)
    short = {
        shape: sentence(shortage)
        for shape in fitting
        if shape not in running
        and (shortage := node_offers.host_shortage(shape, requirements.intent.resources, pools))
    }
    price_of = partial(node_offers.replica_hour, pools=pools)
    assessed = assessed_shapes(requirements, fitting, node_offers.fleet.prices, price_of, short)
    serving = sorted(_fastest_splits(assessed.serving, running), key=attrgetter("price_per_hour"))
    return replace(assessed, serving=tuple(serving), rejected=(*assessed.rejected, *too_large))


def _by_node_size(
    shapes: Iterable[Shape], node_offers: NodeOffers, pools: PoolNames, running: Collection[Shape]
) -> tuple[list[Shape], list[Rejection]]:
    """Return the shapes that a node has enough GPUs for, or that run, and a rejection of each other one."""
    fitting, too_large = list[Shape](), list[Rejection]()
    for shape in shapes:
        largest = node_offers.largest_node(shape.sku, pools)
        if shape.gpus == 1 or shape.gpus <= largest or shape in running:
            fitting.append(shape)
        else:
            problem = f"no node has {shape.gpus} {shape.sku}, the largest has {largest}"
            too_large.append(Rejection(shape, Constraint.PLACEMENT, problem))
    return fitting, too_large


def _fastest_splits(serving: Iterable[ServingShape], present: Collection[Shape]) -> Iterator[ServingShape]:
    """Yield the fastest of the ways to split a model over the same GPUs, which cost the same, and those that
    replicas have at `present`.
    """
    by_hardware = defaultdict[tuple[ShapeKey, str], list[ServingShape]](list)
    for candidate in serving:
        by_hardware[candidate.key, candidate.shape.precision].append(candidate)
    for alike in by_hardware.values():
        fastest = max(alike, key=attrgetter("rate"))
        yield from (each for each in alike if each is fastest or each.shape in present)


def _is_known(device: Device) -> bool:
    sku, profile = device
    is_profile = profile == WHOLE_GPU or catalog.profile(sku, profile) is not None
    return catalog.gpu(sku) is not None and is_profile


def _profile_name(sku: str, resource: str) -> str | None:
    if resource == resource_name(WHOLE_GPU):
        return WHOLE_GPU
    profile = catalog.profile_of_resource(sku, resource)
    return profile.name if profile else None
