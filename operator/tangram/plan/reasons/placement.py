"""Why a plan places replicas as it does: frozen records with numbers, no text. `words` makes the sentences.

A record with a `reason` is a condition `Placed`. The others are notes behind its sentence.
"""

from dataclasses import dataclass
from typing import ClassVar

from tangram.capacity.sizing import ServingShape
from tangram.eligibility.explanation.no_serving_shape import NoServingShape
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import BackOff, FailedChanges, Node, QuotaLimit, Shape, ShapeKey, Unscheduled


@dataclass(frozen=True, slots=True)
class QuotaBinds:
    """A ResourceQuota allows no more pods."""

    limit: QuotaLimit
    reason: ClassVar[Reason] = Reason.QUOTA_EXCEEDED


@dataclass(frozen=True, slots=True)
class NamespaceRefusesPods:
    """Pods of other LLMDeployments in the namespace are refused."""

    namespace: str
    reason: ClassVar[Reason] = Reason.FAILED_CREATE


@dataclass(frozen=True, slots=True)
class DeploymentRefused:
    """The API server refuses the Deployment."""

    message: str
    reason: ClassVar[Reason] = Reason.FAILED_CREATE


@dataclass(frozen=True, slots=True)
class BackedOff:
    """A shape is in back-off."""

    back_off: BackOff
    is_over: bool  # one more replica is started to try it

    @property
    def reason(self) -> Reason:
        """Why it is in back-off."""
        return Reason(self.back_off.reason)


LimitCause = QuotaBinds | NamespaceRefusesPods | DeploymentRefused | BackedOff


@dataclass(frozen=True, slots=True)
class NotReadyInTime:
    """No replica of a shape became ready by its deadline."""

    back_off: BackOff


@dataclass(frozen=True, slots=True)
class NoOtherShapeIsFree:
    """Replicas do not become ready, and no other shape has free devices."""

    failures: tuple[NotReadyInTime, ...]


@dataclass(frozen=True, slots=True)
class OtherShapeIsUsed:
    """Replicas do not become ready, and another shape serves meanwhile."""

    failures: tuple[NotReadyInTime, ...]
    until: float  # epoch seconds


@dataclass(frozen=True, slots=True)
class FailedOnSeveralShapes:
    """Replicas of several shapes do not become ready: only the first of these shapes is used."""

    shapes: tuple[Shape, ...]
    used: Shape


StartFailure = NoOtherShapeIsFree | OtherShapeIsUsed | FailedOnSeveralShapes


@dataclass(frozen=True, slots=True)
class BudgetBinds:
    """placement.budgetPerHour allows no more replicas."""

    budget_per_hour: float  # USD
    allowed: int
    desired: int
    shape: ServingShape
    others_per_hour: float  # USD of replicas on other shapes until then
    reason: ClassVar[Reason] = Reason.OVER_BUDGET


@dataclass(frozen=True, slots=True)
class LimitBinds:
    """A quota, a back-off or a refusal allows no more replicas."""

    cause: LimitCause
    next_try: float | None = None  # epoch seconds, where all shapes are in back-off
    shapes_in_back_off: int = 0

    @property
    def reason(self) -> Reason:
        """Why no more replicas are allowed."""
        return self.cause.reason


@dataclass(frozen=True, slots=True)
class WaitsForCuts:
    """GPUs are being cut for replicas."""

    replicas: int
    shape: Shape
    nodes: tuple[str, ...]  # sorted
    plans: tuple[str, ...]  # FleetPlans, sorted; none: the GPUNodes alone say so
    until: float  # epoch seconds
    reason: ClassVar[Reason] = Reason.WAITING_FOR_SLICES


@dataclass(frozen=True, slots=True)
class NoFreeDevice:
    """Replicas have no device."""

    replicas: int
    shape: Shape
    pools: tuple[str, ...]  # GPUPools to which placement.pools confines them
    left_out: tuple[Node, ...]  # with devices that no new replica is given
    reason: ClassVar[Reason] = Reason.INSUFFICIENT_CAPACITY


@dataclass(frozen=True, slots=True)
class NoneOfThePools:
    """None of placement.pools exists."""

    pools: tuple[str, ...]
    reason: ClassVar[Reason] = Reason.INSUFFICIENT_CAPACITY


