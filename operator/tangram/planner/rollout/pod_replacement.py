"""How a Deployment replaces its pods: one more first, or in place where no unit is free for one more."""

from dataclasses import dataclass

from tangram.fleet import Intent, ResumeRollout, Shape, Workload
from tangram.planner.observe.free_capacity import FreeDevices


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the Deployment controller may do, and what it is waited for."""

    max_unavailable: int = 0  # 0: one pod more first
    waits: str = ""


def rollout(
    intent: Intent,
    mine: Workload | None,
    placed: int,
    replicas: int,
    holds: int,
    devices: FreeDevices,
    *,
    can_double: bool = True,
    no_surge: str = "",
) -> Rollout:
    """Decide how `mine` goes on replacing its pods, if it does; takes the unit for one more from `devices`.

    `holds` are the units its owner has in the pool, `replicas` what is about to be applied, `placed` those
    of them that there is room for. A full pool would let a rollout wait for ever: then it takes one pod down
    first, as long as the minimum stays. It goes on like that until it is done: units that come and go
    meanwhile do not change the way twice. It does so too where the budget has no room for one more
    (not `can_double`); at the minimum a pod and the one that replaces it count once. A quota counts
    them twice: `no_surge` says what allows no pod more.
    """
    if mine is None or not mine.is_rolling:
        return Rollout()
    above_minimum = placed > intent.min_replicas
    in_place = above_minimum and (mine.in_place or not can_double)
    if not in_place and not no_surge and devices.allocate_up_to(intent.uid, mine.shape, holds + 1) > holds:
        return Rollout()
    if above_minimum:
        # Replicas without room are unavailable whatever is done: they must not use up what may be taken down.
        return Rollout(max_unavailable=replicas - placed + 1)
    if no_surge:
        return Rollout(waits=f"the rollout waits for one pod more: {no_surge}")
    return Rollout(waits=f"the rollout waits for one free {unit(mine.shape)} on {mine.shape.sku}")


def resumed(mine: Workload | None, replicas: int) -> tuple[ResumeRollout, ...]:
    """Return what keeps a rollout from being forgotten that has not made a pod yet, though its controller has
    seen it. Mostly it is about to; the executor looks closer.
    """
    if mine is None or not (mine.settled and mine.is_rolling):
        return ()
    if mine.updated or mine.replicas != replicas:
        return ()
    return (ResumeRollout(mine.owner_uid, mine.namespace, mine.name, mine.uid, replicas),)


def unit(shape: Shape) -> str:
    """Return the name of what one replica takes, as people say it: `gpu`, `1g.10gb`."""
    return shape.resource.removeprefix("nvidia.com/mig-").removeprefix("nvidia.com/")
