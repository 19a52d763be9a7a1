"""The leaf conditions of one LLMDeployment, as (status, reason, message), without times."""

from dataclasses import dataclass

from tangram.eligibility.reasons import OFF, Reason
from tangram.fleet import Decision, FleetSnapshot, Intent, InvalidIntent, ParsedIntent, Workload, WriteProblem
from tangram.planner.status.request_time_limit import time_limit_warnings
from tangram.scaling import ScalingDecision, Signal, SignalState
from tangram.scaling.control import NOT_STARTING

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

_NO_PLACE = (
    Reason.INSUFFICIENT_CAPACITY,
    Reason.OVER_BUDGET,
    Reason.QUOTA_EXCEEDED,
    Reason.FAILED_CREATE,
    Reason.UNSCHEDULABLE,
    Reason.EVALUATING,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """All that conditions are told from."""

    decision: Decision
    intent: ParsedIntent
    workloads: tuple[Workload, ...]
    problem: WriteProblem | None
    signal: Signal | None
    scale: ScalingDecision | None
    warnings: tuple[str, ...] = ()  # about a spec that is valid

    @property
    def ready(self) -> int:
        """Replicas that are ready, of every shape."""
        return sum(workload.ready for workload in self.workloads)

    @property
    def available(self) -> int:
        """Replicas that are available, of every shape."""
        return sum(workload.available for workload in self.workloads)

    @property
    def minimum(self) -> int:
        """Replicas below which it is not available."""
        if not isinstance(self.intent, Intent):
            return 1
        least = self.intent.min_available
        return self.intent.min_replicas if least is None else least

    @property
    def rendered_generation(self) -> int:
        """The generation that its Deployments are to be of."""
        return self.intent.rendered_generation if isinstance(self.intent, Intent) else self.intent.generation

    @property
    def is_off(self) -> bool:
        """Whether no replica is wanted, and that is carried out."""
        return self.decision.placed_reason == Reason.SCALED_TO_ZERO

    @property
    def shape(self) -> str:
        """The wanted shape, for people."""
        return self.decision.shape.described if self.decision.shape is not None else "no shape"

    @property
    def target(self) -> Workload | None:
        """The Deployment that is to serve; while nothing is decided, the one that serves most."""
        wanted = self.decision.shape
        if wanted is not None:
            return next((w for w in self.workloads if w.shape == wanted), None)
        return max(self.workloads, key=lambda w: w.available, default=None)


def view(
    decision: Decision,
    intent: ParsedIntent,
    snapshot: FleetSnapshot,
    signal: Signal | None,
    scale: ScalingDecision | None,
) -> ConditionInputs:
    """Gather what concerns `intent`."""
    own = (w for w in snapshot.workloads if w.owner_uid == intent.uid)
    problems = (p for p in snapshot.problems if p.owner_uid == intent.uid)
    return ConditionInputs(
        decision,
        intent,
        tuple(sorted(own, key=lambda w: (w.shape, w.name, w.uid))),
        min(problems, key=lambda p: (p.reason, p.message), default=None),
        signal,
        scale,
        (*intent.warnings, *time_limit_warnings(intent, decision, snapshot))
        if isinstance(intent, Intent)
        else (),
    )


def accepted(v: ConditionInputs) -> Verdict:
    """Whether the spec is understood and may be served."""
    d = v.decision
    if not d.accepted:
        return Verdict(FALSE, d.accepted_reason, d.accepted_message)
    warnings = f"; but {'; '.join(v.warnings)}" if v.warnings else ""
    return Verdict(TRUE, d.accepted_reason, f"{d.accepted_message}{warnings}")


def model_ready(v: ConditionInputs) -> Verdict:
    """Whether the checkpoint is known to be servable."""
    d = v.decision
    by_reason = {Reason.INSPECTED: TRUE, Reason.INSPECTING: UNKNOWN, Reason.NOT_ACCEPTED: UNKNOWN}
    status = next((s for reason, s in by_reason.items() if reason == d.model_reason), FALSE)
    return Verdict(status, d.model_reason, d.model_message)


def placed(v: ConditionInputs) -> Verdict:
    """Whether there is a place for every desired replica."""
    d = v.decision
    waits = (Reason.WAITING_FOR_MODEL, Reason.EVALUATING, Reason.NOT_ACCEPTED, Reason.PAUSED)
    done = (Reason.PLACED, Reason.SCALED_TO_ZERO)
    status = TRUE if d.placed_reason in done else UNKNOWN if d.placed_reason in waits else FALSE
    return Verdict(status, d.placed_reason, d.placed_message)


def available(v: ConditionInputs) -> Verdict:
    """Whether the minimum of replicas serves, whatever their shape and generation."""
    if v.is_off or v.available >= v.minimum:
        return _enough(v)
    if v.problem:
        return Verdict(FALSE, v.problem.reason, v.problem.message)
    if not v.workloads:
        return _not_begun(v)
    said = sorted({w.message for w in v.workloads if w.message})
    have = f"{v.available} of at least {v.minimum} available"
    if said:
        return Verdict(FALSE, Reason.REPLICAS_NOT_STARTING, f"{have}; {'; '.join(said)}")
    if v.available >= sum(w.replicas for w in v.workloads):  # all that were given a place serve
        return Verdict(FALSE, Reason.WAITING_FOR_PLACEMENT, f"{have}; the others wait for Placed")
    names = ", ".join(w.name for w in v.workloads)
    return Verdict(FALSE, Reason.REPLICAS_STARTING, f"{have}; waits for the pods of {names} to become ready")


def _enough(v: ConditionInputs) -> Verdict:
    if v.is_off:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, OFF)
    return Verdict(TRUE, Reason.MIN_REPLICAS_AVAILABLE, f"at least {v.minimum} available")


