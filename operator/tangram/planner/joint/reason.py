"""Why a demand is not served whole, in one sentence, from what is known without solving again."""

from tangram.packing import Unmet
from tangram.planner.joint import profiles
from tangram.planner.joint.problem import Joint
from tangram.planner.joint.shapes import Sized, replicas


def reason(asked: Joint, item: Unmet, status: str) -> str:
    """Return the reason of one entry of `unmet`."""
    each = asked.sized.get(item.demand)
    given_up = "what runs stays: no better plan was found in time" if status == "FALLBACK" else ""
    if each is None:
        return _no_board(asked, item.demand) or given_up or item.reason
    if (missing := nowhere(each, asked)) or not each.offers:
        return missing or each.wanted.impossible or _no_shape(each)
    if given_up:
        return given_up
    demand = next(d for d in asked.problem.demands if d.id == item.demand)
    if any(bundle.unmet == 0 for bundle in demand.bundles):
        return item.reason
    most = each.wanted.most
    if most is not None and all(replicas(each.wanted, offer) > most for offer in each.offers):
        return f"scaling.maxReplicas allows {most} replicas, too few for its traffic on any shape"
    where = f"what is in {' and '.join(each.wanted.pools)}" if each.wanted.pools else "the whole fleet"
    return f"{where} has no room for all of it"


def nowhere(each: Sized, asked: Joint) -> str:
    """Return that no GPU is where it has to be, the empty string where one is."""
    pools = each.wanted.pools
    known = {gpu.pool for gpu in asked.problem.gpus} | {pool.name for pool in asked.problem.growable}
    return "" if not pools or known & set(pools) else f"no GPU is in GPUPool {' or '.join(pools)}"


def _no_board(asked: Joint, name: str) -> str:
    """Return that no GPU of the fleet has what a SliceRequest asks for, the empty string where one has."""
    wanted = next(request for request in asked.given.requests if request.name == name)
    skus = {gpu.sku for gpu in asked.problem.gpus} | {pool.sku for pool in asked.problem.growable}
    if wanted.sku is not None:
        return "" if wanted.sku in skus else f"this fleet has no {wanted.sku}"
    some = any(profiles.has(sku, profiles.full(sku, wanted.profile)) for sku in skus)
    return "" if some else f"no GPU of this fleet can be cut into {wanted.profile}"


def _no_shape(each: Sized) -> str:
    if not each.rejected:
        return "no GPU of this fleet is allowed by spec.placement"
    nearest = min(each.rejected, key=lambda r: (r.excess, str(r.shape)))
    why = f"{nearest.constraint}, {nearest.message}"
    return f"no shape of this fleet serves it; nearest {nearest.shape}: {why}"
