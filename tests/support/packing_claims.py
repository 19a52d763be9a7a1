"""Could a demand be served whole beside the others, as far as they are served? By the independent model.

What explanations claim of a fleet is put to it: constraints that are named, and changes that suffice.
"""

import math
from dataclasses import replace

from ortools.sat.python import cp_model

from tangram.packing import GPUState, GrowablePool, Instance, Spread

from .cp_solver import cp_solver
from .oracle import FULL
from .packing_facts import UNMET, ProblemFacts, board
from .packing_optimum import PerGPU

MOST = 12  # GPUs or slices that are added of one shape: more make the model large
FAMILIES = ("shape", "budget", "spread", "priority", "immovable", "policy", "moves")


def judged(problem, demand_id):
    """Whether claims about a demand are understood: it has offers, and some fleet serves it whole."""
    terms = next(terms for terms in ProblemFacts(problem).terms if terms.id == demand_id)
    if terms.is_request or terms.demand.protected:
        return False
    return max(map(len, _needed(terms.demand).values()), default=0) <= MOST


def _least(problem, demand_id):
    """Units that no fleet serves of a demand: what maxReplicas leave, whatever its budget."""
    demands = (replace(d, budget_per_hour=None) if d.id == demand_id else d for d in problem.demands)
    facts = ProblemFacts(replace(problem, demands=tuple(demands)))
    return next(terms for terms in facts.terms if terms.id == demand_id).reachable_unmet(facts.hourly)


def servable(problem, packing, demand_id, ranks=None):
    """Whether a demand can be served whole while no demand of its priority or above is served less.

    `ranks`: priorities of the demands that count; by default those of the problem. None: it is not known.
    """
    model = PerGPU(ProblemFacts(problem))
    ranks = ranks or {demand.id: demand.priority for demand in problem.demands}
    before = {choice.demand: round(choice.unmet * UNMET) + 1 for choice in packing.choices}
    for name, units in model.unmet_of.items():
        if name == demand_id:
            model.m.add(units <= _least(problem, demand_id))
        elif ranks[name] >= ranks[demand_id]:
            model.m.add(units <= before[name])
    solver = cp_solver(5)
    return {cp_model.OPTIMAL: True, cp_model.FEASIBLE: True, cp_model.INFEASIBLE: False}.get(
        solver.solve(model.m)
    )


def without(problem, demand_id, dropped):
    """The problem without some families of constraints, `gpus:SKU` among them."""
    demand = next(d for d in problem.demands if d.id == demand_id)
    gpus = problem.gpus
    if "budget" in dropped:
        demand = replace(demand, budget_per_hour=None)
    if "shape" in dropped:
        demand = replace(demand, uniform=False)
    if "spread" in dropped:
        demand = replace(demand, spread=Spread())
    if "immovable" in dropped:
        gpus = [replace(g, instances=tuple(replace(i, movable=True) for i in g.instances)) for g in gpus]
    if "policy" in dropped:
        gpus = [replace(g, cuttable=True, convertible=g.convertible or _can_convert(g)) for g in gpus]
    if "moves" in dropped:
        problem = replace(problem, move_budget=None, move_budgets=())
    skus = {family.removeprefix("gpus:") for family in dropped if family.startswith("gpus:")}
    more = [pool for pool in _more(demand) if pool.sku in skus]
    names = tuple(pool.name for pool in more)  # in the pools of each demand
    demands = [demand if d.id == demand_id else d for d in problem.demands]
    demands = tuple(replace(d, pools=(*d.pools, *names)) if d.pools else d for d in demands)
    return replace(problem, gpus=tuple(gpus), demands=demands, growable=(*problem.growable, *more))


def ranks_without(problem, demand_id, dropped):
    """Priorities by demand; without those, that of one demand is above all others."""
    ranks = {demand.id: demand.priority for demand in problem.demands}
    return ranks | {demand_id: max(ranks.values()) + 1} if "priority" in dropped else ranks


def _can_convert(gpu):
    return bool(board(gpu.sku).profiles) and not any(i.owner is not None for i in gpu.instances)


def _needed(demand):
    """Replicas of each offer alone, as names."""
    rated = [o for o in demand.offers if demand.rate <= 0 or o.rate > 0]
    most = math.inf if demand.max_replicas is None else demand.max_replicas
    counts = {o: max(demand.min_replicas, min(most, math.ceil(demand.rate / o.rate - 1e-9))) for o in rated}
    return {offer: range(max(count, 1)) for offer, count in counts.items()}


def _more(demand):
    """Nodes that do not exist, with enough GPUs of each shape."""
    for offer, numbers in _needed(demand).items():
        name = f"more-{offer.sku}-{offer.profile}-{offer.tensor_parallel}"
        cut = offer.profile != FULL
        yield GrowablePool(name, offer.sku, offer.tensor_parallel, len(numbers), 0.0, mig_enabled=cut)


def changed(problem, demand, relaxation):
    """The problem with what a relaxation names, written without the code under test; None: not understood."""

    def but(**more):
        demands = (replace(demand, **more) if d.id == demand.id else d for d in problem.demands)
        return replace(problem, demands=tuple(demands))

    match relaxation.dimension:
        case "budget":
            return but(budget_per_hour=relaxation.value)
        case "priority":
            return but(priority=int(relaxation.value))
        case "spread":
            place = relaxation.subject.split()[-1]
            return but(spread=replace(demand.spread, **{place: relaxation.value}))
        case "moves":
            return replace(problem, move_budget=int(relaxation.value))
    if " and " in relaxation.text or "per node" in relaxation.text:
        return None
    profile, _, sku = relaxation.subject.rpartition(" on ")
    pool = demand.pools[0] if demand.pools else "added"
    names = [f"zz{i}" for i in range(int(relaxation.value))]
    extra = [GPUState(name, name, sku, name, pool) for name in names]
    if profile:
        start = max(board(sku).profiles[profile].starts)
        extra = [
            replace(gpu, mig_enabled=True, cuttable=False, instances=(Instance(profile, start),))
            for gpu in extra
        ]
    return replace(problem, gpus=(*problem.gpus, *extra))
