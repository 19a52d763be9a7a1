"""Replicas of a demand over nodes and zones: at most a share of them in one place, and only in its pools."""

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from tangram.fleet import ShapeKey
from tangram.fleet.intent import cap
from tangram.packing.model.gpu_classes import PreparedFleet
from tangram.packing.model.variables import Grown, Model, Place, Terms
from tangram.packing.problem.prepared import PreparedDemand

_MOST = 1_000_000  # replicas
_FINEST = 10**6  # denominator above which a share is replaced by an equal one: its factors would be too large


def add_spreading(model: Model, fleet: PreparedFleet) -> None:
    """Add how many replicas of demands to be spread stand in each place."""
    zones = {fleet.places[gpu.id]: gpu.zone for gpu in fleet.problem.gpus}
    zones |= {grown.kind.place: grown.pool.zone for grown in model.grown}
    nodes = _nodes(fleet)
    drawn: dict[tuple[ShapeKey, Place], Terms] = {}
    spread = [demand for demand in model.demands if demand.has_places]
    pools = {fleet.places[gpu.id]: gpu.pool for gpu in fleet.problem.gpus}
    pools |= {grown.kind.place: grown.pool.name for grown in model.grown}
    for demand in spread:
        most = {
            key: _MOST if _allowed(demand, pools[key[1]]) else _pinned(fleet, demand, *key)
            for key in model.supply
        }
        _spread(model, fleet, demand, zones, nodes, drawn, most)
    names = {demand.id for demand in spread}
    for (owner, shape, tag), keep in model.keeps.items():  # a replica that stays draws on its place, too
        if owner not in names and (shape, str(tag[-1])) in drawn:
            drawn[shape, str(tag[-1])].add(keep)
    for key, terms in drawn.items():
        model.cp.add(terms.expression <= model.supply[key].expression)


def _spread(
    model: Model,
    fleet: PreparedFleet,
    demand: PreparedDemand,
    zones: Mapping[Place, str],
    nodes: Mapping[Place, str],
    drawn: dict[tuple[ShapeKey, Place], Terms],
    most_at: Mapping[tuple[ShapeKey, Place], int],
) -> None:
    by_place: dict[Place, Terms] = {}
    for shape in demand.shapes:
        used = model.taken.get((demand.id, shape), Terms())
        everywhere = Terms()
        for offered, place in sorted(model.supply):
            if offered == shape:
                spot = model.cp.new_int_var(0, most_at[shape, place], f"spot.{demand.id}")
                model.spots[demand.id, shape, place] = spot
                everywhere.add(spot)
                by_place.setdefault(place, Terms()).add(spot)
                drawn.setdefault((shape, place), Terms()).add(spot)
        model.cp.add(everywhere.expression == used.expression)
    _stay_in_place(model, demand)
    fixed = Counter(fleet.places[held.gpus[0]] for held in demand.held if held.pinned)
    still = Counter(fleet.nodes[held.gpus[0]] for held in demand.held if held.pinned)
    by_zone: dict[str, Terms] = {}
    by_node: dict[str, Terms] = {}
    for place, terms in by_place.items():
        by_zone.setdefault(zones[place], Terms()).extend(terms)
        if place in nodes:
            by_node.setdefault(nodes[place], Terms()).extend(terms)
    for node, terms in by_node.items():
        if demand.spread.node < 1:
            _cap(model, demand, terms, demand.spread.node, still[node])
    for zone, terms in by_zone.items():
        if demand.spread.zone < 1:
            _cap(
                model,
                demand,
                terms,
                demand.spread.zone,
                sum(n for at, n in fixed.items() if zones[at] == zone),
            )
    for grown in model.grown:
        if grown.kind.place in by_place and demand.spread.node < 1:
            _cap_new_nodes(model, demand, grown, by_place[grown.kind.place])


def _cap_new_nodes(model: Model, demand: PreparedDemand, grown: Grown, terms: Terms) -> None:
    """Limit the replicas on new nodes of a pool, which are alike, to the share of one times their number."""
    most = cap(demand.spread.node, _most_replicas(demand))
    model.cp.add(terms.expression <= most * grown.nodes)  # weaker, but linear: the master knows it
    most_per_node, on_one = model.cp.new_int_var(0, most, f"cap.{demand.id}"), Terms()
    on_one.add(most_per_node)
    _cap(model, demand, on_one, demand.spread.node, 0)
    every = model.cp.new_int_var(0, most * grown.pool.max_nodes, f"cap.{demand.id}")
    model.cp.add_multiplication_equality(every, [grown.nodes, most_per_node])
    model.cp.add(terms.expression <= every)


def _most_replicas(demand: PreparedDemand) -> int:
    if demand.limits is not None:
        return sum(item.most for item in demand.limits.items)
    return max((column.replicas for column in demand.columns), default=sum(n for _, n in demand.slices))


def _nodes(fleet: PreparedFleet) -> dict[Place, str]:
    """Return the node of each place that lies on one; of a node in several pools there are several places."""
    nodes: dict[Place, set[str]] = {}
    for gpu in fleet.problem.gpus:
        nodes.setdefault(fleet.places[gpu.id], set()).add(gpu.node)
    return {place: node for place, (node, *more) in nodes.items() if not more}


def _allowed(demand: PreparedDemand, pool: str) -> bool:
    """Whether a demand may stand in a pool; what a question adds to the fleet is in every pool."""
    return not demand.pools or pool in demand.pools or pool.startswith("\0")


def _pinned(fleet: PreparedFleet, demand: PreparedDemand, shape: ShapeKey, place: Place) -> int:
    """Return the replicas that must not move, although they stand where they should not."""
    pinned = (held for held in demand.held if held.pinned and held.shape == shape)
    return sum(fleet.places[held.gpus[0]] == place for held in pinned)


def _stay_in_place(model: Model, demand: PreparedDemand) -> None:
    """Let a replica that stays count where it is."""
    staying: dict[tuple[ShapeKey, Place], Terms] = {}
    for (owner, shape, tag), keep in model.keeps.items():
        if owner == demand.id:
            staying.setdefault((shape, str(tag[-1])), Terms()).add(keep)
    for (shape, place), terms in staying.items():
        model.cp.add(terms.expression <= model.spots[demand.id, shape, place])


@lru_cache(maxsize=1024)
def _equal_share(share: Fraction, most: int) -> Fraction:
    """Return a share that allows the same replicas in one place of any number up to `most`."""
    if share.denominator <= _FINEST:
        return share
    return min((Fraction(math.ceil(share * n), n) for n in range(1, most + 1)), default=share)


def _cap(model: Model, demand: PreparedDemand, terms: Terms, share: float, fixed: int) -> None:
    """Limit the replicas in one place, `fixed` of which must not move: more than the share, if need be."""
    if demand.columns:
        most = Terms()
        for variable, column in zip(model.chosen[demand.id], demand.columns, strict=True):
            most.add(variable, max(cap(share, column.replicas), fixed))
        model.cp.add(terms.expression <= most.expression)
        return
    total = Terms()
    for shape in demand.shapes:
        total.extend(model.taken.get((demand.id, shape), Terms()))
    exact = _equal_share(Fraction(repr(share)), _most_replicas(demand))
    more = Terms(constant=exact.denominator - 1)
    if fixed:
        stay = model.cp.new_bool_var(f"fixed.{demand.id}")
        model.cp.add(terms.expression <= fixed).only_enforce_if(stay)
        more.add(stay, exact.denominator * fixed)
    model.cp.add(exact.denominator * terms.expression <= exact.numerator * total.expression + more.expression)
