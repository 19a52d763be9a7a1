"""Why a demand is not served whole, in one sentence, from what is known without solving again."""

from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.packing import Packing, Unmet
from tangram.packing.problem.mix import least_unmet
from tangram.recommendation.documents import profile_names as profiles
from tangram.recommendation.problem.problem import FleetProblem
from tangram.recommendation.problem.replica_bounds import ReplicaBounds

_ROUNDING = 1 + 1e-9  # of sums of rates and prices


def unmet_reason(asked: FleetProblem, item: Unmet, packing: Packing, rooms: ReplicaBounds) -> str:
    """Return the reason of one entry of `unmet`. What it claims is proved: otherwise it claims less."""
    each = asked.sized.get(item.demand)
    given_up = "what runs stays: no better plan was found in time" if packing.status == "FALLBACK" else ""
    if each is None:
        return _no_board(asked, item.demand) or given_up or _left(item, packing)
    if (missing := no_gpu_in_pools(each, asked)) or not each.offers:
        return missing or each.requirements.impossible or _no_shape(each)
    return given_up or _excluded(asked, item, each, rooms) or _left(item, packing)


def _excluded(asked: FleetProblem, item: Unmet, each: AssessedShapes, rooms: ReplicaBounds) -> str:
    """Return what rules it out on its own, whatever else there is; the empty string where nothing does."""
    wanted = each.requirements
    demand = next(d for d in asked.problem.demands if d.id == item.demand)
    if demand.offers and least_unmet(demand) > 0:
        return f"scaling.maxReplicas allows {wanted.most} replicas, too few for its traffic on any shape"
    if wanted.budget_per_hour is not None and _least_price(each) > wanted.budget_per_hour * _ROUNDING:
        return f"placement.budgetPerHour of {wanted.budget_per_hour:.2f} $/h is too little for all of it"
    inside = rooms.inside(wanted.pools)

    def enough(there: float, carried: float) -> bool:
        return there >= wanted.least and carried * _ROUNDING >= (wanted.rps or 0.0)

    space = ""
    if enough(
        inside.most({shape.key: 1.0 for shape in each.offers}),
        inside.most({shape.key: shape.rate for shape in each.offers}),
    ):
        counts = [(inside.of(shape.key), shape.rate) for shape in each.offers]
        if not wanted.uniform or enough(max(n for n, _ in counts), max(n * rate for n, rate in counts)):
            return ""
        space = " on one shape"
    where = f"what is in {' and '.join(wanted.pools)}" if wanted.pools else "the whole fleet"
    return f"{where} has no room for all of it{space}"


def _least_price(each: AssessedShapes) -> float:
    """Return a bound on USD per hour of all mixes that serve it whole."""
    rate, least = each.requirements.rps or 0.0, each.requirements.least
    return max(
        rate * min(shape.price_per_hour / shape.rate for shape in each.offers),
        least * min(shape.price_per_hour for shape in each.offers),
    )


def _left(item: Unmet, packing: Packing) -> str:
    """Return the packing's own reason, where it is proved that no plan serves its priority better."""
    proved = any(stage.name == f"unmet[{item.priority}]" and stage.proved for stage in packing.stages)
    return item.reason if proved else "no better place was found for it within the limits"


def no_gpu_in_pools(each: AssessedShapes, asked: FleetProblem) -> str:
    """Return that no GPU is where it has to be, the empty string where one is."""
    pools = each.requirements.pools
    known = {gpu.pool for gpu in asked.problem.gpus} | {pool.name for pool in asked.problem.growable}
    return "" if not pools or known & set(pools) else f"no GPU is in GPUPool {' or '.join(pools)}"


def _no_board(asked: FleetProblem, name: str) -> str:
    """Return that no GPU of the fleet has what a SliceRequest asks for, the empty string where one has."""
    wanted = next(request for request in asked.given.requests if request.name == name)
    skus = {gpu.sku for gpu in asked.problem.gpus} | {pool.sku for pool in asked.problem.growable}
    if wanted.sku is not None:
        return "" if wanted.sku in skus else f"this fleet has no {wanted.sku}"
    some = any(profiles.board_has(sku, profiles.full_profile_name(sku, wanted.profile)) for sku in skus)
    return "" if some else f"no GPU of this fleet can be cut into {wanted.profile}"


def _no_shape(each: AssessedShapes) -> str:
    if not each.rejected:
        return "no GPU of this fleet is allowed by spec.placement"
    nearest = min(each.rejected, key=lambda r: (r.excess, str(r.shape)))
    why = f"{nearest.constraint}, {nearest.message}"
    return f"no shape of this fleet serves it; nearest {nearest.shape}: {why}"
