"""A replay on the cluster, simulated: the same requests, law, settings and start times, and the pace as step model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.paced_cluster.recording import Course, Outcome, Recording
from benchmarks.paced_cluster.slow_gpu import SHAPE, Pace, calibration_at
from tangram.api.llm_deployment.facts import facts_from_status
from tangram.api.llm_deployment.parse import parse
from tangram.capacity.load.traffic import SimulatedRequest
from tangram.capacity.sizing.assessment_cache import assessment_cache
from tangram.capacity.steps import calibration
from tangram.fleet import CheckpointFacts, Intent, Node
from tangram.shell.measure.predicted_capacities import CapacityInputs, PredictedCapacities
from tangram.shell.measure.scaler import params_of
from tangram.shell.settings import PrometheusSettings, Settings
from tangram.simulator.cluster.start_times import Delay, StartTimes, luck
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import Controller, ControllerView
from tangram.simulator.result.attainment import Verdict
from tangram.simulator.run import SimulatedLLMDeployment, SimulationSettings, run
from tangram.simulator.traffic.trace import Trace

MINUTE_S = 60.0
SLICES = 7  # of `SHAPE` on the node
SCHEDULING_S, ENDPOINT_LAG_S = 0.5, 1.0  # assumed: the rest of a start is measured


@dataclass(frozen=True, slots=True)
class RecordedOrders:
    """The orders of a cluster as a scaling law, which reads no metric. `lead_s`: until its replay begins."""

    desired: Course
    lead_s: float
    interval_s: float

    def decide(self, view: ControllerView) -> int:
        """Return what the cluster ordered at that time."""
        return self.desired.at(view.now - self.lead_s)


def simulated(recording: Recording, seed: int) -> Outcome:
    """Simulate a replay under the operator's law as it is today. `seed` is of routing, scrapes, start times, and
    of where in a minute the replay begins: the law counts loads by the minute of the clock.
    """
    return _simulated(recording, seed, _operator_law)


def simulated_orders(recording: Recording, seed: int) -> Outcome:
    """Simulate a replay with the replicas that were ordered on the cluster, whatever the law is today."""

    def orders(recording: Recording, settings: Settings, lead_s: float) -> RecordedOrders:
        return RecordedOrders(recording.desired, lead_s, settings.operator.tick_seconds)

    return _simulated(recording, seed, orders)


def _simulated(
    recording: Recording, seed: int, law_of: Callable[[Recording, Settings, float], Controller]
) -> Outcome:
    intent, facts = _served(recording)
    settings = Settings.model_validate(recording.settings)
    lead_s = recording.lead_s + MINUTE_S * luck(seed, "minute")
    with _calibrated(calibration_at(Pace(*recording.pace_ms), facts)):
        law = law_of(recording, settings, lead_s)
        return _run(recording, intent, facts, law, settings, lead_s, seed)


def _operator_law(recording: Recording, settings: Settings, _lead_s: float) -> OperatorLaw:
    intent, facts = _served(recording)
    inputs = CapacityInputs({intent.uid: facts})
    capacity_on = partial(PredictedCapacities().of, intent, inputs=inputs)
    law = OperatorLaw(intent, capacity_on, params=params_of(settings), start_s=_p90(recording.starts_s))
    law.interval_s = _prometheus(settings).interval_seconds
    return law


def _prometheus(settings: Settings) -> PrometheusSettings:
    if settings.prometheus is None:
        raise ValueError("the operator of the recording reads no Prometheus")
    return settings.prometheus


@contextmanager
def _calibrated(document: Mapping[str, Any]) -> Iterator[None]:
    """Let the capacity model of this process have another calibration for a while."""
    _forget_assessments()
    try:
        with patch.object(calibration, "load", lambda: document):
            yield
    finally:
        _forget_assessments()


def _forget_assessments() -> None:
    calibration.coefficients_for.cache_clear()
    assessment_cache.cache_clear()


def _run(
    recording: Recording,
    intent: Intent,
    facts: CheckpointFacts,
    law: Controller,
    settings: Settings,
    lead_s: float,
    seed: int,
) -> Outcome:
    requests = tuple(
        SimulatedRequest(lead_s + answer.arrival_s, answer.prompt_tokens, answer.answer_tokens)
        for answer in recording.answers
    )
    starts = start_times(recording.starts_s)
    result = run(
        (SimulatedLLMDeployment(intent, facts, Trace(requests), law, starts, initial_replicas=1),),
        SimulationSettings(
            (Node("node", SHAPE.sku, SHAPE.sku, True, ((SHAPE.resource, SLICES),), gpus=1),),
            seed=seed,
            duration_s=lead_s + recording.duration_s,
            round_s=settings.operator.tick_seconds,
            scrape_interval_s=_prometheus(settings).scrape_interval_seconds,
        ),
    ).deployments[0]
    judged = result.attainment
    return Outcome(
        dict(judged.verdicts).get(str(Verdict.ATTAINED), 0) / judged.requests,
        (judged.ttft_s.p50, judged.ttft_s.p90, judged.ttft_s.p99),
        (judged.tpot_s.p50, judged.tpot_s.p90, judged.tpot_s.p99),
        Course(tuple((count.at - lead_s, count.desired) for count in result.counts)),
        Course(tuple((count.at - lead_s, count.ready) for count in result.counts)),
    )


def _served(recording: Recording) -> tuple[Intent, CheckpointFacts]:
    intent, facts = parse(recording.llmdeployment), facts_from_status(recording.llmdeployment)
    if not isinstance(intent, Intent) or facts is None:
        raise ValueError("the LLMDeployment of the recording is not valid, or its model was not inspected")
    return intent, facts[1]


def start_times(starts_s: Sequence[float]) -> StartTimes:
    """Return start times with the mean and the spread of those that were measured."""
    mean_s = statistics.fmean(starts_s)
    spread = statistics.stdev(starts_s) / mean_s if len(starts_s) > 1 else 0.0
    return StartTimes(
        SCHEDULING_S,
        Delay(0.0),
        Delay(max(0.0, mean_s - SCHEDULING_S), spread),
        Delay(0.0),
        ENDPOINT_LAG_S,
    )


def _p90(values: Sequence[float]) -> float:
    """Return the P90 as the operator computes it of its pods."""
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]
