"""Actions that bring one LLMDeployment to its target, make before break, and the condition `Placed`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tangram import catalog
from tangram.capacity.memory.budget import model_length
from tangram.capacity.sizing import ServingShape
from tangram.eligibility.explanation.no_serving_shape import no_serving_shape
from tangram.eligibility.explanation.words import no_shape_sentence
from tangram.eligibility.reasons import Reason
from tangram.fleet import (
    WHOLE_GPU,
    Action,
    ApplyDeployment,
    Decision,
    Intent,
    MIGPolicy,
    RemoveDeployment,
    ScaleDeployment,
    Workload,
)
from tangram.fleet.times import rfc3339
from tangram.planner.observe.back_off import Obstacles
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.observe.node_offers import NodeOffers
from tangram.planner.placement.alternatives import alternatives
from tangram.planner.placement.placement_demand import PlacementDemand
from tangram.planner.placement.placement_targets import PlacementTarget
from tangram.planner.rollout.node_selection import node_selection
from tangram.planner.rollout.pod_replacement import Rollout, device_name, resumed, rollout
from tangram.planner.rollout.shape_moves import kept_replicas

_MOST_NODES = 3  # named in a message


def deployment_placement(
    demand: PlacementDemand,
    decision: Decision,
    target: PlacementTarget,
    node_offers: NodeOffers,
    devices: FreeDevices,
    obstacles: Obstacles,
) -> tuple[Decision, tuple[Action, ...]]:
    """Return `decision` with the placement of `demand`, and the actions for it.

    What `target` assigns is taken from `devices` already.
    """
    chosen, workloads = target.candidate, demand.workloads
    decision = replace(decision, alternatives=alternatives(demand, target, devices))
    if chosen is None or not demand.usable:  # what runs stays, whatever objective it misses
        reason, message = _unplaced_condition(demand, node_offers)
        message += _still_serving(workloads)
    else:
        reason, message = _placed_condition(demand, target, chosen, node_offers, obstacles)
    if chosen is None:
        return replace(decision, placed_reason=reason, placed_message=message), ()
    current = demand.workload_on(chosen.shape)
    others = tuple(workload for workload in workloads if workload.shape != chosen.shape)
    replicas = _replicas(target, current)
    pod_rollout = rollout(demand, target, current, replicas, devices)
    kept_by_uid = kept_replicas(demand, target, current)
    kept = [(kept_by_uid[w.uid], w.shape.described) for w in others if kept_by_uid[w.uid]]
    kept_text = " and ".join(f"{count} replica{'s' * (count != 1)} on {shape}" for count, shape in kept)
    until = f"until enough replicas of {chosen.shape.described} are available"
    failure = f"assigned by priority: the joint decision failed ({target.failure}); please report this"
    notes = (
        _waits_for_minimum(demand, target, current, others),
        pod_rollout.waits,
        failure if target.failure else "",
        demand.avoided.note,
        f"keeps {kept_text} {until}" if kept_text else "",
        _uncut(demand.intent, chosen, node_offers),
    )
    decision = replace(
        decision,
        placed_reason=reason,
        placed_message="; ".join(filter(None, (message, *notes))),
        shape=chosen.shape,
        desired=target.desired,
        placed=target.replicas,
        price_per_hour=target.replicas * chosen.price_per_hour,
        predicted_tpot_ms=_idle_tpot_ms(demand, chosen),
        rollout_waits=pod_rollout.waits,
        start_failures=demand.avoided.note,
    )
    return decision, (
        *_apply(demand, node_offers, devices, chosen, replicas, pod_rollout, current),
        *resumed(current, replicas),
        *_end_replicas(others, kept_by_uid),
    )


def _replicas(target: PlacementTarget, current: Workload | None) -> int:
    """Return the replicas of the Deployment.

    Shortage never scales an existing Deployment down: if a node is lost, or cordoned under running pods,
    Kubernetes schedules the pods as soon as it can. Only new replicas need a device first. The budget does
    scale it down.
    """
    present = current.replicas if current else 0
    return max(target.replicas, min(target.desired, target.max_replicas, present)) + target.surge


def _waits_for_minimum(
    demand: PlacementDemand, target: PlacementTarget, current: Workload | None, others: tuple[Workload, ...]
) -> str:
    waits = current is None and target.replicas == 0 and any(workload.available for workload in others)
    if not waits or target.over_budget or target.limit is not None:
        return ""
    return f"no move begins before the minimum of {demand.intent.min_replicas} replicas has free devices"


def _end_replicas(others: tuple[Workload, ...], kept_by_uid: Mapping[str, int]) -> Iterator[Action]:
    """End the replicas of other shapes that a move does not need any more."""
    for workload in others:
        identity = (workload.owner_uid, workload.namespace, workload.name, workload.uid)
        if kept_by_uid[workload.uid] == 0:
            yield RemoveDeployment(*identity)
        elif kept_by_uid[workload.uid] < workload.replicas:
            yield ScaleDeployment(*identity, kept_by_uid[workload.uid])


def _apply(
    demand: PlacementDemand,
    node_offers: NodeOffers,
    devices: FreeDevices,
    chosen: ServingShape,
    replicas: int,
    pod_rollout: Rollout,
    current: Workload | None,
) -> tuple[Action, ...]:
    intent = demand.intent
    pods = replicas + (current is not None and current.is_rolling)
    nodes = node_selection(demand.uid, intent.pools, chosen.shape, current, pods, node_offers, devices)
    if not nodes and current is not None and replicas < current.replicas:  # pods without a node hold no quota
        return (ScaleDeployment(current.owner_uid, current.namespace, current.name, current.uid, replicas),)
    # A Deployment that the API server refused is tried without replicas: that takes no device.
    if not nodes or (replicas == 0 and current is None and not demand.is_refused):
        return ()
    return (
        ApplyDeployment(
            demand.uid,
            chosen.shape,
            replicas,
            nodes.products,
            model_length(demand.facts, intent.max_model_len),
            pod_rollout.max_unavailable,
            intent.spread,
            nodes.selectors,
            nodes.declared,
        ),
    )


def _placed_condition(
    demand: PlacementDemand,
    target: PlacementTarget,
    chosen: ServingShape,
    node_offers: NodeOffers,
    obstacles: Obstacles,
) -> tuple[Reason, str]:
    placed, desired, intent = target.replicas, target.desired, demand.intent
    if placed == desired:
        limit = demand.limits.get(chosen.shape)
        if limit is not None and limit.is_probe and limit.replicas <= placed:
            return limit.reason, limit.message
        unscheduled = obstacles.unscheduled_messages.get((demand.uid, chosen.shape))
        placed_condition = Reason.PLACED, _placed_message(demand, target, chosen)
        return (Reason.UNSCHEDULABLE, unscheduled) if unscheduled else placed_condition
    count = f"{placed} of {desired} replicas placed"
    if target.limit is not None:
        return target.limit.reason, f"{count}; {target.limit.message}{_next_try(demand)}"
    if target.over_budget:
        return Reason.OVER_BUDGET, f"{count}; {target.over_budget}"
    if target.waiting:
        return Reason.WAITING_FOR_SLICES, f"{count}; {_coming(chosen, target.waiting, node_offers)}"
    return (
        Reason.INSUFFICIENT_CAPACITY,
        f"{count}; {_no_device(chosen, desired - placed, intent, node_offers)}",
    )


def _unplaced_condition(demand: PlacementDemand, node_offers: NodeOffers) -> tuple[Reason, str]:
    """Return reason and message of the condition Placed where no shape serves the model."""
    why, left_out = no_serving_shape(demand.shapes), node_offers.left_out_message(demand.intent)
    if why is None:
        return Reason.INSUFFICIENT_CAPACITY, _no_candidate(demand.intent, node_offers) + left_out
    more_devices_help = why.reason is Reason.INFEASIBLE
    return why.reason, no_shape_sentence(demand.shapes, why) + (left_out if more_devices_help else "")


def _no_candidate(intent: Intent, node_offers: NodeOffers) -> str:
    unknown = sorted(name for name in intent.pools if name not in node_offers.pools)
    if unknown:
        named = " and ".join(unknown)
        return f"placement.pools names {named}, and there is no such GPUPool; waits for one"
    what = "no GPU that the catalog knows" if node_offers.has_nodes else "no GPU node"
    where = f"GPUPools {' and '.join(intent.pools)} have" if intent.pools else "the fleet has"
    return f"{where} {what}; waits for a node that offers one"


def _no_device(chosen: ServingShape, missing: int, intent: Intent, node_offers: NodeOffers) -> str:
    pools = " or ".join(intent.pools)
    if pools and not set(intent.pools) & set(node_offers.pools):
        return f"there is no GPUPool {pools}"
    device = f"a free {device_name(chosen.shape)} on {chosen.shape.sku}"
    needs = f"{missing} more {'needs' if missing == 1 else 'need'} {device}"
    where = f" in {pools}" if pools else ""
    left_out = node_offers.left_out_message(intent)
    return f"{needs}{where}{left_out}"


def _coming(chosen: ServingShape, waiting: int, node_offers: NodeOffers) -> str:
    """Return what is waited for: devices for which GPUs are being cut, the plan, and until when."""
    coming = [c for c in node_offers.coming if c.resource == chosen.shape.resource]
    plans = sorted({c.plan for c in coming if c.plan})
    nodes = ", ".join(sorted({c.node for c in coming})[:_MOST_NODES])
    needs = f"{waiting} {'wait' if waiting > 1 else 'waits'} for a {device_name(chosen.shape)}"
    if not plans:
        return f"{needs} that the partition backend of {nodes} cuts, as its GPUNode says"
    until = rfc3339(max(c.until or 0.0 for c in coming))
    return f"{needs} that FleetPlan {' and '.join(plans)} cuts on {nodes}, until {until}"


def _uncut(intent: Intent, chosen: ServingShape, node_offers: NodeOffers) -> str:
    """Return why no slice was cut for an LLMDeployment on whole GPUs; empty: nothing failed."""
    if chosen.shape.profile != WHOLE_GPU or intent.mig is MIGPolicy.FORBIDDEN:
        return ""
    failed = (f for f in node_offers.failed if not intent.pools or f.pool in intent.pools)
    first = next(failed, None)
    if first is None:
        return ""
    return f"FleetPlan {first.plan} could not cut GPUs of GPUPool {first.pool}: {first.message}"


def _next_try(demand: PlacementDemand) -> str:
    """Return when the first shape is tried again, if all usable shapes are in back-off."""
    limits = [demand.limits.get(candidate.shape) for candidate in demand.usable]
    times = [limit.until for limit in limits if limit is not None and limit.until is not None]
    if len(times) < 2 or len(times) < len(limits):
        return ""
    first = rfc3339(min(times))
    return f"; all {len(times)} shapes that may be used are in back-off, the next is tried at {first}"


def _idle_tpot_ms(demand: PlacementDemand, chosen: ServingShape) -> float | None:
    idle = demand.shapes.idle_ms(chosen.shape)
    return None if idle is None else idle[1]


def _placed_message(demand: PlacementDemand, target: PlacementTarget, chosen: ServingShape) -> str:
    text = f"{target.desired} on {chosen.shape.described} at {chosen.price_per_hour:.2f} $/h each"
    tpot_ms = _idle_tpot_ms(demand, chosen)
    if tpot_ms is not None:
        text += f", predicted {tpot_ms:.2f} ms per token when idle"
    if demand.intent.traffic.requests_per_second:
        replica_rate = chosen.rate
        text += f", good for {target.desired * replica_rate:.3g} requests/s in all" if replica_rate else ""
    gpu = catalog.gpu(chosen.shape.sku)
    if gpu is not None and gpu.unverified:
        text += f"; the catalog's numbers for {gpu.sku} are not verified"
    return text


def _still_serving(workloads: tuple[Workload, ...]) -> str:
    shapes = ", ".join(w.shape.described for w in workloads if w.available > 0)
    return f"; {shapes} goes on serving meanwhile" if shapes else ""
