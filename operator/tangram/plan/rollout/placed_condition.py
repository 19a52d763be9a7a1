"""Reason and message of the condition `Placed` of one LLMDeployment."""

from collections.abc import Mapping

from tangram import catalog
from tangram.capacity.sizing import ServingShape
from tangram.eligibility.explanation.no_serving_shape import no_serving_shape
from tangram.eligibility.explanation.words import no_shape_sentence
from tangram.eligibility.reasons import Reason
from tangram.fleet import WHOLE_GPU, Intent, MIGPolicy, Workload
from tangram.fleet.times import rfc3339
from tangram.plan.offers.node_offers import NodeOffers
from tangram.plan.place.now.back_off import Obstacles
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.rollout.pod_replacement import device_name

_MOST_NODES = 3  # named in a message


def placed_condition(
    demand: PlacementDemand,
    target: PlacementTarget,
    placed: int,
    node_offers: NodeOffers,
    obstacles: Obstacles,
) -> tuple[Reason, str]:
    """Return reason and message, without the notes on the rollout. `placed`: replicas that run or have a
    device.
    """
    if target.candidate is None or not demand.usable:
        return _of_no_candidate(demand, node_offers)
    return _of_candidate(demand, target, target.candidate, placed, node_offers, obstacles)


def rollout_notes(
    demand: PlacementDemand,
    target: PlacementTarget,
    chosen: ServingShape,
    rollout_waits: str,
    kept_by_uid: Mapping[str, int],
    node_offers: NodeOffers,
) -> tuple[str, ...]:
    """Return notes on what holds a rollout back and which replicas stay meanwhile; some may be empty.

    `kept_by_uid`: replicas of other shapes that stay, by the uid of their Deployment.
    """
    others = tuple(workload for workload in demand.workloads if workload.shape != chosen.shape)
    failure = f"assigned by priority: the joint decision failed ({target.failure}); please report this"
    return (
        _waits_for_minimum(demand, target, demand.workload_on(chosen.shape), others),
        rollout_waits,
        failure if target.failure else "",
        demand.avoided.note,
        _kept_replicas(chosen, others, kept_by_uid),
        _uncut(demand.intent, chosen, node_offers),
    )


def _of_candidate(
    demand: PlacementDemand,
    target: PlacementTarget,
    chosen: ServingShape,
    placed: int,
    node_offers: NodeOffers,
    obstacles: Obstacles,
) -> tuple[Reason, str]:
    """Return reason and message where a shape serves the model."""
    desired = target.desired
    if placed == desired:
        return _of_all_replicas(demand, target, chosen, obstacles)
    others = any(w.shape != chosen.shape and w.available for w in demand.workloads)
    count = f"{placed} of {desired} replicas placed{f' on {chosen.shape.described}' if others else ''}"
    if target.limit is not None:
        return target.limit.reason, f"{count}; {target.limit.message}{_next_try(demand)}"
    if target.over_budget:
        return Reason.OVER_BUDGET, f"{count}; {target.over_budget}"
    if target.waiting:
        return Reason.WAITING_FOR_SLICES, f"{count}; {_coming(chosen, target.waiting, node_offers)}"
    missing = _no_device(chosen, desired - placed, demand.intent, node_offers)
    return Reason.INSUFFICIENT_CAPACITY, f"{count}; {missing}"


def _of_all_replicas(
    demand: PlacementDemand, target: PlacementTarget, chosen: ServingShape, obstacles: Obstacles
) -> tuple[Reason, str]:
    """Return reason and message where each replica has a device."""
    limit = demand.limits.get(chosen.shape)
    if limit is not None and limit.is_probe and limit.replicas <= target.replicas:
        return limit.reason, limit.message
    unscheduled = obstacles.unscheduled_messages.get((demand.uid, chosen.shape))
    if unscheduled:
        return Reason.UNSCHEDULABLE, unscheduled
    return Reason.PLACED, _placed_message(demand, target, chosen)


def _placed_message(demand: PlacementDemand, target: PlacementTarget, chosen: ServingShape) -> str:
    text = f"{target.desired} on {chosen.shape.described} at {chosen.price_per_hour:.2f} $/h each"
    _, tpot_ms = idle_ms(demand, chosen)
    if tpot_ms is not None:
        text += f", predicted {tpot_ms:.2f} ms per token when idle"
    if demand.intent.traffic.requests_per_second:
        rate = target.desired * chosen.rate
        text += f", predicted to carry {rate:.3g} requests/s in total" if rate else ""
    gpu = catalog.gpu(chosen.shape.sku)
    if gpu is not None and gpu.unverified:
        text += f"; the catalog's numbers for {gpu.sku} are not verified"
    return text


def idle_ms(demand: PlacementDemand, chosen: ServingShape) -> tuple[float | None, float | None]:
    """Return the predicted TTFT and TPOT of a nearly idle replica in milliseconds; None: unknown."""
    return demand.shapes.idle_ms(chosen.shape) or (None, None)


