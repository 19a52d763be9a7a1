"""One step of the scaling law: from the state and an observation to the next state and a decision.

Everything that a number of replicas follows from is in here. The shell reads Prometheus and pods, and passes
what it saw; a simulation passes what its own Prometheus and pods show. `ScalingMemory` is the part of the
state that the status records; the loads of past hours are read from Prometheus again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from tangram.fleet import Decision, Intent, Shape, Workload
from tangram.scaling import ordered_replicas as supply
from tangram.scaling.control import decide, forget_learned
from tangram.scaling.feed_forward import arrival_rate, bins_of_requests
from tangram.scaling.limits import forecast_objectives
from tangram.scaling.ordered_replicas import ShapeStart
from tangram.scaling.outlook.load_history import LoadHistory, extended, merged
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.scaling.outlook.mixture import STATED_S, Mixture
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity
from tangram.scaling.sample import Sample
from tangram.scaling.signal import Signal
from tangram.scaling.state import ScalingDecision, ScalingMemory, ScalingParams

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


@dataclass(frozen=True, slots=True)
class LawObservation:
    """What is seen of one LLMDeployment at one instant."""

    at: float
    intent: Intent
    signal: Signal | None  # None: no Prometheus is configured
    ready: int  # replicas that take requests
    existing: int  # replicas of its Deployments, those without a device among them
    current: int  # replicas to begin with while the state has no number
    shapes: frozenset[Shape] = frozenset()  # of the Deployments that have replicas
    capacity_of: CapacityOf | None = None  # of a replica of the one shape; None: it cannot be predicted
    start_s: float | None = None  # P90 of its start times, as pods record them
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
        capacity = None if sample is None else _capacity(state, observation)
        idle_ttft_ms = None
        if capacity is not None and observation.intent.ttft is not None:
            idle_ttft_ms = capacity.idle_ttft_ms(observation.intent.ttft.percentile)
        decision = decide(
            state.memory,
            params=self.params,
            intent=observation.intent,
            current=observation.current,
            ready=observation.ready,
            signal=observation.signal,
            now=observation.at,
            existing=observation.existing,
            outlook=_outlook(state, observation, capacity, idle_ttft_ms),
            idle_ttft_ms=idle_ttft_ms,
        )
        starts = supply.observe_shapes(
            state.starts, observation.workloads, decision.memory, self.params, observation.at
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


def _capacity(state: LawState, observation: LawObservation) -> ReplicaCapacity | None:
    """Return what one replica carries of the present mixture. While replicas move to another shape, None."""
    if (
        observation.capacity_of is None
        or len(observation.shapes) != 1
        or not {state.shape} <= {None, *observation.shapes}
    ):
        return None
    mixture = state.mixture or _stated(observation.intent)
    return None if mixture is None else observation.capacity_of(*mixture.rounded)


def _outlook(
    state: LawState,
    observation: LawObservation,
    capacity: ReplicaCapacity | None,
    idle_ttft_ms: float | None,
) -> LoadOutlook | None:
    """Return what is known beside the reading; None where no load is predicted to meet the objectives that
    the forecast is about.
    """
    intent, memory = observation.intent, state.memory
    if idle_ttft_ms is not None:
        memory = replace(memory, idle_ttft_ms=idle_ttft_ms)
    objectives = forecast_objectives(memory, intent)
    if capacity is not None and objectives.ttft != intent.ttft:
        capacity = capacity.without_ttft
    if capacity is None or capacity.rate_at(objectives.strictest_percentile) <= 0:
        return None
    mixture = state.mixture or _stated(intent)
    return LoadOutlook(state.history, capacity, observation.start_s, state.bins, mixture)


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
        memory = supply.forget_orders(forget_learned(memory))
    memory = replace(memory, idle_tpot_ms=decision.predicted_tpot_ms)
    if memory.replicas != decision.desired:
        memory = replace(memory, replicas=decision.desired, spare_since=None)
    return replace(state, shape=shape, memory=memory)


def _stated(intent: Intent) -> Mixture | None:
    """Return the mixture that the spec expects, until one is measured."""
    traffic = intent.traffic
    if traffic.input_tokens is None or traffic.output_tokens is None:
        return None
    return Mixture(traffic.input_tokens.mean, traffic.output_tokens.mean)
