"""The scaling laws that are compared, each with the values of its one knob, the most frugal first.

The published default is among the values. `tangram` has the share of requests that may miss an objective; the spec
that it gets asks for the percentile that allows as much. `tangram-reactive` is the operator's law without a capacity
model, and has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.autoscaling.prepared_scenario import PreparedScenario
from tangram.fleet import PERCENTILES, Intent
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import (
    AIBrixPodAutoscaler,
    DynamoLoad,
    DynamoThroughput,
    HPAOnQueue,
    HPAOnUtilisation,
    KEDAOnPrometheus,
    KnativePodAutoscaler,
    LatencySaturation,
    QueueModel,
    StaticReplicas,
    WVASaturation,
    WVATokens,
    behind_hpa,
)
from tangram.simulator.controllers.controller import Controller
from tangram.simulator.controllers.hpa import HPAOnDesiredReplicas


@dataclass(frozen=True, slots=True)
class Law:
    """A scaling law and the values of its knob."""

    name: str
    knobs: tuple[float, ...]
    controller: Callable[[PreparedScenario, float], Controller | HPAOnDesiredReplicas]
    default: float | None = None  # published; None: there is none
    is_static: bool = False

    def initial(self, scenario: PreparedScenario, knob: float) -> int | None:
        """Return the replicas at the start; None: those of every other law."""
        return static_replicas(scenario, knob) if self.is_static else None


def static_replicas(scenario: PreparedScenario, knob: float) -> int:
    """Return a fixed number of replicas: `knob` times what the mean load needs."""
    return max(1, math.ceil(knob * scenario.mean_need))


def asking_for(intent: Intent, missed: float) -> Intent:
    """Return the spec that allows this share of misses: with the strictest percentile that does."""
    percentile = max((p for p in PERCENTILES if 1 - p / 100 >= missed - 1e-9), default=min(PERCENTILES))
    objectives = (
        replace(objective, percentile=percentile) if objective else None
        for objective in (intent.ttft, intent.tpot)
    )
    ttft, tpot = objectives
    return replace(intent, ttft=ttft, tpot=tpot)


OURS = "tangram"
START_TIME_P90 = 1.3  # over the mean: the law knows the P90 of starts that were measured before

LAWS = (
    Law(
        OURS,
        (0.5, 0.3, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001),
        lambda s, knob: OperatorLaw(
            asking_for(s.intent, knob), s.capacity_of, knob, start_s=START_TIME_P90 * s.scenario.start_s
        ),
        0.01,
    ),
    Law(
        "tangram-reactive",
        (0.0,),
        lambda s, _: OperatorLaw(s.intent, lambda _prompt, _answer: None, start_s=s.scenario.start_s),
    ),
    Law(
        "static",
        (0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0),
        lambda s, knob: StaticReplicas(static_replicas(s, knob)),
        is_static=True,
    ),
    Law("hpa-queue", (20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1), lambda _, knob: HPAOnQueue(knob), 5.0),
    Law("hpa-kv", (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05), lambda _, knob: HPAOnUtilisation(knob), 0.7),
    Law(
        "hpa-running",
        (0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03),
        lambda s, knob: HPAOnUtilisation(knob, max_running=s.scenario.max_running),
        0.7,
    ),
    Law("keda", (20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1), lambda _, knob: KEDAOnPrometheus(knob), 5.0),
    Law(
        "knative",
        (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15),
        lambda s, knob: KnativePodAutoscaler(s.profile, knob),
        0.7,
    ),
    Law(
        "aibrix-apa",
        (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05),
        lambda _, knob: AIBrixPodAutoscaler(knob),
        0.5,
    ),
    Law("wva-v1", (0.9, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15), lambda _, knob: WVASaturation(knob), 0.8),
    Law(
        "wva-v1-hpa",
        (0.9, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15),
        lambda _, knob: behind_hpa(WVASaturation(knob)),
        0.8,
    ),
    Law(
        "wva-v2",
        (1.2, 1.0, 0.85, 0.7, 0.5, 0.35, 0.25, 0.2),
        lambda s, knob: WVATokens(s.profile, knob),
        0.85,
    ),
    Law(
        "queue-model",
        (1.5, 1.0, 0.7, 0.5, 1 / 3, 0.25, 0.15, 0.1),
        lambda s, knob: QueueModel(s.profile, knob),
        1.0,
    ),
    Law(
        "dynamo-throughput",
        (1.5, 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2),
        lambda s, knob: DynamoThroughput(s.profile, knob),
        1.0,
    ),
    Law(
        "dynamo-load",
        (1.5, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1),
        lambda s, knob: DynamoLoad(s.profile, knob),
        1.0,
    ),
    Law(
        "llm-d-slo",
        (0.9, 0.7, 0.55, 0.4, 0.3, 0.2, 0.12, 0.08),
        lambda s, knob: LatencySaturation(s.profile, knob),
        0.55,
    ),
)
BY_NAME = {law.name: law for law in LAWS}
