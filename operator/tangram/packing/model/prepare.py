"""Prepare a fleet for grouping its GPUs; owner tags: how finely the model tells owners of slices apart."""

from collections import Counter

from tangram.packing.model.gpu_classes import Namer, PreparedFleet, in_play
from tangram.packing.model.targets import OwnerTag
from tangram.packing.problem.prepared import (
    PreparedDemand,
    RunningReplica,
    prepared_demands,
    prices_of,
    units,
)
from tangram.packing.problem.statement import GPUState, Problem

# Variables that spread over nodes may cost the model. Above, the assignment spreads as well as it can, and
# opens GPUs that the model left idle where that does not do.
_MOST_SPOTS = 20_000


def prepared_fleet(problem: Problem) -> PreparedFleet:
    """Return what every model of a problem is built from: looked up once."""
    prices = prices_of(problem)
    demands = prepared_demands(problem, prices)
    profiles, levels = in_play(problem, demands)
    held = {(gpu, held.start): held for demand in demands for held in demand.held for gpu in held.gpus}
    hourly = {gpu.id: units(problem.price(gpu)) for gpu in problem.gpus}
    places, scattered = _places(problem, demands)
    nodes = {gpu.id: gpu.node for gpu in problem.gpus}
    budgets = dict(problem.move_budgets)
    guarded = {gpu.id: gpu.pool for gpu in problem.gpus if gpu.pool in budgets}
    return PreparedFleet(
        problem, demands, prices, hourly, held, profiles, levels, places, nodes, guarded, scattered
    )


def _places(problem: Problem, demands: tuple[PreparedDemand, ...]) -> tuple[dict[str, str], frozenset[str]]:
    """Tell GPUs apart by node, zone or pool only where a demand that may use them cares.

    Also return the SKUs whose nodes the model cannot tell apart although a demand has to be spread over them.
    """
    spread = [demand for demand in demands if demand.spread.node < 1 or demand.spread.zone < 1]
    skus = frozenset(shape.sku for demand in spread for shape in demand.shapes)
    pooled = frozenset(shape.sku for demand in demands if demand.pools for shape in demand.shapes)
    over_nodes = [shape.sku for demand in spread if demand.spread.node < 1 for shape in demand.shapes]
    nodes = Counter(sku for sku, _ in {(gpu.sku, gpu.node) for gpu in problem.gpus})
    spots = sum(nodes[shape.sku] for demand in spread for shape in demand.shapes)
    by_node = bool(over_nodes) and spots <= _MOST_SPOTS
    mixed = Counter(node for node, _ in {(gpu.node, gpu.pool) for gpu in problem.gpus})

    def place(gpu: GPUState) -> str:
        near = "" if gpu.sku not in skus else gpu.node if by_node else gpu.zone
        tells_pool = bool(near) and by_node and mixed[gpu.node] == 1
        return near if gpu.sku not in pooled or tells_pool else f"{near}\0{gpu.pool}"

    scattered = frozenset() if by_node else frozenset(over_nodes)
    return {gpu.id: place(gpu) for gpu in problem.gpus}, scattered


def by_owner(fleet: PreparedFleet) -> Namer:
    """Tell every owner apart: exact, and as many classes as there are kinds of GPUs."""

    def name(held: RunningReplica) -> OwnerTag:
        return (held.owner, *_what(held), held.cost, int(held.pinned), *_where(fleet, held))

    return name


def by_shape(fleet: PreparedFleet) -> Namer:
    """Tell only shapes apart: few classes, and moves are counted as if owners could swap slices.

    Pinned replicas that may prove surplus keep their owners: the slice of another must not be cut instead.
    """

    def name(held: RunningReplica) -> OwnerTag:
        owner = held.owner if held.pinned and not held.never_surplus else ""
        return (owner, *_what(held), 0, int(held.pinned), *_where(fleet, held))

    return name


def by_fate(fleet: PreparedFleet, losers: frozenset[str], *, costs: bool) -> Namer:
    """Owners that keep or gain replicas are alike: each would go on using any slice that it holds."""

    def name(held: RunningReplica) -> OwnerTag:
        owner = held.owner if held.owner in losers else ""
        return (owner, *_what(held), held.cost if costs else 0, int(held.pinned), *_where(fleet, held))

    return name


def _where(fleet: PreparedFleet, held: RunningReplica) -> tuple[str, str]:
    """Return the pool, if its replicas are guarded, and the place."""
    return fleet.guarded.get(held.gpus[0], ""), fleet.places[held.gpus[0]]


def _what(held: RunningReplica) -> tuple[str, str, int]:
    return held.shape.sku, held.shape.profile, held.shape.gpus
