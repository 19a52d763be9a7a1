"""Demands as the solver reads them: what may be chosen, what runs now, what moving it costs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, ShapeKey, Spread
from tangram.packing.geometry.layouts import maximal_multisets
from tangram.packing.problem.mix import UNMET, Crowded, MixLimits, mix_limits_of
from tangram.packing.problem.statement import (
    ANY_SKU,
    DEFAULT_START_H,
    Demand,
    GPUState,
    Instance,
    Problem,
)

MONEY = 100_000  # solver units per USD: a hundredth of a millicent is below every price


@dataclass(frozen=True, slots=True, order=True)
class RunningReplica:
    """One replica that runs now."""

    owner: str
    shape: ShapeKey
    gpus: tuple[str, ...]  # more than one: a gang
    start: int
    pinned: bool  # it stays where it is
    cost: int  # of moving it, in solver units
    gang: str | None = None
    is_priced: bool = False  # the cost of moving it is stated, not derived from its start time
    never_surplus: bool = False  # pinned, and its owner cannot be served without it


@dataclass(frozen=True, slots=True)
class MixColumn:
    """One mix of one demand, as a whole."""

    parts: tuple[tuple[ShapeKey, int], ...]
    price: int  # per hour, in solver units
    unmet: int
    stops: int = 0  # running replicas that stop although the demand lacks some
    cost: int = 0  # beside the GPUs, over the horizon, in solver units

    @property
    def replicas(self) -> int:
        """How many replicas it holds, of every shape."""
        return sum(count for _, count in self.parts)


@dataclass(frozen=True, slots=True)
class PreparedDemand:
    """One demand."""

    id: str
    priority: int
    held: tuple[RunningReplica, ...]
    spread: Spread
    unit: Mapping[ShapeKey, int]  # cost of starting one more replica, in solver units
    # A demand has a mix, or slices, or columns in their place: a few to choose from, or the settled one.
    limits: MixLimits | None = None
    slices: tuple[tuple[tuple[ShapeKey, ...], int], ...] = ()  # (shapes that would do, count) per part
    columns: tuple[MixColumn, ...] = ()
    least_unmet: int = 0  # less cannot be left unserved, whatever room there is
    is_foreign: bool = False  # not a demand of the problem: movable instances of an owner without one
    pools: tuple[str, ...] = ()  # in which it may stand; none: anywhere
    pays_move_cost: bool = False  # for another shape: what the old replica's move costs, not the new start

    @property
    def has_places(self) -> bool:
        """Whether it matters where its replicas stand."""
        return bool(self.pools) or self.spread.node < 1 or self.spread.zone < 1

    @property
    def is_request(self) -> bool:
        """Whether it asks for slices, any of which may be left out."""
        return not self.columns and self.limits is None

    @property
    def running(self) -> dict[ShapeKey, int]:
        """How many replicas of each shape run now."""
        return dict(Counter(held.shape for held in self.held))

    @property
    def pinned(self) -> Counter[ShapeKey]:
        """How many replicas of each shape run now and must not move."""
        return Counter(held.shape for held in self.held if held.pinned)

    @property
    def shapes(self) -> tuple[ShapeKey, ...]:
        """Every shape that this demand may take or holds, sorted."""
        all_shapes = {shape for column in self.columns for shape, _ in column.parts}
        all_shapes |= {shape for shapes, _ in self.slices for shape in shapes}
        all_shapes |= set(self.limits.shapes) if self.limits is not None else set()
        return tuple(sorted(all_shapes | {held.shape for held in self.held}))


def least_unmet_of(demands: Iterable[PreparedDemand], priority: int | None) -> int:
    """Return what demands of a priority leave unserved at least, on any fleet; of no priority, 0."""
    return sum(demand.least_unmet for demand in demands if demand.priority == priority)


def column_of(demand: PreparedDemand, prices: Prices, counts: Mapping[ShapeKey, int]) -> MixColumn:
    """Return a mix of a demand as a whole."""
    assert demand.limits is not None  # noqa: S101 - asked for only of demands that have one
    parts = tuple(sorted((shape, n) for shape, n in counts.items() if n))
    price = sum(units(prices.required_replica_hour(*shape)) * n for shape, n in parts)
    unmet, stops = demand.limits.unmet(counts), len(demand.held) - demand.limits.serving(counts)
    return MixColumn(parts, price, unmet, max(0, stops) if unmet > demand.least_unmet else 0)


class Exchange:
    """What columns of one demand replace: what runs is counted once.

    What runs beyond what is wanted of its shape stops; what is wanted beyond what runs of its shape starts.
    As many as both stop and start are moves. A pinned replica stops only as surplus: that is no move.
    """

    def __init__(self, demand: PreparedDemand) -> None:
        self._pays_move_cost = demand.pays_move_cost
        self._unit = demand.unit
        self._running, self._pinned = demand.running, demand.pinned
        self._movable = sum(not held.pinned for held in demand.held)

    def of(self, parts: Iterable[tuple[ShapeKey, int]]) -> tuple[int, int]:
        """Return how many move to another shape, and what starting costs: the cheapest, as many as move.

        Where a replica that moves pays its move cost, starting costs nothing.
        """
        stopped, starting = self._movable, []
        for shape, n in parts:
            last = min(n, self._running.get(shape, 0))
            stopped -= last - min(n, self._pinned[shape])
            if n > last:
                starting.append((self._unit[shape], n - last))
        moves = min(stopped, sum(n for _, n in starting))
        if self._pays_move_cost or not moves:
            return moves, 0
        cost, left = 0, moves
        for unit, n in sorted(starting):
            cost += unit * min(n, left)
            left -= min(n, left)
        return moves, cost


def prices_of(problem: Problem) -> Prices:
    """Return the prices of `problem`. Where only pools have one, a shape costs as in the cheapest."""
    named = dict(problem.prices)
    by_sku: dict[str, float] = {}
    offers = [(g.sku, g.price_per_hour) for g in problem.gpus]
    offers += [(p.sku, p.price_per_gpu_hour) for p in problem.growable]
    for sku, price in offers:
        if sku not in named and price is not None:
            by_sku[sku] = min(price, by_sku.get(sku, price))
    return Prices(by_sku | named)


def units(usd: float) -> int:
    """Return solver units, rounded to the nearest."""
    return round(usd * MONEY)


def _held_replicas(problem: Problem, prices: Prices) -> list[RunningReplica]:
    """Return every replica that runs now and has an owner, sorted."""
    start_h = {demand.id: demand.start_h for demand in problem.demands}
    held: dict[str | tuple[str, int], list[tuple[GPUState, Instance]]] = {}  # by gang, or by place
    for gpu in problem.gpus:
        for instance in gpu.instances:
            if instance.owner is not None:
                held.setdefault(instance.gang or (gpu.id, instance.start), []).append((gpu, instance))
    return sorted(_running(pairs, prices, start_h) for pairs in held.values())


def _running(
    pairs: list[tuple[GPUState, Instance]], prices: Prices, start_h: Mapping[str, float]
) -> RunningReplica:
    """Return the replica on a slice, or on the whole GPUs of a gang."""
    gpus, instances = zip(*pairs, strict=True)
    first, owner = instances[0], instances[0].owner or ""
    shape = ShapeKey(gpus[0].sku, first.profile, len(gpus))
    default = prices.required_replica_hour(*shape) * start_h.get(owner, DEFAULT_START_H) / len(gpus)
    cost = sum(default if i.move_cost is None else i.move_cost for i in instances)
    pinned = not all(i.movable for i in instances)
    ids = tuple(sorted(gpu.id for gpu in gpus))
    priced = any(i.move_cost is not None for i in instances)
    return RunningReplica(owner, shape, ids, first.start, pinned, units(cost), first.gang, priced)


def prepared_demands(problem: Problem, prices: Prices) -> tuple[PreparedDemand, ...]:
    """Return every demand, and one for each foreign owner whose instances may be moved, sorted by id."""
    by_owner: dict[str, list[RunningReplica]] = {}
    for replica in _held_replicas(problem, prices):
        by_owner.setdefault(replica.owner, []).append(replica)
    room = _FleetCapacity(problem)
    demands = [_prepared(problem, prices, d, tuple(by_owner.pop(d.id, ())), room) for d in problem.demands]
    top = max((demand.priority for demand in problem.demands), default=0) + 1
    for owner, replicas in by_owner.items():
        movable = tuple(replica for replica in replicas if not replica.pinned)
        if movable:
            demands.append(_foreign(owner, movable, top))
    return tuple(sorted(demands, key=lambda demand: demand.id))


class _FleetCapacity:
    """The most replicas of a shape that a fleet could hold if it were empty, nodes that may come included."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._gpus = Counter(gpu.sku for gpu in problem.gpus)
        for pool in problem.growable:
            self._gpus[pool.sku] += pool.node_size * pool.max_nodes
        self._found: dict[ShapeKey, int] = {}
        self._places = {gpu.id: (gpu.node, gpu.zone) for gpu in problem.gpus}

    def __call__(self, shape: ShapeKey) -> int:
        if shape not in self._found:
            self._found[shape] = self._gpus[shape.sku] * self._on_one(shape) // shape.gpus
        return self._found[shape]

    def crowded(self, held: Iterable[RunningReplica]) -> Crowded:
        """Return the most replicas on one node, and in one zone."""
        places = [self._places[replica.gpus[0]] for replica in held]
        nodes, zones = Counter(node for node, _ in places), Counter(zone for _, zone in places)
        return max(nodes.values(), default=0), max(zones.values(), default=0)

    def _on_one(self, shape: ShapeKey) -> int:
        board = None if shape.profile == WHOLE_GPU else self._problem.board(shape.sku)
        if board is None:
            return 1
        return max((dict(multiset).get(shape.profile, 0) for multiset in maximal_multisets(board)), default=0)


