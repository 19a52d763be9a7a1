"""The note on replicas that run where no new one is placed: what happens when they end."""

from collections.abc import Iterator

from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.fleet_input.running_replicas import RunningReplicas
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.place.now.placement_targets import PlacementTarget
from tangram.plan.rollout.pod_replacement import device_name

_MOST_NOTES = 3


def left_out_replicas(
    demand: PlacementDemand,
    target: PlacementTarget,
    placed: int,
    running: RunningReplicas,
    devices: FreeDevices,
) -> str:
    """Return the note about `placed` replicas of the target's shape; empty: a plan may use all their devices.

    What `target` assigns is taken from `devices` already, the devices kept for replicas that are to end, too.
    """
    on_left_out = len(running.nodes)
    outside = max(0, placed - target.replicas - (on_left_out - running.held))  # of the GPUPools it names
    count = on_left_out + outside
    if not count or target.candidate is None:
        return ""
    shape = target.candidate.shape
    device = f"{device_name(shape)} on {shape.sku}"
    elsewhere = target.replicas - running.held + devices.count_free(demand.uid, shape)
    waiting = min(count, max(0, placed - elsewhere))
    where = ", ".join(_places(demand, running, outside))
    is_single = count == 1
    text = f"{'1 replica runs' if is_single else f'{count} replicas run'} where no new one is placed: {where}"
    text += "; if it ends, " if is_single else "; if they end, "
    if not waiting:
        return (
            f"{text}a {device} is free for it" if is_single else f"{text}{count} {device} are free for them"
        )
    needing = "it needs" if is_single else f"{waiting} of them need{'s' * (waiting == 1)}"
    return f"{text}{needing} a free {device}, and there is none"


def _places(demand: PlacementDemand, running: RunningReplicas, outside: int) -> Iterator[str]:
    """Yield the nodes with what leaves them out, and the GPUPools outside of which replicas run."""
    nodes = {node.name: node for node in running.nodes}.values()
    yield from left_out_notes(nodes, "{nodes} ({reason})")[:_MOST_NOTES]
    if outside:
        pools = " and ".join(demand.intent.pools)
        yield f"outside of placement.pools ({pools})" if pools else "on nodes that are not known"
