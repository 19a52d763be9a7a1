"""Demands as the solver reads them: bundles that may be chosen, what runs now, what moving it costs."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tangram.fleet import WHOLE_GPU, Spread
from tangram.packing.geometry.layouts import maximal_multisets
from tangram.packing.problem.mix import UNMET, Mix, mix_of
from tangram.packing.problem.statement import (
    ANY_SKU,
    DEFAULT_START_H,
    Demand,
    GPUState,
    Part,
    Problem,
    ShapeKey,
    price_of,
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
    said: bool = False  # somebody said what moving it costs
    fixed: bool = False  # pinned, and no way to serve its owner does without it


@dataclass(frozen=True, slots=True)
class Option:
    """One bundle that may be chosen."""

    index: int  # into the demand's bundles; -1: one that it did not bring, empty or what must stay
    parts: tuple[tuple[ShapeKey, int], ...]
    price: int  # per hour, in solver units
    unmet: int

    @property
    def replicas(self) -> int:
        """How many replicas it holds, of every shape."""
        return sum(count for _, count in self.parts)


@dataclass(frozen=True, slots=True)
class PreparedDemand:
    """One demand."""

    id: str
    priority: int
    options: tuple[Option, ...]  # of a divisible demand: none
    divisible: tuple[tuple[tuple[ShapeKey, ...], int], ...]  # (shapes that would do, count) per part
    held: tuple[RunningReplica, ...]
    spread: Spread
    unit: Mapping[ShapeKey, int]  # cost of starting one more replica, in solver units
    hidden: bool = False  # not a demand of the problem: somebody's movable instances
    pools: tuple[str, ...] = ()  # in which it may stand; none: anywhere
    # Who gets another shape pays its own cost of moving, as somebody said. Else: the start of the new one.
    own: bool = False
    mix: Mix | None = None  # any counts of its shapes; a demand has options, or a mix, or is divisible
    floor: int | None = None  # what the best mix leaves unserved, where options are some of all mixes

    @property
    def has_places(self) -> bool:
        """Whether it matters where its replicas stand."""
        return bool(self.pools) or self.spread.node < 1 or self.spread.zone < 1

    @property
    def is_divisible(self) -> bool:
        """Whether single replicas may be left out."""
        return not self.options and self.mix is None

    @property
    def least_unmet(self) -> int:
        """What the best bundle leaves unserved; 0 for a divisible demand."""
        if self.floor is not None:
            return self.floor
        if self.mix is not None:
            return self.mix.least_unmet
        return min((option.unmet for option in self.options), default=0)

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
        found = {shape for option in self.options for shape, _ in option.parts}
        found |= {shape for shapes, _ in self.divisible for shape in shapes}
        found |= set(self.mix.shapes) if self.mix is not None else set()
        return tuple(sorted(found | {held.shape for held in self.held}))


def least_unmet_of(demands: Iterable[PreparedDemand], priority: int | None) -> int:
    """Return what demands of a priority leave unserved at least, on any fleet; of no priority, 0."""
    return sum(demand.least_unmet for demand in demands if demand.priority == priority)


def option_of(demand: PreparedDemand, prices: "ShapePrices", counts: Mapping[ShapeKey, int]) -> Option:
    """Return a mix of a demand as one bundle."""
    assert demand.mix is not None  # noqa: S101 - asked for only of demands that have one
    parts = tuple(sorted((shape, n) for shape, n in counts.items() if n))
    price = sum(units(prices.shape_hour(shape)) * n for shape, n in parts)
    return Option(-1, parts, price, demand.mix.unmet(counts))


class Exchange:
    """What bundles of one demand replace: what runs is counted once.

    What runs beyond what is wanted of its shape stops; what is wanted beyond what runs of its shape starts.
    As many as both stop and start are moves. A pinned replica stops only as surplus: that is no move.
    """

    def __init__(self, demand: PreparedDemand) -> None:
        self._own = demand.own
        self._unit = demand.unit
        self._running, self._pinned = demand.running, demand.pinned
        self._movable = sum(not held.pinned for held in demand.held)

    def of(self, parts: Iterable[tuple[ShapeKey, int]]) -> tuple[int, int]:
        """Return how many move to another shape, and what starting costs: the cheapest, as many as move.

        Where who moves pays its own cost, starting costs nothing.
        """
        stopped, starting = self._movable, []
        for shape, n in parts:
            last = min(n, self._running.get(shape, 0))
            stopped -= last - min(n, self._pinned[shape])
            if n > last:
                starting.append((self._unit[shape], n - last))
        moves = min(stopped, sum(n for _, n in starting))
        if self._own or not moves:
            return moves, 0
        cost, left = 0, moves
        for unit, n in sorted(starting):
            cost += unit * min(n, left)
            left -= min(n, left)
        return moves, cost


@dataclass(frozen=True, slots=True)
class ShapePrices:
    """Prices of what replicas stand on, looked up once."""

    problem: Problem
    by_sku: Mapping[str, float]  # USD per GPU-hour, for slices and gangs that stand nowhere yet

    def gpu_hour(self, sku: str) -> float:
        """Return USD per GPU-hour. Raises `InputError` for a SKU without a price."""
        return self.by_sku[sku] if sku in self.by_sku else price_of(self.problem.prices, sku)

    def shape_hour(self, shape: ShapeKey) -> float:
        """Return USD per hour of one replica: dominant share of the GPU, or the GPUs of its gang."""
        return self.gpu_hour(shape.sku) * self.share(shape)

    def share(self, shape: ShapeKey) -> float:
        """Return how many GPUs one replica uses up."""
        if shape.profile == WHOLE_GPU:
            return float(shape.tensor_parallel)
        board = self.problem.board(shape.sku)
        option = next((o for o in board.options if o.profile == shape.profile), None) if board else None
        if board is None or option is None:
            return 1.0
        return max(option.compute / board.compute_slices, option.mask.bit_count() / board.memory_slices)


def prices_of(problem: Problem) -> ShapePrices:
    """Return the prices of `problem`. Where only pools have one, a shape costs as in the cheapest."""
    named = dict(problem.prices)
    found: dict[str, float] = {}
    offers = [(g.sku, g.price_per_hour) for g in problem.gpus]
    offers += [(p.sku, p.price_per_gpu_hour) for p in problem.growable]
    for sku, price in offers:
        if sku not in named and price is not None:
            found[sku] = min(price, found.get(sku, price))
    return ShapePrices(problem, found | named)


def units(usd: float) -> int:
    """Return solver units, rounded to the nearest."""
    return round(usd * MONEY)


def held_replicas(problem: Problem, prices: ShapePrices) -> tuple[RunningReplica, ...]:
    """Return every replica that runs now and has an owner, sorted."""
    start_h = {demand.id: demand.start_h for demand in problem.demands}
    found: list[RunningReplica] = []
    gangs: dict[str, list[GPUState]] = {}
    for gpu in problem.gpus:
        for instance in gpu.instances:
            if instance.owner is None:
                continue
            if instance.profile == WHOLE_GPU:
                gangs.setdefault(instance.gang or f"\0{gpu.id}", []).append(gpu)
                continue
            shape = ShapeKey(gpu.sku, instance.profile)
            hours = start_h.get(instance.owner, DEFAULT_START_H)
            cost = prices.shape_hour(shape) * hours if instance.move_cost is None else instance.move_cost
            site, said = (gpu.id,), instance.move_cost is not None
            pinned = not instance.movable
            found.append(
                RunningReplica(instance.owner, shape, site, instance.start, pinned, units(cost), said=said)
            )
    found += [_gang(gpus, prices, start_h) for _, gpus in sorted(gangs.items())]
    return tuple(sorted(found, key=_site))


def _site(held: RunningReplica) -> tuple[str, ShapeKey, tuple[str, ...], int]:
    return held.owner, held.shape, held.gpus, held.start


def _gang(gpus: list[GPUState], prices: ShapePrices, start_h: Mapping[str, float]) -> RunningReplica:
    instances = [gpu.instances[0] for gpu in gpus]
    owner = instances[0].owner or ""
    shape = ShapeKey(gpus[0].sku, WHOLE_GPU, len(gpus))
    default = prices.shape_hour(shape) * start_h.get(owner, DEFAULT_START_H) / len(gpus)
    cost = sum(default if i.move_cost is None else i.move_cost for i in instances)
    pinned = not all(i.movable for i in instances)
    ids = tuple(sorted(gpu.id for gpu in gpus))
    said = any(i.move_cost is not None for i in instances)
    return RunningReplica(owner, shape, ids, 0, pinned, units(cost), instances[0].gang, said)


def prepared_demands(
    problem: Problem, prices: ShapePrices, held: Iterable[RunningReplica]
) -> tuple[PreparedDemand, ...]:
    """Return every demand, and one for each stranger whose instances may be moved, sorted by id."""
    by_owner: dict[str, list[RunningReplica]] = {}
    for replica in held:
        by_owner.setdefault(replica.owner, []).append(replica)
    room = _FleetCapacity(problem)
    found = [_prepared(problem, prices, d, tuple(by_owner.pop(d.id, ())), room) for d in problem.demands]
    top = max((demand.priority for demand in problem.demands), default=0) + 1
    for owner, theirs in by_owner.items():
        movable = tuple(replica for replica in theirs if not replica.pinned)
        if movable:
            found.append(_stranger(owner, movable, top))
    return tuple(sorted(found, key=lambda each: each.id))


class _FleetCapacity:
    """The most replicas of a shape that a fleet could hold if it were empty, nodes that may come included."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._gpus = Counter(gpu.sku for gpu in problem.gpus)
        for pool in problem.growable:
            self._gpus[pool.sku] += pool.node_size * pool.max_nodes
        self._found: dict[ShapeKey, int] = {}

    def __call__(self, shape: ShapeKey) -> int:
        if shape not in self._found:
            self._found[shape] = self._gpus[shape.sku] * self._on_one(shape) // shape.tensor_parallel
        return self._found[shape]

    def _on_one(self, shape: ShapeKey) -> int:
        board = None if shape.profile == WHOLE_GPU else self._problem.board(shape.sku)
        if board is None:
            return 1
        return max((dict(each).get(shape.profile, 0) for each in maximal_multisets(board)), default=0)


