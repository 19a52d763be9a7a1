"""Replicas that run: which go on where they are, and what it costs to move the others.

Of one shape, as many as both run and are wanted either stay or move; each that moves has a cost. What
runs beyond that in one shape moves to what is wanted beyond it in another, as far as there is such a one: at
its move cost, where that is stated, else at the price of the new one's start. Growing and shrinking cost
nothing.
"""

from collections import Counter

from tangram.fleet import ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.mixing import exchange, lasting
from tangram.packing.model.targets import OwnerTag
from tangram.packing.model.variables import Model, Terms
from tangram.packing.problem.prepared import Exchange, PreparedDemand, RunningReplica


def add_moves(model: Model) -> None:
    """Add what stays, the moves and their cost."""
    staying: dict[OwnerTag, Terms] = {}
    targets = [group.targets for group in model.classes.existing]
    targets += [group.targets for group in model.classes.converted]
    for counts, targets_of_class in zip((*model.counts, *model.converted), targets, strict=True):
        for variable, target in zip(counts, targets_of_class, strict=True):
            for tag, count in target.kept:
                staying.setdefault(tag, Terms()).add(variable, count)
    holders: dict[OwnerTag, Terms] = {}
    for demand in model.demands:
        if demand.held:
            _keep(model, demand, holders)
    for tag, holding in holders.items():
        model.cp.add(holding.expression <= staying.get(tag, Terms()).expression)


def _keep(model: Model, demand: PreparedDemand, holders: dict[OwnerTag, Terms]) -> None:
    owned: dict[ShapeKey, dict[OwnerTag, list[RunningReplica]]] = {}
    for held in demand.held:
        owned.setdefault(held.shape, {}).setdefault(model.classes.name(held), []).append(held)
    last: dict[ShapeKey, Terms] = {}
    relocated: dict[ShapeKey, Terms] = {}  # moves to an equal shape
    moves, moved_ones = Terms(), Terms()
    stopping: dict[ShapeKey, dict[str, Terms]] = {}
    costs = {held.cost for held in demand.held if not held.pinned}
    trades = demand.pays_move_cost and not demand.is_foreign and len(demand.shapes) > 1
    for shape, groups in sorted(owned.items()):
        used = model.taken.get((demand.id, shape), Terms())
        last[shape] = _lasting(model, demand, shape, used)
        staying, moving, pinned = Terms(), Terms(), Terms()
        local_costs = {held.cost for held in demand.held if held.shape == shape and not held.pinned}
        differ = len(costs if trades else local_costs) > 1
        for tag, replicas in sorted(groups.items()):
            n, cost = len(replicas), min(held.cost for held in replicas)
            keep = model.cp.new_int_var(0, n, f"keep.{demand.id}")
            model.keeps[demand.id, shape, tag] = keep
            holders.setdefault(tag, Terms()).add(keep)
            staying.add(keep)
            if replicas[0].pinned:  # it stays, or stops as surplus: it never moves
                pinned.add(keep)
                continue
            stops = stopping.setdefault(shape, {}).setdefault(str(tag[-2]), Terms())
            stops.constant += n
            stops.add(keep, -1)
            if differ:
                moved = model.cp.new_int_var(0, n, f"move.{demand.id}")
                model.cp.add(keep + moved <= n)
                moving.add(moved)
                model.dollars.add(moved, cost)
        total = len([held for held in demand.held if held.shape == shape])
        moved_ones.extend(moving)
        _balance(model, last[shape], staying, moving, 0 if trades or not local_costs else min(local_costs))
        model.cp.add(staying.expression <= last[shape].expression)
        if pinned.variables:
            n = sum(held.pinned for held in demand.held if held.shape == shape)
            least = last[shape] if n == total else _at_most(model, demand, shape, used, n)
            model.cp.add(pinned.expression >= least.expression)
        relocated[shape] = Terms()
        relocated[shape].extend(last[shape])
        relocated[shape].extend(staying, -1)
        moves.extend(relocated[shape])
    if demand.is_request and not demand.has_places:
        _hold(model, demand)
    _exchange(model, demand, last, moves)
    if trades and len(costs) > 1:
        model.cp.add(moved_ones.expression >= moves.expression)
    elif trades and costs:
        model.dollars.extend(moves, min(costs))
    model.moves.extend(moves)
    _guard(model, demand, moves, relocated, stopping)


