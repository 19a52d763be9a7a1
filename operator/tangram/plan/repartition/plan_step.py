"""One plan of changes: its state, and the actions that may begin now.

The order: consent, record that the plan is carried out; then for each GPU, as far as slices that have to go
are free: hold the node, wait until it is settled, write the wanted layout, wait until the backend has made it
and the node offers the devices; where slices are in use, replicas leave (`moving`), and the same again.
A plan that cannot go on is taken back in the same order: hold, settle, write the layouts before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tangram.fleet import MIGLayout, PoolPolicy, ReplicaMove
from tangram.plan.repartition.fleet_state import (
    Action,
    FleetState,
    MarkPod,
    PlanProgress,
    PlanRecord,
    PlanState,
    SetLayouts,
)
from tangram.plan.repartition.gpu_step import GPUStep, gpu_step, missing_holds, unsettled
from tangram.plan.repartition.moving import Moving, moving
from tangram.plan.repartition.observed_plan import (
    RETREAT_S,
    ObservedChange,
    ObservedPlan,
    SliceUser,
    observed_plan,
)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What is to be done for one plan now."""

    progress: PlanProgress
    actions: tuple[Action, ...] = ()
    holds: frozenset[tuple[str, str]] = frozenset()  # (node, resource) that it needs
    targets: tuple[tuple[str, MIGLayout], ...] = ()  # of its GPUs while it may still succeed
    moves: tuple[ReplicaMove, ...] = ()  # of replicas that leave its GPUs
    leaving: frozenset[str] = frozenset()  # pods that leave its GPUs, as NAMESPACE/NAME


def plan_step(fleet: FleetState, record: PlanRecord, *, may_begin: bool) -> PlanStep:
    """Return the next step of a plan that is not final. `may_begin`: no other plan keeps it from that."""
    plan = observed_plan(fleet, record)
    if plan.is_made:
        moved = "every replica has moved" if record.changes.moves else ""
        cut = any(not change.keeps_layout for change in record.changes.changes)
        text = " and ".join(filter(None, ("every GPU has its new layout" if cut else "", moved)))
        return PlanStep(plan.progress(PlanState.DONE, "Applied", text))
    ended = _overdue(plan) or _consent(plan) or _lost(plan) or _stuck(plan)
    if ended is not None:
        return _ended(plan, ended)
    if not plan.has_begun and not may_begin:
        limit = f"another plan changes its GPUs, or {fleet.limits.nodes} nodes are changed already"
        return PlanStep(plan.progress(PlanState.APPROVED, "WaitingForOtherPlans", limit))
    return _executing(plan)


def _consent(plan: ObservedPlan) -> PlanProgress | None:
    """Return why a plan waits for consent or does not have it any more; None: it may go on."""
    record, fleet, policy = plan.record, plan.fleet, plan.policy
    if plan.is_past_consent:
        return None  # it is cut through to a legal layout, whatever its consent is now
    ended: tuple[PlanState, str, str] | None = None
    if record.approved is False:
        ended = PlanState.REJECTED, "Rejected", "spec.approved is false"
    elif policy in (None, PoolPolicy.IGNORE):
        ended = PlanState.SUPERSEDED, "PolicyForbids", f"GPUPool {record.changes.pool} allows no changes"
    elif fleet.limits.stopped:
        ended = PlanState.SUPERSEDED, "Stopped", "the operator's setting partition.stopped is true"
    elif record.is_recommended is None and not plan.has_begun:
        state = record.state or PlanState.APPROVED
        ended = state, "WaitingForRecommendation", "waits until the fleet was planned once"
    elif not record.is_recommended and not plan.has_begun:
        ended = PlanState.SUPERSEDED, "NotRecommended", "the last recommendation has other changes"
    elif record.changes.restarts and policy is not PoolPolicy.IDLE_ONLY and not record.approved:
        owners = ", ".join(record.changes.restarts)
        text = f"waits until spec.approved is set to true: replicas of {owners} would not serve for a while"
        ended = PlanState.RECOMMENDED, "WaitingForApproval", text
    elif policy is PoolPolicy.RECOMMEND and not record.approved:
        ended = PlanState.RECOMMENDED, "WaitingForApproval", "waits until spec.approved is set to true"
    elif policy is PoolPolicy.IDLE_ONLY and record.changes.disturbed:
        owners = ", ".join(record.changes.disturbed)
        text = f"GPUPool {record.changes.pool} is IdleOnly, and replicas of {owners} would have to move"
        ended = PlanState.BLOCKED, "PolicyForbids", text
    return None if ended is None else plan.progress(*ended)