@dataclass(frozen=True, slots=True)
class SomePlaced:
    """Fewer replicas than desired are placed."""

    placed: int
    desired: int
    shape: Shape | None  # where replicas of other shapes serve, too
    why: LimitBinds | BudgetBinds | WaitsForCuts | NoFreeDevice | NoneOfThePools

    @property
    def reason(self) -> Reason:
        """Why the others are not placed."""
        return self.why.reason


@dataclass(frozen=True, slots=True)
class PodsUnscheduled:
    """Pods find no node although a device is free."""

    shape: Shape
    replicas: int
    unscheduled: Unscheduled
    due: float  # epoch seconds from which on another shape is tried
    reason: ClassVar[Reason] = Reason.UNSCHEDULABLE


@dataclass(frozen=True, slots=True)
class AllPlaced:
    """Each replica has a device."""

    replicas: int
    shape: ServingShape
    tpot_ms: float | None  # of a nearly idle replica
    requests_per_second: float  # of all replicas; 0: not predicted
    unverified_sku: str  # whose numbers in the catalog are not verified; empty: they are
    reason: ClassVar[Reason] = Reason.PLACED


@dataclass(frozen=True, slots=True)
class NoDeviceOffered:
    """No node offers a device that the catalog knows."""

    unknown_pools: tuple[str, ...]  # of placement.pools, sorted
    pools: tuple[str, ...]  # placement.pools
    has_nodes: bool
    left_out: tuple[Node, ...]
    serving: tuple[Shape, ...]  # on which replicas go on
    reason: ClassVar[Reason] = Reason.INSUFFICIENT_CAPACITY


@dataclass(frozen=True, slots=True)
class NoShapeServes:
    """No shape of the fleet serves."""

    assessed: AssessedShapes
    why: NoServingShape
    left_out: tuple[Node, ...]
    serving: tuple[Shape, ...]

    @property
    def reason(self) -> Reason:
        """Why none serves."""
        return self.why.reason


PlacedReason = AllPlaced | SomePlaced | LimitCause | PodsUnscheduled | NoDeviceOffered | NoShapeServes


@dataclass(frozen=True, slots=True)
class SpecNotAccepted:
    """No spec is in force."""

    is_running: bool  # replicas stay
    reason: ClassVar[Reason] = Reason.NOT_ACCEPTED


@dataclass(frozen=True, slots=True)
class WaitsForPlan:
    """The plan of the fleet may cut GPUs for it."""

    until: float  # epoch seconds
    reason: ClassVar[Reason] = Reason.WAITING_FOR_SLICES


@dataclass(frozen=True, slots=True)
class WaitsForConsent:
    """A FleetPlan that waits for a person would serve it."""

    plan: str
    without_it: str  # message of `Placed` if no person approves
    reason: ClassVar[Reason] = Reason.WAITING_FOR_CONSENT


@dataclass(frozen=True, slots=True)
class CannotMove:
    """Replicas are to move to a shape that is none of their candidates."""

    shape: ShapeKey


@dataclass(frozen=True, slots=True)
class NoLargeEnoughHost:
    """No node that offers the device has the CPU and memory of one pod."""

    shape: Shape
    cpu: float  # cores that the pod requests
    memory: float  # bytes
    hosts: tuple[tuple[float, float], ...]  # cores and bytes of the largest nodes; infinite: not known


@dataclass(frozen=True, slots=True)
class RolloutWaits:
    """A rollout waits for one more pod, or for its device."""

    shape: Shape
    cause: LimitCause | None  # None: no device is free


@dataclass(frozen=True, slots=True)
class WaitsForMinimum:
    """No move begins before the minimum of replicas has free devices."""

    replicas: int


@dataclass(frozen=True, slots=True)
class AssignedByPriority:
    """The joint assignment failed: a bug."""

    failure: str


@dataclass(frozen=True, slots=True)
class KeptReplicas:
    """Replicas of other shapes stay until enough of the chosen shape are available."""

    counts: tuple[tuple[int, Shape], ...]
    chosen: Shape


@dataclass(frozen=True, slots=True)
class RunsWhereNoneIsPlaced:
    """Replicas run where no new one is placed."""

    replicas: int
    without_device: int  # if they end
    shape: Shape
    nodes: tuple[Node, ...]  # with devices that no new replica is given
    are_outside: bool  # of placement.pools, or on nodes that are not known
    pools: tuple[str, ...]


PlacementNote = (
    RolloutWaits
    | WaitsForMinimum
    | AssignedByPriority
    | StartFailure
    | KeptReplicas
    | FailedChanges
    | RunsWhereNoneIsPlaced
)