def _prepared(
    problem: Problem,
    prices: ShapePrices,
    demand: Demand,
    held: tuple[RunningReplica, ...],
    room: _FleetCapacity,
) -> PreparedDemand:
    shapes = {part.shape for bundle in demand.bundles for part in bundle.parts if part.sku != ANY_SKU}
    shapes |= {replica.shape for replica in held} | {offer.shape for offer in demand.offers}
    divisible: tuple[tuple[tuple[ShapeKey, ...], int], ...] = ()
    if demand.divisible:
        divisible = tuple((_alternatives(problem, part), part.count) for part in demand.bundles[0].parts)
        shapes |= {shape for alternatives, _ in divisible for shape in alternatives}
    unit = {shape: units(prices.shape_hour(shape) * demand.start_h) for shape in sorted(shapes)}
    options = () if demand.divisible or demand.offers else _options(demand, held, prices)
    pinned = Counter(replica.shape for replica in held if replica.pinned)
    hourly = {shape: prices.shape_hour(shape) for shape in pinned}
    running = Counter(replica.shape for replica in held)
    mix = mix_of(demand, running, pinned, hourly, room) if demand.offers else None
    spread, pools = demand.spread, demand.pools
    own = demand.divisible or any(replica.said for replica in held)
    held = _fixed(held, options, divisible)
    return PreparedDemand(
        demand.id, demand.priority, options, divisible, held, spread, unit, pools=pools, own=own, mix=mix
    )


