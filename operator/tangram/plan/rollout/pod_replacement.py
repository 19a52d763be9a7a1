"""How a Deployment replaces its pods: with a surge pod, or in place if no device is free for one."""

from dataclasses import dataclass

from tangram.fleet import ResumeRollout, Workload
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.reasons.placement import RolloutWaits


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the Deployment controller may do, and what the rollout waits for."""

    max_unavailable: int = 0  # 0: one surge pod
    waits: RolloutWaits | None = None


def rollout(
    demand: PlacementDemand,
    target: PlacementTarget,
    workload: Workload | None,
    replicas: int,
    devices: FreeDevices,
) -> Rollout:
    """Return how `workload`, with `replicas`, goes on replacing its pods. Takes a surge pod's device from
    `devices`.

    Without a free device a rollout would wait for ever, so it ends one pod first, as long as the minimum
    stays, and goes on like that until it is complete: devices that come and go meanwhile do not change it
    twice. So it does if the budget affords no surge pod; at the minimum a pod and its replacement count once.
    A quota counts both.
    """
    if workload is None or not workload.is_rolling:
        return Rollout()
    shape, placed, limit = workload.shape, target.replicas, demand.limits.get(workload.shape)
    above_minimum = placed > demand.intent.min_replicas
    in_place = above_minimum and (workload.in_place or replicas >= target.max_replicas)
    surge_limit = limit.cause if limit is not None and limit.replicas <= replicas else None
    held = placed + devices.count_held(demand.uid, shape) - demand.devices_held(shape, devices)
    if not in_place and not surge_limit and devices.allocate_up_to(demand.uid, shape, held + 1) > held:
        return Rollout()
    if above_minimum:
        # Replicas without a device are unavailable in any case: they must not use up the budget of one.
        return Rollout(max_unavailable=replicas - placed + 1)
    return Rollout(waits=RolloutWaits(shape, surge_limit))


def resumed(workload: Workload | None, replicas: int) -> tuple[ResumeRollout, ...]:
    """Return the action that resumes a rollout without a new pod, though its controller has observed it.

    Most such rollouts are about to start; the executor looks closer.
    """
    if workload is None or not (workload.settled and workload.is_rolling):
        return ()
    if workload.updated or workload.replicas != replicas:
        return ()
    return (ResumeRollout(workload.owner_uid, workload.namespace, workload.name, workload.uid, replicas),)
