"""The conditions of one LLMDeployment, except SLOMet: status, reason and message, without times."""

from dataclasses import dataclass, replace

from tangram.eligibility.reasons import OFF, PAUSED, Reason
from tangram.fleet import Decision, FleetSnapshot, Intent, InvalidIntent, ParsedIntent, Workload, WriteProblem
from tangram.plan.reasons import conditions as reasons
from tangram.plan.status.fetch_condition import fetch_condition
from tangram.plan.status.request_time_limit import time_limit_warnings
from tangram.plan.words.conditions import sentence
from tangram.scaling import ScalingDecision, Signal, SignalState
from tangram.scaling.control import NOT_STARTING

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
NO_SOURCE = "the operator has no prometheus.url, and scrape.enabled is false"

_NOT_PLACED = (
    Reason.INSUFFICIENT_CAPACITY,
    Reason.WAITING_FOR_SLICES,
    Reason.WAITING_FOR_CONSENT,
    Reason.OVER_BUDGET,
    Reason.QUOTA_EXCEEDED,
    Reason.FAILED_CREATE,
    Reason.UNSCHEDULABLE,
    Reason.REPLICAS_NOT_STARTING,
    Reason.EVALUATING,
)


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition without its times."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """What the conditions of one LLMDeployment depend on."""

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
        """Available replicas below which it is not available."""
        if not isinstance(self.intent, Intent):
            return 1
        explicit = self.intent.min_available
        return self.intent.min_replicas if explicit is None else explicit

    @property
    def rendered_generation(self) -> int:
        """The generation that its Deployments should have."""
        return self.intent.rendered_generation if isinstance(self.intent, Intent) else self.intent.generation

    @property
    def is_off(self) -> bool:
        """Whether it is scaled to zero."""
        return self.decision.placed_reason == Reason.SCALED_TO_ZERO

    @property
    def target(self) -> Workload | None:
        """The Deployment on the decided shape; without a decision, the one with most available replicas."""
        shape = self.decision.shape
        if shape is not None:
            return next((w for w in self.workloads if w.shape == shape), None)
        return max(self.workloads, key=lambda w: w.available, default=None)


def condition_inputs(
    decision: Decision,
    intent: ParsedIntent,
    snapshot: FleetSnapshot,
    signal: Signal | None,
    scale: ScalingDecision | None,
) -> ConditionInputs:
    """Return the inputs that concern `intent`."""
    own = (w for w in snapshot.workloads if w.owner_uid == intent.uid)
    workloads = tuple(sorted(own, key=lambda w: (w.shape, w.name, w.uid)))
    problems = (p for p in snapshot.problems if p.owner_uid == intent.uid)
    problem = min(problems, key=lambda p: (p.reason, p.message), default=None)
    warnings: tuple[str, ...] = ()
    if isinstance(intent, Intent):
        warnings = (*intent.warnings, *time_limit_warnings(intent, decision, snapshot))
    return ConditionInputs(decision, intent, workloads, problem, signal, scale, warnings)


def accepted(inputs: ConditionInputs) -> ConditionState:
    """Whether the spec is valid and the LLMDeployment may be served."""
    decision = inputs.decision
    status = TRUE if decision.accepted_reason == Reason.VALID else FALSE
    message = decision.accepted_message
    if inputs.warnings and decision.accepted:
        message = sentence(reasons.AcceptedWithWarnings(message, inputs.warnings))
    return ConditionState(status, decision.accepted_reason, message)


def model_ready(inputs: ConditionInputs) -> ConditionState:
    """Whether the checkpoint was inspected and can be served, and how far pods are with fetching it."""
    decision = inputs.decision
    fault, fetching = fetch_condition(inputs.workloads)
    if fault is not None and decision.model_reason == Reason.INSPECTED:
        return ConditionState(FALSE, *fault)
    by_reason = {Reason.INSPECTED: TRUE, Reason.INSPECTING: UNKNOWN, Reason.NOT_ACCEPTED: UNKNOWN}
    status = next((s for reason, s in by_reason.items() if reason == decision.model_reason), FALSE)
    return ConditionState(status, decision.model_reason, decision.model_message + fetching)


def placed(inputs: ConditionInputs) -> ConditionState:
    """Whether every desired replica has a device."""
    decision = inputs.decision
    unknown = (Reason.WAITING_FOR_MODEL, Reason.EVALUATING, Reason.NOT_ACCEPTED, Reason.PAUSED)
    done = (Reason.PLACED, Reason.SCALED_TO_ZERO)
    reason = decision.placed_reason
    status = TRUE if reason in done else UNKNOWN if reason in unknown else FALSE
    return ConditionState(status, reason, decision.placed_message)


def available(inputs: ConditionInputs) -> ConditionState:
    """Whether the minimum of replicas is available, of any shape and generation."""
    if inputs.is_off:
        return ConditionState(TRUE, Reason.SCALED_TO_ZERO, OFF)
    if inputs.available >= inputs.minimum:
        return _state(TRUE, reasons.MinimumAvailable(inputs.minimum))
    return _state(FALSE, _why_not_available(inputs))


def _why_not_available(inputs: ConditionInputs) -> reasons.ConditionReason:
    decision, workloads = inputs.decision, inputs.workloads
    if inputs.problem:
        return reasons.StatedReason(inputs.problem.reason, inputs.problem.message)
    if not workloads:
        waits = reasons.WaitsForCondition("Placed", Reason.WAITING_FOR_PLACEMENT)
        return reasons.WaitsForDeployment(decision.shape) if decision.placed else waits
    failures = sorted({w.message for w in workloads if w.message})
    failures += [decision.start_failures] if decision.start_failures else []
    missing = inputs.available < sum(w.replicas for w in workloads)  # pods of placed replicas
    names = tuple(w.name for w in workloads) if missing else ()
    return reasons.TooFewAvailable(inputs.available, inputs.minimum, tuple(failures), names)


def scaling_active(inputs: ConditionInputs) -> ConditionState:
    """Whether the number of replicas can follow the load."""
    intent, signal = inputs.intent, inputs.signal
    if isinstance(intent, InvalidIntent) or not inputs.decision.accepted:
        return _state(UNKNOWN, reasons.WaitsForCondition("Accepted", Reason.NOT_ACCEPTED))
    if intent.paused:
        return ConditionState(FALSE, Reason.PAUSED, "spec.paused is true")
    if intent.min_replicas == intent.max_replicas:
        return _state(FALSE, _fixed(intent))
    if signal is None:
        return _state(FALSE, reasons.NumberStays(Reason.METRICS_MISSING, NO_SOURCE))
    if signal.state in (SignalState.FRESH, SignalState.THIN):
        return _following(signal, inputs.scale)
    status = UNKNOWN if signal.reason == Reason.NO_READY_REPLICAS else FALSE
    return _state(status, reasons.NumberStays(signal.reason, signal.message))


def _fixed(intent: Intent) -> reasons.FixedNumber | reasons.NumberSet:
    """The number does not follow the load: spec.replicas is set, or the bounds allow one number."""
    if intent.replicas is None:
        return reasons.FixedNumber()
    return reasons.NumberSet(intent.replicas, intent.replicas_set_by, intent.namespace, intent.name)


def _following(signal: Signal, scale: ScalingDecision | None) -> ConditionState:
    """Metrics are recent, but something else may keep replicas from following the load."""
    recent = _state(TRUE, reasons.MetricsRecent(signal.pods_read))
    if scale is None:
        return recent
    message = "; ".join(filter(None, (scale.warning, scale.unreachable)))
    if scale.reason == NOT_STARTING:
        return ConditionState(FALSE, Reason.REPLICAS_NOT_STARTING, message)
    return replace(recent, message=message) if message else recent


def ready(inputs: ConditionInputs, previous: ConditionState | None) -> ConditionState:
    """Whether it serves at the desired generation. The reason is the most actionable of all conditions.

    `previous`: the condition in the status, if it is about the same generation.
    """
    blocked = _blocked(inputs)
    if blocked:
        return blocked
    if isinstance(inputs.intent, Intent) and inputs.intent.paused:
        return _paused(inputs)
    if inputs.is_off:
        return ConditionState(TRUE, Reason.SCALED_TO_ZERO, OFF)
    target = inputs.target
    if target is None or target.available < inputs.minimum:
        return _short(inputs)
    return _rollout(inputs, target, previous) or _serving(inputs)


def _paused(inputs: ConditionInputs) -> ConditionState:
    condition = available(inputs)
    if condition.status != TRUE:
        return condition
    return ConditionState(TRUE, Reason.PAUSED, PAUSED)


def _short(inputs: ConditionInputs) -> ConditionState:
    """Fewer than the minimum are available on the decided shape."""
    if inputs.decision.placed_reason in _NOT_PLACED:
        return placed(inputs)
    condition = available(inputs)
    if condition.status == TRUE:  # an older shape serves, the decided one does not yet
        return _state(FALSE, reasons.WaitsForShape(inputs.decision.shape))
    return condition


def _blocked(inputs: ConditionInputs) -> ConditionState | None:
    """What a person has to look at before anything else."""
    decision = inputs.decision
    if decision.accepted_reason != Reason.VALID:
        return ConditionState(FALSE, decision.accepted_reason, decision.accepted_message)
    if inputs.problem:
        return ConditionState(FALSE, inputs.problem.reason, inputs.problem.message)
    if decision.placed_reason in (Reason.PAUSED, Reason.SCALED_TO_ZERO):
        return None
    # After a change of the engine image alone, the replicas go on serving this generation.
    is_awaited = isinstance(inputs.intent, Intent) and inputs.intent.next_model_uri is not None
    is_checked = (
        not is_awaited and decision.model_reason == Reason.INSPECTING and _serves_this_generation(inputs)
    )
    if decision.model_reason != Reason.INSPECTED and not is_checked:
        return ConditionState(FALSE, decision.model_reason, decision.model_message)
    impossible = decision.placed_reason in (Reason.INFEASIBLE, Reason.SLO_UNREACHABLE, Reason.NOT_JUDGED)
    impossible |= bool(decision.consent) and decision.shape is None  # no shape of the present devices serves
    return ConditionState(FALSE, decision.placed_reason, decision.placed_message) if impossible else None


def _serves_this_generation(inputs: ConditionInputs) -> bool:
    return any(
        w.owner_generation == inputs.rendered_generation and w.settled and w.available >= inputs.minimum
        for w in inputs.workloads
    )


def _rollout(
    inputs: ConditionInputs, target: Workload, previous: ConditionState | None
) -> ConditionState | None:
    """A rollout that is not complete, or None.

    While the Deployment controller has not observed the last write, the previous condition of this generation
    stands, and a new generation counts as not rolled out.
    """
    waits = _state(FALSE, reasons.WaitsForPods(target.name))
    if target.owner_generation != inputs.rendered_generation:
        return waits
    if not target.settled:
        return previous or waits
    if target.is_rolling:
        why = inputs.decision.rollout_waits or target.message
        return _state(FALSE, reasons.WaitsForPods(target.name, why))
    return None


def _serving(inputs: ConditionInputs) -> ConditionState:
    desired = inputs.decision.desired
    if inputs.ready >= desired:
        return _state(TRUE, reasons.AllReady(desired))
    condition = placed(inputs)
    not_placed = condition.message if condition.status == FALSE else ""
    return _state(TRUE, reasons.SomeReady(inputs.ready, desired, inputs.minimum, not_placed))


def _state(status: str, reason: reasons.ConditionReason) -> ConditionState:
    return ConditionState(status, reason.reason, sentence(reason))
