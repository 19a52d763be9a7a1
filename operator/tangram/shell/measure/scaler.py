"""Run the scaling law (`tangram.scaling`) for each LLMDeployment, and keep its state between rounds."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tangram.fleet import Decision, Intent, ProvisionedLoad, Shape, StartOutcome, Workload
from tangram.fleet.times import rfc3339
from tangram.scaling import ScalingDecision, ScalingParams, Signal, classify, recalled
from tangram.scaling.law import Law, LawState, after_plan, observation_of
from tangram.scaling.ordered_replicas import ShapeStart, start_outcomes
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metric_ages import MetricAges
from tangram.shell.measure.metrics_readings import MetricsSource
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tangram.shell.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """The decision of the law for one LLMDeployment. `signal` is None without a source of metrics."""

    signal: Signal | None
    decision: ScalingDecision


def provisioned_loads(results: Mapping[str, ScalingResult]) -> tuple[tuple[str, ProvisionedLoad], ...]:
    """Return the loads that replicas are to carry, by UID, as far as they are known."""
    loads = ((uid, result.decision.provisioned) for uid, result in results.items())
    return tuple(sorted((uid, load) for uid, load in loads if load is not None))


def params_of(settings: Settings) -> ScalingParams:
    """Return the parameters of the law."""
    prometheus, scrape, scaling = settings.prometheus, settings.scrape, settings.scaling
    return ScalingParams(
        window_s=(prometheus or scrape).window_seconds,
        scrape_interval_s=prometheus.scrape_interval_seconds if prometheus else scrape.interval_seconds,
        up_after_s=scaling.up_after_seconds,
        down_after_s=scaling.down_after_seconds,
        min_samples=scaling.min_samples,
        blind_after_s=scaling.blind_after_seconds,
        down_load=scaling.down_load,
        history_s=scaling.history_seconds,
    )


@dataclass(slots=True)
class Scaler:
    """The law with its states, by UID of the LLMDeployment."""

    params: ScalingParams
    reader: MetricsSource | None
    capacities: PredictedCapacities = field(default_factory=PredictedCapacities)
    ages: MetricAges = field(default_factory=MetricAges)
    _states: dict[str, LawState] = field(default_factory=dict)

    def decide(
        self,
        intents: tuple[Intent, ...],
        workloads: tuple[Workload, ...],
        recorded: Mapping[str, int],
        now: float,
        variants: Mapping[str, str] | None = None,
        faults: FaultLog | None = None,
        memories: Mapping[str, Mapping[str, object]] | None = None,
        capacity_inputs: CapacityInputs | None = None,
    ) -> Mapping[str, ScalingResult]:
        """Return how many replicas each LLMDeployment needs now, by UID.

        An operator that has just started continues from statuses: `recorded` replicas, the `variants` of the
        shape that they count, and `memories` of what the law has learned. If the law raises for an
        LLMDeployment, `faults` record it, and the result lacks it. Capacities are predicted from
        `capacity_inputs`.
        """
        capacity_inputs = capacity_inputs or CapacityInputs()
        uids = {intent.uid for intent in intents}
        self.capacities.retain(uids)
        self.ages.retain(uids)
        for uid in self._states.keys() - uids:
            del self._states[uid]
        by_owner: dict[str, list[Workload]] = {}
        for workload in workloads:
            by_owner.setdefault(workload.owner_uid, []).append(workload)
        results: dict[str, ScalingResult] = {}
        for intent in intents:
            owned, name = by_owner.get(intent.uid, []), f"{intent.namespace}/{intent.name}"
            if intent.uid not in self._states:
                shape = _shape_of(owned, (variants or {}).get(intent.uid))
                self._states[intent.uid] = LawState(recalled((memories or {}).get(intent.uid, {})), shape)
            decide_one = partial(
                self._decide_one, intent, owned, recorded.get(intent.uid), now, capacity_inputs
            )
            result = decide_one() if faults is None else faults.run("scale", name, intent.uid, decide_one)
            if result is not None:
                results[intent.uid] = result
        return results

    def counted_shapes(self) -> tuple[tuple[str, Shape], ...]:
        """Return the shape whose replicas the law counts, by UID, where there is one."""
        return tuple(sorted((uid, state.shape) for uid, state in self._states.items() if state.shape))

    def start_outcomes(self) -> tuple[StartOutcome, ...]:
        """Return which shapes have replicas that became ready, and which have late ones alone."""
        return tuple(
            outcome
            for uid, state in sorted(self._states.items())
            for outcome in start_outcomes(uid, state.starts)
        )

    def adopt(self, decisions: Iterable[Decision], workloads: Iterable[Workload]) -> None:
        """Continue from the numbers of a plan. `workloads` are those that the plan is based on."""
        runs_on: dict[str, set[Shape]] = {}
        for workload in workloads:
            runs_on.setdefault(workload.owner_uid, set()).add(workload.shape)
        for decision in decisions:
            uid = decision.owner_uid
            if uid in self._states:
                self._states[uid] = after_plan(self._states[uid], decision, frozenset(runs_on.get(uid, ())))

    def clear(self) -> None:
        """Forget everything, at the start of a term: another operator may have acted."""
        self._states.clear()
        self.capacities.retain(())
        self.ages.retain(())
        if self.reader is not None:
            self.reader.clear()

    def _decide_one(
        self,
        intent: Intent,
        workloads: list[Workload],
        recorded: int | None,
        now: float,
        capacity_inputs: CapacityInputs,
    ) -> ScalingResult:
        ready = sum(workload.ready for workload in workloads)
        before, signal = self._states.get(intent.uid, LawState()), self._signal(intent, ready, now)
        self.ages.note(intent, signal, ready, now)
        observation = observation_of(
            before,
            intent,
            workloads,
            signal,
            at=now,
            recorded=recorded,
            capacity_on=partial(self.capacities.of, intent, inputs=capacity_inputs),
            start_s_on=lambda shape: capacity_inputs.start_s.get((intent.uid, shape)),
            stored=None if self.reader is None else self.reader.histories.of(intent.uid),
        )
        state, decision = Law(self.params).step(before, observation)
        self._states[intent.uid] = state
        _log_late(intent, before.starts, state.starts, workloads)
        if decision.replicas != decision.previous:
            log.info("scaling %s", json.dumps(_log_record(intent, signal, decision)))
        return ScalingResult(signal, decision)

    def _signal(self, intent: Intent, ready: int, now: float) -> Signal | None:
        if self.reader is None:
            return None
        reading = self.reader.reading(intent)
        return classify(
            reading.sample,
            reading.problem,
            ready=ready,
            params=self.params,
            now=now,
            pods_read=reading.pods_read,
        )


def _shape_of(workloads: Iterable[Workload], variant: str | None) -> Shape | None:
    """Return the shape whose replicas a status counts, if there is a Deployment of it."""
    return next((workload.shape for workload in workloads if workload.shape.variant == variant), None)


def _log_late(
    intent: Intent, before: Iterable[ShapeStart], starts: Iterable[ShapeStart], workloads: Iterable[Workload]
) -> None:
    """Log each shape of which no replica has become ready by the deadline, once."""
    late_before = {start.shape for start in before if start.is_late}
    messages = {workload.shape: workload.message for workload in workloads}
    for start in starts:
        if start.is_late and start.shape not in late_before:
            record = {
                "namespace": intent.namespace,
                "name": intent.name,
                "shape": start.shape.described,
                "since": rfc3339(start.unready_since),
                "message": messages.get(start.shape, ""),
            }
            log.warning("no replica became ready %s", json.dumps(record))


def _log_record(intent: Intent, signal: Signal | None, decision: ScalingDecision) -> dict[str, object]:
    """Return a decision with the inputs that led to it, for one line of the log."""
    record: dict[str, object] = {
        "namespace": intent.namespace,
        "name": intent.name,
        "from": decision.previous,
        "to": decision.replicas,
        "reason": decision.reason,
        "message": decision.message,
        "signal": None if signal is None else signal.state,
    }
    need, load = decision.need, decision.provisioned
    if load is not None:
        record |= {
            "provisionedRequestsPerSecond": round(load.requests_per_second, 4),
            "promptTokens": round(load.prompt_tokens, 1),
            "answerTokens": round(load.answer_tokens, 1),
        }
    if need is not None:
        record |= {
            "expectedRequestsPerSecond": round(need.load.expected, 4),
            "upperRequestsPerSecond": round(need.load.upper, 4),
            "horizonSeconds": round(need.load.horizon_s, 1),
            "replicaRequestsPerSecond": round(need.replica_rate, 4),
            "queueRequestsPerSecond": round(need.backlog_rate, 4),
            "neededReplicas": need.replicas,
            "spareReplicas": need.spare,
            "expectedMissedShare": round(need.missed_share, 5),
            "errorBudget": round(need.error_budget, 5),
            "limit": need.limit,
            "trustedShare": round(decision.memory.capacity.correction.trusted_share, 3),
            "loadSpread": decision.memory.capacity.correction.load_spread,
            "unavoidableShare": round(decision.memory.capacity.correction.unavoidable_share, 5),
        }
        if need.runner_up is not None:
            record |= {
                "runnerUpReplicas": need.runner_up.replicas,
                "runnerUpExpectedMissedShare": round(need.runner_up.missed_share, 5),
            }
    return record
