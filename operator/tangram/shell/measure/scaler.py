"""Runs the scaling law for every LLMDeployment and keeps its memory. The law itself is pure:
`tangram.scaling`.
"""

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
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.settings import Settings


@dataclass(frozen=True, slots=True)
class Scaled:
    """What the law made of one LLMDeployment at one instant. `signal` is None without a Prometheus."""

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
    """The law with its memory per LLMDeployment UID."""

    params: ScalingParams
    reader: MetricsReader | None
    _memories: dict[str, ScalingMemory] = field(default_factory=dict)
    _shapes: dict[str, Shape] = field(default_factory=dict)  # of which the memories count replicas

    def decide(
        self,
        intents: tuple[Intent, ...],
        workloads: tuple[Workload, ...],
        recorded: Mapping[str, int],
        now: float,
        variants: Mapping[str, str] | None = None,
        faults: FaultLog | None = None,
        memories: Mapping[str, Mapping[str, object]] | None = None,
    ) -> Mapping[str, Scaled]:
        """Return what each LLMDeployment wants now, by UID.

        `recorded` is what their statuses say was wanted last, `variants` of which shape, and `memories` what
        the law had learned: an operator that has just started goes on from there. One for which the law
        raises has a fault in `faults`, and wants nothing: it stands still.
        """
        for gone in self._memories.keys() - {intent.uid for intent in intents}:
            del self._memories[gone]
            self._shapes.pop(gone, None)
        by_owner: dict[str, list[Workload]] = {}
        for workload in workloads:
            by_owner.setdefault(workload.owner_uid, []).append(workload)
        for intent in intents:
            if intent.uid not in self._memories:
                self._recall(intent.uid, by_owner.get(intent.uid, []), variants or {})
                self._memories[intent.uid] = recalled((memories or {}).get(intent.uid, {}))
        found: dict[str, Scaled] = {}
        for intent in intents:
            mine, before = by_owner.get(intent.uid, []), recorded.get(intent.uid)
            if faults is None:
                found[intent.uid] = self._decide_one(intent, mine, before, now)
                continue
            one = faults.run(
                "scale",
                f"{intent.namespace}/{intent.name}",
                intent.uid,
                partial(self._decide_one, intent, mine, before, now),
            )
            if one is not None:
                found[intent.uid] = one
        return found

    def counted(self) -> tuple[tuple[str, Shape], ...]:
        """Return of which shape the law's numbers count replicas, by UID, where that is known."""
        return tuple(sorted(self._shapes.items()))

    def adopt(self, decisions: Iterable[Decision], workloads: Iterable[Workload]) -> None:
        """Go on from the numbers that were decided: what expected traffic needs at first, or what carries on
        another shape what ran on the last one. `workloads` are those that were decided upon.

        Until a move is over the law goes on in replicas of the old shape: it may come to nothing.
        """
        runs_on: dict[str, set[Shape]] = {}
        for workload in workloads:
            runs_on.setdefault(workload.owner_uid, set()).add(workload.shape)
        for decision in decisions:
            uid, shape = decision.owner_uid, decision.shape
            memory, there = self._memories.get(uid), runs_on.get(uid, set())
            if shape is None or memory is None:
                continue
            arrived = there == {shape} or (not there and decision.placed > 0)
            if not arrived and self._shapes.get(uid) != shape:
                continue
            if self._shapes.get(uid) not in (None, shape):
                memory = forget_learned(memory)
            self._shapes[uid] = shape
            memory = replace(memory, idle_tpot_ms=decision.predicted_tpot_ms)
            self._memories[uid] = memory
            if memory.replicas != decision.desired:
                self._memories[uid] = replace(memory, replicas=decision.desired, spare_since=None)

    def _recall(self, uid: str, workloads: list[Workload], variants: Mapping[str, str]) -> None:
        """Remember of which shape a status counts replicas, if there is a Deployment of it."""
        found = [w.shape for w in workloads if w.shape.variant == variants.get(uid)]
        if found:
            self._shapes[uid] = found[0]

    def clear(self) -> None:
        """Forget everything: at the start of a term another operator may have acted."""
        self._memories.clear()
        self._shapes.clear()

    def _decide_one(
        self, intent: Intent, workloads: list[Workload], recorded: int | None, now: float
    ) -> Scaled:
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
        )
        self._memories[intent.uid] = decision.memory
        return Scaled(signal, decision)

    def _signal(self, intent: Intent, ready: int, now: float) -> Signal | None:
        if self.reader is None:
            return None
        reading = self.reader.reading(intent)
        return classify(reading.sample, reading.problem, ready=ready, params=self.params, now=now)
