"""The scaling law: replicas for the load that is forecast, for a violation, or for a lasting queue.

Replicas are added at once, because requests miss their objectives meanwhile, and removed slowly, because a
replica takes minutes to start again: down to the highest of the recent recommendations, or, without a
forecast, singly on lasting proof. Ordered replicas count until they are late (`supply`). The load that one
replica carries is predicted and corrected (`feed_forward`), or learned from violations (`limits`). Without
fresh metrics no replica is removed.
"""

import math
from dataclasses import dataclass, replace

from tangram.fleet import Intent, ProvisionedLoad
from tangram.scaling import capacity_correction, feed_forward, limits
from tangram.scaling import objective_evidence as evidence
from tangram.scaling import ordered_replicas as supply
from tangram.scaling.outlook import recommendations
from tangram.scaling.outlook.load_outlook import LoadOutlook, ReplicaNeed
from tangram.scaling.outlook.load_steps import provisioned_load, rate_step
from tangram.scaling.sample import Sample
from tangram.scaling.signal import Signal, SignalState
from tangram.scaling.state import (
    CapacityMemory,
    EvidenceMemory,
    ScalingDecision,
    ScalingMemory,
    ScalingParams,
    SupplyMemory,
)

# An order at most doubles the replicas, or adds four if that is more.
_FACTOR, _STEP = 2, 4
# With a forecast each replica has been ordered that misses explain: only more than those of a burst, whose
# requests miss together, add another.
_CHANCE_BESIDE_FORECAST = 1e-12
AT_MAXIMUM, NOT_STARTING = "AtMaximum", "ReplicasNotStarting"
OUT_OF_BOUNDS, REPLICAS_SET = "OutOfBounds", "ReplicasSet"
_NOT_FOR_LOAD = (OUT_OF_BOUNDS, REPLICAS_SET)  # orders that do not follow from the load


@dataclass(frozen=True, slots=True)
class ScalingObservation:
    """What a decision rests on beside the memory: one LLMDeployment at one instant."""

    at: float
    ready: int  # replicas that serve
    signal: Signal | None = None  # None: no source of metrics is configured
    existing: int | None = None  # replicas of the Deployments, which may wait for devices; None: all ordered
    outlook: LoadOutlook | None = None  # None: replicas follow violations and queues
    is_mixed: bool = False  # replicas of several shapes are ready
    start_budget_s: float = 0.0  # that the startup probes of its pods allow, where none of them fails

    @property
    def sample(self) -> Sample | None:
        """The last reading, unless it is too old."""
        return self.signal.recent_sample if self.signal else None


def decide(
    memory: ScalingMemory, params: ScalingParams, intent: Intent, observation: ScalingObservation
) -> ScalingDecision:
    """Return the desired replicas of `intent`, beginning with its minimum while `memory` has no number.

    While spec.replicas is set it is the number; the load that one replica carries is learned meanwhile, too.
    """
    held = intent.min_replicas if memory.replicas is None else memory.replicas
    memory = _remember(for_subject(memory, intent), params, intent, observation, held)
    need = _need(memory, params, intent, observation)
    if need is not None:
        memory = replace(
            memory,
            recommendations=recommendations.added(memory.recommendations, need.lasting, observation.at),
            rate_steps=recommendations.added(memory.rate_steps, rate_step(need.lasting_rate), observation.at),
        )
    inputs = ScalingInputs(memory, params, intent, held, observation, need)
    if intent.paused:
        return inputs.order(held, "Paused", "spec.paused is true")
    if intent.replicas is not None:
        return _set_from_outside(inputs, intent.replicas)
    replicas = min(max(held, intent.min_replicas), intent.max_replicas)
    if replicas != held:
        bounds = f"{intent.min_replicas} to {intent.max_replicas}"
        return inputs.order(replicas, OUT_OF_BOUNDS, f"spec.scaling allows {bounds}")
    if observation.signal is None:
        return inputs.order(held, "NoMetrics", "no source of metrics is configured")
    if observation.sample is None:
        return inputs.order(held, "Blind", f"held at {held}: {observation.signal.message}")
    return _grow(inputs, observation.sample) or (_shrink(inputs) if need is None else _fall(inputs, need))


