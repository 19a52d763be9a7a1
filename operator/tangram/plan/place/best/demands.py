"""LLMDeployments as demands of the packing: every shape sized once, offers of those that serve."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tangram.capacity.sizing import ServingShape
from tangram.capacity.sizing.candidate_shapes import Device
from tangram.catalog import InputError
from tangram.catalog import gpu as catalog_gpu
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing import Demand, Offer, Part, Problem
from tangram.plan.offers.fleet_shapes import fleet_shapes, replicas
from tangram.plan.place.best.replica_bounds import ReplicaBounds

Running = Mapping[str, Mapping[ShapeKey, int]]  # replicas by owner and shape


def size_all(
    deployments: Iterable[ServingRequirements],
    skus: frozenset[str],
    prices: Mapping[str, float],
    existing: frozenset[Device] = frozenset(),
) -> dict[str, AssessedShapes]:
    """Size every LLMDeployment that is neither paused nor set to no replica, by id."""
    assessed_by_id: dict[str, AssessedShapes] = {}
    for requirements in deployments:
        if requirements.intent.paused or requirements.intent.is_off:
            continue
        try:
            assessed = fleet_shapes(requirements, skus, prices, existing)
            if (loaded := _loaded(assessed)) != requirements:
                assessed = fleet_shapes(loaded, skus, prices, existing)
        except InputError as error:
            raise InputError(f"LLMDeployment {requirements.id}", f"{error.field} {error.problem}") from error
        assessed_by_id[requirements.id] = _of_measured_load(assessed)
    return assessed_by_id


def _loaded(assessed: AssessedShapes) -> ServingRequirements:
    """Return the requirements with the load that the desired replicas of the shape at present carry.

    Another shape gets the number that carries the same rate; if the rate is not known, the same number.
    """
    requirements = assessed.requirements
    if requirements.present is None:
        return requirements
    shape, count = requirements.present
    offer = assessed.offer(shape)
    if offer is not None and (count > requirements.least or requirements.rps is not None):
        return replace(requirements, rps=count * offer.rate)
    least = requirements.least if requirements.rps is not None else max(requirements.least, count)
    return replace(requirements, least=least)


def _of_measured_load(assessed: AssessedShapes) -> AssessedShapes:
    """Return the shapes with their rates for the measured load, as in the planner, where it is known.

    The shape at present carries it with the desired replicas. A shape on which its requests are predicted to
    miss keeps the ratio to that one.
    """
    requirements = assessed.requirements
    load, present, intent = requirements.load, requirements.present, requirements.intent
    if load is None or present is None or intent.replicas is not None:
        return assessed
    (key, count), rps = present, load.requests_per_second
    offer = assessed.offer(key)
    if offer is None or count < 1:
        return assessed

    def rate(serving: ServingShape) -> float:
        measured = None if serving.key == key else assessed.provisioned_rate(serving.shape, load)
        return rps / count * serving.rate / offer.rate if measured is None else measured

    loaded = replace(requirements, rps=rps)
    rated = (replace(serving, rate=rate(serving)) for serving in assessed.serving)
    in_order = sorted(rated, key=lambda s: (replicas(loaded, s) * s.price_per_hour, s.key))
    return replace(assessed, requirements=loaded, serving=tuple(in_order))


def demand(assessed: AssessedShapes, bounds: ReplicaBounds, running: Running) -> Demand:
    """Return one LLMDeployment for the solver; without offers where no other replica could be carried out."""
    whole_demand = offered(assessed, running)
    return replace(whole_demand, offers=()) if cannot_move(assessed, bounds, running) else whole_demand


def cannot_move(assessed: AssessedShapes, bounds: ReplicaBounds, running: Running) -> bool:
    """Whether replicas run, and the fleet has room for no shape that serves: the replicas stay."""
    inside, own_replicas = (
        bounds.inside(assessed.requirements.pools),
        running.get(assessed.requirements.id, {}),
    )
    # A gang that runs may go on where no new one of its size would be put, on a part of a node.
    gangs = {shape for shape in own_replicas if shape.gpus > 1}
    placeable = any(offer.key in gangs or inside.of(offer.key) for offer in assessed.serving)
    return assessed.requirements.uniform and bool(own_replicas) and not placeable


def offered(assessed: AssessedShapes, running: Running) -> Demand:
    """Return one LLMDeployment with everything that serves it, whether the fleet has room for that or not."""
    requirements = assessed.requirements
    return Demand(
        id=requirements.id,
        priority=requirements.intent.priority,
        spread=requirements.intent.spread,
        budget_per_hour=requirements.intent.budget_per_hour,
        pools=requirements.pools,
        offers=tuple(sorted(packing_offer(shape) for shape in assessed.serving if shape.rate > 0)),
        rate=requirements.rps or 0.0,
        min_replicas=requirements.least,
        max_replicas=requirements.most,
        uniform=requirements.uniform,
        protected=_protected(assessed, running.get(requirements.id, {})),
    )


def packing_offer(serving: ServingShape) -> Offer:
    """Return what the packing may choose of a demand."""
    return Offer(*serving.key, serving.rate, serving.price_per_hour, serving.shape.precision)


def existing_slices(fleet: Problem) -> frozenset[Device]:
    """Return the slices that exist and, of GPUs that stay in MIG mode, the one that is all of the board."""
    cut = [gpu for gpu in fleet.gpus if gpu.mig_enabled and (gpu.in_use or not gpu.convertible)]
    slices = {(gpu.sku, instance.profile) for gpu in cut for instance in gpu.instances}
    for sku in {gpu.sku for gpu in cut} | {pool.sku for pool in fleet.growable if pool.mig_enabled}:
        board = catalog_gpu(sku)
        whole = [p.name for p in board.profiles if p.dominant_share == 1] if board else []
        slices |= {(sku, name) for name in whole[:1]}
    return frozenset(slices)


def _protected(assessed: AssessedShapes, running: Mapping[ShapeKey, int]) -> tuple[Part, ...]:
    """Return the running replicas of the minimum, which no budget ends, here as in the cluster."""
    least = assessed.requirements.least
    if not (assessed.requirements.uniform and least):
        return ()
    return tuple(Part(*key, min(count, least)) for key, count in sorted(running.items()))


def running_replicas(fleet: Problem) -> Running:
    """Return how many replicas of each shape run now, by owner; GPUs of one gang are one replica."""
    replicas: dict[str, Counter[ShapeKey]] = {}
    gangs: Counter[tuple[str, str, str]] = Counter()
    for gpu in fleet.gpus:
        for instance in gpu.instances:
            if instance.owner is not None and instance.gang is not None:
                gangs[instance.owner, gpu.sku, instance.gang] += 1
            elif instance.owner is not None:
                replicas.setdefault(instance.owner, Counter())[ShapeKey(gpu.sku, instance.profile)] += 1
    for (owner, sku, _), size in gangs.items():
        replicas.setdefault(owner, Counter())[ShapeKey(sku, WHOLE_GPU, size)] += 1
    return replicas
