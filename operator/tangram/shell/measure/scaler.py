"""Run the scaling law (`tangram.scaling`) for each LLMDeployment, and keep its memory between rounds."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tangram.fleet import Decision, Intent, Shape, Workload
from tangram.scaling import (
    ScalingDecision,
    ScalingMemory,
    ScalingParams,
    Signal,
    classify,
    decide,
    forget_learned,
    recalled,
)
from tangram.scaling.outlook.load_outlook import LoadOutlook
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.load_outlooks import LoadOutlooks, OutlookInputs
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """The decision of the law for one LLMDeployment. `signal` is None without a Prometheus."""

    signal: Signal | None
    decision: ScalingDecision


def params_of(settings: Settings) -> ScalingParams:
    """Return the parameters of the law."""
    prometheus, scaling = settings.prometheus, settings.scaling
    return ScalingParams(
        window_s=prometheus.window_seconds if prometheus else 60.0,
        scrape_interval_s=prometheus.scrape_interval_seconds if prometheus else 15.0,
        up_after_s=scaling.up_after_seconds,
        down_after_s=scaling.down_after_seconds,
        min_samples=scaling.min_samples,
        blind_after_s=scaling.blind_after_seconds,
        down_load=scaling.down_load,
    )


@dataclass(slots=True)
class Scaler:
    """The law with its memory, by UID of the LLMDeployment."""

    params: ScalingParams
    reader: MetricsReader | None
    outlooks: LoadOutlooks = field(init=False)
    _memories: dict[str, ScalingMemory] = field(default_factory=dict)
    _shapes: dict[str, Shape] = field(default_factory=dict)  # whose replicas the memories count

    def __post_init__(self) -> None:
        """Begin without any history."""
        self.outlooks = LoadOutlooks(self.params.window_s, self.params.min_samples)

    def decide(
        self,
        intents: tuple[Intent, ...],
        workloads: tuple[Workload, ...],
        recorded: Mapping[str, int],
        now: float,
        variants: Mapping[str, str] | None = None,
        faults: FaultLog | None = None,
        memories: Mapping[str, Mapping[str, object]] | None = None,
        outlook_inputs: OutlookInputs | None = None,
    ) -> Mapping[str, ScalingResult]:
        """Return how many replicas each LLMDeployment needs now, by UID.

        An operator that has just started continues from statuses: `recorded` replicas, the `variants` of the
        shape that they count, and `memories` of what the law has learned. If the law raises for an
        LLMDeployment, `faults` record it, and the result lacks it. Capacities are predicted from
        `outlook_inputs`.
        """
        outlook_inputs = outlook_inputs or OutlookInputs()
        self.outlooks.retain(intent.uid for intent in intents)
        for uid in self._memories.keys() - {intent.uid for intent in intents}:
            del self._memories[uid]
            self._shapes.pop(uid, None)
        by_owner: dict[str, list[Workload]] = {}
        for workload in workloads:
            by_owner.setdefault(workload.owner_uid, []).append(workload)
        results: dict[str, ScalingResult] = {}
        for intent in intents:
            owned, name = by_owner.get(intent.uid, []), f"{intent.namespace}/{intent.name}"
            if intent.uid not in self._memories:
                self._restore_shape(intent.uid, owned, variants or {})
                self._memories[intent.uid] = recalled((memories or {}).get(intent.uid, {}))
            decide_one = partial(
                self._decide_one, intent, owned, recorded.get(intent.uid), now, outlook_inputs
            )
            result = decide_one() if faults is None else faults.run("scale", name, intent.uid, decide_one)
            if result is not None:
                results[intent.uid] = result
        return results

    def counted_shapes(self) -> tuple[tuple[str, Shape], ...]:
        """Return the shape whose replicas the law counts, by UID, where there is one."""
        return tuple(sorted(self._shapes.items()))

    def adopt(self, decisions: Iterable[Decision], workloads: Iterable[Workload]) -> None:
        """Continue from the numbers of a plan: the replicas for expected traffic, or those of a new shape
        that serve the load of the old one. `workloads` are those that the plan is based on.

        Until a move to another shape is over the law counts replicas of the old one: the move may fail.
        """
        runs_on: dict[str, set[Shape]] = {}
        for workload in workloads:
            runs_on.setdefault(workload.owner_uid, set()).add(workload.shape)
        for decision in decisions:
            uid, shape = decision.owner_uid, decision.shape
            memory, shapes = self._memories.get(uid), runs_on.get(uid, set())
            if shape is None or memory is None:
                continue
            moved = shapes == {shape} or (not shapes and decision.placed > 0)
            if not moved and self._shapes.get(uid) != shape:
                continue
            if self._shapes.get(uid) not in (None, shape):
                memory = forget_learned(memory)
            self._shapes[uid] = shape
            memory = replace(memory, idle_tpot_ms=decision.predicted_tpot_ms)
            self._memories[uid] = memory
            if memory.replicas != decision.desired:
                self._memories[uid] = replace(memory, replicas=decision.desired, spare_since=None)

    def _restore_shape(self, uid: str, workloads: list[Workload], variants: Mapping[str, str]) -> None:
        """Restore the shape whose replicas a status counts, if there is a Deployment of it."""
        shapes = [w.shape for w in workloads if w.shape.variant == variants.get(uid)]
        if shapes:
            self._shapes[uid] = shapes[0]

    def clear(self) -> None:
        """Forget everything, at the start of a term: another operator may have acted."""
        self._memories.clear()
        self._shapes.clear()
        self.outlooks.clear()
        if self.reader is not None:
            self.reader.clear()

    def _decide_one(
        self,
        intent: Intent,
        workloads: list[Workload],
        recorded: int | None,
        now: float,
        outlook_inputs: OutlookInputs,
    ) -> ScalingResult:
        ready = sum(workload.ready for workload in workloads)
        running = max((workload.replicas for workload in workloads), default=0)
        signal = self._signal(intent, ready, now)
        decision = decide(
            self._memories.get(intent.uid, ScalingMemory()),
            params=self.params,
            intent=intent,
            current=running if recorded is None else recorded,
            ready=ready,
            signal=signal,
            now=now,
            existing=sum(workload.replicas for workload in workloads),
            outlook=self._outlook(intent, workloads, signal, outlook_inputs),
        )
        self._memories[intent.uid] = decision.memory
        if decision.replicas != decision.previous:
            log.info("scaling %s", json.dumps(_log_record(intent, signal, decision)))
        return ScalingResult(signal, decision)

    def _outlook(
        self, intent: Intent, workloads: list[Workload], signal: Signal | None, outlook_inputs: OutlookInputs
    ) -> LoadOutlook | None:
        """Return what the law knows beside the reading; while replicas move to another shape, nothing."""
        if signal is None or signal.sample is None:
            return None
        history = None if self.reader is None else self.reader.histories.of(intent.uid)
        if history is not None:
            self.outlooks.restore(intent.uid, history)
        self.outlooks.observe(intent.uid, signal.sample)
        shapes = {workload.shape for workload in workloads if workload.replicas}
        counted = self._shapes.get(intent.uid)
        shape = next(iter(shapes)) if len(shapes) == 1 else None
        return None if counted not in (None, shape) else self.outlooks.outlook(intent, shape, outlook_inputs)

    def _signal(self, intent: Intent, ready: int, now: float) -> Signal | None:
        if self.reader is None:
            return None
        reading = self.reader.reading(intent)
        return classify(reading.sample, reading.problem, ready=ready, params=self.params, now=now)


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
    need = decision.need
    if need is not None:
        record |= {
            "expectedRequestsPerSecond": round(need.load.expected, 4),
            "upperRequestsPerSecond": round(need.load.upper, 4),
            "horizonSeconds": round(need.load.horizon_s, 1),
            "replicaRequestsPerSecond": round(need.replica_rate, 4),
            "queueRequestsPerSecond": round(need.backlog_rate, 4),
            "expectedMissedShare": round(need.missed_share, 5),
            "trustedShare": round(decision.memory.trusted_share, 3),
        }
    return record
