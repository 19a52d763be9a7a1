"""Back-off of shapes on which replicas do not start: which obstacle rules out a shape, and when it is tried
again.

| obstacle | what it rules out | why |
| --- | --- | --- |
| Unschedulable | the shape, after a deadline, if a device is free | CPU, memory, taints, volumes |
| exceeded quota, at creation | the shape, at once | another shape may be under another quota |
| FailedCreate: webhook, PodSecurity, LimitRange | every shape, at once | pods differ by size alone |
| SchedulingGated | nothing | another controller holds the pod back on purpose |
| no replica ready by the deadline | the shape, while another one can serve | drivers, broken GPUs |

The condition `Available` shows the last two rows, with what the pod waits for: its image, a Secret, a volume,
a container that stays up. The status keeps the others, so that another operator process goes on from there.
A shape of which no replica became ready is remembered until replicas of it, or of another shape, do: two such
shapes show that the cause is the checkpoint or the engine image, and no third one is tried.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tangram.api.llm_deployment.back_offs import MAX_MESSAGE
from tangram.eligibility.isolation import RoundStep, for_each
from tangram.eligibility.reasons import Reason
from tangram.fleet import BackOff, FleetSnapshot, Intent, Pool, Shape, Workload
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.reasons.placement import PodsUnscheduled

MOST_PER_OWNER = 3  # back-offs in one status: those that last longest
_SETTLED_S = 10.0  # the scheduler has not tried a younger pod twice
_DRAIN_SLACK_S = 30.0  # between the deletion timestamp of a pod and its devices being free
_LONGEST_DRAIN_S = 3600.0  # a pod with a longer grace period is not waited for


@dataclass(frozen=True, slots=True)
class BackOffRule:
    """How long shapes are backed off for one kind of obstacle."""

    every_shape: bool  # whether other shapes meet the same obstacle
    first_s: float  # the first back-off; it doubles with each attempt
    longest_s: float


RULES: Mapping[str, BackOffRule] = {
    Reason.UNSCHEDULABLE: BackOffRule(every_shape=False, first_s=300.0, longest_s=3600.0),
    Reason.QUOTA_EXCEEDED: BackOffRule(every_shape=False, first_s=30.0, longest_s=300.0),
    Reason.FAILED_CREATE: BackOffRule(every_shape=True, first_s=30.0, longest_s=300.0),
    Reason.REPLICAS_NOT_STARTING: BackOffRule(every_shape=False, first_s=600.0, longest_s=3600.0),
}


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Back-offs and pods that wait for a node, of all LLMDeployments."""

    back_offs: Mapping[str, tuple[BackOff, ...]]  # by uid
    unscheduled: Mapping[tuple[str, Shape], PodsUnscheduled]  # by uid and shape


_QUOTA = re.compile(r"exceeded quota: ([^\s,]+)")  # as in messages of the API server