def _not_begun(v: ConditionInputs) -> Verdict:
    if v.decision.placed:
        return Verdict(FALSE, Reason.REPLICAS_STARTING, f"waits for a Deployment on {v.shape}")
    return Verdict(FALSE, Reason.WAITING_FOR_PLACEMENT, "waits for Placed")


def scaling_active(v: ConditionInputs) -> Verdict:
    """Whether the number of replicas can follow the load."""
    if isinstance(v.intent, InvalidIntent) or not v.decision.accepted:
        return Verdict(UNKNOWN, Reason.NOT_ACCEPTED, "waits for Accepted")
    if v.intent.paused:
        return Verdict(FALSE, Reason.PAUSED, "spec.paused is true")
    if v.intent.min_replicas == v.intent.max_replicas:
        return _fixed(v.intent)
    if v.signal is None:
        return Verdict(
            FALSE, Reason.METRICS_MISSING, "the operator has no prometheus.url; the number is held"
        )
    if v.signal.state in (SignalState.FRESH, SignalState.THIN):
        return _following(v)
    status = UNKNOWN if v.signal.reason == Reason.NO_READY_REPLICAS else FALSE
    return Verdict(status, v.signal.reason, f"{v.signal.message}; the number is held")


def _fixed(intent: Intent) -> Verdict:
    """Why the number does not follow the load: it is set from outside, or the bounds leave one."""
    if intent.replicas is None:
        text = "scaling.minReplicas equals scaling.maxReplicas: the number is fixed"
        return Verdict(FALSE, Reason.DISABLED, text)
    by = intent.replicas_set_by
    through = f" ({by.subresource})" if by and by.subresource else ""
    at = f" at {by.time}" if by and by.time else ""
    who = f", set by {by.manager}{through}{at}" if by else " (set by a client that is not recorded)"
    back = f"tangram scale {intent.name} -n {intent.namespace} --auto"
    text = f"spec.replicas is {intent.replicas}{who}; without it Tangram scales: {back}"
    return Verdict(FALSE, Reason.REPLICAS_SET, text)


