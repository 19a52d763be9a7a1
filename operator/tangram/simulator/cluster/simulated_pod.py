"""One engine pod, from its creation to its end."""

import math
from dataclasses import dataclass
from enum import StrEnum

from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.fleet import Shape


class PodPhase(StrEnum):
    """Where a pod is in its life."""

    PENDING = "Pending"  # it has no device yet
    STARTING = "Starting"
    READY = "Ready"
    DRAINING = "Draining"  # terminating: it finishes its requests
    LOST = "Lost"  # its node stopped, and the control plane has not evicted it yet
    GONE = "Gone"


@dataclass(slots=True, eq=False)
class SimulatedPod:
    """A pod and the instants of its life; infinite: not yet."""

    name: str
    ordinal: int  # among the pods of its LLMDeployment and shape, over the whole simulation
    owner_uid: str
    shape: Shape
    created_at: float
    phase: PodPhase = PodPhase.PENDING
    node: str = ""
    replica: ReplicaSimulation | None = None  # from its start on
    scheduled_at: float = math.inf
    ready_at: float = math.inf
    draining_at: float = math.inf
    lost_at: float = math.inf  # its engine stopped: what had not finished by then is lost
    gone_at: float = math.inf  # its devices are free from then on
    in_endpoints: bool = False  # it is sent requests
    unscheduled_since: float | None = None  # the scheduler found no device

    @property
    def counts(self) -> bool:
        """Whether it is one of its Deployment's replicas: a terminating pod is not."""
        return self.phase not in (PodPhase.DRAINING, PodPhase.GONE)

    @property
    def holds_devices(self) -> bool:
        """Whether its devices are taken."""
        return self.phase not in (PodPhase.PENDING, PodPhase.GONE)

    @property
    def outstanding(self) -> int:
        """Requests that it has and has not finished."""
        return self.replica.outstanding if self.replica is not None else 0
