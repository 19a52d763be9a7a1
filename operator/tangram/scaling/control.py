"""The first scaling law: steps up on violation or a lasting queue, one step down on lasting proof.

Up is immediate, because requests miss their objectives meanwhile; down is slow, because a replica takes
minutes to come back. Replicas that were ordered but are not ready yet count as there. Without fresh metrics
nothing goes down.
"""

import math
from dataclasses import replace

from tangram.fleet import Intent
from tangram.scaling.sample import Sample
from tangram.scaling.signal import Signal, SignalState
from tangram.scaling.state import ScalingDecision, ScalingMemory, ScalingParams

# At most twice as many, or four more, whichever is larger: a wrong reading cannot order the whole fleet.
_FACTOR, _STEP = 2, 4
# A violation tells something about the present capacity only for so many down windows.
_VIOLATION_LASTS_WINDOWS = 10


def decide(
    memory: ScalingMemory,
    *,
    params: ScalingParams,
    intent: Intent,
    current: int,
    ready: int,
    signal: Signal | None,
    now: float,
) -> ScalingDecision:
    """Return how many replicas `intent` wants at `now`.

    `current` is what exists, used only while `memory` is empty; `ready` are the replicas that serve.
    `signal` is None where no Prometheus is configured: then the number is held.
    """
    held = memory.replicas if memory.replicas is not None else (current or intent.min_replicas)
    memory = _remember(memory, params, intent, held, ready, signal, now)
    if intent.paused:
        return _order(memory, held, held, "Paused", "spec.paused is true", now)
    replicas = min(max(held, intent.min_replicas), intent.max_replicas)
    if replicas != held:
        bounds = f"{intent.min_replicas} to {intent.max_replicas}"
        return _order(memory, held, replicas, "OutOfBounds", f"spec.scaling allows {bounds}", now)
    if signal is None:
        return _order(memory, held, held, "NoMetrics", "no Prometheus is configured", now)
    if signal.state in (SignalState.STALE, SignalState.BLIND) or signal.sample is None:
        return _order(memory, held, held, "Blind", f"held at {held}: {signal.message}", now)
    return _grow(memory, params, intent, held, ready, signal.sample, now) or _shrink(
        memory, params, intent, held, now
    )


def violations(intent: Intent, sample: Sample, min_samples: int) -> tuple[str, ...]:
    """Return which objectives are missed, of `ttft` and `tpot`; none when too few requests tell."""
    if (sample.requests or 0) < min_samples:
        return ()
    missed = []
    if intent.ttft and _below(sample.ttft_attainment, intent.ttft.percentile):
        missed.append("ttft")
    # Per request as the objective says; per token too, because requests count only when they end.
    if intent.tpot and (
        _below(sample.tpot_attainment, intent.tpot.percentile)
        or _below(sample.itl_attainment, intent.tpot.percentile)
    ):
        missed.append("tpot")
    return tuple(missed)


def _below(attainment: float | None, percentile: int) -> bool:
    return attainment is not None and attainment < percentile / 100


def _order(
    memory: ScalingMemory, previous: int, replicas: int, reason: str, message: str, now: float
) -> ScalingDecision:
    """Any change starts the evidence for going down anew: at most one step per window."""
    memory = replace(memory, replicas=replicas)
    if replicas != previous:
        memory = replace(memory, spare_since=None)
    return ScalingDecision(now, replicas, previous, reason, message, memory)


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
    complete_since = None if ready < held else _since(memory.complete_since, now)
    memory = replace(memory, complete_since=complete_since)
    sample = signal.sample if signal else None
    if signal is None or sample is None or signal.state in (SignalState.STALE, SignalState.BLIND):
        return replace(memory, queued_since=None, spare_since=None)
    queued = _queue_is_long(sample, intent, ready)
    memory = replace(memory, queued_since=_since(memory.queued_since, now) if queued else None)
    if violations(intent, sample, params.min_samples) and sample.running_mean is not None:
        memory = replace(memory, violated_load=sample.running_mean / max(1, ready), violated_at=now)
    spare = signal.state is SignalState.FRESH and (
        signal.light or _would_do(memory, params, intent, held - 1, ready, sample, now)
    )
    return replace(memory, spare_since=_since(memory.spare_since, now) if spare else None)


