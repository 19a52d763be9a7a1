"""A replay on the cluster, simulated: the same requests, law, settings and start times, and the pace as step model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from tangram.shell.settings import Settings
from tangram.simulator.cluster.start_times import Delay, StartTimes, luck
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.result.attainment import Verdict
from tangram.simulator.run import SimulatedLLMDeployment, SimulationSettings, run
from tangram.simulator.traffic.trace import Trace

MINUTE_S = 60.0
SLICES = 7  # of `SHAPE` on the node
SCHEDULING_S, ENDPOINT_LAG_S = 0.5, 1.0  # assumed: the rest of a start is measured


def simulated(recording: Recording, seed: int) -> Outcome:
    """Simulate a replay. `seed` is of routing, scrapes, start times, and of where in a minute the replay begins:
    the law counts loads by the minute of the clock.
    """
    intent, facts = _served(recording)
    with _calibrated(calibration_at(Pace(*recording.pace_ms), facts)):
        return _simulated(recording, intent, facts, seed)


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


def _simulated(recording: Recording, intent: Intent, facts: CheckpointFacts, seed: int) -> Outcome:
    settings = Settings.model_validate(recording.settings)
    prometheus = settings.prometheus
    if prometheus is None:
        raise ValueError("the operator of the recording reads no Prometheus")
    capacity = PredictedCapacities().of(intent, SHAPE, CapacityInputs({intent.uid: facts}))
    law = OperatorLaw(
        intent, capacity, shape=SHAPE, params=params_of(settings), start_s=_p90(recording.starts_s)
    )
    law.interval_s = prometheus.interval_seconds
    lead_s = recording.lead_s + MINUTE_S * luck(seed, "minute")
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
            round_s=settings.tick_seconds,
            scrape_interval_s=prometheus.scrape_interval_seconds,
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