@dataclass(frozen=True, slots=True)
class ScalingInputs:
    """What the law decides on: one LLMDeployment at one instant."""

    memory: ScalingMemory
    params: ScalingParams
    intent: Intent
    held: int  # desired replicas so far
    observation: ScalingObservation
    need: ReplicaNeed | None = None
    proven_step: int | None = None  # of the rate that misses or a queue prove; None: there are none

    def order(self, replicas: int, reason: str, message: str, warning: str = "") -> ScalingDecision:
        """Return the decision. A change restarts the evidence for removing a replica: one step per window."""
        memory = replace(self.memory, replicas=replicas, provisioned=self._provisioned(replicas, reason))
        if replicas > self.held or (replicas < self.held and self.need is None):
            memory = replace(memory, spare_since=None)
        if replicas > self.held and reason not in _NOT_FOR_LOAD:
            order = supply.after_order(memory.supply, self.observation.at)
            memory = replace(memory, supply=order, queued_since=None)
        return ScalingDecision(
            self.observation.at,
            replicas,
            self.held,
            reason,
            message,
            memory,
            limits.ttft_unreachable(memory.evidence, self.intent),
            limits.tpot_unreachable(memory.evidence, self.intent),
            warning or self._late(),
            self.need,
            self.recommended,
        )

    @property
    def down_window_s(self) -> float:
        """Seconds of recommendations whose maximum bounds a removal."""
        if self.observation.outlook is None:
            return self.params.down_after_s
        return feed_forward.down_window_s(self.memory, self.params, self.observation.outlook)

    @property
    def recommended(self) -> int | None:
        """What would be ordered if bounds and spec.replicas were not set; None without a forecast."""
        if self.need is None:
            return None
        recent = recommendations.highest(self.memory.recommendations, self.observation.at, self.down_window_s)
        return max(self.need.replicas, min(self.held, self.need.replicas if recent is None else recent))

    def with_recommended(self, replicas: int) -> "ScalingInputs":
        """Return the inputs with `replicas` among the recommendations: a miss or a queue needs as many."""
        recent = recommendations.added(self.memory.recommendations, replicas, self.observation.at)
        memory = replace(self.memory, recommendations=recent)
        if self.need is None:
            return replace(self, memory=memory)
        step = rate_step(replicas * self.need.replica_rate)
        memory = replace(
            memory, rate_steps=recommendations.added(memory.rate_steps, step, self.observation.at)
        )
        return replace(self, memory=memory, proven_step=step)

    def _provisioned(self, replicas: int, reason: str) -> ProvisionedLoad | None:
        """Return the load that `replicas` are ordered for. Like them it rises at once, and falls to the
        highest of the recent recommendations. Without a forecast it is known as long as the number stays.
        """
        before, need = self.memory.provisioned, self.need
        if need is None or self.observation.outlook is None or self.observation.outlook.mixture is None:
            return before if replicas == self.held or reason in _NOT_FOR_LOAD else None
        step = rate_step(need.rate)
        step = step if self.proven_step is None else max(step, self.proven_step)
        recent = recommendations.highest(self.memory.rate_steps, self.observation.at, self.down_window_s)
        held = step if before is None else rate_step(before.requests_per_second)
        if step < held:
            step = min(held, max(step, held if recent is None else recent)) if self.may_fall else held
        step = min(step, rate_step(self.most_at_once * need.replica_rate))
        return provisioned_load(before, step, self.observation.outlook.mixture, need.trusted_share)

    @property
    def most_at_once(self) -> int:
        """The most replicas that one order leads to: a wrong reading cannot take the fleet."""
        return max(_FACTOR * self.held, self.held + _STEP)

    @property
    def may_fall(self) -> bool:
        """Whether readings have been FRESH without a break for the time that bounds a removal."""
        since = self.memory.spare_since
        return since is not None and self.observation.at - since >= self.down_window_s

    def _late(self) -> str:
        missing = min(self.memory.supply.written_off, self.held - self.observation.ready)
        if missing <= 0:
            return ""
        return f"{missing} of {self.held} replicas did not become ready in time and are not expected any more"


def for_subject(memory: ScalingMemory, intent: Intent) -> ScalingMemory:
    """Return `memory` without what was learned about another model or under other objectives."""
    subject = f"{intent.model_uri} {intent.max_running_requests} {_objectives(intent)}"
    if memory.subject in ("", subject):
        return replace(memory, subject=subject)
    return forget_learned(replace(memory, subject=subject))


def _objectives(intent: Intent) -> str:
    objectives = (intent.ttft, intent.tpot)
    return " ".join(f"{o.percentile}%{o.milliseconds}ms" if o else "-" for o in objectives)


def forget_learned(memory: ScalingMemory) -> ScalingMemory:
    """Return `memory` without what was learned about single replicas: they are of another kind now."""
    return replace(
        memory,
        supply=replace(memory.supply, start_s=None),
        evidence=EvidenceMemory(),
        capacity=CapacityMemory(),
        recommendations=(),
        rate_steps=(),
    )