def _following(v: ConditionInputs) -> Verdict:
    """Metrics are recent: what keeps replicas from following the load nevertheless."""
    if v.scale is None:
        return Verdict(TRUE, Reason.METRICS_FRESH, "metrics are recent")
    told = "; ".join(filter(None, (v.scale.warning, v.scale.unreachable)))
    if v.scale.reason == NOT_STARTING:
        return Verdict(FALSE, Reason.REPLICAS_NOT_STARTING, told)
    return Verdict(TRUE, Reason.METRICS_FRESH, told or "metrics are recent")


def ready(v: ConditionInputs, previous: Verdict | None) -> Verdict:
    """Whether it serves at the desired generation; the reason is the most actionable one of the leaves.

    `previous` is the verdict on the same generation, if there was one.
    """
    blocked = _blocked(v)
    if blocked:
        return blocked
    if isinstance(v.intent, Intent) and v.intent.paused:
        return _paused(v)
    if v.is_off:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, OFF)
    target = v.target
    if target is None or target.available < v.minimum:
        return _short(v)
    return _rollout(v, target, previous) or _serving(v)


def _paused(v: ConditionInputs) -> Verdict:
    serves = available(v)
    if serves.status != TRUE:
        return Verdict(FALSE, serves.reason, serves.message)
    return Verdict(TRUE, Reason.PAUSED, "spec.paused is true: what runs is left as it is")


def _short(v: ConditionInputs) -> Verdict:
    """Fewer than the minimum serve on the wanted shape: for want of room, not yet, or not at all."""
    if v.decision.placed_reason in _NO_PLACE:
        return placed(v)
    leaf = available(v)
    if leaf.status == TRUE:  # an older shape serves, the wanted one does not yet
        text = f"waits for replicas of {v.shape} to become available"
        return Verdict(FALSE, Reason.ROLLOUT_IN_PROGRESS, text)
    return leaf


def _blocked(v: ConditionInputs) -> Verdict | None:
    """What a person has to look at before anything else."""
    d = v.decision
    if not d.accepted:
        return Verdict(FALSE, d.accepted_reason, d.accepted_message)
    if v.problem:
        return Verdict(FALSE, v.problem.reason, v.problem.message)
    if d.placed_reason in (Reason.PAUSED, Reason.SCALED_TO_ZERO):
        return None
    # While only the engine image changed, what serves goes on, and is what was asked for.
    is_checked = d.model_reason == Reason.INSPECTING and _serves_this_generation(v)
    if d.model_reason != Reason.INSPECTED and not is_checked:
        return Verdict(FALSE, d.model_reason, d.model_message)
    impossible = d.placed_reason in (Reason.INFEASIBLE, Reason.SLO_UNREACHABLE, Reason.NOT_JUDGED)
    return Verdict(FALSE, d.placed_reason, d.placed_message) if impossible else None


def _serves_this_generation(v: ConditionInputs) -> bool:
    return any(
        w.owner_generation == v.rendered_generation and w.settled and w.available >= v.minimum
        for w in v.workloads
    )


def _rollout(v: ConditionInputs, target: Workload, previous: Verdict | None) -> Verdict | None:
    """A rollout that is not over, or None.

    A Deployment that its controller has not looked at since our last write tells nothing: what was said of
    this generation then stands, and a new generation has not been rolled out.
    """
    waits = Verdict(
        FALSE, Reason.ROLLOUT_IN_PROGRESS, f"waits for Deployment {target.name} to replace its pods"
    )
    if target.owner_generation != v.rendered_generation:
        return waits
    if not target.settled:
        return previous or waits
    if target.is_rolling:
        said = v.decision.rollout_waits or target.message
        return Verdict(waits.status, waits.reason, f"{waits.message}: {said}" if said else waits.message)
    return None


def _serving(v: ConditionInputs) -> Verdict:
    desired = v.decision.desired
    if v.ready >= desired:
        return Verdict(TRUE, Reason.ALL_REPLICAS_READY, f"{desired} of {desired} replicas are ready")
    why = placed(v)
    told = f"; {why.message}" if why.status == FALSE else ""
    return Verdict(
        TRUE, Reason.MIN_REPLICAS_READY, f"at least {v.minimum} of {desired} replicas are ready{told}"
    )
