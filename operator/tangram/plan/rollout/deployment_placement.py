"""Actions that bring one LLMDeployment to its target, make before break."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tangram.capacity.memory.budget import model_length
from tangram.capacity.sizing import ServingShape
from tangram.eligibility.shapes.runtimes import is_renderable, launch
from tangram.fleet import (
    Action,
    Alternative,
    ApplyDeployment,
    Decision,
    ModelClaimKey,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    Workload,
)
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.fleet_input.running_replicas import NOT_RUNNING, RunningByShape
from tangram.plan.offers.node_offers import NodeOffers
from tangram.plan.place.now.alternatives import alternatives
from tangram.plan.place.now.back_off import Obstacles
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.reasons.placement import PlacedReason
from tangram.plan.rollout.left_out_replicas import left_out_replicas
from tangram.plan.rollout.node_selection import node_selection
from tangram.plan.rollout.placed_condition import idle_ms, placed_condition, rollout_notes
from tangram.plan.rollout.pod_replacement import Rollout, resumed, rollout
from tangram.plan.rollout.shape_moves import kept_replicas
from tangram.plan.words.placement import joined, sentence


def deployment_placement(
    demand: PlacementDemand,
    decision: Decision,
    target: PlacementTarget,
    running: RunningByShape,
    node_offers: NodeOffers,
    devices: FreeDevices,
    obstacles: Obstacles,
) -> tuple[Decision, tuple[Action, ...]]:
    """Return `decision` with the placement of `demand`, and the actions for it.

    What `target` assigns is taken from `devices` already.
    """
    chosen = target.candidate
    on_shape = NOT_RUNNING if chosen is None else running.get(chosen.shape, NOT_RUNNING)
    placed = max(target.replicas, min(target.desired, target.max_replicas, on_shape.replicas))
    condition = placed_condition(demand, target, placed, node_offers, obstacles)
    decision = _on_condition(decision, demand, condition, alternatives(demand, target, devices))
    if chosen is None:
        return decision, ()
    current = demand.workload_on(chosen.shape)
    replicas = _replicas(target, current)
    pod_rollout = rollout(demand, target, current, replicas, devices)
    kept_by_uid = kept_replicas(demand, target, current)
    left_out = left_out_replicas(demand, target, placed, on_shape, devices)
    notes = rollout_notes(demand, target, chosen, pod_rollout.waits, kept_by_uid, node_offers)
    decision = _on_shape(decision, demand, chosen, placed, target.desired, pod_rollout)
    return replace(decision, placed_message=joined(condition, left_out, *notes)), (
        *_apply(demand, node_offers, devices, chosen, replicas, pod_rollout, current),
        *resumed(current, replicas),
        *_end_replicas(demand, chosen, kept_by_uid),
    )


def _on_condition(
    decision: Decision, demand: PlacementDemand, condition: PlacedReason, others: tuple[Alternative, ...]
) -> Decision:
    """Return the decision with its condition `Placed`, its runtime and the other shapes."""
    return replace(
        decision,
        alternatives=others,
        placed_reason=condition.reason,
        placed_message=sentence(condition),
        runtime_reason=demand.shapes.requirements.runtime_reason,
    )


def _on_shape(
    decision: Decision,
    demand: PlacementDemand,
    chosen: ServingShape,
    placed: int,
    desired: int,
    pod_rollout: Rollout,
) -> Decision:
    """Return the decision with its shape, and with its numbers on this shape."""
    ttft_ms, tpot_ms = idle_ms(demand, chosen)
    return replace(
        decision,
        shape=chosen.shape,
        desired=desired,
        placed=placed,
        price_per_hour=placed * chosen.price_per_hour,
        predicted_ttft_ms=ttft_ms,
        predicted_tpot_ms=tpot_ms,
        rollout_waits=joined(pod_rollout.waits),
        start_failures=joined(demand.avoided.failure),
    )


def _replicas(target: PlacementTarget, current: Workload | None) -> int:
    """Return the replicas of the Deployment.

    Shortage never scales an existing Deployment down: if a node is lost, or cordoned under running pods,
    Kubernetes schedules the pods as soon as it can. Only new replicas need a device first. The budget does
    scale it down.
    """
    present = current.replicas if current else 0
    return max(target.replicas, min(target.desired, target.max_replicas, present)) + target.surge


def _end_replicas(
    demand: PlacementDemand, chosen: ServingShape, kept_by_uid: Mapping[str, int]
) -> Iterator[Action]:
    """End the replicas of other shapes that a move does not need any more."""
    for workload in demand.workloads:
        if workload.shape == chosen.shape:
            continue
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
    if not is_renderable(demand.shapes, chosen.shape):
        return ()  # another runtime is to serve it, or its EngineRuntime is gone: what runs goes on
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
            demand.facts.pin,
            launch(demand.shapes, chosen.shape, demand.facts.weight_bytes),
            _model_claim(demand, chosen.shape, current, node_offers),
        ),
    )


def _model_claim(
    demand: PlacementDemand, shape: Shape, current: Workload | None, node_offers: NodeOffers
) -> ModelClaimKey | None:
    """Return the claim that replicas mount, where all of their nodes are in GPUPools with one StorageClass.

    An existing Deployment keeps its claim as long as one of the pools has the class: another volume is
    another pod template, which replaces every pod.
    """
    intent, pin = demand.intent, demand.facts.pin
    classes = node_offers.model_storage_classes(shape, intent.pools)
    if pin is None or not classes:
        return None
    keys = {ModelClaimKey(intent.namespace, intent.model_uri, pin, name) for name in classes if name}
    if len(classes) == 1:
        return next(iter(keys), None)
    mounted = "" if current is None else current.model_claim
    claims = node_offers.fleet.snapshot.model_claims
    return next((claim.key for claim in claims if claim.name == mounted and claim.key in keys), None)
