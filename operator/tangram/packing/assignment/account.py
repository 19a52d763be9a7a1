"""The packing of an assignment, counted from the GPUs and not from the model: moves, dollars, idle GPUs."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from tangram.catalog import share
from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing.assignment.assign import Assignment
from tangram.packing.assignment.sites import VacantSite, gang_of, shapes_at
from tangram.packing.model.gpu_classes import PreparedFleet
from tangram.packing.problem.mix import UNMET
from tangram.packing.problem.prepared import MONEY, MixColumn, PreparedDemand, RunningReplica
from tangram.packing.problem.result import Choice, Move, Packing, Site, Unmet
from tangram.packing.problem.statement import GPUState, Part


def account(fleet: PreparedFleet, chosen: Mapping[str, MixColumn], assignment: Assignment) -> Packing:
    """Return the packing of `assignment` without bounds; `chosen`: the mix of each demand."""
    left = Counter(dict(fleet.problem.move_budgets))
    moves = tuple(move for demand in fleet.demands for move in _moves(fleet, demand, assignment, left))
    move_cost = sum(move.cost for move in moves)
    cost = _cost_per_hour(fleet, assignment)
    allotted = sum(column.cost for column in chosen.values()) / MONEY
    choices = [_choice(fleet, d, chosen[d.id], assignment) for d in fleet.demands if not d.is_foreign]
    return Packing(
        status="FALLBACK",
        objective=cost * fleet.problem.horizon_h + move_cost + allotted,
        bound=0.0,
        gap=0.0,
        cost_per_hour=cost,
        idle_per_hour=_idle(fleet, assignment),
        move_cost=move_cost,
        stages=(),
        choices=tuple(choices),
        layouts=assignment.layouts,
        moves=moves,
        unmet=_unmet(fleet, assignment, choices, moves),
        grown=_grown(fleet, assignment),
    )


def _cost_per_hour(fleet: PreparedFleet, assignment: Assignment) -> float:
    """Return USD per hour of GPUs in use, and of all on new nodes."""
    prices = fleet.gpu_prices
    new = sum(gpu.price_per_hour or 0.0 for gpu in assignment.new_gpus.values())
    return new + sum(prices[g.id] for g in assignment.layouts if g.in_use and g.id in prices) / MONEY


def _grown(fleet: PreparedFleet, assignment: Assignment) -> tuple[tuple[str, int], ...]:
    """Return the new nodes of each pool."""
    gpus_by_pool = Counter(gpu.pool for gpu in assignment.new_gpus.values())
    sizes = {pool.name: pool.node_size for pool in fleet.problem.growable}
    return tuple((pool, gpus // sizes[pool]) for pool, gpus in gpus_by_pool.items())


def _moves(
    fleet: PreparedFleet, demand: PreparedDemand, assignment: Assignment, left: Counter[str]
) -> list[Move]:
    """Pair what stops with what starts: of one shape first, then of others, the cheapest. The rest shrinks.

    A replica may move to where it was: mig-manager clears a GPU before it makes the same slice again. Where
    some only stop, those count as moved whose pool has most moves `left`; shapes that stop in few pools
    choose first. A pinned replica stops as surplus; only beside a new one of its own shape has it moved,
    which no plan may do and `solve` looks for.
    """
    stopped, started = _stopped(demand, assignment), _started(demand, assignment)
    moves: list[Move] = []
    pools = {shape: len({fleet.guarded.get(r.gpus[0]) for r in rs}) for shape, rs in stopped.items()}
    for shape in sorted(stopped, key=lambda shape: (pools[shape], shape)):
        spots = sorted(started.pop(shape, ()), key=lambda spot: (spot.gpus, spot.start))
        leaving = _leaving(fleet, stopped[shape], len(spots), left)
        moves += [_move(demand, held, spot, held.cost) for held, spot in zip(leaving, spots, strict=False)]
        started[shape] = spots[len(leaving) :]
        moved = set(leaving)
        stopped[shape] = [held for held in stopped[shape] if held not in moved]
    movable = sorted((h for replicas in stopped.values() for h in replicas if not h.pinned), key=_cheap)
    new = sorted(chain(*started.values()), key=lambda s: (demand.unit[s.shape], s.shape, s.gpus, s.start))
    for held, spot in zip(_leaving(fleet, movable, len(new), left), new, strict=False):
        cost = held.cost if demand.pays_move_cost else demand.unit[spot.shape]
        moves.append(_move(demand, held, spot, cost))
    return moves


def _stopped(demand: PreparedDemand, assignment: Assignment) -> dict[ShapeKey, list[RunningReplica]]:
    """Return the replicas that do not go on where they are, the cheapest first, pinned ones last."""
    ending = (h for h in demand.held if (h.shape, h.gpus, h.start) not in assignment.kept)
    stopped: dict[ShapeKey, list[RunningReplica]] = {}
    for held in sorted(ending, key=lambda h: (h.pinned, *_cheap(h))):
        stopped.setdefault(held.shape, []).append(held)
    return stopped


def _started(demand: PreparedDemand, assignment: Assignment) -> dict[ShapeKey, list[VacantSite]]:
    """Return the sites on which replicas start."""
    started: dict[ShapeKey, list[VacantSite]] = {}
    for spot in assignment.sites.get(demand.id, ()):
        if (spot.shape, spot.gpus, spot.start) not in assignment.kept:
            started.setdefault(spot.shape, []).append(spot)
    return started


def _leaving(
    fleet: PreparedFleet, stopped: list[RunningReplica], count: int, left: Counter[str]
) -> list[RunningReplica]:
    """Return so many of `stopped` at most, each from the pool that has most moves left when it is chosen."""
    if not fleet.guarded:
        return stopped[:count]
    rest, chosen = list(stopped), list[RunningReplica]()
    while rest and len(chosen) < count:
        held = min(rest, key=lambda h: (h.pinned, _scarcity(fleet, h, left)))  # the first of equals
        rest.remove(held)
        chosen.append(held)
        left[fleet.guarded.get(held.gpus[0], "")] -= 1
    return chosen


def _scarcity(fleet: PreparedFleet, held: RunningReplica, left: Counter[str]) -> float:
    pool = fleet.guarded.get(held.gpus[0])
    return -math.inf if pool is None else -left[pool]


def _cheap(held: RunningReplica) -> tuple[int, ShapeKey, tuple[str, ...], int]:
    return held.cost, held.shape, held.gpus, held.start


def _move(demand: PreparedDemand, held: RunningReplica, spot: VacantSite, cost: float) -> Move:
    return Move(
        demand.id,
        Site(held.gpus[0], held.shape.profile, held.start, held.gang),
        Site(spot.gpus[0], spot.shape.profile, spot.start, gang_of(demand.id, spot)),
        cost / MONEY,
    )


def _idle(fleet: PreparedFleet, assignment: Assignment) -> float:
    """USD per hour of what no replica stands on, of GPUs in use and of all on new nodes.

    Slices that share a GPU may claim more than all of it: one's compute, another's memory. Then none is idle.
    """
    gpus = {gpu.id: gpu for gpu in fleet.problem.gpus} | dict(assignment.new_gpus)
    total = 0.0
    for layout in assignment.layouts:
        if layout.in_use or layout.id in assignment.new_gpus:
            gpu = gpus[layout.id]
            used = [ShapeKey(gpu.sku, placed.profile) for placed in layout.instances if placed.owner]
            whole = any(shape.profile == WHOLE_GPU for shape in used)
            used_share = 1.0 if whole else sum(share(*shape) for shape in used)
            total += fleet.problem.price(gpu) * max(0.0, 1.0 - used_share)
    return total


def _choice(
    fleet: PreparedFleet, demand: PreparedDemand, column: MixColumn, assignment: Assignment
) -> Choice:
    placed = shapes_at(assignment.sites.get(demand.id, ()))
    parts = tuple(Part(s.sku, s.profile, s.gpus, n) for s, n in sorted(placed.items()))
    price = sum(fleet.prices.required_replica_hour(*shape) * n for shape, n in placed.items())
    if demand.is_request:
        total = sum(count for _, count in demand.slices)
        unmet = (total - sum(placed.values())) / total if total else 0.0
        return Choice(demand.id, parts, price, unmet)
    unmet = column.unmet / UNMET
    if dict(column.parts) != dict(placed):  # spread left no room for some, or idle GPUs had room for more
        if demand.limits is not None:
            unmet = demand.limits.unmet(placed) / UNMET
        else:
            unmet = 1 - (1 - unmet) * sum(placed.values()) / max(1, column.replicas)
    else:
        price = column.price / MONEY
    return Choice(demand.id, parts, price, unmet)


def _spent(fleet: PreparedFleet, moves: tuple[Move, ...]) -> bool:
    """Whether some move budget allows no further move."""
    problem = fleet.problem
    away = Counter(fleet.guarded.get(move.source.gpu, "") for move in moves)
    return (problem.move_budget is not None and len(moves) >= problem.move_budget) or any(
        away[pool] >= budget for pool, budget in problem.move_budgets
    )


@dataclass(frozen=True, slots=True)
class _Occupancy:
    """What stands where, as far as it matters to a demand that goes short."""

    gpus: tuple[GPUState, ...]  # new ones, too
    owners: Mapping[str, frozenset[str]]  # of what stands on a GPU when the plan is carried out
    pinned: Mapping[str, frozenset[str]]  # those of them that must not move
    demands: Mapping[str, PreparedDemand]
    spent: bool  # a move budget allows no further move

    @classmethod
    def of(cls, fleet: PreparedFleet, assignment: Assignment, *, spent: bool) -> "_Occupancy":
        """Return it for a plan."""
        gpus = (*fleet.problem.gpus, *assignment.new_gpus.values())
        owners = {
            layout.id: frozenset(placed.owner for placed in layout.instances if placed.owner is not None)
            for layout in assignment.layouts
        }
        fixed = {
            gpu.id: frozenset(i.owner for i in gpu.instances if i.owner is not None and not i.movable)
            for gpu in fleet.problem.gpus
        }
        pinned = {gpu.id: fixed.get(gpu.id, frozenset()) & owners[gpu.id] for gpu in gpus}
        return cls(gpus, owners, pinned, {demand.id: demand for demand in fleet.demands}, spent)

    def offering(self, demand: PreparedDemand) -> list[str]:
        """Return the GPUs on which a demand could stand if nothing else stood there, by id."""
        shapes: dict[str, list[ShapeKey]] = {}
        for shape in demand.shapes:
            shapes.setdefault(shape.sku, []).append(shape)
        return [
            gpu.id
            for gpu in self.gpus
            if (not demand.pools or gpu.pool in demand.pools)
            and any(_offers(gpu, shape) for shape in shapes.get(gpu.sku, ()))
        ]


def _offers(gpu: GPUState, shape: ShapeKey) -> bool:
    """Whether a GPU of its SKU is, has or may be cut into what one replica stands on."""
    if shape.profile == WHOLE_GPU:
        return gpu.convertible or not gpu.mig_enabled
    may_cut = gpu.convertible or (gpu.mig_enabled and gpu.cuttable)
    return may_cut or any(instance.profile == shape.profile for instance in gpu.instances)


def _unmet(
    fleet: PreparedFleet, assignment: Assignment, choices: Iterable[Choice], moves: tuple[Move, ...]
) -> tuple[Unmet, ...]:
    """Return the demands that go short, each with the reason."""
    shares = {choice.demand: choice.unmet for choice in choices if choice.unmet > 0}
    if not shares:
        return ()
    room = _Occupancy.of(fleet, assignment, spent=_spent(fleet, moves))
    return tuple(
        Unmet(demand.id, demand.priority, shares[demand.id], _unmet_reason(demand, assignment, room))
        for demand in fleet.demands
        if demand.id in shares
    )


def _unmet_reason(demand: PreparedDemand, assignment: Assignment, room: _Occupancy) -> str:
    """Return why a demand goes short: only what the plan itself shows."""
    if demand.least_unmet:
        return "no mix of replicas within its budget and limits serves it whole"
    where, spread = room.offering(demand), min(demand.spread.node, demand.spread.zone) < 1
    if not where:
        return "no GPU has what it asks for, and none may be cut for it"
    crowded = any(owner == demand.id for owner, _ in assignment.short)
    if spread and (crowded or not all(room.owners[gpu] for gpu in where)):
        return "spread leaves no room on other nodes"
    before = _before(demand, where, room)
    if before or room.spent:
        after, within = f" after {before}" * bool(before), " within the move budget" * room.spent
        return f"no room left{after}{within}"
    total = sum(count for _, count in demand.slices)
    placed = f": {len(assignment.sites.get(demand.id, ()))} of {total} are placed"
    return f"no room left{placed if demand.is_request else ' for all of it'}"


def _before(demand: PreparedDemand, where: list[str], room: _Occupancy) -> str:
    """Return what stands on the GPUs `where` and has precedence over a demand, in words."""
    instances = [
        room.demands[name] for gpu in where for name in room.owners[gpu] - {demand.id} if name in room.demands
    ]
    kinds = {
        "demands of higher priority": any(
            i.priority > demand.priority and not i.is_foreign for i in instances
        ),
        "what others run": any(instance.is_foreign for instance in instances),
        "what must not move": any(room.pinned[gpu] - {demand.id} for gpu in where),
    }
    *first, last = [text for text, holds in kinds.items() if holds] or [""]
    return " and ".join(filter(None, (", ".join(first), last)))
