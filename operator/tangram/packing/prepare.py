"""The fleet as the columns see it, and how finely the owners of its slices are told apart."""

from collections import Counter
from dataclasses import replace

from tangram.packing.columns import Fleet, Namer, in_play
from tangram.packing.problem import GPUState, Problem
from tangram.packing.targets import Label
from tangram.packing.wants import Held, Want, units

# Variables that spread over nodes may cost the model. Above, the assignment spreads as well as it can, and
# opens GPUs that the model left idle where that does not do.
_MOST_SPOTS = 20_000


def prepare(problem: Problem, everyone: tuple[Want, ...]) -> Fleet:
    """Look up once what grouping the GPUs asks for again and again."""
    profiles, levels = in_play(problem, everyone)
    held = {(gpu, held.start): held for want in everyone for held in want.held for gpu in held.gpus}
    hourly = {gpu.id: units(problem.price(gpu)) for gpu in problem.gpus}
    places, scattered = _places(problem, everyone)
    nodes = {gpu.id: gpu.node for gpu in problem.gpus}
    budgets = dict(problem.move_budgets)
    guarded = {gpu.id: gpu.pool for gpu in problem.gpus if gpu.pool in budgets}
    return Fleet(problem, hourly, held, profiles, levels, places, nodes, guarded, scattered)


def _places(problem: Problem, everyone: tuple[Want, ...]) -> tuple[dict[str, str], frozenset[str]]:
    """Tell GPUs apart by node, zone or pool only where a demand that may use them cares.

    Also return the SKUs whose nodes the model cannot tell apart although somebody has to be spread over them.
    """
    spread = [want for want in everyone if want.spread.node < 1 or want.spread.zone < 1]
    skus = frozenset(shape.sku for want in spread for shape in want.shapes)
    pooled = frozenset(shape.sku for want in everyone if want.pools for shape in want.shapes)
    over_nodes = [shape.sku for want in spread if want.spread.node < 1 for shape in want.shapes]
    nodes = Counter(sku for sku, _ in {(gpu.sku, gpu.node) for gpu in problem.gpus})
    spots = sum(nodes[shape.sku] for want in spread for shape in want.shapes)
    by_node = bool(over_nodes) and spots <= _MOST_SPOTS
    mixed = Counter(node for node, _ in {(gpu.node, gpu.pool) for gpu in problem.gpus})

    def place(gpu: GPUState) -> str:
        near = "" if gpu.sku not in skus else gpu.node if by_node else gpu.zone
        tells_pool = bool(near) and by_node and mixed[gpu.node] == 1
        return near if gpu.sku not in pooled or tells_pool else f"{near}\0{gpu.pool}"

    scattered = frozenset() if by_node else frozenset(over_nodes)
    return {gpu.id: place(gpu) for gpu in problem.gpus}, scattered


def by_owner(fleet: Fleet) -> Namer:
    """Tell every owner apart: exact, and as many classes as there are kinds of GPUs."""

    def name(held: Held) -> Label:
        return (held.owner, *_what(held), held.cost, int(held.pinned), *_where(fleet, held))

    return name


def by_shape(fleet: Fleet) -> Namer:
    """Tell only shapes apart: few classes, and moves are counted as if owners could swap slices.

    Pinned replicas that may prove surplus keep their owners: the slice of another must not be cut instead.
    """

    def name(held: Held) -> Label:
        owner = held.owner if held.pinned and not held.fixed else ""
        return (owner, *_what(held), 0, int(held.pinned), *_where(fleet, held))

    return name


def by_fate(fleet: Fleet, losers: frozenset[str], *, costs: bool) -> Namer:
    """Owners that keep or gain replicas are alike: each would go on using any slice that it holds."""

    def name(held: Held) -> Label:
        owner = held.owner if held.owner in losers else ""
        return (owner, *_what(held), held.cost if costs else 0, int(held.pinned), *_where(fleet, held))

    return name


def _where(fleet: Fleet, held: Held) -> tuple[str, str]:
    """Return the pool, if its replicas are guarded, and the place."""
    return fleet.guarded.get(held.gpus[0], ""), fleet.places[held.gpus[0]]


def _what(held: Held) -> tuple[str, str, int]:
    return held.shape.sku, held.shape.profile, held.shape.tensor_parallel


def emptied(problem: Problem, everyone: tuple[Want, ...]) -> tuple[Fleet, tuple[Want, ...]]:
    """Return the same fleet and wants as if nothing ran but what must not move. Move budgets do not hold."""
    going = {(gpu, h.start) for want in everyone for h in want.held if not h.pinned for gpu in h.gpus}

    def cleared(gpu: GPUState) -> GPUState:
        freed = tuple(
            replace(each, owner=None, gang=None) if (gpu.id, each.start) in going else each
            for each in gpu.instances
        )
        stay = tuple(each for each in freed if each.owner is not None)
        # mig-manager cuts nothing anew beside who must not move: there a free slice is worth something.
        may_cut = gpu.cuttable and (gpu.backend == "nvml" or not stay)
        return replace(gpu, instances=stay if may_cut else freed)

    wants = tuple(replace(want, held=tuple(h for h in want.held if h.pinned)) for want in everyone)
    gpus = tuple(cleared(gpu) for gpu in problem.gpus)
    bare = replace(problem, gpus=gpus, move_budget=None, move_budgets=())
    return prepare(bare, wants), wants