def _prepared(
    problem: Problem,
    prices: Prices,
    demand: Demand,
    held: tuple[RunningReplica, ...],
    room: _FleetCapacity,
) -> PreparedDemand:
    slices = tuple((alternatives(problem, part.shape), part.count) for part in demand.slices)
    columns = _allotted(demand, len(held))
    shapes = {replica.shape for replica in held} | {offer.shape for offer in demand.offers}
    shapes |= {shape for alike, _ in slices for shape in alike}
    shapes |= {shape for column in columns for shape, _ in column.parts}
    pinned = Counter(replica.shape for replica in held if replica.pinned)
    limits = None if slices or columns else _limits(demand, held, pinned, prices, room)
    if limits is not None and not limits.items:  # no choice
        columns, limits = (MixColumn((), 0, limits.unmet({})),), None
    return PreparedDemand(
        demand.id,
        demand.priority,
        _never_surplus(held, pinned, slices),
        demand.spread,
        unit={
            shape: units(prices.required_replica_hour(*shape) * demand.start_h) for shape in sorted(shapes)
        },
        limits=limits,
        columns=columns,
        slices=slices,
        least_unmet=min((column.unmet for column in columns), default=0)
        if limits is None
        else limits.least_unmet,
        pools=demand.pools,
        pays_move_cost=bool(slices) or any(replica.is_priced for replica in held),
    )


