"""The model's supply: what GPUs, nodes and new nodes may become, and the gangs that they can hold."""

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUKind, PreparedFleet
from tangram.packing.model.targets import Origin, Target
from tangram.packing.model.variables import Grown, Model, Terms


def add_gpus(model: Model, fleet: PreparedFleet) -> None:
    """Add how many GPUs and nodes of each class become what."""
    hours = fleet.problem.horizon_h
    in_mig: dict[tuple[GPUKind, Origin], Terms] = {}
    for number, group in enumerate(model.classes.existing):
        n, kind = len(group.members), group.kind
        counts = [model.cp.new_int_var(0, n, f"z{number}.{t}") for t in range(len(group.targets))]
        model.cp.add(cp_model.LinearExpr.sum(counts) == n)
        model.counts.append(counts)
        for variable, target in zip(counts, group.targets, strict=True):
            _offer(model, kind, variable, target, hours)
            for origin, count in target.in_mig:
                in_mig.setdefault((kind.one_gpu, origin), Terms()).add(variable, count)
    for number, added in enumerate(model.classes.converted):
        most = sum(len(ids) for c in model.classes.existing if c.is_node for ids in c.members)
        counts = [model.cp.new_int_var(0, most, f"v{number}.{t}") for t in range(len(added.targets))]
        given = in_mig.get((added.kind, added.origin), Terms())
        model.cp.add(cp_model.LinearExpr.sum(counts) == given.expression)
        model.converted.append(counts)
        for variable, target in zip(counts, added.targets, strict=True):
            _offer(model, added.kind, variable, target, hours)
            if added.origin.mig_enabled and target.kind == "idle":
                model.may_leave_mig.setdefault(added.kind.sku, Terms()).add(variable)


def _offer(model: Model, kind: GPUKind, variable: cp_model.IntVar, target: Target, hours: float) -> None:
    for shape, count in target.supply:
        model.supply.setdefault((shape, kind.place), Terms()).add(variable, count)
    model.dollars.add(variable, round(target.used * kind.price * hours))
    model.recut.add(variable, target.recut)
    model.stranded.add(variable, target.stranded)
    if target.kind == "idle":
        model.idle.setdefault(kind.sku, Terms()).add(variable)


def add_growth(model: Model, fleet: PreparedFleet) -> None:
    """Add nodes that do not exist yet, and what becomes of their GPUs."""
    for grown in model.classes.grown:
        pool = grown.pool
        nodes = model.cp.new_int_var(0, pool.max_nodes, f"new.{pool.name}")
        model.dollars.add(nodes, round(grown.kind.price * pool.node_size * fleet.problem.horizon_h))
        most = pool.max_nodes * pool.node_size
        counts = [model.cp.new_int_var(0, most, f"new.{pool.name}.{i}") for i in range(len(grown.targets))]
        model.cp.add(cp_model.LinearExpr.sum(counts) <= pool.node_size * nodes)
        for variable, target in zip(counts, grown.targets, strict=True):
            for shape, count in target.supply:
                model.supply.setdefault((shape, grown.kind.place), Terms()).add(variable, count)
            model.stranded.add(variable, target.stranded)
        model.grown.append(Grown(pool, grown.kind, nodes, counts))


def add_gangs(model: Model, fleet: PreparedFleet) -> None:
    """Gangs stay inside a node. Sizes divide each other, so counting per size is exact."""
    free: dict[GPUKind, list[tuple[cp_model.IntVar, int]]] = {}
    for group, counts in zip(model.classes.existing, model.counts, strict=True):
        if group.is_node:
            pairs = ((v, t.free) for v, t in zip(counts, group.targets, strict=True) if t.free)
            free.setdefault(group.kind, []).extend(pairs)
    for grown in model.grown:
        if not grown.pool.mig_enabled:
            free.setdefault(grown.kind, []).append((grown.nodes, grown.pool.node_size))
    paid = {grown.kind for grown in model.grown}
    for kind, offers in sorted(free.items(), key=lambda item: item[0]):
        sizes = [k for k in fleet.levels.get(kind.sku, ()) if kind.gangs_that_fit(k, kind.node_size)]
        used, capacity = Terms(), Terms()
        for size in reversed(sizes):
            gang = model.cp.new_int_var(0, _most(model, kind, offers, size), f"gang{size}")
            model.gangs[kind, size] = gang
            used.add(gang, size)
            capacity = Terms()
            for variable, n in offers:
                capacity.add(variable, kind.gangs_that_fit(size, n) * size)
            model.cp.add(used.expression <= capacity.expression)
            shape = ShapeKey(kind.sku, WHOLE_GPU, size)
            model.supply.setdefault((shape, kind.place), Terms()).add(gang)
            if kind not in paid:
                model.dollars.add(gang, round(size * kind.price * fleet.problem.horizon_h))
        if kind not in paid:
            whole = model.idle.setdefault(f"{kind.sku}/{WHOLE_GPU}", Terms())
            for variable, n in offers:
                whole.add(variable, n)
            whole.extend(used, -1)


def _most(model: Model, kind: GPUKind, offers: list[tuple[cp_model.IntVar, int]], size: int) -> int:
    nodes = sum(len(c.members) for c in model.classes.existing if c.kind == kind)
    nodes += sum(g.pool.max_nodes for g in model.grown if g.kind == kind)
    return max((kind.gangs_that_fit(size, n) for _, n in offers), default=0) * nodes
