"""The scaling law of the operator, on simulated readings."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from tangram.fleet import Decision, Intent, Objective, Shape, Workload
from tangram.scaling import RejectedSample, Sample, ScalingDecision, ScalingParams, classify
from tangram.scaling.law import CapacityOf, Law, LawState, after_plan, observation_of
from tangram.scaling.scrapes import read_sample
from tangram.simulator.cluster.observed_fleet import DesiredReplicas
from tangram.simulator.controllers import ControllerView
from tangram.simulator.metrics import PrometheusDown


class OperatorLaw:
    """`tangram.scaling` as a controller. `knob`: the share of requests that may miss an objective."""

    def __init__(
        self,
        intent: Intent,
        capacity_on: Callable[[Shape], CapacityOf | None],
        knob: float | None = None,
        *,
        params: ScalingParams | None = None,
        start_s: float | None = None,
    ) -> None:
        """`capacity_on`: None for a shape: without a forecast on it. `start_s`: P90 of start times that were
        measured before, on any shape; None: the law measures.
        """
        self.params = params or ScalingParams(60.0, 15.0, 30.0, 300.0)
        self.knob = 1 - intent.objectives.strictest_percentile / 100 if knob is None else knob
        self.interval_s = 15.0
        self.decisions: list[ScalingDecision] = []
        self.state = LawState()
        self._law = Law(self.params)
        self._intent = intent if knob is None else _within(intent, knob)
        self._capacity_on, self._start_s = capacity_on, start_s
        self._sample: Sample | None = None

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas."""
        problem = self._read(view)
        observation = observation_of(
            self.state,
            self._intent,
            view.workloads,
            classify(self._sample, problem, ready=view.ready, params=self.params, now=view.now),
            at=view.now,
            recorded=view.replicas,
            capacity_on=self._capacity_on,
            start_s_on=lambda _: self._start_s,
        )
        self.state, decision = self._law.step(self.state, observation)
        if decision.replicas != decision.previous:
            self.decisions.append(decision)
        return decision.replicas

    def desired(self, replicas: int) -> DesiredReplicas:
        """Return what plans are made for; `replicas`: to begin with."""
        memory = self.state.memory
        held = replicas if memory.replicas is None else memory.replicas
        return DesiredReplicas(held, self.state.shape, memory.provisioned)

    def adopt(self, decision: Decision, workloads: Iterable[Workload]) -> None:
        """Continue from the numbers of a plan, which is based on `workloads`, its Deployments."""
        self.state = after_plan(self.state, decision, frozenset(workload.shape for workload in workloads))

    def _read(self, view: ControllerView) -> str:
        """Read the metrics; say why that failed."""
        try:
            reading = read_sample(
                view.metrics, self._intent.objectives, self.params.window_s, quantiles=False
            )
        except PrometheusDown:
            return "Prometheus does not answer"
        if isinstance(reading, RejectedSample):
            return reading.reason
        self._sample = reading
        return ""


def _within(intent: Intent, budget: float) -> Intent:
    """Return the intent with this share of requests that may miss each objective."""

    def changed(objective: Objective | None) -> Objective | None:
        # A percentile with decimals: the API has whole ones alone, the law takes any.
        return None if objective is None else replace(objective, percentile=100 * (1 - budget))  # type: ignore[arg-type]

    return replace(intent, ttft=changed(intent.ttft), tpot=changed(intent.tpot))