def _remember(
    memory: ScalingMemory, params: ScalingParams, intent: Intent, observation: ScalingObservation, held: int
) -> ScalingMemory:
    """Return `memory` after an observation: supply, then evidence and capacity where the metrics show them.
    Any gap in the evidence restarts the timers.
    """
    existing = held if observation.existing is None else observation.existing
    supply_memory = supply.observe(
        memory.supply,
        params,
        held=held,
        existing=existing,
        ready=observation.ready,
        now=observation.at,
        start_budget_s=observation.start_budget_s,
    )
    sample = observation.sample
    if sample is None or sample.requests is None:  # None: Prometheus has just started: windows are incomplete
        supply_memory = replace(supply_memory, stable_since=observation.at)
    memory = replace(memory, supply=supply_memory)
    if observation.signal is None or sample is None:
        return replace(memory, queued_since=None, spare_since=None)
    queued = _queue_is_long(sample, intent, observation.ready)
    memory = replace(
        memory, queued_since=supply.since(memory.queued_since, observation.at) if queued else None
    )
    is_fresh = observation.signal.state is SignalState.FRESH
    # A window of several shapes shows which share of all requests missed, not on which shape: it would teach
    # that the stronger shape carries less than it does, and that the weaker one carries more.
    if not observation.is_mixed:
        memory = _with_evidence(memory, params, intent, observation, sample)
        if is_fresh and observation.outlook is not None:
            memory = _with_capacity(memory, params, intent, observation, sample, observation.outlook)
    is_spare = is_fresh and (
        observation.outlook is not None
        or limits.would_carry(
            memory.evidence,
            params,
            intent,
            sample,
            min(held - 1, max(1, observation.ready)),
            light=observation.signal.light,
        )
    )
    return replace(memory, spare_since=supply.since(memory.spare_since, observation.at) if is_spare else None)


def _with_evidence(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    observation: ScalingObservation,
    sample: Sample,
) -> ScalingMemory:
    evidence_memory = limits.learn(
        memory.evidence,
        params,
        intent,
        sample=sample,
        ready=observation.ready,
        queued=_queue_lasts(memory, params, observation.at),
        stable_s=supply.stable_s(memory.supply, observation.at),
    )
    return replace(memory, evidence=evidence_memory)


def _with_capacity(
    memory: ScalingMemory,
    params: ScalingParams,
    intent: Intent,
    observation: ScalingObservation,
    sample: Sample,
    outlook: LoadOutlook,
) -> ScalingMemory:
    capacity_memory = capacity_correction.corrected(
        memory.capacity,
        params,
        outlook,
        sample,
        feed_forward.lasting_rate(sample, params, outlook),
        objectives=limits.forecast_objectives(memory.evidence, intent),
        reachable=limits.reachable_objectives(memory.evidence, intent).objectives,
        ready=observation.ready,
        now=observation.at,
    )
    return replace(memory, capacity=capacity_memory)


def _queue_is_long(sample: Sample, intent: Intent, ready: int) -> bool:
    """Whether a tenth as many requests wait as all replicas can run at a time, or more."""
    return (sample.waiting or 0) > 0.1 * intent.max_running_requests * max(1, ready)


def _queue_lasts(memory: ScalingMemory, params: ScalingParams, now: float) -> bool:
    return memory.queued_since is not None and now - memory.queued_since >= params.up_after_s


def _need(
    memory: ScalingMemory, params: ScalingParams, intent: Intent, observation: ScalingObservation
) -> ReplicaNeed | None:
    if observation.outlook is None or observation.sample is None:
        return None
    queued = memory.queued_since is not None
    return feed_forward.needed(
        memory, params, intent, observation.outlook, observation.sample, queued=queued, now=observation.at
    )


def _set_from_outside(inputs: ScalingInputs, replicas: int) -> ScalingDecision:
    """Order the replicas of spec.replicas; recommend what misses or a queue would add to them, too."""
    decision = inputs.order(replicas, REPLICAS_SET, f"spec.replicas is {replicas}")
    sample = inputs.observation.sample
    free = replace(inputs.intent, replicas=None, max_replicas=feed_forward.MOST_REPLICAS)
    grown = None if sample is None else _grow(replace(inputs, held=replicas, intent=free), sample)
    if grown is None:
        return decision
    memory = replace(decision.memory, recommendations=grown.memory.recommendations)
    return replace(decision, memory=memory, recommended=max(decision.recommended or 0, grown.replicas))


