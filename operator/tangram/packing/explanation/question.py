"""May a demand be served whole if some families of constraints did not hold? Yes or no, without an objective.

A feasibility-only model (with an objective CP-SAT would name every assumption) demands that the demand is
served whole and assumes one literal per family of constraints. Families that change what GPUs may become
(one shape, immovable instances, policy, spread, gangs) are left out by building the model without them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tangram.catalog import InputError
from tangram.fleet import WHOLE_GPU, ShapeKey, Spread
from tangram.packing.model import cp_model
from tangram.packing.model.build import build
from tangram.packing.model.gpu_classes import finest_classes
from tangram.packing.model.mixing import limit_budget
from tangram.packing.model.prepare import by_owner, by_shape, prepared_fleet
from tangram.packing.model.terms import Terms
from tangram.packing.model.variables import Model
from tangram.packing.problem.mix import UNMET, least_unmet, parts_alone
from tangram.packing.problem.prepared import PreparedDemand
from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import ANY_SKU, Demand, GPUState, GrowablePool, Offer, Problem

Family = Literal["shape", "policy", "immovable", "gang", "spread", "moves", "priority", "budget", "gpus"]

# In this order families are tried to do without: what is left is what people can act on most directly.
_ORDER: tuple[Family, ...] = (
    "shape",  # one for all replicas of a demand in a cluster
    "policy",
    "immovable",
    "gang",
    "spread",
    "moves",
    "priority",
    "budget",
    "gpus",
)
_BUILT: frozenset[Family] = frozenset(("shape", "policy", "immovable", "gang", "spread"))
Name = tuple[Family, str]  # a family; of GPUs: which SKU
_GANG: Name = ("gang", "")
_MOST_CLASSES = 300
_MORE = "\0more/"  # name of pools that stand for GPUs that there are not
_ANY_NUMBER = 10**6  # of moves
_SEED = 7
_ROUNDING = 1e-6  # of parts, counted in floating point


@dataclass(slots=True)
class ExplanationBudget:
    """Deterministic time for explanations, apart from that of the solve."""

    seconds: float = 5.0  # CP-SAT's unit: one to three seconds on one core
    per_question: float = 1.0  # at most
    spent: float = 0.0
    solves: int = 10**9  # changes that may still be tried by a solve of their own
    built: int = 0  # shapes in all models that were made: what else took time, as a count
    late: Callable[[], bool] | None = None  # whether time is over: a guard, not part of the answer

    @property
    def over(self) -> bool:
        """Whether the time is over, whatever is left of the counts."""
        return self.late is not None and self.late()

    @property
    def left(self) -> float:
        """What the next question may take; 0: no more."""
        return 0.0 if self.over else max(0.0, min(self.per_question, self.seconds - self.spent))


@dataclass(frozen=True, slots=True)
class FeasibilityAnswer:
    """Whether the demand can be served whole under some families."""

    feasible: bool | None  # None: time was over
    core: frozenset[Name] = frozenset()


@dataclass(frozen=True, slots=True)
class FeasibilityQuestion:
    """A demand that is to be served whole beside all demands as important, as far as those are served."""

    problem: Problem
    packing: Packing
    demand: Demand
    effort: ExplanationBudget = field(default_factory=ExplanationBudget)

    @property
    def names(self) -> tuple[Name, ...]:
        """Every family that can be assumed, in the order in which it is tried to do without."""
        absent = {"gpus"} | ({"budget"} if self.demand.budget_per_hour is None else set())
        absent |= set() if self._budgets else {"moves"}
        absent |= set() if self.demand.uniform and len(shapes_of(self.demand)) > 1 else {"shape"}
        families = ((family, "") for family in _ORDER if family not in absent)
        return (*families, *(("gpus", sku) for sku in skus_of(self.problem, self.demand)))

    @property
    def _budgets(self) -> tuple[tuple[str | None, int], ...]:
        """How many replicas may move, by pool; of None: in all."""
        everywhere = self.problem.move_budget
        return (*self.problem.move_budgets, *(((None, everywhere),) if everywhere is not None else ()))

    def ask(self, families: frozenset[Name] | None = None) -> FeasibilityAnswer:
        """Ask under `families`; None: under all."""
        families = frozenset(self.names) if families is None else families
        answer = self._ask(families)
        if answer.feasible is not False or _GANG in families or not self._spreads_gangs(families):
            return answer
        # GPUs of a gang apart are replicas of their own, of which spread may allow fewer.
        whole = self._ask(families | {_GANG})
        core = answer.core | (whole.core - {_GANG})
        return FeasibilityAnswer(feasible=False, core=core) if whole.feasible is False else whole

    def _spreads_gangs(self, families: frozenset[Name]) -> bool:
        spread = self.demand.spread
        gangs = any(shape.gpus > 1 for shape in shapes_of(self.demand))
        return gangs and ("spread", "") in families and min(spread.node, spread.zone) < 1

    def _ask(self, asked_families: frozenset[Name]) -> FeasibilityAnswer:
        if not self.effort.left:
            return FeasibilityAnswer(None)
        families = {family for family, _ in asked_families}
        problem = _without(self.problem, self.demand, frozenset(_ORDER) - families)
        self.effort.built += size(problem)
        model, prepared = _model(problem, self.demand.id)
        free = [name for name in self.names if name[0] not in _BUILT]
        literals = {name: model.cp.new_bool_var(f"assume.{name}") for name in free}
        if ("budget", "") in literals and prepared.limits is not None:
            limit_budget(model, prepared, prepared.limits, literals["budget", ""])
        for grown in model.grown:
            if grown.pool.name.startswith(_MORE):
                model.cp.add(grown.nodes == 0).only_enforce_if(literals["gpus", grown.pool.sku])
        self._serve(model, literals["priority", ""])
        for pool, most in self._budgets:
            moves = model.objective.moves if pool is None else model.leaving.get(pool, Terms())
            model.cp.add(moves.expression <= most).only_enforce_if(literals["moves", ""])
        assumed = {literals[name].index: name for name in free if name in asked_families}
        model.cp.add_assumptions([literals[name] for name in assumed.values()])
        return self._solve(model.cp, assumed, frozenset(name for name in asked_families if name[0] in _BUILT))

    def _solve(
        self, cp: cp_model.CpModel, assumed: dict[int, Name], built: frozenset[Name]
    ) -> FeasibilityAnswer:
        solver = cp_model.CpSolver()
        status = self._status(solver, cp)
        if status == cp_model.UNKNOWN and self.effort.left:  # harder to prove than with all of them fixed
            cp.clear_assumptions()
            for index in assumed:
                cp.add(cp.get_int_var_from_proto_index(index) == 1)
            status = self._status(solver, cp)
            if status == cp_model.INFEASIBLE:
                return FeasibilityAnswer(feasible=False, core=frozenset(assumed.values()) | built)
        if status in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            return FeasibilityAnswer(feasible=True)
        if status != cp_model.INFEASIBLE:
            return FeasibilityAnswer(None)
        infeasible = {assumed[index] for index in solver.sufficient_assumptions_for_infeasibility()}
        return FeasibilityAnswer(feasible=False, core=frozenset(infeasible) | built)

    def _status(self, solver: cp_model.CpSolver, cp: cp_model.CpModel) -> cp_model.CpSolverStatus:
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = _SEED
        solver.parameters.linearization_level = 2  # bounds come from the relaxation, as in the solve itself
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.max_deterministic_time = self.effort.left
        status = solver.solve(cp)
        self.effort.spent += max(0.001, solver.response_proto.deterministic_time)
        return status

    def _serve(self, model: Model, literal: cp_model.IntVar) -> None:
        """Serve the demand whole; where `literal` holds, those of its priority or above no less than now."""
        shares = {choice.demand: choice.unmet for choice in self.packing.choices}
        for demand in model.demands:
            unmet, whole = _unmet(model, demand)
            if demand.id == self.demand.id:
                model.cp.add(unmet <= least_unmet(self.demand))
            elif demand.is_foreign:
                model.cp.add(unmet <= 0)
            elif demand.priority >= self.demand.priority:
                most = math.ceil(shares.get(demand.id, 1.0) * whole - _ROUNDING)
                model.cp.add(unmet <= most).only_enforce_if(literal)


def _unmet(model: Model, demand: PreparedDemand) -> tuple[Any, int]:
    """Return what is unmet, and what that is without any replica: parts of UNMET, or slices of a request."""
    if demand.id in model.mixes:
        return model.mixes[demand.id].unmet, UNMET
    total = sum(n for _, n in demand.slices)
    placed = [piece for (owner, _, _), piece in model.pieces.items() if owner == demand.id]
    return total - cp_model.LinearExpr.sum(placed), total


def named(problem: Problem, demand_id: str) -> Demand:
    """Return a demand. Raises `InputError` where there is none of this name."""
    match = next((demand for demand in problem.demands if demand.id == demand_id), None)
    if match is None:
        names = ", ".join(demand.id for demand in problem.demands) or "none"
        raise InputError("demand", f"there is no {demand_id!r}; there is {names}")
    return match


def missed(packing: Packing, demand: Demand) -> float:
    """Return the share of a demand that a packing leaves unserved; 0 where no fleet would serve more."""
    choice = next((choice for choice in packing.choices if choice.demand == demand.id), None)
    unmet = 1.0 if choice is None else choice.unmet
    return unmet if unmet * UNMET > least_unmet(demand) + 1 else 0.0


def size(problem: Problem) -> int:
    """Return how many shapes the demands of a problem have: models are as large."""
    return sum(len(demand.offers) + len(demand.slices) for demand in problem.demands)


def shapes_of(demand: Demand) -> list[ShapeKey]:
    """Return the shapes on which replicas of a demand may stand, sorted; a SKU may be open."""
    return sorted({offer.shape for offer in demand.offers} | {part.shape for part in demand.slices})


def _model(problem: Problem, demand_id: str) -> tuple[Model, PreparedDemand]:
    """Return the model without the budget of one demand, and that demand with it."""
    fleet = prepared_fleet(problem)
    target = next(demand for demand in fleet.demands if demand.id == demand_id)
    free = target if target.limits is None else replace(target, limits=replace(target.limits, budget=None))
    demands = tuple(free if demand is target else demand for demand in fleet.demands)
    grouped, _ = finest_classes(fleet, by_owner(fleet), by_shape(fleet), _MOST_CLASSES)
    return build(fleet, demands, grouped), target


def _without(problem: Problem, demand: Demand, dropped: frozenset[Family]) -> Problem:
    """Return the problem without some families, and with GPUs to be had that there are not."""
    alone = demand
    gpus = tuple(_freed(problem, gpu, dropped) for gpu in problem.gpus)
    if "shape" in dropped:
        alone = replace(alone, uniform=False)
    if "spread" in dropped:
        alone = replace(alone, spread=Spread())
    if "gang" in dropped:
        alone = _ungang(alone, _pinned_gangs(gpus, alone.id))
    return replace(
        problem,
        gpus=gpus,
        demands=tuple(alone if other.id == demand.id else other for other in problem.demands),
        growable=(*problem.growable, *_more(problem, alone)),
        headroom=(),
        move_budget=None,
        move_budgets=tuple((pool, _ANY_NUMBER) for pool, _ in problem.move_budgets),  # counted by pool
    )


def _freed(problem: Problem, gpu: GPUState, dropped: frozenset[Family]) -> GPUState:
    if "immovable" in dropped and not all(i.movable for i in gpu.instances):
        gpu = replace(gpu, instances=tuple(replace(i, movable=True) for i in gpu.instances))
    if "policy" in dropped:
        empty = not any(i.owner is not None for i in gpu.instances)
        can_cut = problem.board(gpu.sku) is not None
        gpu = replace(gpu, cuttable=True, convertible=gpu.convertible or (empty and can_cut))
    return gpu


def _pinned_gangs(gpus: Iterable[GPUState], owner: str) -> frozenset[ShapeKey]:
    """Return the shapes of the gangs of an owner that must not move."""
    sizes = Counter(
        (gpu.sku, gpu.node, i.gang)
        for gpu in gpus
        for i in gpu.instances
        if i.owner == owner and i.gang is not None and not i.movable
    )
    return frozenset(ShapeKey(sku, WHOLE_GPU, size) for (sku, _, _), size in sizes.items())


def _ungang(demand: Demand, pinned: frozenset[ShapeKey]) -> Demand:
    """Return the demand with the GPUs of its gangs as replicas: whatever gangs can do, these can, too.

    Shapes of `pinned` gangs stay beside their GPUs: what must not move goes on as it is.
    """
    if demand.slices:
        single = (
            replace(part, tensor_parallel=1, count=part.count * part.tensor_parallel)
            for part in demand.slices
        )
        return replace(demand, slices=tuple(single))
    pieces: dict[ShapeKey, Offer] = {}
    for offer in demand.offers:
        size = offer.tensor_parallel
        piece = replace(
            offer, tensor_parallel=1, rate=offer.rate / size, price_per_hour=offer.price_per_hour / size
        )
        first_piece = pieces.setdefault(piece.shape, piece)
        cheaper = min(first_piece.price_per_hour, piece.price_per_hour)
        pieces[piece.shape] = replace(piece, rate=max(first_piece.rate, piece.rate), price_per_hour=cheaper)
    stay = [offer for offer in demand.offers if offer.shape in pinned and offer.tensor_parallel > 1]
    sizes = [offer.tensor_parallel for offer in demand.offers]
    least = 1 if stay else min(sizes)  # a gang that stays is one replica
    most = None if demand.max_replicas is None else demand.max_replicas * max(sizes)
    return replace(
        demand,
        offers=tuple(sorted((*pieces.values(), *stay))),
        min_replicas=demand.min_replicas * least,
        max_replicas=most,
    )


def _more(problem: Problem, demand: Demand) -> Iterable[GrowablePool]:
    """Return nodes that do not exist, with as many GPUs of each shape as serve a demand: a pool per shape."""
    most: Counter[ShapeKey] = Counter()
    for part in parts_alone(demand):  # of a request, parts of one shape and of an open SKU are all wanted
        for sku in skus_of(problem, demand) if part.sku == ANY_SKU else [part.sku]:
            most[part.shape._replace(sku=sku)] += part.count
    for shape, count in sorted(most.items()):
        cut = shape.profile != WHOLE_GPU
        if not cut or problem.board(shape.sku) is not None:
            name = f"{_MORE}{shape.sku}/{shape.profile}/{shape.gpus}"
            yield GrowablePool(name, shape.sku, shape.gpus, count, 0.0, mig_enabled=cut)


def skus_of(problem: Problem, demand: Demand) -> list[str]:
    """Return the SKUs on which a demand could stand, sorted."""
    named = {shape.sku for shape in shapes_of(demand)}
    if ANY_SKU in named:
        named |= set(problem.skus)
    return sorted(named - {ANY_SKU})
