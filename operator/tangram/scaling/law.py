"""One step of the scaling law: from the state and an observation to the next state and a decision.

Everything that a number of replicas follows from is in here. The shell reads Prometheus and pods, and passes
what it saw; a simulation passes what its own Prometheus and pods show. `ScalingMemory` is the part of the
state that the status records; the loads of past hours are read from Prometheus again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tangram.fleet import Decision, Intent, Shape, Workload
from tangram.scaling import ordered_replicas as supply
from tangram.scaling.capacity_correction import interrupted
from tangram.scaling.control import ScalingObservation, decide, for_subject, forget_learned
from tangram.scaling.feed_forward import arrival_rate, bins_of_requests
from tangram.scaling.limits import forecast_objectives, ttft_unreachable
from tangram.scaling.ordered_replicas import ShapeStart
from tangram.scaling.outlook.load_history import LoadHistory, extended, merged
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.mixture import STATED_S, Mixture
from tangram.scaling.outlook.replica_capacity import CapacityCorrection, ReplicaCapacity
from tangram.scaling.sample import Sample
from tangram.scaling.signal import Signal
from tangram.scaling.state import (
    EvidenceMemory,
    ScalingDecision,
    ScalingMemory,
    ScalingParams,
)

CapacityOf = Callable[[float, float], ReplicaCapacity | None]
"""Takes mean tokens of prompts and of answers; returns what one replica carries of them, None: unknown."""


@dataclass(frozen=True, slots=True)
class LawState:
    """What the law keeps between two steps for one LLMDeployment."""

    memory: ScalingMemory = field(default_factory=ScalingMemory)
    shape: Shape | None = None  # of the replicas that `memory` counts
    history: LoadHistory = field(default_factory=partial(LoadHistory, 0.0))
    stored: LoadHistory | None = None  # what Prometheus held, as it is part of `history`
    mixture: Mixture | None = None  # of the last hour or so; None: none was measured
    bins: int = 1  # of the history that requests run for
    mixture_since: float = 0.0  # when it was measured first, and last
    mixture_at: float = 0.0
    starts: tuple[ShapeStart, ...] = ()  # of the shapes that have replicas
    is_mixed: bool = False  # replicas of another shape than `shape` were ready, too


@dataclass(frozen=True, slots=True)
class LawObservation:
    """What is seen of one LLMDeployment at one instant."""

    at: float
    intent: Intent
    signal: Signal | None  # None: no Prometheus is configured
    ready: int  # replicas that take requests
    # replicas of its Deployments, those without a device among them; without those that fetch
    existing: int
    current: int  # replicas to begin with while the state has no number
    shapes: frozenset[Shape] = frozenset()  # of the Deployments that have replicas
    # Of a replica of the shape that is counted; None: it cannot be predicted.
    capacity_of: CapacityOf | None = None
    # Of each other shape that has ready replicas: the Service sends them equally many requests.
    beside: tuple[CapacityOf | None, ...] = ()
    start_s: float | None = None  # P90 of start times, of the slowest of the shapes, as pods record them
    stored: LoadHistory | None = None  # the loads of past hours that Prometheus holds
    workloads: tuple[Workload, ...] = ()  # its Deployments


@dataclass(frozen=True, slots=True)
class Law:
    """The law under its parameters. It keeps nothing: equal states and observations give equal decisions."""

    params: ScalingParams

    def step(self, state: LawState, observation: LawObservation) -> tuple[LawState, ScalingDecision]:
        """Return the state after an observation, and the replicas that it leads to."""
        sample = observation.signal.sample if observation.signal is not None else None
        if sample is not None:
            state = self._with_loads(state, observation, sample)
        state = _with_variants(state, observation)
        capacity = None if sample is None else _capacity(state, observation, observation.capacity_of)
        memory = _before_decision(state.memory, observation, capacity)
        instant = ScalingObservation(
            observation.at,
            observation.ready,
            observation.signal,
            observation.existing,
            _outlook(replace(state, memory=memory), observation, capacity),
            state.is_mixed,
            max((w.start_budget_s for w in observation.workloads if not w.message), default=0),
        )
        decision = decide(memory, self.params, observation.intent, instant)
        starts = supply.observe_shapes(
            state.starts, observation.workloads, decision.memory.supply, self.params, observation.at
        )
        return replace(state, memory=decision.memory, starts=starts), decision

    def _with_loads(self, state: LawState, observation: LawObservation, sample: Sample) -> LawState:
        """Return the state with what a reading says about loads and lengths. A bin ends with each minute."""
        history, stored, most = state.history, observation.stored, self.params.history_bins
        if stored is not None and stored is not state.stored:
            history = merged(history, stored, most)
        end_s = math.floor(sample.at / history.step_s) * history.step_s
        if end_s > history.end_s:
            if not history.rates:
                history = replace(history, end_s=end_s - history.step_s)
            history = extended(history, arrival_rate(sample, self.params.window_s), end_s, most)
        bins = bins_of_requests(sample, self.params)
        state = replace(state, history=history, stored=stored, bins=state.bins if bins is None else bins)
        measured = sample.mixture(self.params.window_s, self.params.min_samples)
        return state if measured is None else _with_mixture(state, observation.intent, measured, sample.at)


def observation_of(
    state: LawState,
    intent: Intent,
    workloads: Sequence[Workload],
    signal: Signal | None,
    *,
    at: float,
    recorded: int | None,
    capacity_on: Callable[[Shape], CapacityOf | None],
    start_s_on: Callable[[Shape], float | None],
    stored: LoadHistory | None = None,
) -> LawObservation:
    """Return what is seen of one LLMDeployment, of which `workloads` are all Deployments.

    `recorded`: replicas to begin with; None: those of its largest Deployment. `start_s_on`: P90 of the start
    times on a shape; None: not known.
    """
    largest = max((workload.replicas for workload in workloads), default=0)
    shapes = frozenset(workload.shape for workload in workloads if workload.replicas)
    counted = counted_shape(state, shapes)
    starts = (start_s_on(shape) for shape in shapes)
    return LawObservation(
        at,
        intent,
        signal,
        ready=sum(workload.ready for workload in workloads),
        existing=sum(workload.replicas - supply.fetching(workload) for workload in workloads),
        current=largest if recorded is None else recorded,
        shapes=shapes,
        capacity_of=None if counted is None else capacity_on(counted),
        beside=tuple(capacity_on(w.shape) for w in workloads if w.ready and w.shape != counted),
        start_s=max((start_s for start_s in starts if start_s is not None), default=None),
        stored=stored,
        workloads=tuple(workloads),
    )


def counted_shape(state: LawState, shapes: frozenset[Shape]) -> Shape | None:
    """Return the shape whose replicas the law counts; None: there are others alone, or it is not known."""
    if state.shape is None:
        return next(iter(shapes)) if len(shapes) == 1 else None
    return state.shape if state.shape in shapes else None


def _with_variants(state: LawState, observation: LawObservation) -> LawState:
    """Return the state with whether replicas of several shapes serve.

    After them evidence begins anew: as many replicas may be ready as before, but windows reach back to the
    others.
    """
    is_mixed = bool(observation.beside)
    if state.is_mixed and not is_mixed:
        at = observation.at
        memory = state.memory
        capacity = interrupted(replace(memory.capacity, compared_at=at))
        memory = replace(memory, supply=replace(memory.supply, stable_since=at), capacity=capacity)
        state = replace(state, memory=memory)
    return replace(state, is_mixed=is_mixed)


def _capacity(
    state: LawState, observation: LawObservation, capacity_of: CapacityOf | None
) -> ReplicaCapacity | None:
    """Return what one replica carries of the present mixture; None: it cannot be predicted."""
    if capacity_of is None or counted_shape(state, observation.shapes) is None:
        return None
    mixture = _present_mixture(state, observation.intent)
    return None if mixture is None else capacity_of(*mixture.rounded)


def _idle_ttft_ms(capacity: ReplicaCapacity, intent: Intent) -> float | None:
    return None if intent.ttft is None else capacity.idle_ttft_ms(intent.ttft.percentile)


def _before_decision(
    memory: ScalingMemory, observation: LawObservation, capacity: ReplicaCapacity | None
) -> ScalingMemory:
    """Return `memory` with the replicas to begin with, and with what is predicted for the present lengths."""
    memory = for_subject(memory, observation.intent)
    if memory.replicas is None and observation.current:
        memory = replace(memory, replicas=observation.current)
    idle_ttft_ms = None if capacity is None else _idle_ttft_ms(capacity, observation.intent)
    if idle_ttft_ms is None:
        return memory
    return replace(memory, evidence=replace(memory.evidence, idle_ttft_ms=idle_ttft_ms))


def _outlook(
    state: LawState, observation: LawObservation, capacity: ReplicaCapacity | None
) -> LoadOutlook | None:
    """Return what is known beside the reading; None where no load is predicted to meet the objectives that
    the forecast is about.
    """
    intent, evidence = observation.intent, state.memory.evidence
    objectives = forecast_objectives(evidence, intent)
    if capacity is not None and objectives.ttft != intent.ttft:
        capacity = capacity.without_ttft
    percentile = objectives.strictest_percentile
    if capacity is None or capacity.rate_at(percentile) <= 0:
        return None
    for capacity_of in observation.beside:
        other = _capacity(state, observation, capacity_of)
        if other is None:
            return None
        capacity = _beside(
            capacity, _of_reachable(other, intent), percentile, state.memory.capacity.correction
        )
    mixture = _present_mixture(state, intent)
    return LoadOutlook(state.history, capacity, observation.start_s, state.bins, mixture)


def _of_reachable(capacity: ReplicaCapacity, intent: Intent) -> ReplicaCapacity | None:
    """Return the capacity by the objectives that an idle replica of a shape is predicted to meet."""
    idle_ttft_ms = _idle_ttft_ms(capacity, intent)
    unreachable = ttft_unreachable(EvidenceMemory(idle_ttft_ms=idle_ttft_ms), intent)
    return capacity.without_ttft if unreachable else capacity


def _beside(
    capacity: ReplicaCapacity,
    other: ReplicaCapacity | None,
    percentile: float,
    correction: CapacityCorrection,
) -> ReplicaCapacity:
    """Return the capacity of the weaker of two shapes: each replica gets an equal part of the requests.

    The correction, which all of it is multiplied by, is that of the counted shape; for the other one it holds
    below 1 alone (`load_steps`). A shape on which no load meets the objectives is left out: more replicas
    would not help its requests.
    """
    if other is None or other.rate_at(percentile) <= 0:
        return capacity
    share = min(1.0, 1 / correction.trusted_share)
    other = replace(other.corrected(CapacityCorrection(share)), beside=capacity.beside)
    return replace(capacity, beside=other)


def _with_mixture(state: LawState, intent: Intent, measured: Mixture, at: float) -> LawState:
    """Return the state with a mean of mixtures: lengths of minutes vary by chance, like the load, and
    replicas must not follow. The mixture that the spec expects counts like so much time before.
    """
    if state.mixture is None:
        stated = _stated(intent)
        since = at if stated is None else at - STATED_S
        return replace(state, mixture=stated or measured, mixture_since=since, mixture_at=at)
    mean = state.mixture.averaged(measured, at - state.mixture_at, at - state.mixture_since)
    return replace(state, mixture=mean, mixture_at=at)


def after_plan(state: LawState, decision: Decision, shapes: frozenset[Shape]) -> LawState:
    """Return the state after a plan, which may decide other numbers: the replicas for expected traffic, or
    those of a new shape that serve the load of the old one. `shapes`: of the replicas before the plan.

    Until a move to another shape is over the law counts replicas of the old one: the move may fail.
    """
    shape, memory = decision.shape, state.memory
    if shape is None:
        return state
    moved = shapes == {shape} or (not shapes and decision.placed > 0)
    if not moved and state.shape != shape:
        return state
    if state.shape not in (None, shape):
        memory = forget_learned(memory)
        memory = replace(memory, supply=supply.forget_orders(memory.supply))
    evidence = replace(memory.evidence, idle_tpot_ms=decision.predicted_tpot_ms)
    memory = replace(memory, evidence=evidence)
    if memory.replicas != decision.desired:
        memory = replace(memory, replicas=decision.desired, spare_since=None)
    return replace(state, shape=shape, memory=memory)


def _present_mixture(state: LawState, intent: Intent) -> Mixture | None:
    """Return the mixture that was measured, until then the one that the spec expects."""
    return state.mixture or _stated(intent)


def _stated(intent: Intent) -> Mixture | None:
    """Return the mixture that the spec expects, until one is measured."""
    traffic = intent.traffic
    if traffic.input_tokens is None or traffic.output_tokens is None:
        return None
    return Mixture(traffic.input_tokens.mean, traffic.output_tokens.mean)
