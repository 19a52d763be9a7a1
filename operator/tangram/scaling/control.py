"""The scaling law: steps up on violation or a lasting queue, one step down on lasting proof.

Up is immediate, because requests miss their objectives meanwhile; down is slow, because a replica takes
minutes to come back. Replicas that were ordered count as there until they are late (`supply`). What one
replica carries is learned from violations (`limits`). Without fresh metrics nothing goes down.
"""

import math
from dataclasses import dataclass, replace

from tangram.fleet import Intent
from tangram.scaling import evidence, limits, supply
from tangram.scaling.sample import Sample
from tangram.scaling.signal import Signal, SignalState
from tangram.scaling.state import ScalingDecision, ScalingMemory, ScalingParams

# At most twice as many, or four more, whichever is larger: a wrong reading cannot order the whole fleet.
_FACTOR, _STEP = 2, 4
AT_MAXIMUM, NOT_STARTING = "AtMaximum", "ReplicasNotStarting"
OUT_OF_BOUNDS, REPLICAS_SET = "OutOfBounds", "ReplicasSet"
_NOT_FOR_LOAD = (OUT_OF_BOUNDS, REPLICAS_SET)  # orders that say nothing about what the load needs


def decide(
    memory: ScalingMemory,
    *,
    params: ScalingParams,
    intent: Intent,
    current: int,
    ready: int,
    signal: Signal | None,
    now: float,
    existing: int | None = None,
) -> ScalingDecision:
    """Return how many replicas `intent` wants at `now`.

    `current` is what exists, used only while `memory` is empty; `ready` are the replicas that serve;
    `existing` those that the Deployments have (None: all that were ordered): the others wait for room.
    `signal` is None where no Prometheus is configured: then the number is held. While spec.replicas is set,
    that many are wanted; what one replica carries is learned meanwhile, too.
    """
    held = memory.replicas if memory.replicas is not None else (current or intent.min_replicas)
    memory = _of_subject(memory, intent)
    memory = supply.observe(
        memory, params, held=held, existing=held if existing is None else existing, ready=ready, now=now
    )
    memory = _remember(memory, params, intent, held, ready, signal, now)
    case = _Case(memory, params, intent, held, ready, now)
    if intent.paused:
        return case.order(held, "Paused", "spec.paused is true")
    if intent.replicas is not None:
        return case.order(intent.replicas, REPLICAS_SET, f"spec.replicas is {intent.replicas}")
    replicas = min(max(held, intent.min_replicas), intent.max_replicas)
    if replicas != held:
        bounds = f"{intent.min_replicas} to {intent.max_replicas}"
        return case.order(replicas, OUT_OF_BOUNDS, f"spec.scaling allows {bounds}")
    if signal is None:
        return case.order(held, "NoMetrics", "no Prometheus is configured")
    if signal.state in (SignalState.STALE, SignalState.BLIND) or signal.sample is None:
        return case.order(held, "Blind", f"held at {held}: {signal.message}")
    return _grow(case, signal.sample) or _shrink(case)


@dataclass(frozen=True, slots=True)
class _Case:
    """One LLMDeployment at one instant."""

    memory: ScalingMemory
    params: ScalingParams
    intent: Intent
    held: int  # replicas that are wanted so far
    ready: int
    now: float

    def order(self, replicas: int, reason: str, message: str, warning: str = "") -> ScalingDecision:
        """Any change starts the evidence for going down anew: at most one step per window."""
        memory = replace(self.memory, replicas=replicas)
        if replicas != self.held:
            memory = replace(memory, spare_since=None)
        if replicas > self.held and reason not in _NOT_FOR_LOAD:
            memory = supply.ordered(memory, self.now)
        return ScalingDecision(
            self.now,
            replicas,
            self.held,
            reason,
            message,
            memory,
            limits.tpot_unreachable(memory, self.intent),
            warning or self._late(),
        )

    def _late(self) -> str:
        missing = min(self.memory.written_off, self.held - self.ready)
        if missing <= 0:
            return ""
        return f"{missing} of {self.held} replicas did not become ready in time and are not counted on"


def _of_subject(memory: ScalingMemory, intent: Intent) -> ScalingMemory:
    """Forget what was learned of another model, or under other objectives."""
    subject = f"{intent.model_uri} {intent.max_running_requests} {_told(intent)}"
    if memory.subject in ("", subject):
        return replace(memory, subject=subject)
    return forget_learned(replace(memory, subject=subject))


def _told(intent: Intent) -> str:
    objectives = (intent.ttft, intent.tpot)
    return " ".join(f"{o.percentile}%{o.milliseconds}ms" if o else "-" for o in objectives)


