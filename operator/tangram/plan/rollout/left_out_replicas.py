"""Replicas that run where no new one is placed: how many have no device when they end."""

from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.fleet_input.running_replicas import RunningReplicas
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.reasons.placement import RunsWhereNoneIsPlaced


def left_out_replicas(
    demand: PlacementDemand,
    target: PlacementTarget,
    placed: int,
    running: RunningReplicas,
    devices: FreeDevices,
) -> RunsWhereNoneIsPlaced | None:
    """Return the note about `placed` replicas of the target's shape; None: a plan may use all their devices.

    What `target` assigns is taken from `devices` already, the devices kept for replicas that are to end, too.
    """
    on_left_out = len(running.nodes)
    outside = max(0, placed - target.replicas - (on_left_out - running.held))  # of the GPUPools it names
    count = on_left_out + outside
    if not count or target.candidate is None:
        return None
    shape = target.candidate.shape
    elsewhere = target.replicas - running.held + devices.count_free(demand.uid, shape)
    without_device = min(count, max(0, placed - elsewhere))
    nodes = tuple({node.name: node for node in running.nodes}.values())
    return RunsWhereNoneIsPlaced(count, without_device, shape, nodes, outside > 0, demand.intent.pools)
