"""The step of the whole fleet: every plan, the holds, and what the planner has to know."""

from collections.abc import Collection, Mapping

from tangram.plan.repartition.device_changes import (
    coming_devices,
    device_differences,
    going_devices,
    targets_by_node,
)
from tangram.plan.repartition.fleet_state import (
    Action,
    DevicePod,
    FleetState,
    HoldNode,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionStep,
    UnmarkPod,
)
from tangram.plan.repartition.observed_plan import WHOLE
from tangram.plan.repartition.plan_step import PlanStep, plan_step


def next_step(fleet: FleetState) -> RepartitionStep:
    """Return the actions that may begin now, in their order, and the state of every plan."""
    steps, arrivals = _plan_steps(fleet), _arrival_holds(fleet)
    targets = targets_by_node(fleet.nodes, steps.values())
    differences = device_differences(fleet.nodes, targets)
    layouts = {gpu: layout for own in targets.values() for gpu, layout in own.items()}
    return RepartitionStep(
        actions=tuple(_actions(fleet, steps.values(), arrivals)),
        progress=tuple(steps[record.name].progress for record in fleet.plans),
        coming=tuple(coming_devices(differences, targets, steps, fleet.now)),
        going=tuple(going_devices(fleet.nodes, differences, arrivals)),
        targets=tuple(sorted(layouts.items())),
        moves=tuple(sorted({move for step in steps.values() for move in step.moves})),
        arriving=tuple(sorted(node for node, _ in arrivals)),
    )


def _plan_steps(fleet: FleetState) -> dict[str, PlanStep]:
    """Return the step of each plan, by name. A plan waits while an earlier one changes one of its GPUs, or
    while as many nodes are changed as the limits allow.
    """
    changed_nodes, changed_gpus = set[str](), set[str]()
    steps: dict[str, PlanStep] = {}
    for record in sorted(fleet.plans, key=_order):
        gpus = {change.gpu for change in record.changes.changes}
        nodes = {change.node for change in record.changes.changes}
        is_within_limit = not changed_nodes or len(changed_nodes | nodes) <= fleet.limits.nodes
        step = plan_step(fleet, record, may_begin=is_within_limit and not gpus & changed_gpus)
        steps[record.name] = step
        if step.progress.state is PlanState.EXECUTING:
            changed_nodes |= nodes
            changed_gpus |= gpus
    return steps


def _actions(
    fleet: FleetState,
    steps: Collection[PlanStep],
    arrivals: Mapping[tuple[str, str], HoldNode | None],
) -> list[Action]:
    """Return what plans do, then the holds of nodes that have just come, holds to lift and marks to take."""
    actions: list[Action] = [action for step in steps for action in step.actions]
    actions += (hold for hold in arrivals.values() if hold is not None)
    needed = {hold for step in steps for hold in step.holds} | arrivals.keys()
    placed = {(action.node, action.resource) for action in actions if isinstance(action, HoldNode)}
    leaving = {pod for step in steps for pod in step.leaving}
    actions += _releases(fleet, needed, placed)
    actions += (UnmarkPod(pod.name) for pod in _marked_pods(fleet) if pod.name not in leaving)
    return actions


def _arrival_holds(fleet: FleetState) -> dict[tuple[str, str], HoldNode | None]:
    """Return the holds of nodes that have just come, with what places them: no pod takes a whole GPU before
    a plan knows it.
    """
    holds: dict[tuple[str, str], HoldNode | None] = {}
    for node in fleet.nodes:
        until = node.arriving_until
        if until is not None and fleet.now < until:
            hold = node.hold(WHOLE)
            is_closed = hold is not None and hold.lasts_beyond(fleet.now)
            holds[node.name, WHOLE] = None if is_closed else HoldNode(node.name, WHOLE, fleet.now, until)
    return holds


def _marked_pods(fleet: FleetState) -> list[DevicePod]:
    """Return the replicas that would go first, and do not go yet."""
    pods = (pod for node in fleet.nodes for pod in node.pods)
    return sorted(pod for pod in pods if pod.owner and pod.is_marked and not pod.is_leaving)


def _order(record: PlanRecord) -> tuple[bool, float, str]:
    return record.state is not PlanState.EXECUTING, record.since, record.name


def _releases(fleet: FleetState, needed: set[tuple[str, str]], placed: set[tuple[str, str]]) -> list[Action]:
    """Return the holds to lift: those that are overdue, and those that no plan needs any more.

    Where a plan has ended, the backend may still be at work, and the node still offer slices that are gone.
    """
    releases = list[Action]()
    for node in fleet.nodes:
        is_at_rest = node.partition.backend is None or node.partition.is_applied
        for hold in node.holds:
            key = node.name, hold.resource
            if hold.until is None or key in placed:
                continue
            is_needless = is_at_rest or node.is_closed_without_hold(hold.resource)
            if not hold.lasts_beyond(fleet.now) or (key not in needed and is_needless):
                releases.append(ReleaseNode(*key))
    return releases