def forget_learned(memory: ScalingMemory) -> ScalingMemory:
    """Return `memory` without what it says about one replica: replicas are of another kind now."""
    return replace(
        memory, violated_rate=None, violated_load=None, tpot_reachable=None, idle_tpot_ms=None, start_s=None
    )


def _remember(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    held: int,
    ready: int,
    signal: Signal | None,
    now: float,
) -> ScalingMemory:
    """Carry on the timers. A gap in the evidence, of whatever kind, ends it."""
    sample = signal.sample if signal else None
    if signal is None or sample is None or signal.state in (SignalState.STALE, SignalState.BLIND):
        return replace(memory, queued_since=None, spare_since=None, stable_since=now)
    if sample.requests is None:  # Prometheus has just started: wider windows hold no more than it does
        memory = replace(memory, stable_since=now)
    queued = _queue_is_long(sample, intent, ready)
    memory = replace(memory, queued_since=supply.since(memory.queued_since, now) if queued else None)
    memory = limits.learn(
        memory, params, intent, sample=sample, ready=ready, queued=_queue_lasts(memory, params, now), now=now
    )
    spare = signal.state is SignalState.FRESH and limits.would_carry(
        memory, params, intent, sample, min(held - 1, max(1, ready)), light=signal.light
    )
    return replace(memory, spare_since=supply.since(memory.spare_since, now) if spare else None)


def _queue_is_long(sample: Sample, intent: Intent, ready: int) -> bool:
    """More requests wait than a replica computes at a time, over all replicas, by a tenth."""
    return (sample.waiting or 0) > 0.1 * intent.max_running_requests * max(1, ready)


def _queue_lasts(memory: ScalingMemory, params: ScalingParams, now: float) -> bool:
    return memory.queued_since is not None and now - memory.queued_since >= params.up_after_s


def _grow(case: _Case, sample: Sample) -> ScalingDecision | None:
    """Order more replicas, or return None."""
    memory, params, intent, held = case.memory, case.params, case.intent, case.held
    windows = evidence.usable(sample, params.window_s, limits.stable_s(memory, case.now))
    reachable = limits.reachable_objectives(memory, intent)
    missed = evidence.proven_violations(reachable, windows, params.min_samples)
    queued = _queue_lasts(memory, params, case.now)
    if not missed and not queued:
        return None
    what = f"{' and '.join(missed)} objective missed" if missed else "requests wait in queues"
    if held >= intent.max_replicas:
        text = f"{what}, but spec.scaling.maxReplicas is {intent.max_replicas}"
        return case.order(held, AT_MAXIMUM, text, text)
    if supply.nothing_starts(memory):
        text = f"{what}, but no replica of the last orders became ready: none is added before one does"
        return case.order(held, NOT_STARTING, text, text)
    if not _last_step_is_judged(memory, params, case.now, queued=queued):
        return case.order(held, "WaitingForReplicas", f"{what}; the last step has yet to take effect")
    wanted = max(held + 1, _needed(sample, case.ready) if queued and not memory.failed_orders else 0)
    replicas = min(wanted, max(_FACTOR * held, held + _STEP), intent.max_replicas)
    reason = "SLOViolated" if missed else "QueueGrowing"
    return case.order(replicas, reason, f"{what}: {held} -> {replicas}")


def _last_step_is_judged(memory: ScalingMemory, params: ScalingParams, now: float, *, queued: bool) -> bool:
    """Whether the readings speak of the replicas last ordered: all that are counted on are ready, for long
    enough.

    Attainment looks back over a window; a queue is seen at once and only has to last.
    """
    if memory.grown_at is None:
        return True
    if memory.complete_since is None:
        return False
    return now - memory.complete_since >= (params.up_after_s if queued else params.window_s)


def _needed(sample: Sample, ready: int) -> int:
    """Replicas at which nothing would wait, if each computes what it computes now."""
    running, waiting = sample.running or 0.0, sample.waiting or 0.0
    needed = max(1, ready) * (running + waiting) / running if running > 0 else math.inf
    return math.ceil(needed) if math.isfinite(needed) else ready + 1


def _shrink(case: _Case) -> ScalingDecision:
    """Order one replica less when the evidence has lasted, else hold."""
    held, since = case.held, case.memory.spare_since
    if since is None or held <= case.intent.min_replicas:
        return case.order(held, "Steady", f"{held} is right")
    if case.now - since < case.params.down_after_s:
        return case.order(held, "Steady", f"{held - 1} may do; watching")
    return case.order(held - 1, "LoadFell", f"{held - 1} would have done: {held} -> {held - 1}")
