"""The step of the whole fleet: every plan, the holds, and what the planner has to know."""

from collections import Counter

from tangram.fleet import ComingDevices, MIGLayout, offered_devices, resource_name
from tangram.repartition.observed_plan import WHOLE
from tangram.repartition.plan_step import PlanStep, plan_step
from tangram.repartition.world import (
    Action,
    HoldNode,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionStep,
    RepartitionWorld,
    UnmarkPod,
    WorldNode,
    WorldPod,
)


def next_step(world: RepartitionWorld) -> RepartitionStep:
    """Return the actions that may begin now, in their order, and the state of every plan.

    Of two plans that change one GPU, the first one is carried out; the other one waits.
    """
    busy, claimed, steps = set[str](), set[str](), dict[str, PlanStep]()
    for record in sorted(world.plans, key=_order):
        gpus = {change.gpu for change in record.changes.changes}
        nodes = {change.node for change in record.changes.changes}
        room = not busy or len(busy | nodes) <= world.limits.nodes
        step = plan_step(world, record, may_begin=room and not gpus & claimed)
        steps[record.name] = step
        if step.progress.state is PlanState.EXECUTING:
            busy |= nodes
            claimed |= gpus
    actions: list[Action] = [action for step in steps.values() for action in step.actions]
    needed = {hold for step in steps.values() for hold in step.holds}
    arriving = _arriving(world)
    actions += (hold for hold in arriving.values() if hold is not None)
    needed |= arriving.keys()
    placed = {(action.node, action.resource) for action in actions if isinstance(action, HoldNode)}
    actions += _releases(world, needed, placed)
    leaving = {pod for step in steps.values() for pod in step.leaving}
    actions += (UnmarkPod(pod.name) for pod in _marked(world) if pod.name not in leaving)
    targets = {gpu: layout for step in steps.values() for gpu, layout in step.targets}
    plan_of = {gpu: name for name, step in steps.items() for gpu, _ in step.targets}
    until = {name: step.progress.until or world.now for name, step in steps.items()}
    coming, going = list[ComingDevices](), list[tuple[str, str, int]]()
    for node in world.nodes:
        own = {gpu.id: targets[gpu.id] for gpu in node.partition.gpus if gpu.id in targets}
        own = _unmade(node) | own
        targets |= own
        if own:
            plan = min((plan_of[gpu] for gpu in own if gpu in plan_of), default="")
            for resource, count in sorted(_difference(node, own).items()):
                if count > 0:
                    coming.append(ComingDevices(node.name, resource, count, plan, until.get(plan)))
                elif count < 0:
                    going.append((node.name, resource, -count))
    for node in world.nodes:  # the hold may not be there yet
        whole = dict(node.allocatable).get(WHOLE, 0)
        if (node.name, WHOLE) in arriving and whole and not any(g[:2] == (node.name, WHOLE) for g in going):
            going.append((node.name, WHOLE, whole))
    return RepartitionStep(
        actions=tuple(actions),
        progress=tuple(steps[record.name].progress for record in world.plans),
        coming=tuple(coming),
        going=tuple(sorted(going)),
        targets=tuple(sorted(targets.items())),
        moves=tuple(sorted({move for step in steps.values() for move in step.moves})),
        arriving=tuple(sorted(node for node, _ in arriving)),
    )


def _arriving(world: RepartitionWorld) -> dict[tuple[str, str], HoldNode | None]:
    """Return the holds of nodes that have just come, with what places them: no pod takes a whole GPU before
    a plan knows it.
    """
    holds: dict[tuple[str, str], HoldNode | None] = {}
    for node in world.nodes:
        until = node.arriving_until
        if until is not None and world.now < until:
            hold = node.hold(WHOLE)
            is_closed = hold is not None and (hold.until is None or world.now < hold.until)
            holds[node.name, WHOLE] = None if is_closed else HoldNode(node.name, WHOLE, world.now, until)
    return holds


def _marked(world: RepartitionWorld) -> list[WorldPod]:
    """Return the replicas that would go first, and do not go yet."""
    pods = (pod for node in world.nodes for pod in node.pods)
    return sorted(pod for pod in pods if pod.owner and pod.is_marked and not pod.is_leaving)


def _order(record: PlanRecord) -> tuple[bool, float, str]:
    return record.state is not PlanState.EXECUTING, record.since, record.name


def _releases(
    world: RepartitionWorld, needed: set[tuple[str, str]], placed: set[tuple[str, str]]
) -> list[Action]:
    """Return the holds to lift: those that are overdue, and those that no plan needs any more.

    Where a plan has ended, the backend may still be at work, and the node still offer slices that are gone.
    """
    releases = list[Action]()
    for node in world.nodes:
        is_at_rest = node.partition.backend is None or node.partition.is_applied
        for hold in node.holds:
            key = node.name, hold.resource
            if hold.until is None or key in placed:
                continue
            is_needless = is_at_rest or node.is_closed_without_hold(hold.resource)
            if hold.until <= world.now or (key not in needed and is_needless):
                releases.append(ReleaseNode(*key))
    return releases


def _unmade(node: WorldNode) -> dict[str, MIGLayout]:
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


def _difference(node: WorldNode, targets: dict[str, MIGLayout]) -> Counter[str]:
    """Return the devices that a node gains, and the free ones that it loses (below zero), by resource."""
    then = offered_devices({gpu.id: targets.get(gpu.id, gpu.layout) for gpu in node.partition.gpus})
    difference = Counter(then)
    difference.subtract(dict(node.allocatable))
    for resource, used in _in_use(node, targets).items():  # it is free for nobody anyway
        if difference[resource] < 0:
            difference[resource] = min(0, difference[resource] + used)
    return difference


def _in_use(node: WorldNode, targets: dict[str, MIGLayout]) -> Counter[str]:
    """Return the devices in use that go, by resource."""
    used: Counter[str] = Counter()
    for gpu in node.partition.gpus:
        target = targets.get(gpu.id, gpu.layout)
        going = [part for part in gpu.layout.slices if part not in target.slices]
        used.update(resource_name(part.profile) for part in going if part.start in gpu.held_starts)
        used[WHOLE] += not gpu.layout.mig_enabled and target.mig_enabled and None in gpu.held_starts
    return used