def _fixed(
    held: tuple[RunningReplica, ...],
    options: tuple[Option, ...],
    divisible: tuple[tuple[tuple[ShapeKey, ...], int], ...],
) -> tuple[RunningReplica, ...]:
    """Mark the pinned replicas that no choice gives up; those of the other shapes may prove surplus."""
    pinned = Counter(replica.shape for replica in held if replica.pinned)
    if not pinned:
        return held
    if options:
        parts = [dict(option.parts) for option in options]
        needed = {shape for shape, n in pinned.items() if all(each.get(shape, 0) >= n for each in parts)}
    else:
        whole = [shapes for shapes, count in divisible if sum(pinned[shape] for shape in shapes) <= count]
        needed = {shape for shapes in whole for shape in shapes}
    return tuple(replace(each, fixed=each.pinned and each.shape in needed) for each in held)


def _stranger(owner: str, held: tuple[RunningReplica, ...], priority: int) -> PreparedDemand:
    """Instances of somebody whom the problem does not name: all are kept, wherever that is cheapest."""
    counts: dict[ShapeKey, int] = {}
    unit: dict[ShapeKey, int] = {}
    for replica in held:
        counts[replica.shape] = counts.get(replica.shape, 0) + 1
        unit[replica.shape] = max(unit.get(replica.shape, 0), replica.cost)  # of one shape: never paid
    divisible = tuple(((shape,), count) for shape, count in sorted(counts.items()))
    return PreparedDemand(owner, priority, (), divisible, held, Spread(), unit, hidden=True, own=True)


