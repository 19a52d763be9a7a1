"""The laws: of a decision, whatever happens afterwards, and of a state from which nothing follows."""

from __future__ import annotations

from collections.abc import Mapping

from tangram.fleet import PoolPolicy
from tangram.plan.repartition import (
    FleetState,
    HoldNode,
    MarkPod,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionStep,
    SetLayouts,
)
from tests.support.repartition_model.fleet import ABSENT, POOL, STATES, Fleet, Scenario, Write
from tests.support.repartition_model.layouts import NONE, LawBroken
from tests.support.repartition_model.node import AVAILABLE, QUARANTINE, NodeState, has_room, on_gpu
from tests.support.repartition_worlds import devices_to_tell, told_devices


def check_decision(world: FleetState, step: RepartitionStep, hashes: Mapping[str, PlanRecord]) -> None:
    """Raise where a step itself breaks a law. `hashes`: the plans by the hash of their changes."""
    plans = {plan.name: plan for plan in world.plans}
    held = {(action.node, action.resource) for action in step.actions if isinstance(action, HoldNode)}
    for progress in step.progress:
        if progress.state.is_final:
            _check_ended(world, plans[progress.name], progress.state)
    for action in step.actions:
        if isinstance(action, ReleaseNode) and (action.node, action.resource) in held:
            raise LawBroken(f"{action.node} is held and released in one step")
        if isinstance(action, SetLayouts):
            _check_consent(world, hashes.get(action.plan))
        if isinstance(action, MarkPod):
            _check_mark(world, action.pod)
    _check_devices(world, step)


def _check_ended(world: FleetState, plan: PlanRecord, state: PlanState) -> None:
    """Raise where a plan ends, and something of it is still to be cut."""
    for change in plan.changes.changes:
        node = world.node(change.node)
        gpu = node.partition.gpu(change.gpu) if node is not None else None
        if node is None or gpu is None or plan.state is not PlanState.EXECUTING:
            continue
        wanted = dict(node.partition.wanted).get(change.gpu)
        if wanted == change.after and gpu.layout != change.after:
            raise LawBroken(f"{plan.name} is {state}, and {change.gpu} is still to be cut")


def _check_consent(world: FleetState, plan: PlanRecord | None) -> None:
    """Raise where a plan is written that may not be."""
    if plan is None:
        return
    if plan.state is not PlanState.EXECUTING:
        raise LawBroken(f"{plan.name} is written before it is carried out")
    wanted = {gpu: of for item in world.nodes for gpu, of in item.partition.wanted}
    written = any(wanted.get(change.gpu) == change.after for change in plan.changes.changes)
    if not written and not _has_consent(world, plan):
        raise LawBroken(f"{plan.name} is written without consent")


def _has_consent(world: FleetState, plan: PlanRecord) -> bool:
    policy = world.policies[POOL]
    allowed = policy is PoolPolicy.FULL or (policy is PoolPolicy.IDLE_ONLY and not plan.changes.disturbed)
    allowed |= policy is PoolPolicy.RECOMMEND and plan.approved is True
    return allowed and plan.approved is not False and not world.limits.stopped


def lost_slice(world: FleetState, step: RepartitionStep) -> str:
    """Return the GPU of which a slice that is known to be held is not in the layout that is written."""
    for action in step.actions:
        node = world.node(action.node) if isinstance(action, SetLayouts) else None
        for name, target in action.layouts if isinstance(action, SetLayouts) else ():
            gpu = node.partition.gpu(name) if node is not None else None
            if target is None or gpu is None:
                continue
            for start in gpu.held_starts:
                stays = target.mig_enabled == gpu.layout.mig_enabled
                kept = start is None or any(s in target.slices for s in gpu.layout.slices if s.start == start)
                if not (stays and kept):
                    return name
    return ""


