"""The devices that nodes gain and lose while their GPUs get the layouts that plans or GPUNodes want."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from tangram.fleet import ComingDevices, MIGLayout, offered_devices, resource_name
from tangram.plan.repartition.fleet_state import RepartitionNode
from tangram.plan.repartition.observed_plan import WHOLE
from tangram.plan.repartition.plan_step import PlanStep

Layouts = Mapping[str, MIGLayout]  # by GPU


def targets_by_node(nodes: Iterable[RepartitionNode], steps: Iterable[PlanStep]) -> dict[str, Layouts]:
    """Return the layouts that GPUs of each node are to have: those of plans, else those of its GPUNode."""
    targets = {gpu: layout for step in steps for gpu, layout in step.targets}
    by_node: dict[str, Layouts] = {}
    for node in nodes:
        planned = {gpu.id: targets[gpu.id] for gpu in node.partition.gpus if gpu.id in targets}
        by_node[node.name] = _unmade_layouts(node) | planned
        targets |= by_node[node.name]
    return by_node


def device_differences(
    nodes: Iterable[RepartitionNode], targets: Mapping[str, Layouts]
) -> dict[str, Counter[str]]:
    """Return the devices that each node gains, and the free ones that it loses (below zero), by resource.

    `targets`: by node; one without is not in the result.
    """
    return {node.name: _difference(node, targets[node.name]) for node in nodes if targets[node.name]}


def coming_devices(
    differences: Mapping[str, Counter[str]],
    targets: Mapping[str, Layouts],
    steps: Mapping[str, PlanStep],
    now: float,
) -> Iterator[ComingDevices]:
    """Yield the devices that nodes gain, each with the plan that makes them. `steps`: by plan."""
    plans = {gpu: name for name, step in steps.items() for gpu, _ in step.targets}
    for node, difference in differences.items():
        plan = min((plans[gpu] for gpu in targets[node] if gpu in plans), default="")
        until = (steps[plan].progress.until or now) if plan in steps else None
        for resource, count in sorted(difference.items()):
            if count > 0:
                yield ComingDevices(node, resource, count, plan, until)


def going_devices(
    nodes: Iterable[RepartitionNode],
    differences: Mapping[str, Counter[str]],
    arrivals: Collection[tuple[str, str]],
) -> list[tuple[str, str, int]]:
    """Return the devices that no new replica gets: (node, resource, count), sorted.

    `arrivals`: the holds of nodes that have just come. They may not be there yet.
    """
    going = {
        (node, resource): -count
        for node, difference in differences.items()
        for resource, count in difference.items()
        if count < 0
    }
    for node in nodes:
        whole_gpus = dict(node.allocatable).get(WHOLE, 0)
        if (node.name, WHOLE) in arrivals and whole_gpus:
            going.setdefault((node.name, WHOLE), whole_gpus)
    return sorted((node, resource, count) for (node, resource), count in going.items())


def _unmade_layouts(node: RepartitionNode) -> dict[str, MIGLayout]:
    """Return the layouts that a GPUNode wants and that its GPUs do not have: after a reboot, for instance."""
    partition = node.partition
    if partition.problem or partition.is_applied:
        return {}
    wanted = dict(partition.wanted)
    return {
        gpu.id: wanted[gpu.id]
        for gpu in partition.gpus
        if gpu.id in wanted and gpu.layout != wanted[gpu.id] and not gpu.quarantine
    }


def _difference(node: RepartitionNode, targets: Layouts) -> Counter[str]:
    """Return the devices that one node gains or loses. One in use was not free: no new replica loses it."""
    then = offered_devices({gpu.id: targets.get(gpu.id, gpu.layout) for gpu in node.partition.gpus})
    difference = Counter(then)
    difference.subtract(dict(node.allocatable))
    for resource, used in _removed_in_use(node, targets).items():
        if difference[resource] < 0:
            difference[resource] = min(0, difference[resource] + used)
    return difference


def _removed_in_use(node: RepartitionNode, targets: Layouts) -> Counter[str]:
    """Return the devices in use that go, by resource."""
    used: Counter[str] = Counter()
    for gpu in node.partition.gpus:
        target = targets.get(gpu.id, gpu.layout)
        removed = [part for part in gpu.layout.slices if part not in target.slices]
        used.update(resource_name(part.profile) for part in removed if part.start in gpu.held_starts)
        used[WHOLE] += not gpu.layout.mig_enabled and target.mig_enabled and None in gpu.held_starts
    return used