def _lost(plan: ObservedPlan) -> PlanProgress | None:
    """Return why a plan cannot go on; None: it can."""
    for change in plan.missing_changes:
        node = plan.fleet.node(change.node)
        if node is not None and node.partition.problem:  # what GPUs there are is not known
            return plan.progress(PlanState.BLOCKED, "BackendNotReady", node.partition.problem)
        text = f"node {change.node} does not report GPU {change.gpu} any more"
        return plan.progress(PlanState.BLOCKED, "GPUMissing", text)
    for item in plan.gpu_changes:
        change, gpu = item.change, item.gpu
        if gpu.quarantine:
            return plan.progress(PlanState.FAILED, "Quarantined", f"GPU {gpu.id}: {gpu.quarantine}")
        expected = (
            item.is_on_the_way(gpu.layout) if plan.has_begun else gpu.layout in (change.before, change.after)
        )
        if not item.is_written and not expected:
            text = f"GPU {gpu.id} has the layout {gpu.layout}, not {change.before}"
            return plan.progress(PlanState.BLOCKED, "LayoutChanged", text)
        problem = item.node.partition.problem
        if problem and not item.is_written and not item.is_at_work:
            return plan.progress(PlanState.BLOCKED, "BackendNotReady", problem)
    return None


def _stuck(plan: ObservedPlan) -> PlanProgress | None:
    """Return why a replica that is to move cannot; None: each can, or has moved."""
    if not plan.has_begun or plan.is_past_consent:
        return None
    waiting, owners = sorted(plan.waiting_owners.items()), plan.fleet.owners
    for owner, shape in waiting:
        if reason := owners[owner].immovable:
            text = f"replicas of {owner} do not move to {shape}: {reason}"
            return plan.progress(PlanState.FAILED, "MoveImpossible", text)
    cut_s = plan.fleet.limits.cut_s
    is_late = plan.fleet.now >= plan.record.since + cut_s
    if waiting and is_late and not _frees_devices(plan):
        moves = ", ".join(f"{shape} for {owner}" for owner, shape in waiting)
        text = f"no device came free within {cut_s:.0f} s: {moves}"
        return plan.progress(PlanState.FAILED, "NoDevice", text)
    return None


def _frees_devices(plan: ObservedPlan) -> bool:
    """Whether devices still come free for the replicas that wait: a GPU is cut, a replica of the new shape is
    there already, or a pod finishes its requests.
    """
    owners = plan.fleet.owners
    return (
        any(not item.change.keeps_layout for item in plan.gpu_changes)
        or any(shape in owners[owner].shapes for owner, shape in plan.waiting_owners.items())
        or any(user.pod and user.pod.is_leaving for item in plan.gpu_changes for user in item.users)
    )


def _overdue(plan: ObservedPlan) -> PlanProgress | None:
    """Return that a plan took too long; None: it did not."""
    if not plan.has_begun or plan.fleet.now < plan.until:
        return None
    message = "; ".join(_late(plan)) or f"not done within {plan.limit_s:.0f} s"
    return plan.progress(PlanState.FAILED, "DeadlineExceeded", message)


def _ended(plan: ObservedPlan, progress: PlanProgress) -> PlanStep:
    """Return the step of a plan that ends, or waits for consent.

    What it has written is taken back first, and it ends only once that is seen: of a plan that has ended
    nothing is left. The layout before is written only where no slice that a pod has, or may still get, is in
    its way; else the GPU is left as it is.
    """
    changes_at_work = [item.back for item in plan.gpu_changes if item.is_at_work and plan.has_begun]
    if not changes_at_work:
        return PlanStep(progress)
    is_late = plan.fleet.now >= plan.until + RETREAT_S / 2
    skipped_changes = [item for item in changes_at_work if item.gpu.quarantine or item.users or is_late]
    restorations = [item for item in changes_at_work if item not in skipped_changes]
    needed = plan.needed_holds.union(*(item.holds(item.change.after) for item in restorations))
    if is_late:  # the backend may be at work on what it is to leave: no hold ends before it knows
        holds = missing_holds(plan, needed, plan.fleet.now + RETREAT_S / 2, RETREAT_S / 4)
    else:
        holds = missing_holds(plan, needed, plan.held_until)
    if holds or any(unsettled(plan, item, item.closed(item.change.after)) for item in restorations):
        restorations = []
    if holds:
        skipped_changes = []
    layouts = [(item, None) for item in skipped_changes] + [
        (item, item.change.after) for item in restorations
    ]
    waits_for = f"GPUNode {min(item.node.name for item in changes_at_work)}"
    progress = plan.progress(PlanState.EXECUTING, "TakingBack", progress.message, waits_for)
    return PlanStep(progress, (*holds, *_writes(layouts, "")), needed)


