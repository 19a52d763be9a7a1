"""Most replicas per shape by quota, back-off and refusals of the API server, whatever devices are free."""

from collections.abc import Iterable, Iterator, Mapping

from tangram.eligibility.isolation import RoundStep, for_each
from tangram.eligibility.reasons import Reason
from tangram.fleet import BackOff, FleetSnapshot, Shape
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.place.now.back_off import RULES, Obstacles
from tangram.plan.place.now.placement_demand import PlacementDemand, ReplicaLimit
from tangram.plan.place.now.quotas import Quotas
from tangram.plan.reasons.placement import BackedOff, DeploymentRefused, NamespaceRefusesPods

_REFUSALS = (Reason.QUOTA_EXCEEDED, Reason.FAILED_CREATE)  # of pods, by the API server


def replica_limits(
    demands: tuple[PlacementDemand, ...],
    snapshot: FleetSnapshot,
    obstacles: Obstacles,
    devices: FreeDevices,
    quotas: Quotas,
    now: float,
) -> Mapping[str, Mapping[Shape, ReplicaLimit]]:
    """Return the limits by uid and shape.

    `demands` are in order of priority; each takes its part of its namespace's quota before the next one.
    `devices`: before any is reserved for missing pods.
    """
    refused = _refused_namespaces(demands, obstacles, now)
    problems = {p.owner_uid: p.message for p in snapshot.problems}

    def limits_of(demand: PlacementDemand) -> tuple[str, Mapping[Shape, ReplicaLimit]]:
        shapes = {c.shape for c in demand.usable} | {w.shape for w in demand.workloads}
        limits = {
            shape: limit
            for shape in sorted(shapes)
            if (limit := _limit(demand, shape, obstacles, refused, problems, quotas, now)) is not None
        }
        quotas.take(demand, _new_pods(demand, limits, devices))
        return demand.uid, limits

    return dict(for_each(RoundStep.LIMIT, demands, lambda demand: demand.uid, limits_of))


def _refused_namespaces(
    demands: tuple[PlacementDemand, ...], obstacles: Obstacles, now: float
) -> frozenset[str]:
    """Namespaces that refuse pods: an LLMDeployment without a pod there starts with one."""
    return frozenset(
        demand.intent.namespace
        for demand in demands
        for back_off in obstacles.back_offs.get(demand.uid, ())
        if back_off.reason in _REFUSALS and now < back_off.until
    )


def _limit(
    demand: PlacementDemand,
    shape: Shape,
    obstacles: Obstacles,
    refused: frozenset[str],
    problems: Mapping[str, str],
    quotas: Quotas,
    now: float,
) -> ReplicaLimit | None:
    """Return the lowest limit. No limit ends a pod that exists."""
    workload = demand.workload_on(shape)
    pods, replicas = (workload.total, workload.replicas) if workload is not None else (0, 0)
    limits = [*_quota_limit(demand, shape, pods, replicas, quotas)]
    limits += _back_off_limits(obstacles.back_offs.get(demand.uid, ()), shape, pods, now)
    namespace = demand.intent.namespace
    if namespace in refused and not any(w.total for w in demand.workloads):
        limits.append(ReplicaLimit(max(1, replicas), NamespaceRefusesPods(namespace)))
    if demand.uid in problems and workload is None:
        limits.append(ReplicaLimit(0, DeploymentRefused(problems[demand.uid])))
    return min(limits, key=lambda limit: limit.replicas, default=None)


def _quota_limit(
    demand: PlacementDemand, shape: Shape, pods: int, replicas: int, quotas: Quotas
) -> Iterator[ReplicaLimit]:
    """Yield the limit of quotas. It takes no replica back: missing pods may be on the way."""
    if (room := quotas.max_new_pods(demand, shape)) is not None:
        more, quota = room
        yield ReplicaLimit(max(pods + more, replicas), quota)


def _back_off_limits(
    back_offs: Iterable[BackOff], shape: Shape, pods: int, now: float
) -> Iterator[ReplicaLimit]:
    for back_off in back_offs:
        concerns_shape = back_off.shape == shape or RULES[back_off.reason].every_shape
        if concerns_shape and back_off.reason != Reason.REPLICAS_NOT_STARTING:
            replicas, is_over = back_off.replicas if back_off.shape == shape else pods, now >= back_off.until
            yield ReplicaLimit(replicas + is_over, BackedOff(back_off, is_over))


def _new_pods(
    demand: PlacementDemand, limits: Mapping[Shape, ReplicaLimit], devices: FreeDevices
) -> Mapping[Shape, int]:
    """Return how many pods it may create on each shape that it may come to run on."""

    def limit_of(shape: Shape, unlimited: int) -> int:
        return limits[shape].replicas if shape in limits else unlimited

    def stays(shape: Shape) -> bool:
        """Whether it serves on `shape` and holds the devices of its minimum there: then it does not move."""
        least = demand.intent.min_replicas
        held = min(limit_of(shape, least), devices.count_held(demand.uid, shape))
        return demand.available_on(shape) > 0 and held >= least

    usable = demand.usable or tuple(filter(None, (demand.too_slow_but_serving,)))
    staying = [candidate for candidate in usable if stays(candidate.shape)]
    possible = [c for current in staying for c in (current, *demand.cheaper_formats(current))] or usable
    new_pods: dict[Shape, int] = {}
    for candidate in possible:
        shape = candidate.shape
        workload = demand.workload_on(shape)
        pods = workload.total if workload is not None else 0
        fitting = devices.count_free(demand.uid, shape) + devices.count_held(demand.uid, shape)
        replicas = min(demand.replicas_needed(candidate), max(fitting, pods))
        replicas += workload is not None and workload.is_rolling and workload.total <= workload.replicas
        new_pods[shape] = max(0, min(replicas, limit_of(shape, replicas)) - pods)
    return new_pods
