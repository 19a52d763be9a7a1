"""What an assignment costs, counted from the GPUs and not from the model: moves, dollars, what is idle."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tangram.fleet import WHOLE_GPU
from tangram.packing.assign import Assignment
from tangram.packing.columns import Fleet
from tangram.packing.problem import Part, ShapeKey
from tangram.packing.result import Choice, Move, Site, Unmet
from tangram.packing.wants import MONEY, UNMET, Held, Money, Want
from tangram.packing.work import Spot


@dataclass(frozen=True, slots=True)
class Account:
    """The bill."""

    cost_per_hour: float  # USD: GPUs in use and new nodes
    idle_per_hour: float  # USD: the part of it that no replica stands on
    move_cost: float  # USD
    objective: float  # USD over the horizon
    choices: tuple[Choice, ...]
    moves: tuple[Move, ...]
    unmet: tuple[Unmet, ...]


def account(
    fleet: Fleet,
    prices: Money,
    wants: tuple[Want, ...],
    chosen: Mapping[str, int],
    assignment: Assignment,
) -> Account:
    """Return the bill of `assignment`; `chosen`: the number of the option taken, by want."""
    left = Counter(dict(fleet.problem.move_budgets))
    moves = tuple(move for want in wants for move in _moves(fleet, want, assignment, left))
    move_cost = sum(move.cost for move in moves)
    cost = sum(gpu.price_per_hour or 0.0 for gpu in assignment.new_gpus.values())
    cost += sum(fleet.prices[g.id] for g in assignment.layouts if g.in_use and g.id in fleet.prices) / MONEY
    busy = _busy(fleet, prices, assignment)
    choices = [_choice(prices, want, chosen.get(want.id), assignment) for want in wants if not want.hidden]
    rivals = _rivals(fleet, wants, assignment) if any(choice.unmet > 0 for choice in choices) else None
    return Account(
        cost_per_hour=cost,
        idle_per_hour=max(0.0, cost - busy),
        move_cost=move_cost,
        objective=cost * fleet.problem.horizon_h + move_cost,
        choices=tuple(choices),
        moves=moves,
        unmet=tuple(
            Unmet(want.id, want.priority, choice.unmet, _why(want, assignment, rivals))
            for want, choice in zip((w for w in wants if not w.hidden), choices, strict=True)
            if choice.unmet > 0
        ),
    )


def _moves(fleet: Fleet, want: Want, assignment: Assignment, left: Counter[str]) -> list[Move]:
    """Pair what stops with what starts: of one shape first, then of others, the cheapest. The rest shrinks.

    A replica may move to where it was: mig-manager clears a GPU before it makes the same slice again. Where
    some only stop, those count as moved whose pool has most moves `left`. A pinned replica stops as surplus;
    only beside a new one of its own shape has it moved, which no plan may do and `solve` looks for.
    """
    sites = assignment.sites.get(want.id, ())
    gone = (h for h in want.held if (h.shape, h.gpus, h.start) not in assignment.kept)
    stopped = sorted(gone, key=lambda h: (h.pinned, _scarcity(fleet, h, left), *_cheap(h)))
    started = [s for s in sites if (s.shape, s.gpus, s.start) not in assignment.kept]
    started.sort(key=lambda spot: (want.unit[spot.shape], spot.shape, spot.gpus, spot.start))
    moves = []
    for held in list(stopped):
        twin = next((spot for spot in started if spot.shape == held.shape), None)
        if twin is not None:
            moves.append(_move(want, held, twin, held.cost))
            stopped.remove(held)
            started.remove(twin)
    movable = [held for held in stopped if not held.pinned]
    for held, spot in zip(movable, started, strict=False):
        moves.append(_move(want, held, spot, held.cost if want.own else want.unit[spot.shape]))
    left.subtract(fleet.guarded.get(move.source.gpu, "") for move in moves)
    return moves


def _scarcity(fleet: Fleet, held: Held, left: Counter[str]) -> float:
    pool = fleet.guarded.get(held.gpus[0])
    return -math.inf if pool is None else -left[pool]


def _cheap(held: Held) -> tuple[int, ShapeKey, tuple[str, ...], int]:
    return held.cost, held.shape, held.gpus, held.start


def _move(want: Want, held: Held, spot: Spot, cost: float) -> Move:
    return Move(
        want.id,
        Site(held.gpus[0], held.shape.profile, held.start, held.gang),
        Site(spot.gpus[0], spot.shape.profile, spot.start, _gang(want, spot)),
        cost / MONEY,
    )


def _gang(want: Want, spot: Spot) -> str | None:
    return f"{want.id}/{spot.gpus[0]}" if len(spot.gpus) > 1 else None


def _busy(fleet: Fleet, prices: Money, assignment: Assignment) -> float:
    """USD per hour of what replicas stand on, at the price of the GPU that they stand on."""
    gpus = {gpu.id: gpu for gpu in fleet.problem.gpus} | dict(assignment.new_gpus)
    total = 0.0
    for layout in assignment.layouts:
        gpu = gpus[layout.id]
        price = fleet.problem.price(gpu)
        for placed in layout.instances:
            if placed.owner is not None:
                whole = placed.profile == WHOLE_GPU
                total += price * (1.0 if whole else prices.share(ShapeKey(gpu.sku, placed.profile)))
    return total


def _choice(prices: Money, want: Want, chosen: int | None, assignment: Assignment) -> Choice:
    placed = Counter(spot.shape for spot in assignment.sites.get(want.id, ()))
    parts = tuple(Part(s.sku, s.profile, s.tensor_parallel, n) for s, n in sorted(placed.items()))
    price = sum(prices.shape_hour(shape) * n for shape, n in placed.items())
    if want.is_divisible or chosen is None:
        total = sum(count for _, count in want.divisible)
        unmet = (total - sum(placed.values())) / total if total else 0.0
        return Choice(want.id, 0, parts, price, unmet)
    option = want.options[chosen]
    unmet = option.unmet / UNMET
    if option.replicas > sum(placed.values()):  # spread left no room for some
        unmet = 1 - (1 - unmet) * sum(placed.values()) / option.replicas
    else:
        price = option.price / MONEY
    return Choice(want.id, option.index, parts, price, unmet)


@dataclass(frozen=True, slots=True)
class _Rivals:
    """Who takes room, by SKU."""

    wants: Mapping[str, tuple[Want, ...]]  # with replicas there
    pinned: Mapping[str, frozenset[str]]  # owners of what must not move


def _rivals(fleet: Fleet, wants: tuple[Want, ...], assignment: Assignment) -> _Rivals:
    there: dict[str, list[Want]] = {}
    for want in wants:
        for sku in sorted({spot.shape.sku for spot in assignment.sites.get(want.id, ())}):
            there.setdefault(sku, []).append(want)
    pinned: dict[str, set[str]] = {}
    for gpu in fleet.problem.gpus:
        owners = (i.owner for i in gpu.instances if not i.movable and i.owner is not None)
        pinned.setdefault(gpu.sku, set()).update(owners)
    return _Rivals(
        {sku: tuple(found) for sku, found in there.items()},
        {sku: frozenset(owners) for sku, owners in pinned.items()},
    )


def _why(want: Want, assignment: Assignment, rivals: _Rivals | None) -> str:
    if any(owner == want.id for owner, _ in assignment.short):
        return "spread leaves no room on other nodes"
    if want.least_unmet:
        return "no bundle within its budget serves it whole"
    assert rivals is not None  # noqa: S101 - somebody is unmet
    skus = {shape.sku for shape in want.shapes}
    there = [each for sku in skus for each in rivals.wants.get(sku, ()) if each.id != want.id]
    before = {
        "demands of higher priority": any(e.priority > want.priority and not e.hidden for e in there),
        "what others run": any(each.hidden for each in there),
        "what must not move": any(rivals.pinned.get(sku, frozenset()) - {want.id} for sku in skus),
    }
    *first, last = [text for text, holds in before.items() if holds] or [""]
    after = " and ".join(filter(None, (", ".join(first), last)))
    if after:
        return f"no room left after {after}"
    if not want.is_divisible:
        return "no room left for all of it"
    total = sum(count for _, count in want.divisible)
    return f"no room left: {len(assignment.sites.get(want.id, ()))} of {total} are placed"
