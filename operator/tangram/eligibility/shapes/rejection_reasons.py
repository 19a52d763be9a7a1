"""The one word by which plans name the constraint that rules a shape out."""

from tangram.capacity.sizing import Constraint

REASONS = {
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