def _check_mark(world: FleetState, name: str) -> None:
    """Raise where a replica is marked that no plan moves, or that is in no plan's way."""
    node = next(node for node in world.nodes if node.pod(name) is not None)
    pod = node.pod(name)
    assert pod is not None
    places = {(gpu.id, start) for gpu in node.partition.gpus for start, held in gpu.held if held == name}
    for plan in world.plans:
        if plan.state is not PlanState.EXECUTING or pod.owner not in plan.changes.disturbed:
            continue
        for change in plan.changes.changes:
            going = {s.start for s in change.before.slices if s not in change.after.slices}
            if any(gpu == change.gpu and start in going for gpu, start in places):
                return
    raise LawBroken(f"{name} is marked, and is in the way of no plan")


def _check_devices(world: FleetState, step: RepartitionStep) -> None:
    """Raise where what the planner is told is not what the GPUs will offer: offered + coming - going."""
    targets = dict(step.targets)
    for node in world.nodes:
        if not any(gpu.id in targets for gpu in node.partition.gpus):
            continue
        if +told_devices(node, step) != devices_to_tell(node, targets):
            raise LawBroken(f"the planner is told of {told_devices(node, step)} on {node.name}")


# ---- laws of a state --------------------------------------------------------------------------------


def check_marks(fleet: Fleet, writes: tuple[Write, ...]) -> None:
    """Raise where a pod is to be marked before its replacement is available."""
    marks = {(write.target, write.value) for write in writes if write.kind == "mark"}
    for owner, item in enumerate(fleet.owners):
        pods = [
            (index, pod) for index, node in enumerate(fleet.nodes) for pod in node.pods if pod.kind == owner
        ]
        going = [pod for index, pod in pods if (index, (pod.gpu, pod.start)) in marks]
        staying = [pod for index, pod in pods if not pod.mark and (index, (pod.gpu, pod.start)) not in marks]
        if going and sum(pod.phase == AVAILABLE for pod in staying) < item.desired:
            raise LawBroken(f"a replica of {owner} is marked before its replacement is available")


def check_end(of: Scenario, fleet: Fleet) -> None:
    """Raise where something is left in a state from which nothing follows."""
    for index, node in enumerate(fleet.nodes):
        _check_node(index, node, tampered=fleet.settings.tampered)
    is_disturbed = fleet.settings.changes != of.changes or fleet.settings.delayed
    for number, plan in enumerate(fleet.plans):
        waits = STATES[plan.state % ABSENT] is PlanState.RECOMMENDED and plan.approved == NONE
        if plan.is_live and not waits:
            raise LawBroken(f"plan {number} never ends: {STATES[plan.state]}")
        if of.succeeds and not is_disturbed and STATES[plan.state] is not PlanState.DONE:
            raise LawBroken(f"plan {number} is not done, though what has failed was done again")
    for owner, item in enumerate(fleet.owners):
        resource = of.kinds[owner].resource
        has_room_left = any(has_room(node, of.kinds, resource) for node in fleet.nodes)
        if item.replicas > item.desired:
            raise LawBroken(f"the surge of {owner} stays: {item.replicas} replicas, not {item.desired}")
        if item.available < item.desired and has_room_left:
            raise LawBroken(f"{item.available} replicas of {owner} are available, not {item.desired}")


def _check_node(index: int, node: NodeState, *, tampered: bool) -> None:
    if any(pod.mark for pod in node.pods):
        raise LawBroken(f"a mark on node {index} stays")
    if any(left != NONE for _, _, left, _ in node.holds):
        raise LawBroken(f"node {index} stays held")
    for at, gpu in enumerate(node.gpus):
        as_wanted = gpu.wanted in (NONE, gpu.actual)
        if not as_wanted and gpu.failures < QUARANTINE and not on_gpu(node, at):
            raise LawBroken(f"GPU {at} of node {index} never gets its layout")
        if gpu.offered != gpu.actual and not tampered:
            raise LawBroken(f"the devices of GPU {at} of node {index} are never offered")