def _no_device(chosen: ServingShape, missing: int, intent: Intent, node_offers: NodeOffers) -> str:
    pools = " or ".join(intent.pools)
    if pools and not set(intent.pools) & set(node_offers.fleet.pools):
        return f"there is no GPUPool {pools}"
    device = f"a free {device_name(chosen.shape)} on {chosen.shape.sku}"
    needs = f"{missing} more {'needs' if missing == 1 else 'need'} {device}"
    where = f" in {pools}" if pools else ""
    left_out = node_offers.left_out_message(intent)
    return f"{needs}{where}{left_out}"


def _coming(chosen: ServingShape, waiting: int, node_offers: NodeOffers) -> str:
    """Return what is waited for: devices for which GPUs are being cut, the plan, and until when."""
    coming = [c for c in node_offers.fleet.snapshot.partition.coming if c.resource == chosen.shape.resource]
    plans = sorted({c.plan for c in coming if c.plan})
    nodes = ", ".join(sorted({c.node for c in coming})[:_MOST_NODES])
    needs = f"{waiting} {'wait' if waiting > 1 else 'waits'} for a {device_name(chosen.shape)}"
    if not plans:
        return f"{needs} that the partition backend of {nodes} cuts, as its GPUNode says"
    until = rfc3339(max(c.until or 0.0 for c in coming))
    return f"{needs} that FleetPlan {' and '.join(plans)} cuts on {nodes}, until {until}"


def _next_try(demand: PlacementDemand) -> str:
    """Return when the first shape is tried again, if all usable shapes are in back-off."""
    limits = [demand.limits.get(candidate.shape) for candidate in demand.usable]
    times = [limit.until for limit in limits if limit is not None and limit.until is not None]
    if len(times) < 2 or len(times) < len(limits):
        return ""
    first = rfc3339(min(times))
    return f"; all {len(times)} shapes that may be used are in back-off, the next is tried at {first}"


def _of_no_candidate(demand: PlacementDemand, node_offers: NodeOffers) -> tuple[Reason, str]:
    """Return reason and message where no shape serves the model: what runs stays."""
    why, left_out = no_serving_shape(demand.shapes), node_offers.left_out_message(demand.intent)
    serving = _still_serving(demand.workloads)
    if why is None:
        text = _no_candidate(demand.intent, node_offers)
        return Reason.INSUFFICIENT_CAPACITY, f"{text}{left_out}{serving}"
    more_devices_help = why.reason is Reason.INFEASIBLE
    text = no_shape_sentence(demand.shapes, why)
    return why.reason, f"{text}{left_out if more_devices_help else ''}{serving}"


def _no_candidate(intent: Intent, node_offers: NodeOffers) -> str:
    unknown = sorted(name for name in intent.pools if name not in node_offers.fleet.pools)
    if unknown:
        named = " and ".join(unknown)
        return f"placement.pools names {named}, and there is no such GPUPool; waits for one"
    what = "no GPU that the catalog knows" if node_offers.fleet.nodes else "no GPU node"
    where = f"GPUPools {' and '.join(intent.pools)} have" if intent.pools else "the fleet has"
    return f"{where} {what}; waits for a node that offers one"


def _still_serving(workloads: tuple[Workload, ...]) -> str:
    shapes = ", ".join(w.shape.described for w in workloads if w.available > 0)
    return f"; {shapes} goes on serving meanwhile" if shapes else ""


def _waits_for_minimum(
    demand: PlacementDemand, target: PlacementTarget, current: Workload | None, others: tuple[Workload, ...]
) -> str:
    waits = current is None and target.replicas == 0 and any(workload.available for workload in others)
    if not waits or target.over_budget or target.limit is not None:
        return ""
    return f"no move begins before the minimum of {demand.intent.min_replicas} replicas has free devices"


def _kept_replicas(chosen: ServingShape, others: tuple[Workload, ...], kept_by_uid: Mapping[str, int]) -> str:
    counts = [(kept_by_uid[w.uid], w.shape.described) for w in others if kept_by_uid[w.uid]]
    if not counts:
        return ""
    replicas = " and ".join(f"{count} replica{'s' * (count != 1)} on {shape}" for count, shape in counts)
    return f"keeps {replicas} until enough replicas of {chosen.shape.described} are available"


def _uncut(intent: Intent, chosen: ServingShape, node_offers: NodeOffers) -> str:
    """Return why no slice was cut for an LLMDeployment on whole GPUs; empty: nothing failed."""
    if chosen.shape.profile != WHOLE_GPU or intent.mig is MIGPolicy.FORBIDDEN:
        return ""
    failed = (
        f for f in node_offers.fleet.snapshot.partition.failed if not intent.pools or f.pool in intent.pools
    )
    first = next(failed, None)
    if first is None:
        return ""
    return f"FleetPlan {first.plan} could not cut GPUs of GPUPool {first.pool}: {first.message}"
