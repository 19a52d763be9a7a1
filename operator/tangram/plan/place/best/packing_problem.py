"""The problem that the packing solver gets: GPUs, demands and prices of a plan's input."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram import catalog
from tangram.catalog import InputError
from tangram.catalog.prices import Prices
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import WHOLE_GPU
from tangram.packing import ANY_SKU, Demand, GPUState, Instance, Problem, slice_request
from tangram.packing.problem.prepared import prices_of
from tangram.plan.fleet_input.documents import profile_names as profiles
from tangram.plan.fleet_input.documents.fleet_input import FleetInput, PlanTerms, SliceRequest
from tangram.plan.fleet_input.documents.pools import growable_pool
from tangram.plan.place.best.demands import (
    Running,
    cannot_move,
    demand,
    existing_slices,
    running_replicas,
    size_all,
)
from tangram.plan.place.best.replica_bounds import ReplicaBounds

# Moving an instance whose start-up time is unknown, as a part of its GPU's price per hour. So small that a
# GPU less in use is always worth the moves; equal for all, so that the fewest instances move.
RAW_MOVE_SHARE = 1e-3
HORIZON_H = 1.0


@dataclass(frozen=True, slots=True)
class FleetProblem:
    """A packing problem, and what its demands were made from."""

    inputs: FleetInput
    problem: Problem
    assessed: Mapping[str, AssessedShapes] = field(default_factory=dict)  # by LLMDeployment
    running: Running = field(default_factory=dict)
    bounds: ReplicaBounds = field(default_factory=lambda: ReplicaBounds(Problem((), ()), ()))  # if empty


def fleet_problem(inputs: FleetInput) -> FleetProblem:
    """Return the packing problem. Raises `InputError` for what contradicts itself."""
    fleet = _fleet(inputs)
    skus = frozenset(fleet.skus)
    hourly = prices_of(fleet)
    prices = {sku: hourly.required_gpu_hour(sku) for sku in sorted(skus)} if inputs.deployments else {}
    assessed = size_all(inputs.deployments, skus, prices, existing_slices(fleet))
    slice_demands = [_slice_demand(request, skus) for request in inputs.requests]
    duplicates = {request.name for request in inputs.requests} & {d.id for d in inputs.deployments}
    if duplicates:
        name = min(duplicates)
        raise InputError(f"SliceRequest {name}", "an LLMDeployment has this name; each demand needs its own")
    bounds, running = ReplicaBounds(fleet, assessed), running_replicas(fleet)
    demands = [demand(shapes, bounds, running) for shapes in assessed.values()]
    ordered = tuple(sorted((*demands, *slice_demands), key=lambda d: d.id))
    gpus = pinned(fleet.gpus, {d for d, shapes in assessed.items() if cannot_move(shapes, bounds, running)})
    problem = replace(fleet, gpus=_converting_together(gpus, inputs.inferred), demands=ordered)
    return FleetProblem(inputs, problem, assessed, running, bounds)


def _converting_together(gpus: tuple[GPUState, ...], inferred: Collection[str]) -> tuple[GPUState, ...]:
    """Return the GPUs; mig-manager changes a MIG mode only on a node where nothing runs, so not beside a
    replica that must not move. Of `inferred` GPUs it is not known whether it does.
    """
    pinned_nodes = {g.node for g in gpus if any(i.owner is not None and not i.movable for i in g.instances)}

    def is_pinned(gpu: GPUState) -> bool:
        return gpu.backend == "mig-manager" and gpu.id not in inferred and gpu.node in pinned_nodes

    return tuple(replace(gpu, convertible=False) if is_pinned(gpu) else gpu for gpu in gpus)


def with_modes_in_use(problem: Problem, inferred: Collection[str]) -> Problem:
    """Return the problem in which GPUs in use keep their MIG mode; under mig-manager, all of their node."""
    nodes = {gpu.node for gpu in problem.gpus if gpu.in_use}

    def keeps_mode(gpu: GPUState) -> bool:
        by_node = gpu.backend == "mig-manager" and gpu.id not in inferred
        return gpu.in_use or (by_node and gpu.node in nodes)

    gpus = (replace(gpu, convertible=gpu.convertible and not keeps_mode(gpu)) for gpu in problem.gpus)
    return replace(problem, gpus=tuple(gpus))


def _fleet(inputs: FleetInput) -> Problem:
    terms, planned_gpus = inputs.terms, inputs.planned_gpus
    owners = _PlannedOwners.of(inputs)
    growable = (growable_pool(pool, planned_gpus, Prices(dict(terms.prices))) for pool in inputs.pools)
    budgets = ((pool.name, pool.disruption_budget) for pool in sorted(inputs.pools))
    return Problem(
        gpus=tuple(owners.attributed(gpu, terms) for gpu in inputs.gpus),
        demands=(),
        prices=terms.prices,
        headroom=inputs.headroom,
        growable=tuple(pool for pool in growable if pool is not None),
        move_budget=terms.move_budget,
        move_budgets=tuple((name, budget) for name, budget in budgets if budget is not None),
        horizon_h=HORIZON_H if terms.horizon_h is None else terms.horizon_h,
    )


@dataclass(frozen=True, slots=True)
class _PlannedOwners:
    """The LLMDeployments of a plan, by id."""

    ids: frozenset[str]
    paused: frozenset[str]
    off: frozenset[str]  # their pods end by themselves
    aliases: Mapping[str, str]  # id by NAMESPACE/NAME

    @classmethod
    def of(cls, inputs: FleetInput) -> "_PlannedOwners":
        """Return the LLMDeployments of an input."""
        paused = frozenset(d.id for d in inputs.deployments if d.intent.paused)
        return cls(
            ids=frozenset(d.id for d in inputs.deployments),
            paused=paused,
            off=frozenset(d.id for d in inputs.deployments if d.intent.is_off) - paused,
            aliases={f"{d.intent.namespace}/{d.intent.name}": d.id for d in inputs.deployments},
        )

    def attributed(self, gpu: GPUState, terms: PlanTerms) -> GPUState:
        """Return a GPU with the owners of its slices by id, and what it costs to move foreign ones."""
        instances = (self._owned(i, gpu, terms) for i in _freed(gpu, self.off, self.aliases))
        return replace(gpu, instances=tuple(instances))

    def _owned(self, instance: Instance, gpu: GPUState, terms: PlanTerms) -> Instance:
        owner = instance.owner if instance.owner is None else self.aliases.get(instance.owner, instance.owner)
        cost, movable = instance.move_cost, instance.movable and owner not in self.paused
        if cost is None and owner is not None and owner not in self.ids:
            cost = _foreign_move_cost(gpu, terms)
        return replace(instance, owner=owner, move_cost=cost, movable=movable)


def _freed(gpu: GPUState, off: Collection[str], aliases: Mapping[str, str]) -> Iterable[Instance]:
    """Return what is on a GPU without what the owners `off` hold: a slice stays, free."""
    for instance in gpu.instances:
        if instance.owner is None or aliases.get(instance.owner, instance.owner) not in off:
            yield instance
        elif instance.profile != WHOLE_GPU:
            yield replace(instance, owner=None)


def pinned(gpus: tuple[GPUState, ...], owners: Collection[str]) -> tuple[GPUState, ...]:
    """Return the GPUs with the instances of `owners` immovable."""

    def immovable(gpu: GPUState) -> GPUState:
        instances = (replace(i, movable=i.movable and i.owner not in owners) for i in gpu.instances)
        return replace(gpu, instances=tuple(instances))

    return tuple(immovable(gpu) if any(i.owner in owners for i in gpu.instances) else gpu for gpu in gpus)


def _foreign_move_cost(gpu: GPUState, terms: PlanTerms) -> float:
    """Return USD of moving an instance that no LLMDeployment owns."""
    if terms.move_cost is not None:
        return terms.move_cost
    return RAW_MOVE_SHARE * Prices(dict(terms.prices)).required_gpu_hour(gpu.sku, gpu.price_per_hour)


def _slice_demand(request: SliceRequest, skus: frozenset[str]) -> Demand:
    """`skus`: those of GPUs that there are, and of nodes that may be added."""
    profile = _full_name(request, {request.sku} if request.sku else skus)
    sku = _only_sku(request, profile, skus)
    return slice_request(request.name, profile, request.count, sku=sku, priority=request.priority)


def _only_sku(request: SliceRequest, profile: str, skus: frozenset[str]) -> str:
    """Return the SKU that has to serve a request, `ANY_SKU` where any may. Raises `InputError`."""
    if request.sku is None and (not skus or any(profiles.board_has(sku, profile) for sku in skus)):
        return ANY_SKU
    # If no GPU of the fleet has the profile, all of the request stays unmet.
    candidates = [request.sku] if request.sku else sorted(catalog.skus(), key=_is_without_price)
    sku = next((sku for sku in candidates if profiles.board_has(sku, profile)), None)
    if sku is None:
        which = " or ".join(sorted({request.sku} if request.sku else skus))
        raise InputError(f"SliceRequest {request.name}: profile", f"{profile!r} is no MIG profile of {which}")
    return sku


def _is_without_price(sku: str) -> bool:
    facts = catalog.gpu(sku)
    return facts is None or facts.price_per_hour is None


def _full_name(request: SliceRequest, skus: frozenset[str] | set[str]) -> str:
    if not profiles.is_short(request.profile):
        return request.profile
    names = {name for sku in skus if (name := profiles.profile_of_short_name(sku, request.profile))}
    if len(names) != 1:
        which = f"is {' and '.join(sorted(names))} on these GPUs" if names else "is no profile of these GPUs"
        raise InputError(
            f"SliceRequest {request.name}: profile", f"{request.profile} {which}; name one in full"
        )
    return names.pop()