def _limits(
    demand: Demand,
    held: tuple[RunningReplica, ...],
    pinned: Mapping[ShapeKey, int],
    prices: Prices,
    room: _FleetCapacity,
) -> MixLimits:
    hourly = {shape: prices.required_replica_hour(*shape) for shape in pinned}
    running = Counter(replica.shape for replica in held)
    return mix_limits_of(demand, running, pinned, hourly, room, room.crowded(held))


def _allotted(demand: Demand, running: int) -> tuple[MixColumn, ...]:
    """Return the allotments of a demand, `running` replicas of which run now."""
    columns = list[MixColumn]()
    least = min((allotment.unmet for allotment in demand.allotments), default=0.0)
    for allotment in demand.allotments:
        parts = tuple((part.shape, part.count) for part in allotment.parts)
        stops = running - sum(part.count for part in allotment.parts) if allotment.unmet > least else 0
        price, unmet = units(allotment.price_per_hour), round(allotment.unmet * UNMET)
        columns.append(MixColumn(parts, price, unmet, max(0, stops), units(allotment.cost)))
    return tuple(columns)


def _never_surplus(
    held: tuple[RunningReplica, ...],
    pinned: Mapping[ShapeKey, int],
    slices: tuple[tuple[tuple[ShapeKey, ...], int], ...],
) -> tuple[RunningReplica, ...]:
    """Mark the pinned replicas that a request needs whatever is chosen; others may prove surplus."""
    whole = [shapes for shapes, count in slices if 0 < sum(pinned[shape] for shape in shapes) <= count]
    needed = {shape for shapes in whole for shape in shapes}
    return tuple(replace(r, never_surplus=r.pinned and r.shape in needed) for r in held)


def _foreign(owner: str, held: tuple[RunningReplica, ...], priority: int) -> PreparedDemand:
    """Instances of an owner that the problem does not name: all are kept, wherever that is cheapest."""
    counts = Counter(replica.shape for replica in held)
    unit: dict[ShapeKey, int] = {}
    for replica in held:
        unit[replica.shape] = max(unit.get(replica.shape, 0), replica.cost)  # of one shape: never paid
    slices = tuple(((shape,), count) for shape, count in sorted(counts.items()))
    return PreparedDemand(
        owner, priority, held, Spread(), unit, slices=slices, is_foreign=True, pays_move_cost=True
    )


def alternatives(problem: Problem, shape: ShapeKey) -> tuple[ShapeKey, ...]:
    """Return a shape of every SKU of `problem` that has it, where its SKU is open; else the shape."""
    if shape.sku != ANY_SKU:
        return (shape,)
    whole, boards = shape.profile == WHOLE_GPU, {sku: problem.board(sku) for sku in problem.skus}
    skus = (sku for sku, board in boards.items() if whole or (board and shape.profile in board.profiles))
    return tuple(shape._replace(sku=sku) for sku in skus)
