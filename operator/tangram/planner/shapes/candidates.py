"""Shapes that exist in the fleet, and for each: may it carry a model, at which price, what kills it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram import catalog
from tangram.capacity.sizing import SizingRequest
from tangram.catalog.prices import Prices
from tangram.eligibility.devices.device_rules import model_of
from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.eligibility.host_resources import over_limit
from tangram.eligibility.shapes.bundled_engine import asked_formats
from tangram.eligibility.shapes.evaluation_reports import NO_REPORTS, Reports, key_of, objection
from tangram.eligibility.shapes.serving_requirements import ANY
from tangram.fleet import (
    WHOLE_GPU,
    CheckpointFacts,
    FleetSnapshot,
    Intent,
    MIGPolicy,
    Node,
    NodeSelector,
    PodNeeds,
    Pool,
    Shape,
    resource_name,
)
from tangram.planner.observe.free_capacity import DeviceGroup, PoolNames, may_use, pools_of
from tangram.planner.shapes.judge import look

_MOST_NOTES = 3
NOT_ALLOWED, NO_PRICE, MEMORY_UNKNOWN = "NotAllowed", "NoPrice", "MemoryUnknown"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shape, judged for one intent. `rejection` is None if it may be used."""

    shape: Shape
    price_per_hour: float  # USD of one replica at most, wherever it may run; 0 where nobody knows a price
    memory_mib: int
    tpot_ms: float | None = None  # of a nearly idle replica, predicted
    ttft_ms: float | None = None
    missing: float = 0.0  # bytes of memory
    rejection: str | None = None  # as in joint plans: DoesNotFit | TPOT | TTFT | ..., and NotAllowed
    message: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """What one replica may stand on, and what it costs there."""

    sku: str
    profile: str
    price_per_hour: float | None  # USD where it is dearest: the scheduler picks the node; None: nobody knows
    memory_mib: int
    is_slice: bool
    memory_is_known: bool


