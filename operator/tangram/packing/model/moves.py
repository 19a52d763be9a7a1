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
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Model
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
            _KeptReplicas(model, demand, holders).add()
    for tag, holding in holders.items():
        model.cp.add(holding.expression <= staying.get(tag, Terms()).expression)


class _KeptReplicas:
    """What one demand keeps where it runs, and what its moves cost."""

    def __init__(self, model: Model, demand: PreparedDemand, holders: dict[OwnerTag, Terms]) -> None:
        self._model, self._demand, self._holders = model, demand, holders
        self._costs = {held.cost for held in demand.held if not held.pinned}
        # Moves may change their shape at their own cost, which then is counted over all shapes.
        self._over_shapes = demand.pays_move_cost and not demand.is_foreign and len(demand.shapes) > 1
        self._lasting: dict[ShapeKey, Terms] = {}
        self._relocated: dict[ShapeKey, Terms] = {}  # moves to an equal shape
        self._stopping: dict[ShapeKey, dict[str, Terms]] = {}  # by guarded pool
        self._moves, self._priced_moves = Terms(), Terms()

    def add(self) -> None:
        """Add what stays, the moves and their cost."""
        model, demand, moves = self._model, self._demand, self._moves
        for shape, replicas_by_tag in sorted(self._by_shape_and_tag().items()):
            self._add_shape(shape, replicas_by_tag)
        if demand.is_request and not demand.has_places:
            _hold(model, demand)
        _exchange(model, demand, self._lasting, moves)
        if self._over_shapes and len(self._costs) > 1:
            model.cp.add(self._priced_moves.expression >= moves.expression)
        elif self._over_shapes and self._costs:
            model.objective.dollars.extend(moves, min(self._costs))
        model.objective.moves.extend(moves)
        _guard(model, demand, moves, self._relocated, self._stopping)

    def _by_shape_and_tag(self) -> dict[ShapeKey, dict[OwnerTag, list[RunningReplica]]]:
        owned: dict[ShapeKey, dict[OwnerTag, list[RunningReplica]]] = {}
        for held in self._demand.held:
            owned.setdefault(held.shape, {}).setdefault(self._model.classes.name(held), []).append(held)
        return owned

    def _add_shape(self, shape: ShapeKey, replicas_by_tag: dict[OwnerTag, list[RunningReplica]]) -> None:
        model, demand = self._model, self._demand
        used = model.taken.get((demand.id, shape), Terms())
        lasting_replicas = self._lasting[shape] = _lasting(model, demand, shape, used)
        costs = {held.cost for held in demand.held if held.shape == shape and not held.pinned}
        is_priced_apart = len(self._costs if self._over_shapes else costs) > 1
        staying, moving, pinned = Terms(), Terms(), Terms()
        for tag, replicas in sorted(replicas_by_tag.items()):
            keep = self._keep(shape, tag, len(replicas))
            staying.add(keep)
            if replicas[0].pinned:  # it stays, or stops as surplus: it never moves
                pinned.add(keep)
                continue
            self._count_stops(shape, tag, len(replicas), keep)
            if is_priced_apart:
                moving.add(self._price_moves(replicas, keep))
        self._priced_moves.extend(moving)
        cost = 0 if self._over_shapes or not costs else min(costs)
        _balance(model, lasting_replicas, staying, moving, cost)
        model.cp.add(staying.expression <= lasting_replicas.expression)
        self._keep_pinned(shape, pinned, used)
        self._relocate(shape, staying)

    def _keep(self, shape: ShapeKey, tag: OwnerTag, replicas: int) -> cp_model.IntVar:
        keep = self._model.cp.new_int_var(0, replicas, f"keep.{self._demand.id}")
        self._model.keeps[self._demand.id, shape, tag] = keep
        self._holders.setdefault(tag, Terms()).add(keep)
        return keep

    def _count_stops(self, shape: ShapeKey, tag: OwnerTag, replicas: int, keep: cp_model.IntVar) -> None:
        pool = str(tag[-2])
        stops = self._stopping.setdefault(shape, {}).setdefault(pool, Terms())
        stops.constant += replicas
        stops.add(keep, -1)

    def _price_moves(self, replicas: list[RunningReplica], keep: cp_model.IntVar) -> cp_model.IntVar:
        """Return how many replicas of one tag move, each at the least cost of the tag."""
        moved = self._model.cp.new_int_var(0, len(replicas), f"move.{self._demand.id}")
        self._model.cp.add(keep + moved <= len(replicas))
        self._model.objective.dollars.add(moved, min(held.cost for held in replicas))
        return moved

    def _keep_pinned(self, shape: ShapeKey, pinned: Terms, used: Terms) -> None:
        """Keep as many pinned replicas of a shape as are still wanted."""
        if not pinned.variables:
            return
        replicas = [held for held in self._demand.held if held.shape == shape]
        n = sum(held.pinned for held in replicas)
        least = self._lasting[shape]
        if n != len(replicas):
            least = _at_most(self._model, self._demand, shape, used, n)
        self._model.cp.add(pinned.expression >= least.expression)

    def _relocate(self, shape: ShapeKey, staying: Terms) -> None:
        relocated = self._relocated[shape] = Terms()
        relocated.extend(self._lasting[shape])
        relocated.extend(staying, -1)
        self._moves.extend(relocated)


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
    model.objective.dollars.extend(lasting, cost)
    model.objective.dollars.extend(staying, -cost)


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
            model.objective.dollars.add(variable, cost)
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
