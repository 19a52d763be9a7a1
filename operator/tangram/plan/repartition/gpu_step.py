"""One GPU of a plan: what is to be done for it now, behind which holds, and when devices may be taken."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tangram.fleet import MIGLayout, resource_name
from tangram.plan.repartition.fleet_state import HoldNode, RepartitionNode
from tangram.plan.repartition.moving import Moving
from tangram.plan.repartition.observed_plan import WHOLE, ObservedChange, ObservedPlan


@dataclass(frozen=True, slots=True)
class GPUStep:
    """What is to be done now for one GPU of a plan."""

    item: ObservedChange
    waits: tuple[str, str, str]  # for what: reason, message, object
    due: frozenset[str]  # resources for which its node is to be held
    holds: tuple[HoldNode, ...] = ()
    layout: MIGLayout | None = None  # to be written
    is_closed: bool = False  # no new pod gets a slice of it that has to go


def gpu_step(plan: ObservedPlan, moves: Moving, item: ObservedChange) -> GPUStep:
    """Return the next step of one GPU of a plan that goes on. It does not have its new layout yet."""
    goal, final = item.goal, item.change.after
    if goal is not None and item.wanted == goal and not item.has(goal):
        return _cutting(plan, item, goal)
    if goal is None or (goal == item.gpu.layout and goal != final):
        return _draining(plan, moves, item)
    due = _underway(item) | item.closed(goal)
    node = item.node.name
    if holds := _holds_for(plan, item, due):
        return GPUStep(item, ("Holding", f"holds devices of {node} free", ""), due, holds)
    if (reason := unsettled(plan, item, due)) is not None:
        return GPUStep(item, ("Settling", *reason), due)
    waits = "Cutting", f"the wanted layouts of {node} are written", f"GPUNode {node}"
    return GPUStep(item, waits, due, layout=goal)


def _cutting(plan: ObservedPlan, item: ObservedChange, goal: MIGLayout) -> GPUStep:
    """Return the step of a GPU to which the backend gives its goal."""
    node = item.node
    due = frozenset(r for r in item.closed(goal) if not node.is_closed_without_hold(r))
    text = item.gpu.failure or f"the partition backend of node {node.name} cuts its GPUs"
    return GPUStep(item, ("Cutting", text, f"GPUNode {node.name}"), due, _holds_for(plan, item, due))


def _draining(plan: ObservedPlan, moves: Moving, item: ObservedChange) -> GPUStep:
    """Return the step of a GPU whose slices are drained first: its node is closed as far as that helps."""
    closed = item.closed(item.change.after)
    due = _underway(item) | {resource for resource in closed if moves.may_close(item, resource)}
    holds = _holds_for(plan, item, due)
    is_closed = due >= closed and not holds and unsettled(plan, item, closed) is None
    return GPUStep(item, moves.wait_for(item), due, holds, is_closed=is_closed)


def _underway(item: ObservedChange) -> frozenset[str]:
    """Return the resources that the layout which the backend makes now takes away."""
    return item.closed(item.wanted) if item.wanted is not None and item.is_at_work else frozenset()


def _holds_for(plan: ObservedPlan, item: ObservedChange, due: Iterable[str]) -> tuple[HoldNode, ...]:
    return missing_holds(plan, ((item.node.name, resource) for resource in due), plan.held_until)


def missing_holds(
    plan: ObservedPlan, needed: Iterable[tuple[str, str]], until: float, early_s: float = 1.0
) -> tuple[HoldNode, ...]:
    """Return the holds to place: those that are missing, and those that end `early_s` before `until`.

    The instants of a taint are whole seconds.
    """
    missing = []
    for name, resource in sorted(needed):
        node = plan.fleet.node(name)
        hold = node.hold(resource) if node is not None else None
        lasts = hold is not None and hold.lasts_beyond(until - early_s)
        if node is not None and not lasts:
            missing.append(HoldNode(name, resource, plan.fleet.now, until))
    return tuple(missing)


def unsettled(plan: ObservedPlan, item: ObservedChange, closed: Iterable[str]) -> tuple[str, str] | None:
    """Return what is waited for before devices of `closed` may be taken away: (message, object)."""
    fleet, node = plan.fleet, item.node
    for resource in sorted(closed):
        hold = node.hold(resource)
        held_since = max(hold.since, plan.record.since) if hold is not None else fleet.now
        if fleet.now < held_since + fleet.limits.settle_s:
            return f"node {node.name} was closed just now", f"Node {node.name}"
        if _is_unknown(node, resource):
            text = f"a pod on node {node.name} asks for {resource}, and its device is not known yet"
            return text, f"Node {node.name}"
    if not node.partition.is_current:
        return f"GPUNode {node.name} is not up to date", f"GPUNode {node.name}"
    return None


def _is_unknown(node: RepartitionNode, resource: str) -> bool:
    """Whether a pod on a node asks for a resource, and the backend does not know its device yet.

    NVML knows the pods: a device of another pod that has just ended, or of a process, is not the one.
    """
    knows_pods = node.partition.knows_holders
    devices: Counter[str] = Counter()  # that the backend knows to be in use, by pod
    for gpu in node.partition.gpus:
        resources: dict[int | None, str] = {s.start: resource_name(s.profile) for s in gpu.layout.slices}
        for start, pod in set(gpu.held):
            devices[pod if knows_pods else ""] += resources.get(start, WHOLE) == resource
    claims: Counter[str] = Counter()
    for claim_resource, pod, count in node.claimed:
        claims[pod if knows_pods else ""] += count * (claim_resource == resource)
    return any(count > devices[pod] for pod, count in claims.items())