@dataclass(frozen=True, slots=True)
class Offers:
    """What nodes offer, usable now or not: a node that is away must not turn "no room" into "impossible"."""

    shapes: Mapping[tuple[str, str], tuple[PoolNames, ...]]  # (SKU, profile) -> where there is such a unit
    products: Mapping[str, tuple[str, ...]]  # labels nvidia.com/gpu.product by SKU, sorted
    prices: Prices
    pools: Mapping[str, Pool]
    has_nodes: bool
    needs: PodNeeds
    left_out: tuple[tuple[PoolNames, Node], ...] = ()  # nodes with devices that no newcomer is given
    unlabelled: Mapping[str, frozenset[PoolNames]] = field(
        default_factory=dict
    )  # where a pool declares the SKU
    _seats: dict[tuple[str, ...], tuple[Seat, ...]] = field(default_factory=dict, compare=False, repr=False)

    def seats(self, pools: tuple[str, ...]) -> tuple[Seat, ...]:
        """Return what is on offer to somebody who names `pools`; looked up once for all who name the same."""
        if pools not in self._seats:
            found = (
                self.seat(sku, profile, pools)
                for sku, profile in self.shapes
                if self._where(sku, profile, pools)
            )
            self._seats[pools] = tuple(seat for seat in found if seat is not None)
        return self._seats[pools]

    def seat(self, sku: str, profile: str, pools: tuple[str, ...]) -> Seat | None:
        """Return one GPU or slice, on offer or not; None: the catalog does not know it."""
        gpu, cut = catalog.gpu(sku), catalog.profile(sku, profile)
        if gpu is None or (profile != WHOLE_GPU and cut is None):
            return None
        return Seat(
            sku,
            profile,
            self._price(sku, profile, pools),
            gpu.memory_mib if cut is None else (cut.memory_mib or 0),
            is_slice=cut is not None,
            memory_is_known=cut is None or cut.memory_is_known,
        )

    def price(self, shape: Shape, pools: tuple[str, ...]) -> float:
        """Return USD per hour of one replica where it is dearest, 0 where nobody knows."""
        return (self._price(shape.sku, shape.profile, pools) or 0.0) * shape.tensor_parallel

    def unit_price(self, group: DeviceGroup) -> float:
        """Return USD per hour of one device, 0 where no price is known."""
        sku, resource, place = group
        profile = _profile_name(sku, resource)
        per_gpu = self._gpu_hour(sku, place)
        return per_gpu * catalog.share(sku, profile) if per_gpu and profile else 0.0

    def selectors(self, pools: tuple[str, ...]) -> tuple[NodeSelector, ...]:
        """Return the node selectors of those of `pools` that there are, sorted."""
        found = (self.pools[name].selector for name in pools if name in self.pools)
        return tuple(sorted({selector for selector in found if selector}))

    def declaring(self, sku: str, pools: tuple[str, ...]) -> dict[NodeSelector, frozenset[str]]:
        """Return the selectors of GPUPools that declare `sku`, each with the pools that its nodes are in.

        Who names `pools` is kept to them: by the selectors of both where another pool declares the SKU of
        some of their nodes.
        """
        found: dict[NodeSelector, frozenset[str]] = {}
        for name, pool in sorted(self.pools.items()):
            if pool.sku != sku or not pool.selector:
                continue
            if not pools or name in pools:
                found[pool.selector] = frozenset((name,))
                continue
            beside = {other for place in self.unlabelled.get(sku, ()) if name in place for other in place}
            for other in sorted(beside.intersection(pools)):
                both = tuple(sorted({*pool.selector, *self.pools[other].selector}))
                found[both] = frozenset((name, other))
        return found

    def left_out_message(self, intent: Intent) -> str:
        """Return what is left out of the nodes that `intent` could run on, the empty string if nothing is."""
        nodes = [
            node
            for place, node in self.left_out
            if may_use(intent.pools, place)
            and node.sku not in intent.denied_skus
            and (not intent.allowed_skus or node.sku is None or node.sku in intent.allowed_skus)
        ]
        if not nodes:
            return ""
        notes = left_out_notes(nodes)
        more = f"; {len(notes) - _MOST_NOTES} more reasons" if len(notes) > _MOST_NOTES else ""
        held_back = f"devices of {len(nodes)} node{'s' * (len(nodes) != 1)}"
        return f"; {held_back} " + "; ".join(notes[:_MOST_NOTES]) + more

    def _where(self, sku: str, profile: str, pools: tuple[str, ...]) -> tuple[PoolNames, ...]:
        return tuple(place for place in self.shapes.get((sku, profile), ()) if may_use(pools, place))

    def _price(self, sku: str, profile: str, pools: tuple[str, ...]) -> float | None:
        gpu_hours = [self._gpu_hour(sku, place) for place in self._where(sku, profile, pools) or ((),)]
        known = [each for each in gpu_hours if each is not None]
        return max(known) * catalog.share(sku, profile) if len(known) == len(gpu_hours) else None

    def _gpu_hour(self, sku: str, place: PoolNames) -> float | None:
        pool_prices = (self.pools[name].price_per_gpu_hour for name in place)
        return self.prices.gpu_hour(sku, next((price for price in pool_prices if price is not None), None))


def offers(snapshot: FleetSnapshot) -> Offers:
    """Read what the fleet offers out of `snapshot`, once per plan."""
    found: dict[tuple[str, str], set[PoolNames]] = defaultdict(set)
    products: dict[str, set[str]] = {}
    unlabelled: dict[str, set[PoolNames]] = defaultdict(set)
    left_out = []
    for node in snapshot.nodes:
        if node.left_out:
            left_out.append((pools_of(snapshot, dict(node.labels)), node))
        if node.sku is None:
            continue
        if node.product and model_of(node.product) == node.product:  # not the label of slices or of shares
            products.setdefault(node.sku, set()).add(node.product)
        place = pools_of(snapshot, dict(node.labels))
        if not node.product:
            unlabelled[node.sku].add(place)
        for resource, count in node.allocatable:
            profile = _profile_name(node.sku, resource) if count > 0 else None
            if profile is not None:
                found[(node.sku, profile)].add(place)
    return Offers(
        shapes={shape: tuple(sorted(places)) for shape, places in sorted(found.items())},
        products={sku: tuple(sorted(labels)) for sku, labels in products.items()},
        prices=Prices(dict(snapshot.prices)),
        pools={pool.name: pool for pool in snapshot.pools},
        has_nodes=bool(snapshot.nodes),
        needs=snapshot.pod_needs,
        left_out=tuple(left_out),
        unlabelled={sku: frozenset(places) for sku, places in unlabelled.items()},
    )