def _alternatives(problem: Problem, part: Part) -> tuple[ShapeKey, ...]:
    if part.sku != ANY_SKU:
        return (part.shape,)
    if part.profile == WHOLE_GPU:
        return tuple(ShapeKey(sku, WHOLE_GPU, part.tensor_parallel) for sku in problem.skus)
    boards = ((sku, problem.board(sku)) for sku in problem.skus)
    return tuple(ShapeKey(s, part.profile) for s, b in boards if b is not None and part.profile in b.profiles)


def _options(demand: Demand, held: tuple[RunningReplica, ...], prices: ShapePrices) -> tuple[Option, ...]:
    found = []
    for index, bundle in enumerate(demand.bundles):
        parts = tuple(sorted((part.shape, part.count) for part in bundle.parts if part.count))
        if demand.budget_per_hour is not None and bundle.price_per_hour > demand.budget_per_hour + 1e-9:
            continue
        unmet = math.ceil(bundle.unmet * UNMET - 1e-6)
        found.append(Option(index, parts, units(bundle.price_per_hour), unmet))
    if any(replica.pinned for replica in held):
        return _with_what_is_pinned(found, held, prices)
    if not any(not option.parts for option in found):
        found.append(Option(-1, (), 0, UNMET))
    return tuple(found)


def _with_what_is_pinned(
    offered: list[Option], held: tuple[RunningReplica, ...], prices: ShapePrices
) -> tuple[Option, ...]:
    """Return the options that keep every replica that must not move, or serve as well as any with fewer.

    What is pinned on a shape that no option has stays beside the others, and serves nothing. Where none of
    the options is sure to find room, what is pinned goes on alone.
    """
    running = Counter(replica.shape for replica in held)
    pinned = Counter(replica.shape for replica in held if replica.pinned)
    least = min((option.unmet for option in offered), default=UNMET)
    known = {shape for option in offered for shape, _ in option.parts}
    beside = tuple((shape, n) for shape, n in sorted(pinned.items()) if shape not in known)
    hourly = units(sum(prices.shape_hour(shape) * n for shape, n in beside))
    if beside:
        offered = offered + [
            replace(each, parts=tuple(sorted((*each.parts, *beside))), price=each.price + hourly)
            for each in offered
        ]

    def keeps(option: Option) -> bool:
        parts = Counter(dict(option.parts))
        return pinned <= parts or (option.unmet == least < UNMET and parts <= running)

    found = [option for option in offered if keeps(option)]
    if not any(Counter(dict(option.parts)) <= pinned for option in found):
        price = sum(prices.shape_hour(shape) * n for shape, n in pinned.items())
        found.append(Option(-1, tuple(sorted(pinned.items())), units(price), UNMET))
    return tuple(found)
