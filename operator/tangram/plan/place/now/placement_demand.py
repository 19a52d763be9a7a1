"""One LLMDeployment to be placed: its candidate shapes, what runs, how many replicas each shape needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.capacity.sizing import Constraint, Rejection, ServingShape
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import (
    CheckpointFacts,
    Intent,
    ProvisionedLoad,
    ReplicaMove,
    Shape,
    Spread,
    Workload,
    replicas_for,
)
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.reasons.placement import (
    BackedOff,
    FailedOnSeveralShapes,
    LimitCause,
    NotReadyInTime,
    StartFailure,
)

NO_LIMIT = 10**9
# Share of its cost that a move from the checkpoint's format to a quantised one has to save.
WORTH_A_MOVE = 0.1


@dataclass(frozen=True, slots=True)
class ReplicaLimit:
    """Most replicas of one shape for now, by quota or back-off, however many devices are free."""

    replicas: int
    cause: LimitCause

    @property
    def back_off(self) -> BackedOff | None:
        """The back-off that causes it."""
        return self.cause if isinstance(self.cause, BackedOff) else None


@dataclass(frozen=True, slots=True)
class AvoidedShapes:
    """Shapes on which replicas do not become ready, so that others are used."""

    reasons: Mapping[Shape, NotReadyInTime | FailedOnSeveralShapes] = field(default_factory=dict)
    ends_replicas: bool = False  # their replicas end before others are ready
    is_final: bool = False  # replicas of two shapes failed: the cause is not a shape
    failure: StartFailure | None = None


@dataclass(frozen=True, slots=True)
class PlacementDemand:
    """An LLMDeployment that is accepted, not paused, and whose checkpoint is known."""

    intent: Intent
    facts: CheckpointFacts
    shapes: AssessedShapes
    workloads: tuple[Workload, ...]  # its Deployments
    desired: int  # replicas of `desired_shape` by the scaling law
    desired_shape: Shape | None = None  # None: the shape that it runs on
    is_refused: bool = False  # the API server refuses its Deployment, or an object that this needs
    move: ReplicaMove | None = None  # its replicas leave GPUs that are cut anew
    limits: Mapping[Shape, ReplicaLimit] = field(default_factory=dict)
    load: ProvisionedLoad | None = None  # that `desired` carries, by the scaling law; None: not known
    avoided: AvoidedShapes = AvoidedShapes()

    @property
    def uid(self) -> str:
        """UID of the LLMDeployment."""
        return self.intent.uid

    @property
    def usable(self) -> tuple[ServingShape, ...]:
        """Shapes that may be used, cheapest first."""
        return self.shapes.serving

    @property
    def choosable(self) -> tuple[ServingShape, ...]:
        """Shapes that may be used and are not avoided, cheapest first."""
        return tuple(c for c in self.usable if c.shape not in self.avoided.reasons)

    def cheaper_formats(self, current: ServingShape) -> tuple[ServingShape, ...]:
        """Return the candidates in a quantised format that save enough to leave `current` for them.

        A model starts in the checkpoint's own format until there is an evaluation report, and is never moved
        back to it for money. A move that has begun goes on while it saves anything: a load that varies about
        the threshold would begin and undo it for ever.
        """
        own, cost = self.facts.dtype, self.cost(current)
        if current.shape.precision != own:
            return ()
        return tuple(
            c
            for c in self.choosable
            if c.shape.precision != own
            and self.cost(c) <= cost * (1 if self.workload_on(c.shape) else 1 - WORTH_A_MOVE)
            # No move for money to a shape on which the measured requests are predicted to miss.
            and (self.load is None or self.replicas_for_load(c.shape) is not None)
        )

    def cost(self, candidate: ServingShape | Rejection) -> float:
        """USD per hour of the replicas that it would need of a candidate."""
        return self.replicas_needed(candidate) * self.shapes.price(candidate.shape)

    @property
    def too_slow_but_serving(self) -> ServingShape | None:
        """The candidate that serves though it is predicted to miss an objective, if none may be used.

        It keeps its replicas: a prediction ends no replica that serves.
        """
        if self.usable:
            return None
        slow = (r.shape for r in self.shapes.rejected if r.constraint in (Constraint.TPOT, Constraint.TTFT))
        best = max(slow, key=self.available_on, default=None)
        if best is None or not self.available_on(best):
            return None
        return ServingShape(best, 0.0, self.shapes.price(best))

    def max_replicas(self, shape: Shape) -> int:
        """Most replicas of a shape, by quota and back-off."""
        return self.limits[shape].replicas if shape in self.limits else NO_LIMIT

    def available_on(self, shape: Shape) -> int:
        """Replicas of a shape that serve."""
        workload = self.workload_on(shape)
        return workload.available if workload else 0

    @property
    def is_serving(self) -> bool:
        """Whether a replica of any shape is available."""
        return any(workload.available for workload in self.workloads)

    def workload_on(self, shape: Shape) -> Workload | None:
        """Return its Deployment on `shape`."""
        return next((workload for workload in self.workloads if workload.shape == shape), None)

    def replicas_needed(self, candidate: ServingShape | Rejection) -> int:
        """Return how many replicas of a candidate carry the load for which `desired` was decided.

        By the measured load where the scaling law knows it, else by the rates for the lengths of the spec.
        """
        shape, intent = candidate.shape, self.intent
        if shape == self.desired_shape or (self.desired_shape is None and self.workload_on(shape)):
            return self.desired
        measured = self.replicas_for_load(shape)
        if measured is not None:
            return min(max(measured, intent.min_replicas), intent.max_replicas)
        needed_rate = self._desired_rate()
        if needed_rate is None:
            needed_rate = intent.traffic.requests_per_second or None
        replica_rate = None if needed_rate is None else self.shapes.rate(shape)
        if needed_rate is None or replica_rate is None:
            return self.desired
        lowest = intent.min_replicas if self.reference_shape else self.desired
        return min(max(replicas_for(needed_rate, replica_rate), lowest), intent.max_replicas)

    def replicas_for_load(self, shape: Shape) -> int | None:
        """Return how many replicas of any shape carry the measured load; None: unknown."""
        replica_rate = None if self.load is None else self.shapes.provisioned_rate(shape, self.load)
        if self.load is None or replica_rate is None:
            return None
        return replicas_for(self.load.requests_per_second, replica_rate)

    def _desired_rate(self) -> float | None:
        """Requests per second that the desired replicas carry; None: unknown, or only the minimum is desired.

        Shortage does not lower it: desired replicas count, not running ones.
        """
        shape, intent = self.reference_shape, self.intent
        if shape is None:
            return None
        if self.desired <= intent.min_replicas and not intent.traffic.requests_per_second:
            return None
        replica_rate = self.shapes.rate(shape)
        return None if replica_rate is None else self.desired * replica_rate

    @property
    def reference_shape(self) -> Shape | None:
        """The shape that `desired` counts; None: nothing runs yet."""
        if self.desired_shape is not None or not self.workloads:
            return self.desired_shape
        return min(self.workloads, key=lambda w: (-w.available, -w.replicas, w.shape)).shape

    def devices_held(self, shape: Shape, devices: FreeDevices) -> int:
        """Its replicas of `shape` that have devices, without those of its other shapes on equal devices."""
        held = devices.count_held(self.uid, shape)
        others = (w for w in self.workloads if w.shape != shape and w.shape.devices == shape.devices)
        return max(0, held - sum(w.replicas for w in others))

    def devices_for(self, shape: Shape, devices: FreeDevices) -> int:
        """Its replicas of `shape` that have devices or may get some."""
        return self.devices_held(shape, devices) + devices.count_free(self.uid, shape)

    def can_spread(self, shape: Shape, count: int, devices: FreeDevices) -> bool:
        """Whether `count` replicas of `shape` could keep to placement.spread."""
        spread = self.intent.spread
        return spread == Spread() or devices.can_spread(self.uid, shape, count, spread)
