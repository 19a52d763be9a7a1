"""The protocol of a scaling law, what it may read, and what it may know of a replica beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tangram.fleet import Objectives, Workload
from tangram.scaling.scrapes import MetricsView


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What a control law may read; never the state of the simulator."""

    now: float
    metrics: MetricsView  # for the pods of this LLMDeployment, at `now`; raises `PrometheusDown`
    replicas: int  # spec.replicas that are ordered now
    ready: int  # ready replicas, from the API server
    starting: int  # ordered, not ready yet
    min_replicas: int
    max_replicas: int
    workloads: tuple[Workload, ...] = ()  # its Deployments, one for each shape, from the API server


class Controller(Protocol):
    """A control law. It may remember what it has read before: one instance serves one run.

    Each has one knob for how many replicas it orders, with the published default, so that laws can be
    compared at equal attainment.
    """

    name: str
    interval_s: float  # between two decisions
    knob: float

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas; the simulator limits them to the minimum and the maximum."""
        ...


@dataclass(frozen=True, slots=True)
class CapacityFacts:
    """What a law that needs a profile may know of one replica and its usual traffic."""

    requests_per_second: float  # the most that meets the objectives
    running_requests: float  # at that rate, mean
    max_running: int
    max_batched_tokens: int
    kv_tokens: int
    # Seconds of a step of (decoding requests, tokens of context of each, prompt tokens).
    step_s: Callable[[float, float, float], float]
    input_tokens: float  # mean
    output_tokens: float  # mean
    objectives: Objectives
    price_per_hour: float
    start_s: float  # from an order to a ready replica, mean
