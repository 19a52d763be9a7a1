"""Runs the scaling law for every LLMDeployment and keeps its memory. The law itself is pure:
`tangram.scaling`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tangram.fleet import Decision, Intent, Workload
from tangram.scaling import ScalingDecision, ScalingMemory, ScalingParams, Signal, classify, decide
from tangram.shell.metrics_reader import MetricsReader
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

    def decide(
        self,
        intents: tuple[Intent, ...],
        workloads: tuple[Workload, ...],
        recorded: Mapping[str, int],
        now: float,
    ) -> Mapping[str, Scaled]:
        """Return what each LLMDeployment wants now, by UID.

        `recorded` is what their statuses say was wanted last: an operator that has just started goes on
        from there.
        """
        for gone in self._memories.keys() - {intent.uid for intent in intents}:
            del self._memories[gone]
        by_owner: dict[str, list[Workload]] = {}
        for workload in workloads:
            by_owner.setdefault(workload.owner_uid, []).append(workload)
        return {
            intent.uid: self._decide_one(intent, by_owner.get(intent.uid, []), recorded.get(intent.uid), now)
            for intent in intents
        }

    def adopt(self, decisions: Iterable[Decision]) -> None:
        """Go on from the numbers that were decided: what expected traffic needs at first, or what carries on
        another shape what ran on the last one.
        """
        for decision in decisions:
            memory = self._memories.get(decision.owner_uid)
            if decision.shape is not None and memory is not None and memory.replicas != decision.desired:
                memory = replace(memory, replicas=decision.desired, spare_since=None)
                self._memories[decision.owner_uid] = memory

    def clear(self) -> None:
        """Forget everything: at the start of a term another operator may have acted."""
        self._memories.clear()

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
        )
        self._memories[intent.uid] = decision.memory
        return Scaled(signal, decision)

    def _signal(self, intent: Intent, ready: int, now: float) -> Signal | None:
        if self.reader is None:
            return None
        reading = self.reader.reading(intent)
        return classify(reading.sample, reading.problem, ready=ready, params=self.params, now=now)
