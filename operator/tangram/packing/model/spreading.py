"""Replicas of a demand over nodes and zones: at most a share of them in one place, and only in its pools."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tangram.fleet import ShapeKey
from tangram.fleet.intent import cap
from tangram.packing.model.gpu_classes import PreparedFleet
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Grown, Model, Place
from tangram.packing.problem.prepared import PreparedDemand

_MOST = 1_000_000  # replicas
_FINEST = 10**6  # denominator above which a share is replaced by an equal one: its factors would be too large


def add_spreading(model: Model, fleet: PreparedFleet) -> None:
    """Add how many replicas of demands to be spread stand in each place."""
    places = _places(model, fleet)
    drawn: dict[tuple[ShapeKey, Place], Terms] = {}
    spread = [demand for demand in model.demands if demand.has_places]
    for demand in spread:
        by_place = _add_spots(model, demand, drawn, _most_by_spot(model, fleet, demand, places))
        _stay_in_place(model, demand)
        _cap_places(model, fleet, demand, places, by_place)
    names = {demand.id for demand in spread}
    for (owner, shape, tag), keep in model.keeps.items():  # a replica that stays draws on its place, too
        if owner not in names and (shape, str(tag[-1])) in drawn:
            drawn[shape, str(tag[-1])].add(keep)
    for key, terms in drawn.items():
        model.cp.add(terms.expression <= model.supply[key].expression)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where places lie."""

    zones: Mapping[Place, str]
    nodes: Mapping[Place, str]  # of places that lie on one node
    pools: Mapping[Place, str]


def _places(model: Model, fleet: PreparedFleet) -> _Places:
    gpus = {fleet.places[gpu.id]: gpu for gpu in fleet.problem.gpus}
    grown = {grown.kind.place: grown.pool for grown in model.grown}
    zones = {place: gpu.zone for place, gpu in gpus.items()}
    pools = {place: gpu.pool for place, gpu in gpus.items()}
    zones |= {place: pool.zone for place, pool in grown.items()}
    pools |= {place: pool.name for place, pool in grown.items()}
    return _Places(zones, _nodes(fleet), pools)


def _most_by_spot(
    model: Model, fleet: PreparedFleet, demand: PreparedDemand, places: _Places
) -> dict[tuple[ShapeKey, Place], int]:
    """Return the most replicas of each shape in each place: outside of the demand's pools, pinned ones."""
    return {
        (shape, place): _MOST
        if _allowed(demand, places.pools[place])
        else _pinned(fleet, demand, shape, place)
        for shape, place in model.supply
    }


def _add_spots(
    model: Model,
    demand: PreparedDemand,
    drawn: dict[tuple[ShapeKey, Place], Terms],
    most_by_spot: Mapping[tuple[ShapeKey, Place], int],
) -> dict[Place, Terms]:
    """Add the replicas of a demand by shape and place, which draw on the supply; return them by place."""
    by_place: dict[Place, Terms] = {}
    for shape in demand.shapes:
        used = model.taken.get((demand.id, shape), Terms())
        everywhere = Terms()
        for offered, place in sorted(model.supply):
            if offered == shape:
                spot = model.cp.new_int_var(0, most_by_spot[shape, place], f"spot.{demand.id}")
                model.spots[demand.id, shape, place] = spot
                everywhere.add(spot)
                by_place.setdefault(place, Terms()).add(spot)
                drawn.setdefault((shape, place), Terms()).add(spot)
        model.cp.add(everywhere.expression == used.expression)
    return by_place


def _cap_places(
    model: Model,
    fleet: PreparedFleet,
    demand: PreparedDemand,
    places: _Places,
    by_place: Mapping[Place, Terms],
) -> None:
    """Limit the replicas on one node and in one zone to the shares of the demand."""
    pinned = [held.gpus[0] for held in demand.held if held.pinned]
    spread = demand.spread
    if spread.node < 1:
        pinned_by_node = Counter(fleet.nodes[gpu] for gpu in pinned)
        for node, terms in _joined(by_place, places.nodes).items():
            _cap(model, demand, terms, spread.node, pinned_by_node[node])
    if spread.zone < 1:
        pinned_by_zone = Counter(places.zones[fleet.places[gpu]] for gpu in pinned)
        for zone, terms in _joined(by_place, places.zones).items():
            _cap(model, demand, terms, spread.zone, pinned_by_zone[zone])
    if spread.node < 1:
        for grown in model.grown:
            if grown.kind.place in by_place:
                _cap_new_nodes(model, demand, grown, by_place[grown.kind.place])


def _joined(by_place: Mapping[Place, Terms], area_of: Mapping[Place, str]) -> dict[str, Terms]:
    """Return the terms of all places of a node, or of a zone; without places that lie in none."""
    by_area: dict[str, Terms] = {}
    for place, terms in by_place.items():
        if place in area_of:
            by_area.setdefault(area_of[place], Terms()).extend(terms)
    return by_area


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
