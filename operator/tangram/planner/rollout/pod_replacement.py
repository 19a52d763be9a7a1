"""How a Deployment replaces its pods: with a surge pod, or in place if no device is free for one."""

from dataclasses import dataclass

from tangram.fleet import Intent, ResumeRollout, Shape, Workload
from tangram.planner.observe.free_capacity import FreeDevices


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the Deployment controller may do, and what the rollout waits for."""

    max_unavailable: int = 0  # 0: one surge pod
    waits: str = ""


def rollout(
    intent: Intent,
    workload: Workload | None,
    placed: int,
    replicas: int,
    held: int,
    devices: FreeDevices,
    *,
    affords_surge: bool = True,
    surge_limit: str = "",
) -> Rollout:
    """Return how `workload` goes on replacing its pods, if it does. Takes the surge pod's device from
    `devices`.

    `held` counts the devices of this kind that the LLMDeployment holds; of the `replicas` to be applied,
    `placed` have one. Without a free device a rollout would wait for ever, so it ends one pod first, as long
    as the minimum stays, and goes on like that until it is complete: devices that come and go meanwhile do
    not change it twice. So it does if the budget does not afford a surge pod; at the minimum a pod and its
    replacement count once. A quota counts them twice: `surge_limit` is its message.
    """
    if workload is None or not workload.is_rolling:
        return Rollout()
    above_minimum = placed > intent.min_replicas
    in_place = above_minimum and (workload.in_place or not affords_surge)
    if (
        not in_place
        and not surge_limit
        and devices.allocate_up_to(intent.uid, workload.shape, held + 1) > held
    ):
        return Rollout()
    if above_minimum:
        # Replicas without a device are unavailable in any case: they must not use up the budget of one.
        return Rollout(max_unavailable=replicas - placed + 1)
    if surge_limit:
        return Rollout(waits=f"the rollout waits for one more pod: {surge_limit}")
    device = device_name(workload.shape)
    return Rollout(waits=f"the rollout waits for one free {device} on {workload.shape.sku}")


def resumed(workload: Workload | None, replicas: int) -> tuple[ResumeRollout, ...]:
    """Return the action that resumes a rollout without a new pod, though its controller has observed it.

    Most such rollouts are about to start; the executor looks closer.
    """
    if workload is None or not (workload.settled and workload.is_rolling):
        return ()
    if workload.updated or workload.replicas != replicas:
        return ()
    return (ResumeRollout(workload.owner_uid, workload.namespace, workload.name, workload.uid, replicas),)


def device_name(shape: Shape) -> str:
    """Return the device of one replica as messages name it: `gpu`, `1g.10gb`."""
    return shape.resource.removeprefix("nvidia.com/mig-").removeprefix("nvidia.com/")
