"""The model's supply: what GPUs, nodes and new nodes may become, and the gangs that they can hold."""

from collections.abc import Mapping, Sequence

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUKind, PreparedFleet
from tangram.packing.model.targets import Origin, Target
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Grown, Model

WholeGPUs = tuple[cp_model.IntVar, int]  # a number of nodes, and the whole GPUs that each has free


def add_gpus(model: Model, fleet: PreparedFleet) -> None:
    """Add how many GPUs and nodes of each class become what."""
    in_mig: dict[tuple[GPUKind, Origin], Terms] = {}
    for number, group in enumerate(model.classes.existing):
        n, kind = len(group.members), group.kind
        counts = [model.cp.new_int_var(0, n, f"z{number}.{t}") for t in range(len(group.targets))]
        model.cp.add(cp_model.LinearExpr.sum(counts) == n)
        model.counts.append(counts)
        for variable, target in zip(counts, group.targets, strict=True):
            _offer(model, kind, variable, target)
            for origin, count in target.in_mig:
                in_mig.setdefault((kind.one_gpu, origin), Terms()).add(variable, count)
    _add_converted(model, in_mig)


def _add_converted(model: Model, in_mig: Mapping[tuple[GPUKind, Origin], Terms]) -> None:
    """Add what becomes of the GPUs that nodes leave in MIG mode or bring into it, `in_mig` by origin."""
    most = sum(len(ids) for c in model.classes.existing if c.is_node for ids in c.members)
    for number, converted in enumerate(model.classes.converted):
        kind, targets = converted.kind, converted.targets
        counts = [model.cp.new_int_var(0, most, f"v{number}.{t}") for t in range(len(targets))]
        gpus = in_mig.get((kind, converted.origin), Terms())
        model.cp.add(cp_model.LinearExpr.sum(counts) == gpus.expression)
        model.converted.append(counts)
        for variable, target in zip(counts, targets, strict=True):
            _offer(model, kind, variable, target)
            if converted.origin.mig_enabled and target.kind == "idle":
                model.may_leave_mig.setdefault(kind.sku, Terms()).add(variable)


def _offer(model: Model, kind: GPUKind, variable: cp_model.IntVar, target: Target) -> None:
    for shape, count in target.supply:
        model.supply.setdefault((shape, kind.place), Terms()).add(variable, count)
    model.objective.add_gpus_in_use(variable, target.used, kind.price)
    model.objective.recut.add(variable, target.recut)
    model.objective.stranded.add(variable, target.stranded)
    if target.kind == "idle":
        model.idle.setdefault(kind.sku, Terms()).add(variable)


def add_growth(model: Model) -> None:
    """Add nodes that do not exist yet, and what becomes of their GPUs."""
    for grown in model.classes.grown:
        pool = grown.pool
        nodes = model.cp.new_int_var(0, pool.max_nodes, f"new.{pool.name}")
        model.objective.add_gpus_in_use(nodes, pool.node_size, grown.kind.price)
        most = pool.max_nodes * pool.node_size
        counts = [model.cp.new_int_var(0, most, f"new.{pool.name}.{i}") for i in range(len(grown.targets))]
        model.cp.add(cp_model.LinearExpr.sum(counts) <= pool.node_size * nodes)
        for variable, target in zip(counts, grown.targets, strict=True):
            for shape, count in target.supply:
                model.supply.setdefault((shape, grown.kind.place), Terms()).add(variable, count)
            model.objective.stranded.add(variable, target.stranded)
        model.grown.append(Grown(pool, grown.kind, nodes, counts))


def add_gangs(model: Model, fleet: PreparedFleet) -> None:
    """Gangs stay inside a node. Sizes divide each other, so counting per size is exact."""
    grown_kinds = {grown.kind for grown in model.grown}  # their nodes are paid for as wholes
    for kind, whole_gpus in sorted(_whole_gpus(model).items(), key=lambda item: item[0]):
        used = _add_gangs_of(
            model, kind, fleet.levels.get(kind.sku, ()), whole_gpus, is_paid=kind in grown_kinds
        )
        if kind not in grown_kinds:
            idle = model.idle.setdefault(f"{kind.sku}/{WHOLE_GPU}", Terms())
            for variable, n in whole_gpus:
                idle.add(variable, n)
            idle.extend(used, -1)


def _whole_gpus(model: Model) -> dict[GPUKind, list[WholeGPUs]]:
    """Return how many nodes have how many whole GPUs free, by kind."""
    whole_gpus: dict[GPUKind, list[WholeGPUs]] = {}
    for group, counts in zip(model.classes.existing, model.counts, strict=True):
        if group.is_node:
            pairs = ((v, t.free) for v, t in zip(counts, group.targets, strict=True) if t.free)
            whole_gpus.setdefault(group.kind, []).extend(pairs)
    for grown in model.grown:
        if not grown.pool.mig_enabled:
            whole_gpus.setdefault(grown.kind, []).append((grown.nodes, grown.pool.node_size))
    return whole_gpus


def _add_gangs_of(
    model: Model, kind: GPUKind, levels: Sequence[int], whole_gpus: list[WholeGPUs], *, is_paid: bool
) -> Terms:
    """Add the gangs of one kind, the largest first; return the GPUs that they use.

    `is_paid`: their nodes are paid for as wholes.
    """
    used = Terms()
    for size in reversed([k for k in levels if kind.gangs_that_fit(k, kind.node_size)]):
        gang = model.cp.new_int_var(0, _most(model, kind, whole_gpus, size), f"gang{size}")
        model.gangs[kind, size] = gang
        used.add(gang, size)
        capacity = Terms()
        for variable, n in whole_gpus:
            capacity.add(variable, kind.gangs_that_fit(size, n) * size)
        model.cp.add(used.expression <= capacity.expression)
        shape = ShapeKey(kind.sku, WHOLE_GPU, size)
        model.supply.setdefault((shape, kind.place), Terms()).add(gang)
        if not is_paid:
            model.objective.add_gpus_in_use(gang, size, kind.price)
    return used


def _most(model: Model, kind: GPUKind, whole_gpus: list[WholeGPUs], size: int) -> int:
    nodes = sum(len(c.members) for c in model.classes.existing if c.kind == kind)
    nodes += sum(g.pool.max_nodes for g in model.grown if g.kind == kind)
    return max((kind.gangs_that_fit(size, n) for _, n in whole_gpus), default=0) * nodes