def candidates(
    intent: Intent,
    facts: CheckpointFacts,
    request: SizingRequest,
    offered: Offers,
    present: Iterable[Shape],
    reports: Reports = NO_REPORTS,
) -> tuple[Candidate, ...]:
    """Judge every shape on offer and those `intent` runs on at present; usable ones first, cheapest first."""
    seats = {(seat.sku, seat.profile): seat for seat in offered.seats(intent.pools)}
    formats = asked_formats(intent, facts)
    for shape in present:
        if (
            (shape.sku, shape.profile) not in seats
            and shape.tensor_parallel == 1
            and shape.precision in formats
        ):
            seat = offered.seat(shape.sku, shape.profile, intent.pools)
            seats |= {(shape.sku, shape.profile): seat} if seat is not None else {}
    judged = (
        _gated(_judge(seat, name, intent, facts, request, offered.needs), intent, facts, reports)
        for seat in seats.values()
        for name in formats
    )
    return tuple(sorted(judged, key=_cheapest_first))


def _gated(found: Candidate, intent: Intent, facts: CheckpointFacts, reports: Reports) -> Candidate:
    """Refuse a quantised format that `intent` does not name unless a report about it is within tolerance."""
    if found.rejection is not None or found.shape.precision == facts.dtype or intent.precision != ANY:
        return found
    rejection, message = objection(intent, key_of(intent, facts, found.shape), reports)
    return replace(found, rejection=rejection or None, message=message)


def _profile_name(sku: str, resource: str) -> str | None:
    if resource == resource_name(WHOLE_GPU):
        return WHOLE_GPU
    profile = catalog.profile_of_resource(sku, resource)
    return profile.name if profile else None


def _cheapest_first(candidate: Candidate) -> tuple[bool, float, int, Shape]:
    """At one price the larger memory, then the name: never the order of reading."""
    return candidate.rejection is not None, candidate.price_per_hour, -candidate.memory_mib, candidate.shape


def _judge(
    seat: Seat,
    precision: str,
    intent: Intent,
    facts: CheckpointFacts,
    request: SizingRequest,
    needs: PodNeeds,
) -> Candidate:
    shape, per_hour = Shape(seat.sku, seat.profile, 1, precision), seat.price_per_hour
    rejection, message = None, ""
    share = catalog.share(seat.sku, seat.profile)
    if forbidden := _policy(seat, intent) or over_limit(intent.resources, needs, share, str(shape)):
        rejection, message = NOT_ALLOWED, forbidden
    elif not seat.memory_is_known:
        rejection, message = MEMORY_UNKNOWN, f"nobody has published how much memory {shape} has"
    elif per_hour is None:
        rejection = NO_PRICE
        message = f"no price is known for {shape.sku}; set one in the chart's value prices"
    if rejection is not None:
        return Candidate(shape, per_hour or 0.0, seat.memory_mib, rejection=rejection, message=message)
    seen = look(facts, shape, request)
    return Candidate(
        shape,
        per_hour or 0.0,
        seat.memory_mib,
        seen.tpot_ms,
        seen.ttft_ms,
        seen.missing,
        seen.rejection,
        seen.message,
    )


def _policy(seat: Seat, intent: Intent) -> str:
    """Return which rule of `spec.placement` forbids this shape, the empty string where none does."""
    if seat.sku in intent.denied_skus:
        return f"placement.deniedSKUs names {seat.sku}"
    if intent.allowed_skus and seat.sku not in intent.allowed_skus:
        return f"placement.allowedSKUs does not name {seat.sku}"
    if intent.mig is MIGPolicy.FORBIDDEN and seat.is_slice:
        return "placement.mig is Forbidden"
    if intent.mig is MIGPolicy.REQUIRED and not seat.is_slice:
        return "placement.mig is Required"
    return ""
