"""Why the conditions of an LLMDeployment have their status, `Placed` aside."""

from dataclasses import dataclass
from typing import ClassVar

from tangram.eligibility.reasons import Reason
from tangram.fleet import FieldManager, Lengths, Objective, Shape


@dataclass(frozen=True, slots=True)
class StatedReason:
    """A reason with the message of the API server, of the scaling law or of the decision."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class AcceptedWithWarnings:
    """A valid spec that may not do what it is meant to."""

    message: str
    warnings: tuple[str, ...]  # not empty
    reason: ClassVar[Reason] = Reason.VALID


@dataclass(frozen=True, slots=True)
class AutoscalerCuts:
    """A cluster autoscaler may remove a node before the longest request ends."""

    grace_s: int  # that pods get to end
    granted_s: int  # by the autoscaler, unless it is raised


@dataclass(frozen=True, slots=True)
class SpotNodesCut:
    """A cloud may reclaim spot nodes before the longest request ends."""

    grace_s: int  # that pods get to end
    granted_s: int  # by the cloud, at most
    sku: str
    nodes: tuple[str, ...]  # sorted, not empty


@dataclass(frozen=True, slots=True)
class LongAnswersCut:
    """The engine ends usual answers before they are complete."""

    answers: Lengths
    tpot_ms: float
    most_s: int  # of a request


@dataclass(frozen=True, slots=True)
class WaitsForCondition:
    """Another condition is not True yet."""

    condition: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class MinimumAvailable:
    """As many replicas are available as are to be."""

    minimum: int
    reason: ClassVar[Reason] = Reason.MIN_REPLICAS_AVAILABLE


@dataclass(frozen=True, slots=True)
class WaitsForDeployment:
    """There is no Deployment yet."""

    shape: Shape | None
    reason: ClassVar[Reason] = Reason.REPLICAS_STARTING


@dataclass(frozen=True, slots=True)
class TooFewAvailable:
    """Fewer replicas are available than are to be."""

    available: int
    minimum: int
    failures: tuple[str, ...]  # of pods and shapes
    deployments: tuple[str, ...]  # whose pods are not ready; none: all placed replicas are available

    @property
    def reason(self) -> Reason:
        """What the others wait for."""
        if self.failures:
            return Reason.REPLICAS_NOT_STARTING
        return Reason.REPLICAS_STARTING if self.deployments else Reason.WAITING_FOR_PLACEMENT


@dataclass(frozen=True, slots=True)
class FixedNumber:
    """The bounds allow one number of replicas."""

    reason: ClassVar[Reason] = Reason.DISABLED


@dataclass(frozen=True, slots=True)
class NumberSet:
    """spec.replicas is set."""

    replicas: int
    manager: FieldManager | None  # None: it is not recorded
    namespace: str
    name: str
    reason: ClassVar[Reason] = Reason.REPLICAS_SET


@dataclass(frozen=True, slots=True)
class NumberStays:
    """Metrics are missing or old."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class MetricsRecent:
    """The number of replicas follows the load."""

    pods_read: str  # how many of the pods the operator read; empty: Prometheus read them
    reason: ClassVar[Reason] = Reason.METRICS_FRESH


@dataclass(frozen=True, slots=True)
class WaitsForShape:
    """An older shape serves, the decided one does not yet."""

    shape: Shape | None
    reason: ClassVar[Reason] = Reason.ROLLOUT_IN_PROGRESS


@dataclass(frozen=True, slots=True)
class WaitsForPods:
    """A Deployment replaces its pods."""

    deployment: str
    why: str = ""  # it waits; empty: it goes on
    reason: ClassVar[Reason] = Reason.ROLLOUT_IN_PROGRESS


@dataclass(frozen=True, slots=True)
class AllReady:
    """Every desired replica is ready."""

    replicas: int
    reason: ClassVar[Reason] = Reason.ALL_REPLICAS_READY


@dataclass(frozen=True, slots=True)
class SomeReady:
    """The minimum is ready."""

    ready: int
    desired: int
    minimum: int
    not_placed: str  # message of `Placed`; empty: the others are placed
    reason: ClassVar[Reason] = Reason.MIN_REPLICAS_READY


@dataclass(frozen=True, slots=True)
class CheckedObjective:
    """An objective, and the bucket edge at which it is checked."""

    name: str  # TTFT | TPOT
    objective: Objective
    edge_ms: float


@dataclass(frozen=True, slots=True)
class ObjectivesMissed:
    """More requests than allowed miss an objective."""

    missed: tuple[str, ...]  # ttft, tpot
    objectives: tuple[CheckedObjective, ...]
    unreachable: tuple[str, ...]  # why more replicas do not help

    @property
    def reason(self) -> Reason:
        """The first objective that is missed."""
        return Reason.TTFT_EXCEEDED if "ttft" in self.missed else Reason.TPOT_EXCEEDED


@dataclass(frozen=True, slots=True)
class ObjectivesMet:
    """Enough requests meet the objectives."""

    objectives: tuple[CheckedObjective, ...]
    reason: ClassVar[Reason] = Reason.WITHIN_TARGET


@dataclass(frozen=True, slots=True)
class TooFewRequests:
    """The window has too few requests to tell."""

    least: int
    window_s: float
    reason: ClassVar[Reason] = Reason.INSUFFICIENT_SAMPLES


ConditionReason = (
    StatedReason
    | AcceptedWithWarnings
    | WaitsForCondition
    | MinimumAvailable
    | WaitsForDeployment
    | TooFewAvailable
    | FixedNumber
    | NumberSet
    | NumberStays
    | MetricsRecent
    | WaitsForShape
    | WaitsForPods
    | AllReady
    | SomeReady
    | ObjectivesMissed
    | ObjectivesMet
    | TooFewRequests
)
