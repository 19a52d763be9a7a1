"""Shapes on which pods do not come to be: which obstacle rules a shape out here, and when it is tried again.

| obstacle | what it rules out | why |
| --- | --- | --- |
| Unschedulable | the shape, after a deadline, though a unit is free | CPU, memory, taints, volumes |
| exceeded quota, at creation | the shape, at once | another shape may be under another quota |
| FailedCreate: webhook, PodSecurity, LimitRange | every shape, at once | pods differ by size alone |
| SchedulingGated | nothing | another controller holds the pod back on purpose |
| image pull, missing Secret, volume mount, crash | nothing | it fails on any shape alike |

`Available` shows the last two rows, with what the pod waits for. The first three are kept in the
status, so that another operator process goes on from there.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram.eligibility.isolation import for_each
from tangram.eligibility.reasons import Reason
from tangram.fleet import BackOff, FleetSnapshot, Intent, Pool, Shape, Workload
from tangram.fleet.times import rfc3339
from tangram.planner.observe.free_capacity import FreeDevices

MAX_MESSAGE = 160  # of what the cluster says, as it is kept in statuses
MOST_PER_OWNER = 3  # kept in one status: those that last longest
_SETTLED_S = 10.0  # a pod younger than this has not been looked at twice by the scheduler
_DRAIN_SLACK_S = 30.0  # between the deletion timestamp of a pod and the units being free
_LONGEST_DRAIN_S = 3600.0  # a pod that asks for more grace is not waited for


@dataclass(frozen=True, slots=True)
class Rule:
    """What an obstacle means for plans."""

    every_shape: bool  # whether other shapes meet the same obstacle
    first_s: float  # of the first back-off; it doubles
    longest_s: float


RULES: Mapping[str, Rule] = {
    Reason.UNSCHEDULABLE: Rule(every_shape=False, first_s=300.0, longest_s=3600.0),
    Reason.QUOTA_EXCEEDED: Rule(every_shape=False, first_s=30.0, longest_s=300.0),
    Reason.FAILED_CREATE: Rule(every_shape=True, first_s=30.0, longest_s=300.0),
}


@dataclass(frozen=True, slots=True)
class Obstacles:
    """What keeps pods from coming to be, of all LLMDeployments."""

    back_offs: Mapping[str, tuple[BackOff, ...]]  # by uid
    pending: Mapping[
        tuple[str, Shape], str
    ]  # pods without a node, before the deadline: the message of Placed


_QUOTA = re.compile(r"exceeded quota: ([^\s,]+)")  # as the API server's admission says it


def _quota_of(message: str) -> str:
    match = _QUOTA.search(message)
    return match[1] if match else ""


def _open_quotas(snapshot: FleetSnapshot) -> frozenset[tuple[str, str]]:
    """ResourceQuotas, as (namespace, name), that are in the view and exhausted in nothing."""
    every = {(limit.namespace, limit.quota) for limit in snapshot.quotas}
    return frozenset(every - {(q.namespace, q.quota) for q in snapshot.quotas if q.used >= q.hard})


@dataclass(frozen=True, slots=True)
class _Obstacle:
    reason: Reason
    message: str
    replicas: int  # that have come to be


def obstacles(
    snapshot: FleetSnapshot, intents: tuple[Intent, ...], devices: FreeDevices, now: float
) -> Obstacles:
    """Return which shapes are backed off from now. `devices`: before any is reserved for missing pods."""
    open_quotas = _open_quotas(snapshot)
    recorded = {(b.owner_uid, b.shape): b for b in snapshot.back_offs}
    workloads = {(w.owner_uid, w.shape): w for w in snapshot.workloads}
    shapes: dict[str, set[Shape]] = defaultdict(set)
    for uid, shape in (*recorded, *workloads):
        shapes[uid].add(shape)
    pending: dict[tuple[str, Shape], str] = {}

    def of(intent: Intent) -> tuple[str, tuple[BackOff, ...]]:
        mine = []
        for shape in sorted(shapes[intent.uid]):
            workload, old = workloads.get((intent.uid, shape)), recorded.get((intent.uid, shape))
            old = old if old is not None and _holds(old, intent, now) else None
            found: _Obstacle | None = None
            if workload is not None:
                found, told = _observed(workload, snapshot, intent, devices, now)
                if told:
                    pending[(intent.uid, shape)] = told
            if old is not None and (intent.namespace, _quota_of(old.message)) in open_quotas:
                # There is room by now: the shortest back-off is enough.
                old = replace(old, until=min(old.until, _begun(old) + RULES[old.reason].first_s))
            new = _next(old, found, intent, shape, workload, devices, now)
            mine += [new] if new is not None else []
        mine.sort(key=lambda b: (-b.until, b.shape))
        return intent.uid, tuple(mine[:MOST_PER_OWNER])

    return Obstacles(dict(for_each("limit", intents, lambda intent: intent.uid, of)), pending)


def _observed(
    workload: Workload, snapshot: FleetSnapshot, intent: Intent, devices: FreeDevices, now: float
) -> tuple[_Obstacle | None, str]:
    """Return the obstacle that rules a shape out now, or else the message about pods that still wait."""
    if workload.refused and workload.settled and workload.total < workload.replicas:
        quota = _QUOTA.search(workload.refused)
        if quota is None:
            return _Obstacle(Reason.FAILED_CREATE, workload.refused, workload.total), ""
        return _Obstacle(Reason.QUOTA_EXCEEDED, workload.refused[quota.start() :], workload.total), ""
    waiting = workload.unscheduled
    if waiting is None or now - waiting.since < _SETTLED_S:
        return None, ""
    scheduled = max(0, workload.total - waiting.pods)
    is_short = scheduled < workload.replicas  # else they are those that a rollout starts first
    if not is_short or devices.count_free(intent.uid, workload.shape) <= 0:
        return None, ""  # no unit is free: that is shortage, and Kubernetes finds a place when there is one
    patient = _may_grow(snapshot, intent, workload.shape) or _drains(snapshot, workload.shape, now)
    needs = snapshot.pod_needs
    due = waiting.since + (needs.growing_deadline_s if patient else needs.scheduling_deadline_s)
    if now < due:
        why = f"{waiting.pods} of {workload.replicas} pods on {workload.shape.described} cannot be scheduled"
        since = f"since {rfc3339(waiting.since)}: {waiting.message[:MAX_MESSAGE]}"
        return None, f"{why} {since}; from {rfc3339(due)} on another shape is tried"
    return _Obstacle(Reason.UNSCHEDULABLE, waiting.message, scheduled), ""


def _next(
    old: BackOff | None,
    found: _Obstacle | None,
    intent: Intent,
    shape: Shape,
    workload: Workload | None,
    devices: FreeDevices,
    now: float,
) -> BackOff | None:
    """Return the back-off that follows from the last one and from what is observed."""
    if old is not None and now < old.until:
        if found is not None:
            return replace(old, replicas=found.replicas)
        if workload is not None and workload.ready > old.replicas:
            return None  # more came to be than was tried (it was paused, say): the obstacle is gone
        return replace(old, replicas=max(old.replicas, _come_to_be(workload)))
    if found is not None:
        attempts = old.attempts + 1 if old is not None else 1
        since = old.since if old is not None else now
        message = found.message[:MAX_MESSAGE]
        return BackOff(
            intent.uid, intent.rendered_generation, shape, found.reason, message, found.replicas,
            float(int(since)), float(int(now + _delay(found.reason, attempts))), attempts,
        )  # fmt: skip
    if old is None or now > old.until + RULES[old.reason].longest_s:
        return None
    arrived = devices.count_held(intent.uid, shape) if workload is not None else 0
    return None if arrived > old.replicas else old


def _holds(recorded: BackOff, intent: Intent, now: float) -> bool:
    """Whether a recorded back-off is of this spec, of a reason that is known, and ends as one of ours does:
    an operator of another version, or with another clock, may have recorded it.
    """
    rule = RULES.get(recorded.reason)
    is_ours = rule is not None and recorded.until <= now + rule.longest_s
    return is_ours and recorded.generation == intent.rendered_generation


def _come_to_be(workload: Workload | None) -> int:
    """Return how many of the wanted replicas have a pod that is not known to find no node."""
    if workload is None:
        return 0
    waiting = workload.unscheduled.pods if workload.unscheduled is not None else 0
    return max(0, min(workload.replicas, workload.total - waiting))


def _delay(reason: str, attempts: int) -> float:
    rule = RULES[reason]
    return min(rule.longest_s, rule.first_s * float(2 ** min(max(attempts, 1) - 1, 20)))


def _begun(back_off: BackOff) -> float:
    """Return when the last attempt failed."""
    return back_off.until - _delay(back_off.reason, back_off.attempts)


def _may_grow(snapshot: FleetSnapshot, intent: Intent, shape: Shape) -> bool:
    """Whether a cluster autoscaler may still add a node for this shape."""
    return any(
        (not intent.pools or pool.name in intent.pools) and _grows_by(snapshot, pool, shape.sku)
        for pool in snapshot.pools
    )


def _grows_by(snapshot: FleetSnapshot, pool: Pool, sku: str) -> bool:
    nodes = [node for node in snapshot.nodes if pool.selects(dict(node.labels))]
    skus = {pool.sku} if pool.sku else {node.sku for node in nodes}
    return pool.max_nodes is not None and len(nodes) < pool.max_nodes and sku in skus


def _drains(snapshot: FleetSnapshot, shape: Shape, now: float) -> bool:
    """Whether a terminating pod on a node of this SKU is about to free what pods wait for."""
    nodes = {node.name for node in snapshot.nodes if node.sku == shape.sku}
    return any(
        claim.leaves_at is not None
        and claim.node in nodes
        and now - _DRAIN_SLACK_S <= claim.leaves_at <= now + _LONGEST_DRAIN_S
        for claim in snapshot.claims
    )
