"""The scaling laws that are compared, each with the values of its one knob, the most frugal first.

The published default is among the values. `tangram` has the share of requests that may miss an objective; the spec
that it gets asks for the percentile that allows as much. `tangram-reactive` is the operator's law without a capacity
model, and has none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.autoscaling.laws import PUBLISHED
from benchmarks.autoscaling.prepared_scenario import PreparedScenario
from tangram.fleet import PERCENTILES, Intent
from tangram.simulator.control.laws_by_name import LAWS as PRODUCT_LAWS
from tangram.simulator.control.laws_by_name import START_TIME_P90
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import Controller, StaticReplicas

OURS = "tangram"
PEAK_SIZED = "static-peak"
FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Law:
    """A scaling law and the values of its knob."""

    name: str
    knobs: tuple[float, ...]
    default: float | None = None  # published; None: there is none
    built: Callable[[PreparedScenario, float], Controller] | None = (
        None  # None: the published one of its name
    )
    fixed: Callable[[PreparedScenario, float], int] | None = (
        None  # replicas, whatever the load; None: it scales
    )

    @property
    def is_static(self) -> bool:
        """Whether it never changes replicas."""
        return self.fixed is not None

    def controller(self, scenario: PreparedScenario, knob: float) -> Controller:
        """Return the law, new for one run."""
        if self.fixed is not None:
            return StaticReplicas(self.fixed(scenario, knob))
        if self.built is None:
            return PUBLISHED[self.name](scenario.known, knob)
        return self.built(scenario, knob)

    def initial(self, scenario: PreparedScenario, knob: float) -> int | None:
        """Return the replicas at the start; None: those of every other law."""
        return None if self.fixed is None else self.fixed(scenario, knob)


def static_replicas(scenario: PreparedScenario, knob: float) -> int:
    """Return a fixed number of replicas: `knob` times what the mean load needs."""
    return min(scenario.intent.max_replicas, max(1, math.ceil(knob * scenario.mean_need)))


def peak_replicas(scenario: PreparedScenario, knob: float) -> int:
    """Return a fixed number of replicas: `knob` times what the busiest minute needs."""
    minutes = Counter(request.arrival_s // 60 for request in scenario.trace.requests)
    need = max(minutes.values()) / 60 / scenario.profile.requests_per_second
    return min(scenario.intent.max_replicas, max(1, math.ceil(knob * need)))


def asking_for(intent: Intent, missed: float) -> Intent:
    """Return the spec that allows this share of misses: with the strictest percentile that does."""
    percentile = max((p for p in PERCENTILES if 1 - p / 100 >= missed - 1e-9), default=min(PERCENTILES))
    ttft, tpot = (
        replace(objective, percentile=percentile) if objective else None
        for objective in (intent.ttft, intent.tpot)
    )
    return replace(intent, ttft=ttft, tpot=tpot)


def _ours(scenario: PreparedScenario, knob: float) -> Controller:
    known = replace(scenario.known, intent=asking_for(scenario.intent, knob))
    return PRODUCT_LAWS[OURS](known, knob)


def _reactive(scenario: PreparedScenario, _: float) -> Controller:
    start_s = START_TIME_P90 * scenario.scenario.start_s
    return OperatorLaw(scenario.intent, lambda _: None, start_s=start_s)


_OF_QUEUE = (20.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1)
_OF_CACHE = (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
_OF_SATURATION = (0.9, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15)

LAWS = (
    Law(OURS, (0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001), 0.01, _ours),
    Law("tangram-reactive", (0.0,), built=_reactive),
    Law("static", (0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0), fixed=static_replicas),
    Law(PEAK_SIZED, (1.0,), fixed=peak_replicas),
    Law("hpa-queue", _OF_QUEUE, 5.0),
    Law("hpa-kv", _OF_CACHE, 0.7),
    Law("hpa-running", (0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03), 0.7),
    Law("keda", _OF_QUEUE, 5.0),
    Law("knative", (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15), 0.7),
    Law("aibrix-apa", _OF_CACHE, 0.5),
    Law("wva-v1", _OF_SATURATION, 0.8),
    Law("wva-v1-hpa", _OF_SATURATION, 0.8),
    Law("wva-v2", (1.2, 1.0, 0.85, 0.7, 0.5, 0.35, 0.25, 0.2), 0.85),
    Law("queue-model", (1.5, 1.0, 0.7, 0.5, 1 / 3, 0.25, 0.15, 0.1), 1.0),
    Law("dynamo-throughput", (1.5, 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2), 1.0),
    Law("dynamo-load", (1.5, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1), 1.0),
    Law("llm-d-slo", (0.9, 0.7, 0.55, 0.4, 0.3, 0.2, 0.12, 0.08), 0.55),
)
# Each number of replicas, of which the least that attains a percentile is sought.
_EACH_NUMBER = Law(FIXED, tuple(map(float, range(1, 33))), fixed=lambda _, knob: int(knob))
BY_NAME = {law.name: law for law in (*LAWS, _EACH_NUMBER)}