def _grow(inputs: ScalingInputs, sample: Sample) -> ScalingDecision | None:
    """Order more replicas, or return None."""
    memory, params, intent, held = inputs.memory, inputs.params, inputs.intent, inputs.held
    windows = evidence.usable(sample, params.window_s, supply.stable_s(memory.supply, inputs.observation.at))
    reachable = limits.reachable_objectives(memory.evidence, intent)
    chance = evidence.CHANCE if inputs.need is None else _CHANCE_BESIDE_FORECAST
    missed = evidence.proven_violations(reachable, windows, params.min_samples, chance)
    queued = _queue_lasts(memory, params, inputs.observation.at)
    forecast = 0 if inputs.need is None else inputs.need.replicas + memory.supply.written_off
    if not missed and not queued and forecast <= held:
        return None
    if missed or queued:  # also where the forecast sees no need: a removal waits for the window after it
        inputs = inputs.with_recommended(held)
    cause = f"{' and '.join(missed)} objective missed" if missed else "requests wait in queues"
    reason = "SLOViolated" if missed else "QueueGrowing"
    if inputs.need is not None and forecast > held:
        cause, reason = inputs.need.cause, "LoadForecast"
    if held >= intent.max_replicas:
        text = f"{cause}, but spec.scaling.maxReplicas is {intent.max_replicas}"
        return inputs.order(held, AT_MAXIMUM, text, text)
    if supply.nothing_starts(memory.supply):
        text = f"{cause}, but no replica of the last orders became ready: none is added before one does"
        return inputs.order(held, NOT_STARTING, text, text)
    # An order by a forecast is to serve the queue within a minute of its replicas.
    queue_shows = queued and inputs.need is None
    if not _last_order_shows(memory.supply, params, inputs.observation.at, queued=queue_shows):
        # An order is on its way: only a forecast that has risen by more than one replica adds to it.
        if forecast <= held + 1:
            return inputs.order(held, "WaitingForReplicas", f"{cause}; the last step has yet to take effect")
        least = forecast
    elif missed or queued:
        needed = (
            _needed(sample, inputs.observation.ready) if queued and not memory.supply.failed_orders else 0
        )
        least = max(held + 1, needed, forecast)
    else:
        least = forecast
    replicas = min(least, inputs.most_at_once, intent.max_replicas)
    if missed or queued:
        inputs = inputs.with_recommended(replicas)
    return inputs.order(replicas, reason, f"{cause}: {held} -> {replicas}")


def _last_order_shows(memory: SupplyMemory, params: ScalingParams, now: float, *, queued: bool) -> bool:
    """Whether the metrics show the effect of the last order: all expected replicas are ready, for long
    enough.

    Attainment covers a window; a queue is measured at once and only has to last.
    """
    if memory.grown_at is None:
        return True
    if memory.complete_since is None:
        return False
    return now - memory.complete_since >= (params.up_after_s if queued else params.window_s)


def _needed(sample: Sample, ready: int) -> int:
    """Replicas at which no request would wait, if each runs as many requests as now."""
    running, waiting = sample.running or 0.0, sample.waiting or 0.0
    needed = max(1, ready) * (running + waiting) / running if running > 0 else math.inf
    return math.ceil(needed) if math.isfinite(needed) else ready + 1


def _shrink(inputs: ScalingInputs) -> ScalingDecision:
    """Order one replica less if the evidence has lasted, else hold."""
    held, since = inputs.held, inputs.memory.spare_since
    if since is None or held <= inputs.intent.min_replicas:
        return inputs.order(held, "Steady", f"{held} is right")
    if inputs.observation.at - since < inputs.params.down_after_s:
        return inputs.order(held, "Steady", f"{held - 1} may do; watching")
    return inputs.order(held - 1, "LoadFell", f"{held - 1} would have done: {held} -> {held - 1}")


def _fall(inputs: ScalingInputs, need: ReplicaNeed) -> ScalingDecision:
    """Order as few replicas as the highest of the recent recommendations if the evidence has lasted."""
    held = inputs.held
    if held <= inputs.intent.min_replicas or need.lasting >= held:
        return inputs.order(held, "Steady", f"{held} is right: {need.cause}")
    target = max(inputs.intent.min_replicas, inputs.recommended or need.replicas)
    if target >= held or not inputs.may_fall:
        return inputs.order(held, "Steady", f"{need.lasting} may do; watching: {need.cause}")
    return inputs.order(target, "LoadFell", f"{need.cause}: {held} -> {target}")