def _late(plan: ObservedPlan) -> Iterable[str]:
    """Yield what is not done of a plan that took too long."""
    for owner, shape in sorted(plan.waiting_owners.items()):
        yield f"not every replica of {owner} runs on {shape}"
    for item in plan.gpu_changes:
        if item.is_made:
            continue
        users = ", ".join(user.place for user in item.users)
        if item.change.keeps_layout:
            yield f"{users} is still in use"
        elif item.is_cut:
            yield f"node {item.node.name} does not offer the devices of GPU {item.gpu.id}"
        else:
            cause = item.gpu.failure or item.node.partition.problem or _silent(item) or users
            text = f"GPU {item.gpu.id} does not have the layout {item.change.after}"
            yield f"{text}: {cause}" if cause else text


def _silent(item: ObservedChange) -> str:
    if item.node.partition.is_current:
        return ""
    return f"the partition backend of node {item.node.name} has not reported since the last change"


def _executing(plan: ObservedPlan) -> PlanStep:
    """Return the next step of a plan that goes on: for each GPU by itself, as far as that is possible."""
    if not plan.has_begun:
        return _beginning(plan)
    moves = moving(plan)
    if foreign_users := _foreign_users(plan, moves):
        places = ", ".join(user.place for user in foreign_users)
        return _ended(plan, plan.progress(PlanState.BLOCKED, "InUse", f"in use: {places}"))
    unmade_changes = [item for item in plan.gpu_changes if not item.is_made and not item.change.keeps_layout]
    steps = [gpu_step(plan, moves, item) for item in unmade_changes]
    closed_gpus = tuple(step.item for step in steps if step.is_closed)
    reason, message, waits_for = _first_wait(plan, moves, steps)
    return PlanStep(
        plan.progress(PlanState.EXECUTING, reason, message, waits_for, waits=True),
        _actions(plan, steps, moves.marks(closed_gpus)),
        frozenset((step.item.node.name, resource) for step in steps for resource in step.due),
        plan.targets,
        moves.underway(closed_gpus),
        moves.pods,
    )


def _beginning(plan: ObservedPlan) -> PlanStep:
    """Return the step of a plan that begins. Nothing is done before its FleetPlan is Executing: the deadline
    counts from then.
    """
    names = ", ".join(sorted({item.node.name for item in plan.gpu_changes}))
    progress = plan.progress(PlanState.EXECUTING, "Beginning", f"{names} are held next", waits=True)
    return PlanStep(progress, (), plan.needed_holds, plan.targets)


def _foreign_users(plan: ObservedPlan, moves: Moving) -> list[SliceUser]:
    """Return the users of one GPU that the plan does not move; empty: it moves all that are in its way."""
    for item in plan.gpu_changes:
        users = [user for user in item.users if not moves.may_leave(user)]
        if users and not item.is_written:
            return users
    return []


def _actions(plan: ObservedPlan, steps: Sequence[GPUStep], marks: Iterable[MarkPod]) -> tuple[Action, ...]:
    """Return the actions of all GPUs: holds, then marks, then layouts; each once."""
    holds = [hold for step in steps for hold in step.holds]
    layouts = ((step.item, step.layout) for step in steps if step.layout is not None)
    return tuple(dict.fromkeys([*holds, *marks, *_writes(layouts, plan.record.changes.name)]))


# The first of these that a GPU of a plan waits for is the reason of the plan.
_FIRST = ("Holding", "Settling", "Cutting", "Moving", "Draining")


def _first_wait(plan: ObservedPlan, moves: Moving, steps: Iterable[GPUStep]) -> tuple[str, str, str]:
    """Return what the plan waits for: reason, message, object."""
    waits = [step.waits for step in steps]
    waits += [moves.wait_for(item) for item in plan.gpu_changes if item.change.keeps_layout and item.users]
    owners = ", ".join(plan.record.changes.disturbed)
    waits = waits or [("Moving", f"replicas of {owners} move", "")]
    return min(waits, key=lambda wait: _FIRST.index(wait[0]))


def _writes(
    layouts: Iterable[tuple[ObservedChange, MIGLayout | None]], plan_hash: str
) -> tuple[SetLayouts, ...]:
    by_node: dict[str, list[tuple[str, MIGLayout | None]]] = {}
    for item, layout in layouts:
        by_node.setdefault(item.node.name, []).append((item.gpu.id, layout))
    return tuple(SetLayouts(node, tuple(sorted(own)), plan_hash) for node, own in sorted(by_node.items()))
