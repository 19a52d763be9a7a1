"""What sizing returns: shapes that serve, with what one replica carries, and the others with the reason."""

import math
from dataclasses import dataclass
from enum import StrEnum

from tangram.capacity.hardware import Hardware
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import Latency
from tangram.capacity.memory.budget import MemoryBudget
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.steps.calibration import Calibrated
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import share
from tangram.fleet import Shape, ShapeKey


class Constraint(StrEnum):
    """What rules a shape out, in the order of the checks."""

    PLACEMENT = "placement"  # spec.placement, or the CPU and memory that a replica may take of its node
    PRECISION = "precision"
    TENSOR_PARALLEL = "tensor parallel"
    MEMORY_UNKNOWN = "memory unknown"
    MEMORY = "memory"
    TTFT = "TTFT"
    TPOT = "TPOT"
    PRICE = "price"
    EVALUATION = "evaluation"  # of a quantised format that has no report yet
    TOLERANCE = "tolerance"  # of a quantised format whose report is outside of it

    @property
    def reason(self) -> str:
        """The word for it in plans and statuses."""
        return _REASONS[self]


_REASONS = {
    Constraint.PLACEMENT: "NotAllowed",
    Constraint.PRECISION: "Precision",
    Constraint.TENSOR_PARALLEL: "TensorParallel",
    Constraint.MEMORY_UNKNOWN: "MemoryUnknown",
    Constraint.MEMORY: "DoesNotFit",
    Constraint.TTFT: "TTFT",
    Constraint.TPOT: "TPOT",
    Constraint.PRICE: "NoPrice",
    Constraint.EVALUATION: "NotEvaluated",
    Constraint.TOLERANCE: "OutOfTolerance",
}


@dataclass(frozen=True, slots=True)
class ServingShape:
    """A shape that serves within the objectives: what one replica carries, whatever the load, and costs."""

    shape: Shape
    rate: float  # requests per second
    price_per_hour: float  # USD, by dominant share; 0 before it is priced
    unverified: tuple[str, ...] = ()  # as of `SizedShape`

    @property
    def key(self) -> ShapeKey:
        """Its hardware."""
        return self.shape.key


@dataclass(frozen=True, slots=True)
class SizedShape:
    """A shape that serves the load within its objectives. Seconds, bytes (of one rank), USD."""

    shape: Shape
    hardware: Hardware
    budget: MemoryBudget
    model: StepModel
    limits: EngineLimits
    calibrated: Calibrated
    concurrent: int  # requests of P90 length that memory and limits hold at once
    max_rate: float  # requests per second of one replica that meets the objectives
    replicas: int
    latency: Latency  # of one replica under its part of the load
    ttft_s: float  # at the request's percentile
    tpot_s: float
    wall: str  # what keeps one replica from carrying more
    usd_per_hour: float  # all replicas
    usd_per_million_tokens: float  # generated tokens, at the load asked for
    default_price: bool
    kv_per_request: float  # bytes of cache on a rank of a running request, on average
    unverified: tuple[str, ...]  # neither measured nor stated by a source: outputs mark it

    @property
    def gpus(self) -> float:
        """GPUs that all replicas use up; a slice counts as its dominant share."""
        return self.replicas * share(self.shape.sku, self.shape.profile, self.shape.gpus)

    @property
    def kv_used(self) -> float:
        """Bytes of cache on a rank that running requests hold at the load asked for, on average."""
        return min(float(self.budget.kv), self.latency.concurrency * self.kv_per_request)


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """A change that makes a rejected shape serve, of one kind if there is one. It was tried."""

    changes: tuple[tuple[str, str], ...]  # (what as the request or shape calls it, to what)
    text: str  # "TPOT 53 ms"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A shape that does not serve, and the first constraint that rules it out."""

    shape: Shape
    constraint: Constraint
    message: str
    excess: float = math.inf  # found over limit: 1.2 needs 20 % more than there is; infinite: not a quantity
    relaxation: ShapeChange | None = None  # None: nothing that was tried revives it


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer: rows from the cheapest, and every other shape with its reason."""

    request: SizingRequest
    max_model_len: int
    rows: tuple[SizedShape, ...]
    rejected: tuple[Rejection, ...]