def _since(started: float | None, now: float) -> float:
    """When a state began; a clock that was set back starts it anew instead of making it last longer."""
    return now if started is None or started > now else started


def _queue_is_long(sample: Sample, intent: Intent, ready: int) -> bool:
    """More requests wait than a replica computes at a time, over all replicas, by a tenth."""
    return (sample.waiting or 0) > 0.1 * intent.max_running_requests * max(1, ready)


def _would_do(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    replicas: int,
    ready: int,
    sample: Sample,
    now: float,
) -> bool:
    """Whether `replicas` would carry what `ready` carry now, by the concurrency each would have."""
    if replicas < 1 or sample.waiting or sample.running_mean is None or not _met(intent, sample):
        return False
    limit = float(intent.max_running_requests)
    recent = memory.violated_at is not None and now - memory.violated_at <= (
        _VIOLATION_LASTS_WINDOWS * params.down_after_s
    )
    if recent and memory.violated_load is not None:
        limit = min(limit, memory.violated_load)
    return sample.running_mean / min(replicas, max(1, ready)) <= params.down_load * limit


def _met(intent: Intent, sample: Sample) -> bool:
    """Every objective is known to be met."""
    checks = []
    if intent.ttft:
        checks.append((sample.ttft_attainment, intent.ttft.percentile))
    if intent.tpot:
        tpot = sample.tpot_attainment if sample.tpot_attainment is not None else sample.itl_attainment
        checks.append((tpot, intent.tpot.percentile))
        checks.append(
            (sample.itl_attainment if sample.itl_attainment is not None else tpot, intent.tpot.percentile)
        )
    return all(value is not None and value >= percentile / 100 for value, percentile in checks)


def _grow(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    held: int,
    ready: int,
    sample: Sample,
    now: float,
) -> ScalingDecision | None:
    """Order more replicas, or return None."""
    missed = violations(intent, sample, params.min_samples)
    queued = memory.queued_since is not None and now - memory.queued_since >= params.up_after_s
    if not missed and not queued:
        return None
    what = f"{' and '.join(missed)} objective missed" if missed else "requests wait in queues"
    if held >= intent.max_replicas:
        return _order(
            memory, held, held, "AtMaximum", f"{what}, but spec.scaling.max is {intent.max_replicas}", now
        )
    if not _last_step_is_judged(memory, params, now, queued=queued):
        return _order(
            memory, held, held, "WaitingForReplicas", f"{what}; the last step has yet to take effect", now
        )
    wanted = max(held + 1, _needed(sample, ready) if queued else 0)
    replicas = min(wanted, max(_FACTOR * held, held + _STEP), intent.max_replicas)
    reason = "SLOViolated" if missed else "QueueGrowing"
    return _order(
        replace(memory, grown_at=now, complete_since=None, queued_since=None),
        held,
        replicas,
        reason,
        f"{what}: {held} -> {replicas}",
        now,
    )


def _last_step_is_judged(memory: ScalingMemory, params: ScalingParams, now: float, *, queued: bool) -> bool:
    """Whether the readings speak of the replicas last ordered: all are ready, for long enough.

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


def _shrink(
    memory: ScalingMemory, params: ScalingParams, intent: Intent, held: int, now: float
) -> ScalingDecision:
    """Order one replica less when the evidence has lasted, else hold."""
    if memory.spare_since is None or held <= intent.min_replicas:
        return _order(memory, held, held, "Steady", f"{held} is right", now)
    if now - memory.spare_since < params.down_after_s:
        return _order(memory, held, held, "Steady", f"{held - 1} may do; watching", now)
    return _order(
        memory, held, held - 1, "LoadFell", f"{held - 1} would have done: {held} -> {held - 1}", now
    )