def _open_quotas(snapshot: FleetSnapshot) -> frozenset[tuple[str, str]]:
    """ResourceQuotas, as (namespace, name), with something left of every resource."""
    quotas = {(q.namespace, q.quota) for q in snapshot.quotas}
    return frozenset(quotas - {(q.namespace, q.quota) for q in snapshot.quotas if q.used >= q.hard})


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why pods of a Deployment do not start on its shape."""

    reason: Reason
    message: str
    replicas: int  # that have started


def observe_obstacles(
    snapshot: FleetSnapshot, intents: tuple[Intent, ...], devices: FreeDevices, now: float
) -> Obstacles:
    """Return which shapes are backed off from now on. `devices`: before any is reserved for missing pods."""
    observed = _ObservedShapes(snapshot, devices, now)
    back_offs = for_each(RoundStep.BACK_OFF, intents, lambda intent: intent.uid, observed.back_offs_of)
    return Obstacles(dict(back_offs), observed.unscheduled)


class _ObservedShapes:
    """The shapes that have a Deployment or a recorded back-off, by uid of their LLMDeployment."""

    def __init__(self, snapshot: FleetSnapshot, devices: FreeDevices, now: float) -> None:
        self._snapshot, self._devices, self._now = snapshot, devices, now
        self._recorded = {(b.owner_uid, b.shape): b for b in snapshot.back_offs}
        self._workloads = {(w.owner_uid, w.shape): w for w in snapshot.workloads}
        self._open_quotas, self._late_starts = _open_quotas(snapshot), _late_starts(snapshot)
        self._shapes: dict[str, set[Shape]] = defaultdict(set)
        for uid, shape in (*self._recorded, *self._workloads):
            self._shapes[uid].add(shape)
        self.unscheduled: dict[tuple[str, Shape], PodsUnscheduled] = {}

    def back_offs_of(self, intent: Intent) -> tuple[str, tuple[BackOff, ...]]:
        """Return the uid and the back-offs of an LLMDeployment, and record its unscheduled pods."""
        of_shapes = (self._back_off_of(intent, shape) for shape in sorted(self._shapes[intent.uid]))
        return intent.uid, _longest(back_off for back_off in of_shapes if back_off is not None)

    def _back_off_of(self, intent: Intent, shape: Shape) -> BackOff | None:
        key, devices, now = (intent.uid, shape), self._devices, self._now
        workload, previous = self._workloads.get(key), self._recorded.get(key)
        obstacle: Obstacle | None = None
        if workload is not None:
            observed = _observed(workload, self._snapshot, intent, devices, now)
            if isinstance(observed, PodsUnscheduled):
                self.unscheduled[key] = observed
            else:
                obstacle = observed
        if previous is not None:
            previous = _valid_back_off(previous, intent, self._open_quotas, now)
        late = self._late_starts.get((intent.uid, intent.rendered_generation), {})
        return _back_off(previous, obstacle, late, intent, shape, workload, devices, now)


def _longest(back_offs: Iterable[BackOff]) -> tuple[BackOff, ...]:
    """Return as many back-offs as a status keeps: failures to start first, then those that last longest."""
    ranked = sorted(back_offs, key=lambda b: (not _is_open_failure(b), -b.until, b.shape))
    return tuple(ranked[:MOST_PER_OWNER])


def _late_starts(snapshot: FleetSnapshot) -> Mapping[tuple[str, int], Mapping[Shape, bool]]:
    """Return whether replicas are late, by uid and generation, and by shape."""
    late: dict[tuple[str, int], dict[Shape, bool]] = defaultdict(dict)
    for outcome in snapshot.start_outcomes:
        late[outcome.owner_uid, outcome.generation][outcome.shape] = outcome.is_late
    return late


def _back_off(
    previous: BackOff | None,
    obstacle: Obstacle | None,
    late: Mapping[Shape, bool],
    intent: Intent,
    shape: Shape,
    workload: Workload | None,
    devices: FreeDevices,
    now: float,
) -> BackOff | None:
    """Return the back-off of one shape: of an observed obstacle, else of replicas that do not start."""
    is_start_failure = previous is not None and previous.reason == Reason.REPLICAS_NOT_STARTING
    if obstacle is None and (is_start_failure or late.get(shape)):
        start_failure = previous if is_start_failure else None
        return _after_start(start_failure, late, intent, shape, workload, now)
    previous = None if is_start_failure else previous
    return _next(previous, obstacle, intent, shape, workload, devices, now)


def _observed(
    workload: Workload, snapshot: FleetSnapshot, intent: Intent, devices: FreeDevices, now: float
) -> Obstacle | PodsUnscheduled | None:
    """Return the obstacle that rules a shape out now, or else the pods that wait for a node."""
    if workload.refused and workload.settled and workload.total < workload.replicas:
        return _refusal(workload)
    unscheduled = workload.unscheduled
    if unscheduled is None or now - unscheduled.since < _SETTLED_S:
        return None
    scheduled = max(0, workload.total - unscheduled.pods)
    is_short = scheduled < workload.replicas  # else the unscheduled pods are those of a surge
    if not is_short or devices.count_free(intent.uid, workload.shape) <= 0:
        return None  # without a free device it is shortage: the pods are scheduled when one is free
    is_patient = _may_grow(snapshot, intent, workload.shape) or _drains(snapshot, workload.shape, now)
    needs = snapshot.pod_needs
    due = unscheduled.since + (needs.growing_deadline_s if is_patient else needs.scheduling_deadline_s)
    if now < due:
        bounded = replace(unscheduled, message=unscheduled.message[:MAX_MESSAGE])
        return PodsUnscheduled(workload.shape, workload.replicas, bounded, due)
    return Obstacle(Reason.UNSCHEDULABLE, unscheduled.message, scheduled)


def _refusal(workload: Workload) -> Obstacle:
    """Return the refusal of pods by the API server: by a quota, or by anything else."""
    quota = _QUOTA.search(workload.refused)
    if quota is None:
        return Obstacle(Reason.FAILED_CREATE, workload.refused, workload.total)
    return Obstacle(Reason.QUOTA_EXCEEDED, workload.refused[quota.start() :], workload.total)


def _next(
    previous: BackOff | None,
    obstacle: Obstacle | None,
    intent: Intent,
    shape: Shape,
    workload: Workload | None,
    devices: FreeDevices,
    now: float,
) -> BackOff | None:
    """Return the back-off that follows from the previous one and from what is observed."""
    if previous is not None and now < previous.until:
        if obstacle is not None:
            return replace(previous, replicas=obstacle.replicas)
        if workload is not None and workload.ready > previous.replicas:
            return None  # more replicas started than were tried (it was paused, say): the obstacle is gone
        return replace(previous, replicas=max(previous.replicas, _started(workload)))
    if obstacle is not None:
        attempts = previous.attempts + 1 if previous is not None else 1
        since = previous.since if previous is not None else now
        message = obstacle.message[:MAX_MESSAGE]
        return BackOff(
            intent.uid, intent.rendered_generation, shape, obstacle.reason, message, obstacle.replicas,
            float(int(since)), float(int(now + _delay_s(obstacle.reason, attempts))), attempts,
        )  # fmt: skip
    if previous is None or now > previous.until + RULES[previous.reason].longest_s:
        return None
    arrived = devices.count_held(intent.uid, shape) if workload is not None else 0
    return None if arrived > previous.replicas else previous


def _after_start(
    previous: BackOff | None,
    late: Mapping[Shape, bool],
    intent: Intent,
    shape: Shape,
    workload: Workload | None,
    now: float,
) -> BackOff | None:
    """Return the back-off of a shape of which no replica became ready, or None.

    `late`: by shape, whether replicas are late (else one has been ready for a while).
    """
    if late.get(shape) is False:
        return None
    is_elsewhere = any(not is_late for other, is_late in late.items() if other != shape)
    if previous is not None:
        previous = replace(previous, started_elsewhere=previous.started_elsewhere or is_elsewhere)
    is_due = previous is None or now >= previous.until
    if is_due and late.get(shape) and workload is not None and not workload.ready:
        is_row = previous is not None and not previous.started_elsewhere
        since = previous.since if previous is not None and is_row else now
        attempts = previous.attempts + 1 if previous is not None else 1
        until = now + _delay_s(Reason.REPLICAS_NOT_STARTING, attempts)
        return BackOff(
            intent.uid, intent.rendered_generation, shape, Reason.REPLICAS_NOT_STARTING,
            workload.message[:MAX_MESSAGE], 0, float(int(since)), float(int(until)), attempts, is_elsewhere,
        )  # fmt: skip
    if previous is None or _is_open_failure(previous):
        return previous
    return previous if now <= previous.until + RULES[previous.reason].longest_s else None


def _is_open_failure(back_off: BackOff) -> bool:
    """Whether no replica of any shape is known to have become ready since those of this one did not."""
    return back_off.reason == Reason.REPLICAS_NOT_STARTING and not back_off.started_elsewhere


def _valid_back_off(
    recorded: BackOff, intent: Intent, open_quotas: frozenset[tuple[str, str]], now: float
) -> BackOff | None:
    """Return a recorded back-off of this spec with a known reason and a possible end, else None: an operator
    of another version, or with another clock, may have recorded it.
    """
    rule = RULES.get(recorded.reason)
    if rule is None or recorded.until > now + rule.longest_s:
        return None
    if recorded.generation != intent.rendered_generation:
        return None
    quota = _QUOTA.search(recorded.message)
    if quota is None or (intent.namespace, quota[1]) not in open_quotas:
        return recorded
    # The quota has room again: the shortest back-off suffices.
    last_attempt = recorded.until - _delay_s(recorded.reason, recorded.attempts)
    return replace(recorded, until=min(recorded.until, last_attempt + rule.first_s))


def _started(workload: Workload | None) -> int:
    """Return how many of the replicas have a pod that is not unschedulable."""
    if workload is None:
        return 0
    unscheduled = workload.unscheduled.pods if workload.unscheduled is not None else 0
    return max(0, min(workload.replicas, workload.total - unscheduled))


def _delay_s(reason: str, attempts: int) -> float:
    rule = RULES[reason]
    return min(rule.longest_s, rule.first_s * float(2 ** min(max(attempts, 1) - 1, 20)))


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
    """Whether a terminating pod on a node of this SKU is about to free a device."""
    nodes = {node.name for node in snapshot.nodes if node.sku == shape.sku}
    return any(
        claim.leaves_at is not None
        and claim.node in nodes
        and now - _DRAIN_SLACK_S <= claim.leaves_at <= now + _LONGEST_DRAIN_S
        for claim in snapshot.claims
    )
