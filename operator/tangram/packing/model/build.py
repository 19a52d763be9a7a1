"""Put the packing model together: supply, choices, what stays, spread, headroom."""

from tangram.catalog.prices import Prices
from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUClasses, PreparedFleet, fresh_targets
from tangram.packing.model.gpu_supply import add_gangs, add_gpus, add_growth
from tangram.packing.model.mixing import add_mix, limit_mix
from tangram.packing.model.moves import add_moves
from tangram.packing.model.objective import PackingObjective
from tangram.packing.model.spreading import add_spreading
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Model
from tangram.packing.problem.mix import UNMET
from tangram.packing.problem.prepared import PreparedDemand, units


def build(fleet: PreparedFleet, demands: tuple[PreparedDemand, ...], classes: GPUClasses) -> Model:
    """Return the model of packing `demands` onto `classes`."""
    problem = fleet.problem
    new_gpus = sum(pool.max_nodes * pool.node_size for pool in problem.growable)
    objective = PackingObjective(problem.horizon_h, len(problem.gpus) + new_gpus)
    model = Model(cp_model.CpModel(), classes, demands, objective)
    add_gpus(model, fleet)
    add_growth(model)
    add_gangs(model, fleet)
    _choices(model, fleet.prices)
    _demand(model)
    add_moves(model)
    add_spreading(model, fleet)
    for demand in demands:
        if demand.limits is not None:
            limit_mix(model, demand, demand.limits)
    _headroom(model, fleet)
    if problem.move_budget is not None:
        model.cp.add(objective.moves.expression <= problem.move_budget)
    for pool, budget in problem.move_budgets:
        model.cp.add(model.leaving.get(pool, Terms()).expression <= budget)
    return model


def _choices(model: Model, prices: Prices) -> None:
    for demand in model.demands:
        unmet = model.objective.unmet.setdefault(demand.priority, Terms())
        if demand.is_request:
            _divide(model, prices, demand, unmet)
            continue
        if demand.limits is not None:
            add_mix(model, prices, demand, demand.limits)
            continue
        chosen = [model.cp.new_bool_var(f"{demand.id}.{n}") for n in range(len(demand.columns))]
        model.cp.add_exactly_one(chosen)
        model.chosen[demand.id] = chosen
        for variable, column in zip(chosen, demand.columns, strict=True):
            model.objective.add_column(variable, column, demand.priority)
            if demand.held:
                model.objective.stopped_of(demand.priority).add(variable, column.stops)
            for shape, count in column.parts:
                model.taken.setdefault((demand.id, shape), Terms()).add(variable, count)


def _divide(model: Model, prices: Prices, demand: PreparedDemand, unmet: Terms) -> None:
    total = sum(count for _, count in demand.slices)
    weight = max(1, UNMET // total) if total else 0
    for number, (shapes, count) in enumerate(demand.slices):
        placed = Terms()
        for shape in shapes:
            piece = model.cp.new_int_var(0, count, f"{demand.id}.{shape}")
            model.pieces[demand.id, number, shape] = piece
            placed.add(piece)
            model.taken.setdefault((demand.id, shape), Terms()).add(piece)
            model.objective.share.add(piece, units(prices.required_replica_hour(*shape)))
        model.cp.add(placed.expression <= count)
        if running_here := min(count, sum(demand.running.get(shape, 0) for shape in shapes)):
            gone = model.cp.new_int_var(0, running_here, f"{demand.id}.gone")
            model.cp.add(gone + placed.expression >= running_here)
            model.objective.stopped_of(demand.priority).add(gone)
        unmet.extend(placed, -weight)
        unmet.constant += weight * count


def _demand(model: Model) -> None:
    demanded: dict[ShapeKey, Terms] = {}
    for (_, shape), count in model.taken.items():
        demanded.setdefault(shape, Terms()).extend(count)
    offered: dict[ShapeKey, Terms] = {}
    for (shape, _), supply in model.supply.items():
        offered.setdefault(shape, Terms()).extend(supply)
    for shape in sorted(demanded):
        model.cp.add(demanded[shape].expression <= offered.get(shape, Terms()).expression)


def _headroom(model: Model, fleet: PreparedFleet) -> None:
    """Free slices on GPUs in use, or idle GPUs that could be cut to them; minimised is what is missing."""
    required: dict[str, list[tuple[str, int]]] = {}
    for item in fleet.problem.headroom:
        required.setdefault(item.sku, []).append((item.profile, item.count))
    for sku, items in sorted(required.items()):
        spare = _spare(model, fleet, sku, frozenset(name for name, _ in items))
        for name, count in sorted(items):
            shape = ShapeKey(sku, name)
            missing = model.cp.new_int_var(0, count, f"headroom.{shape}")
            free = spare.get(name, Terms())
            if name == WHOLE_GPU:
                free.extend(model.idle.get(f"{sku}/{WHOLE_GPU}", Terms()))
            else:
                for (offered, _), terms in model.supply.items():
                    if offered == shape:
                        free.extend(terms)
                for (_, wanted_shape), terms in model.taken.items():
                    if wanted_shape == shape:
                        free.extend(terms, -1)
            model.cp.add(free.expression + missing >= count)
            model.objective.headroom.add(missing)


def _spare(model: Model, fleet: PreparedFleet, sku: str, names: frozenset[str]) -> dict[str, Terms]:
    """Return what idle GPUs in MIG mode could offer, by profile: cut anew, or whole where they may be."""
    idle = model.idle.get(sku)
    if idle is None:
        return {}
    slices = names - {WHOLE_GPU}
    targets = fresh_targets(fleet.problem, sku, slices) if slices else ()
    parts = [model.cp.new_int_var(0, 1_000_000, "spare") for _ in targets]
    spare: dict[str, Terms] = {}
    for variable, target in zip(parts, targets, strict=True):
        for shape, count in target.supply:
            spare.setdefault(shape.profile, Terms()).add(variable, count)
    if WHOLE_GPU in names and sku in model.may_leave_mig:
        whole = model.cp.new_int_var(0, 1_000_000, "spare")
        model.cp.add(whole <= model.may_leave_mig[sku].expression)
        spare.setdefault(WHOLE_GPU, Terms()).add(whole)
        parts.append(whole)
    model.cp.add(cp_model.LinearExpr.sum(parts) <= idle.expression)
    return spare
