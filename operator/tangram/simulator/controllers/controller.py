"""The protocol of a scaling law, and what it may read."""

from dataclasses import dataclass
from typing import Protocol

from tangram.fleet import Workload
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
    """A control law. It may remember what it has read before: one instance serves one run."""

    interval_s: float  # between two decisions

    def decide(self, view: ControllerView) -> int:
        """Return the desired replicas; the simulator limits them to the minimum and the maximum.

        Where it raises `PrometheusDown`, the number of replicas stays.
        """
        ...
