"""From what was read to what is packed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram import catalog
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import WHOLE_GPU
from tangram.packing import ANY_SKU, Demand, GPUState, Instance, Problem
from tangram.packing import slice_request as raw_demand
from tangram.packing.problem.prepared import prices_of
from tangram.recommendation.documents import profile_names as profiles
from tangram.recommendation.documents.fleet_input import FleetInput, SliceRequest
from tangram.recommendation.documents.pools import growable_pool
from tangram.recommendation.problem.demands import (
    Running,
    cannot_move,
    demand,
    existing_slices,
    running_replicas,
    size_all,
)
from tangram.recommendation.problem.replica_bounds import ReplicaBounds

# Moving an instance whose start-up time is unknown, as a part of its GPU's price per hour. So small that a
# GPU less in use is always worth the moves; equal for all, so that the fewest instances move.
RAW_MOVE_SHARE = 1e-3
HORIZON_H = 1.0


@dataclass(frozen=True, slots=True)
class FleetProblem:
    """A packing problem, and what its demands were made from."""

    given: FleetInput
    problem: Problem
    sized: Mapping[str, AssessedShapes] = field(default_factory=dict)  # by LLMDeployment
    running: Running = field(default_factory=dict)


def fleet_problem(given: FleetInput) -> FleetProblem:
    """Return the packing problem. Raises `InputError` for what contradicts itself."""
    fleet = _fleet(given)
    skus = frozenset(fleet.skus)
    hourly = prices_of(fleet)
    prices = {sku: hourly.gpu_hour(sku) for sku in sorted(skus)} if given.deployments else {}
    sized = size_all(given.deployments, skus, prices, existing_slices(fleet))
    raw = [_raw(request, skus) for request in given.requests]
    duplicates = sorted(
        {request.name for request in given.requests} & {demand_.id for demand_ in given.deployments}
    )
    if duplicates:
        raise InputError(
            f"SliceRequest {duplicates[0]}", "an LLMDeployment has this name; each demand needs its own"
        )
    rooms, running = ReplicaBounds(fleet, sized), running_replicas(fleet)
    deployments = [demand(assessed, rooms, running) for assessed in sized.values()]
    demands = sorted((*deployments, *raw), key=lambda demand_: demand_.id)
    staying = (
        assessed.requirements.id for assessed in sized.values() if cannot_move(assessed, rooms, running)
    )
    gpus = _pinned(fleet.gpus, frozenset(staying))
    return FleetProblem(given, replace(fleet, gpus=gpus, demands=tuple(demands)), sized, running)


def _fleet(given: FleetInput) -> Problem:
    terms = given.terms
    models = {requirements.id for requirements in given.deployments}
    paused = {requirements.id for requirements in given.deployments if requirements.intent.paused}
    off = {
        requirements.id
        for requirements in given.deployments
        if requirements.intent.is_off and not requirements.intent.paused
    }
    aliases = {
        f"{requirements.intent.namespace}/{requirements.intent.name}": requirements.id
        for requirements in given.deployments
    }

    def known(instance: Instance, at: GPUState) -> Instance:
        owner = instance.owner if instance.owner is None else aliases.get(instance.owner, instance.owner)
        cost, movable = instance.move_cost, instance.movable and owner not in paused
        if cost is None and owner is not None and owner not in models:
            cost = _raw_move_cost(at, given)
        return replace(instance, owner=owner, move_cost=cost, movable=movable)

    pools = [
        growable
        for pool in given.pools
        if (growable := growable_pool(pool, given.gpus, dict(terms.prices))) is not None
    ]
    return Problem(
        gpus=tuple(
            replace(g, instances=tuple(known(i, g) for i in _freed(g, off, aliases))) for g in given.gpus
        ),
        demands=(),
        prices=terms.prices,
        headroom=given.headroom,
        growable=tuple(pools),
        move_budget=terms.move_budget,
        move_budgets=tuple(
            (pool.name, pool.disruption_budget)
            for pool in sorted(given.pools)
            if pool.disruption_budget is not None
        ),
        horizon_h=HORIZON_H if terms.horizon_h is None else terms.horizon_h,
    )


def _freed(gpu: GPUState, off: set[str], aliases: Mapping[str, str]) -> Iterable[Instance]:
    """Return what is on a GPU without what the owners `off` hold: a slice stays, free."""
    for instance in gpu.instances:
        if instance.owner is None or aliases.get(instance.owner, instance.owner) not in off:
            yield instance
        elif instance.profile != WHOLE_GPU:
            yield replace(instance, owner=None)


def _pinned(gpus: tuple[GPUState, ...], owners: frozenset[str]) -> tuple[GPUState, ...]:
    """Return the GPUs with what `owners` run where it is."""

    def pinned(gpu: GPUState) -> GPUState:
        return replace(
            gpu,
            instances=tuple(replace(i, movable=i.movable and i.owner not in owners) for i in gpu.instances),
        )

    return tuple(pinned(gpu) if any(i.owner in owners for i in gpu.instances) else gpu for gpu in gpus)


def _raw_move_cost(at: GPUState, given: FleetInput) -> float:
    if given.terms.move_cost is not None:
        return given.terms.move_cost
    return RAW_MOVE_SHARE * Prices(dict(given.terms.prices)).required_gpu_hour(at.sku, at.price_per_hour)


def _raw(request: SliceRequest, skus: frozenset[str]) -> Demand:
    """`skus`: those of GPUs that there are, and of nodes that may be added."""
    profile = _full_name(request, {request.sku} if request.sku else skus)
    sku = _only_sku(request, profile, skus)
    return raw_demand(request.name, profile, request.count, sku=sku, priority=request.priority)


def _only_sku(request: SliceRequest, profile: str, skus: frozenset[str]) -> str:
    """Return the SKU that has to serve a request, `ANY_SKU` where any may. Raises `InputError`."""
    if request.sku is None and (not skus or any(profiles.board_has(sku, profile) for sku in skus)):
        return ANY_SKU
    if request.sku is None:
        known = _boards_with(profile)  # no GPU of the fleet has it: all of it stays unmet
    else:
        known = [request.sku] if profiles.board_has(request.sku, profile) else []
    if not known:
        which = " or ".join(sorted({request.sku} if request.sku else skus))
        raise InputError(f"SliceRequest {request.name}: profile", f"{profile!r} is no MIG profile of {which}")
    return known[0]


def _boards_with(profile: str) -> list[str]:
    """Return the GPUs of the catalog that can be cut so, those with a price first."""
    found = [
        facts for sku in catalog.skus() if profiles.board_has(sku, profile) and (facts := catalog.gpu(sku))
    ]
    return [facts.sku for facts in sorted(found, key=lambda facts: facts.price_per_hour is None)]


def _full_name(request: SliceRequest, skus: frozenset[str] | set[str]) -> str:
    if not profiles.is_short(request.profile):
        return request.profile
    found = {name for sku in skus if (name := profiles.profile_of_short_name(sku, request.profile))}
    if len(found) != 1:
        which = f"is {' and '.join(sorted(found))} on these GPUs" if found else "is no profile of these GPUs"
        raise InputError(
            f"SliceRequest {request.name}: profile", f"{request.profile} {which}; name one in full"
        )
    return found.pop()
