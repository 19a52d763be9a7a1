"""One proved sentence on why a demand is not served whole, from its packing, without another solve."""

from tangram.eligibility.explanation.no_serving_shape import no_serving_shape
from tangram.eligibility.explanation.words import no_shape_sentence
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.packing import Packing, Unmet
from tangram.packing.problem.mix import least_unmet
from tangram.packing.problem.result import unmet_stage
from tangram.plan.fleet_input.documents import profile_names as profiles
from tangram.plan.place.best.packing_problem import FleetProblem
from tangram.plan.place.best.replica_bounds import ReplicaBounds

_ROUNDING = 1 + 1e-9  # tolerance for sums of rates and prices
_NO_PLAN_IN_TIME = "running replicas stay as they are: no better plan was found in time"


def unmet_reason(fleet: FleetProblem, item: Unmet, packing: Packing, bounds: ReplicaBounds) -> str:
    """Return the reason of one entry of `unmet`. It states only what is proved."""
    assessed = fleet.assessed.get(item.demand)
    unsolved = _NO_PLAN_IN_TIME if packing.status == "FALLBACK" else ""
    if assessed is None:
        return _no_board(fleet, item.demand) or unsolved or _reason_of_packing(item, packing)
    if (missing := no_gpu_in_pools(assessed, fleet)) or not assessed.serving:
        return missing or assessed.requirements.impossible or _no_shape(assessed)
    return unsolved or _impossible_alone(fleet, item, assessed, bounds) or _reason_of_packing(item, packing)


def _impossible_alone(
    fleet: FleetProblem, item: Unmet, assessed: AssessedShapes, bounds: ReplicaBounds
) -> str:
    """Return what excludes the demand even on an empty fleet; the empty string where nothing does."""
    requirements = assessed.requirements
    demand = next(d for d in fleet.problem.demands if d.id == item.demand)
    if demand.offers and least_unmet(demand) > 0:
        most = "1 replica" if requirements.most == 1 else f"{requirements.most} replicas"
        return f"scaling.maxReplicas allows {most}, too few for its traffic on any shape"
    budget = requirements.intent.budget_per_hour
    if budget is not None and _least_price(assessed) > budget * _ROUNDING:
        return f"placement.budgetPerHour of {budget:.2f} $/h is too little for all of it"
    inside = bounds.inside(requirements.pools)

    def enough(replicas: float, rate: float) -> bool:
        return replicas >= requirements.least and rate * _ROUNDING >= (requirements.rps or 0.0)

    restriction = ""
    if enough(
        inside.most({shape.key: 1.0 for shape in assessed.serving}),
        inside.most({shape.key: shape.rate for shape in assessed.serving}),
    ):
        counts = [(inside.of(shape.key), shape.rate) for shape in assessed.serving]
        if not requirements.uniform or enough(max(n for n, _ in counts), max(n * rate for n, rate in counts)):
            return ""
        restriction = " on one shape"
    where = f"what is in {' and '.join(requirements.pools)}" if requirements.pools else "the whole fleet"
    return f"{where} has no room for all of it{restriction}"


def _least_price(assessed: AssessedShapes) -> float:
    """Return a lower bound on USD per hour of the mixes that serve the demand whole."""
    rate, least = assessed.requirements.rps or 0.0, assessed.requirements.least
    return max(
        rate * min(shape.price_per_hour / shape.rate for shape in assessed.serving),
        least * min(shape.price_per_hour for shape in assessed.serving),
    )


def _reason_of_packing(item: Unmet, packing: Packing) -> str:
    """Return the packing's reason, where it is proved that no plan serves the item's priority better."""
    proved = any(stage.name == unmet_stage(item.priority) and stage.proved for stage in packing.stages)
    return item.reason if proved else "no better place was found for it within the limits"


def no_gpu_in_pools(assessed: AssessedShapes, fleet: FleetProblem) -> str:
    """Return the sentence that no GPU is in the demand's GPUPools; the empty string where one is."""
    pools = assessed.requirements.pools
    existing_pools = {gpu.pool for gpu in fleet.problem.gpus} | {pool.name for pool in fleet.problem.growable}
    return "" if not pools or existing_pools & set(pools) else f"no GPU is in GPUPool {' or '.join(pools)}"


def _no_board(fleet: FleetProblem, name: str) -> str:
    """Return the sentence that no GPU of the fleet has the requested slices, empty where one has."""
    request = next(r for r in fleet.inputs.requests if r.name == name)
    skus = fleet.problem.skus
    if request.sku is not None:
        return "" if request.sku in skus else f"this fleet has no {request.sku}"
    divisible = any(profiles.board_has(sku, profiles.full_name(sku, request.profile)) for sku in skus)
    return "" if divisible else f"no GPU of this fleet can be cut into {request.profile}"


def _no_shape(assessed: AssessedShapes) -> str:
    why = no_serving_shape(assessed)
    return (
        "no GPU of this fleet is allowed by spec.placement"
        if why is None
        else no_shape_sentence(assessed, why)
    )