def _hold(model: Model, demand: PreparedDemand) -> None:
    """Keep pinned replicas of a request, as long as so many are wanted."""
    pinned = demand.pinned
    for number, (shapes, count) in enumerate(demand.slices):
        pieces = {shape: model.pieces[demand.id, number, shape] for shape in shapes if pinned[shape]}
        if sum(pinned[shape] for shape in pieces) > count:
            model.cp.add(cp_model.LinearExpr.sum(list(pieces.values())) == count)
            for shape, piece in pieces.items():
                model.cp.add(piece <= pinned[shape])
        else:
            for shape, piece in pieces.items():
                model.cp.add(piece >= pinned[shape])
        pinned -= Counter(dict.fromkeys(pieces, count))  # of two parts of one shape the first has them


def _guard(
    model: Model,
    demand: PreparedDemand,
    moves: Terms,
    relocated: dict[ShapeKey, Terms],
    stopping: dict[ShapeKey, dict[str, Terms]],
) -> None:
    """Count the moves of a demand by the guarded pool that they leave. Surplus that stops does not move.

    What moves to an equal shape leaves a pool in which such a replica stops; what changes its shape, any.
    """
    pools = sorted({pool for by_pool in stopping.values() for pool in by_pool})
    if not any(pools):
        return
    split, left = Terms(), {pool: Terms() for pool in pools}
    for pool in pools:
        moved = model.cp.new_int_var(0, len(demand.held), f"from.{demand.id}.{pool}")
        split.add(moved)
        left[pool].add(moved)
        all_stops = [by_pool[pool].expression for by_pool in stopping.values() if pool in by_pool]
        model.cp.add(moved <= cp_model.LinearExpr.sum(all_stops))
        if pool:
            model.leaving.setdefault(pool, Terms()).add(moved)
    model.cp.add(split.expression >= moves.expression)
    if len(pools) == 1 or len(stopping) == 1:
        return
    for shape, by_pool in stopping.items():
        leaving = Terms()
        for pool, stops in by_pool.items():
            moved = model.cp.new_int_var(0, len(demand.held), f"relocated.{demand.id}.{pool}")
            model.cp.add(moved <= stops.expression)
            leaving.add(moved)
            left[pool].add(moved, -1)
        model.cp.add(leaving.expression >= relocated[shape].expression)
    for rest in left.values():
        model.cp.add(rest.expression >= 0)


def _balance(model: Model, lasting: Terms, staying: Terms, moving: Terms, cost: int) -> None:
    """What lasts in a shape stays or moves; where all cost the same, moving needs no variables."""
    if moving.variables:
        model.cp.add(staying.expression + moving.expression >= lasting.expression)
        return
    model.dollars.extend(lasting, cost)
    model.dollars.extend(staying, -cost)


def _lasting(model: Model, demand: PreparedDemand, shape: ShapeKey, used: Terms) -> Terms:
    """Replicas of a shape that run now and are wanted: the lesser of both."""
    return _at_most(model, demand, shape, used, sum(held.shape == shape for held in demand.held))


def _at_most(model: Model, demand: PreparedDemand, shape: ShapeKey, used: Terms, most: int) -> Terms:
    terms = Terms()
    if demand.limits is not None:
        if shape in demand.limits.shapes:
            terms.add(lasting(model, demand, shape, most))
        return terms
    if demand.is_request:
        terms.add(model.lesser(most, most, used.expression))
        return terms
    for variable, column in zip(model.chosen[demand.id], demand.columns, strict=True):
        for part, n in column.parts:
            if part == shape:
                terms.add(variable, min(most, n))
    return terms


def _exchange(model: Model, demand: PreparedDemand, last: dict[ShapeKey, Terms], moves: Terms) -> None:
    """What runs in one shape and is replaced by another. Fixed by the mix, wherever its replicas stand.

    A pinned replica is replaced by none: what is given up of those was surplus.
    """
    if demand.limits is not None:
        if len(demand.shapes) > 1:
            moves.add(exchange(model, demand))
        return
    if not demand.is_request:
        replaced = Exchange(demand)
        for variable, column in zip(model.chosen[demand.id], demand.columns, strict=True):
            count, cost = replaced.of(column.parts)
            moves.add(variable, count)
            model.dollars.add(variable, cost)
        return
    if len({shape for shapes, _ in demand.slices for shape in shapes} | set(last)) == 1:
        return  # there is no other shape
    stopped, started = Terms(), Terms()
    for shape in demand.shapes:
        remaining, used = last.get(shape, Terms()), model.taken.get((demand.id, shape), Terms())
        stopped.constant += sum(held.shape == shape and not held.pinned for held in demand.held)
        stopped.extend(remaining, -1)
        if n := demand.pinned[shape]:
            stopped.extend(_at_most(model, demand, shape, used, n))
        started.extend(used)
        started.extend(remaining, -1)
    moves.add(model.lesser(len(demand.held), stopped.expression, started.expression))
