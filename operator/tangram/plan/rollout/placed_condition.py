"""The condition `Placed` of one LLMDeployment, and the notes behind it, as records of `reasons`."""

from collections.abc import Mapping

from tangram import catalog
from tangram.capacity.sizing import ServingShape
from tangram.eligibility.explanation.no_serving_shape import no_serving_shape
from tangram.fleet import WHOLE_GPU, FailedChanges, Intent, MIGPolicy, Workload
from tangram.plan.offers.node_offers import NodeOffers
from tangram.plan.place.now.back_off import Obstacles
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.reasons import placement as reasons


def placed_condition(
    demand: PlacementDemand,
    target: PlacementTarget,
    placed: int,
    node_offers: NodeOffers,
    obstacles: Obstacles,
) -> reasons.PlacedReason:
    """Return why the condition has its status. `placed`: replicas that run or have a device."""
    chosen = target.candidate
    if chosen is None or not demand.usable:
        return _without_candidate(demand, node_offers)
    if placed == target.desired:
        return _of_all_replicas(demand, target, chosen, obstacles)
    others = any(w.shape != chosen.shape and w.available for w in demand.workloads)
    why = _why_not_all(demand, target, chosen, target.desired - placed, node_offers)
    return reasons.SomePlaced(placed, target.desired, chosen.shape if others else None, why)


def rollout_notes(
    demand: PlacementDemand,
    target: PlacementTarget,
    chosen: ServingShape,
    rollout_waits: reasons.RolloutWaits | None,
    kept_by_uid: Mapping[str, int],
    node_offers: NodeOffers,
) -> tuple[reasons.PlacementNote | None, ...]:
    """Return notes on what holds a rollout back and which replicas stay meanwhile.

    `kept_by_uid`: replicas of other shapes that stay, by the uid of their Deployment.
    """
    others = tuple(workload for workload in demand.workloads if workload.shape != chosen.shape)
    return (
        _waits_for_minimum(demand, target, demand.workload_on(chosen.shape), others),
        rollout_waits,
        reasons.AssignedByPriority(target.failure) if target.failure else None,
        demand.avoided.failure,
        _kept_replicas(chosen, others, kept_by_uid),
        _failed_cut(demand.intent, chosen, node_offers),
    )


def idle_ms(demand: PlacementDemand, chosen: ServingShape) -> tuple[float | None, float | None]:
    """Return the predicted TTFT and TPOT of a nearly idle replica in milliseconds; None: unknown."""
    return demand.shapes.idle_ms(chosen.shape) or (None, None)


def _of_all_replicas(
    demand: PlacementDemand, target: PlacementTarget, chosen: ServingShape, obstacles: Obstacles
) -> reasons.PlacedReason:
    """Return the reason where each replica has a device."""
    limit = demand.limits.get(chosen.shape)
    back_off = None if limit is None or limit.replicas > target.replicas else limit.back_off
    if back_off is not None and back_off.is_over:
        return back_off
    unscheduled = obstacles.unscheduled.get((demand.uid, chosen.shape))
    if unscheduled is not None:
        return unscheduled
    _, tpot_ms = idle_ms(demand, chosen)
    rate = target.desired * chosen.rate if demand.intent.traffic.requests_per_second else 0.0
    gpu = catalog.gpu(chosen.shape.sku)
    unverified = gpu.sku if gpu is not None and gpu.unverified else ""
    return reasons.AllPlaced(target.desired, chosen, tpot_ms, rate, unverified)


def _why_not_all(
    demand: PlacementDemand,
    target: PlacementTarget,
    chosen: ServingShape,
    missing: int,
    node_offers: NodeOffers,
) -> (
    reasons.LimitBinds
    | reasons.BudgetBinds
    | reasons.WaitsForCuts
    | reasons.NoFreeDevice
    | reasons.NoneOfThePools
):
    """Return why `missing` replicas are not placed."""
    if target.limit is not None:
        return reasons.LimitBinds(target.limit.cause, *_next_try(demand))
    if target.over_budget is not None:
        return target.over_budget
    if target.waiting:
        return _coming(chosen, target.waiting, node_offers)
    pools = demand.intent.pools
    if pools and not set(pools) & set(node_offers.fleet.pools):
        return reasons.NoneOfThePools(pools)
    return reasons.NoFreeDevice(missing, chosen.shape, pools, node_offers.left_out(demand.intent))


def _coming(chosen: ServingShape, waiting: int, node_offers: NodeOffers) -> reasons.WaitsForCuts:
    """Return what is waited for: devices for which GPUs are being cut, the plan, and until when."""
    coming = [c for c in node_offers.fleet.snapshot.partition.coming if c.resource == chosen.shape.resource]
    nodes, plans = {c.node for c in coming}, {c.plan for c in coming if c.plan}
    until = max((c.until or 0.0 for c in coming), default=0.0)
    return reasons.WaitsForCuts(waiting, chosen.shape, tuple(sorted(nodes)), tuple(sorted(plans)), until)


def _next_try(demand: PlacementDemand) -> tuple[float | None, int]:
    """Return when the first shape is tried again, and how many shapes there are, if all are in back-off."""
    limits = [demand.limits.get(candidate.shape) for candidate in demand.usable]
    back_offs = [limit.back_off for limit in limits if limit is not None]
    times = [b.back_off.until for b in back_offs if b is not None and not b.is_over]
    if len(times) < 2 or len(times) < len(limits):
        return None, 0
    return min(times), len(times)


def _without_candidate(demand: PlacementDemand, node_offers: NodeOffers) -> reasons.PlacedReason:
    """Return the reason where no shape serves the model: what runs stays."""
    why, left_out = no_serving_shape(demand.shapes), node_offers.left_out(demand.intent)
    serving = tuple(w.shape for w in demand.workloads if w.available > 0)
    if why is not None:
        return reasons.NoShapeServes(demand.shapes, why, left_out, serving)
    fleet, pools = node_offers.fleet, demand.intent.pools
    unknown = tuple(sorted(name for name in pools if name not in fleet.pools))
    return reasons.NoDeviceOffered(unknown, pools, bool(fleet.nodes), left_out, serving)


def _waits_for_minimum(
    demand: PlacementDemand, target: PlacementTarget, current: Workload | None, others: tuple[Workload, ...]
) -> reasons.WaitsForMinimum | None:
    waits = current is None and target.replicas == 0 and any(workload.available for workload in others)
    if not waits or target.over_budget is not None or target.limit is not None:
        return None
    return reasons.WaitsForMinimum(demand.intent.min_replicas)


def _kept_replicas(
    chosen: ServingShape, others: tuple[Workload, ...], kept_by_uid: Mapping[str, int]
) -> reasons.KeptReplicas | None:
    counts = tuple((kept_by_uid[w.uid], w.shape) for w in others if kept_by_uid[w.uid])
    return reasons.KeptReplicas(counts, chosen.shape) if counts else None


def _failed_cut(intent: Intent, chosen: ServingShape, node_offers: NodeOffers) -> FailedChanges | None:
    """Return why no slice was cut for an LLMDeployment on whole GPUs; None: nothing failed."""
    if chosen.shape.profile != WHOLE_GPU or intent.mig is MIGPolicy.FORBIDDEN:
        return None
    failed = node_offers.fleet.snapshot.partition.failed
    return next((f for f in failed if not intent.pools or f.pool in intent.pools), None)
