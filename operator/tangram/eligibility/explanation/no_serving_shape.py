"""Why no shape of a fleet serves an LLMDeployment: the nearest shape, and by how much it misses."""

from dataclasses import dataclass
from typing import ClassVar

from tangram.capacity.sizing import Constraint, Rejection
from tangram.eligibility.reasons import Reason
from tangram.eligibility.shapes.serving_shapes import AssessedShapes


@dataclass(frozen=True, slots=True)
class UnevaluatedFormats:
    """Only quantised formats without an evaluation report would serve."""

    formats: tuple[str, ...]  # sorted
    reason: ClassVar[Reason] = Reason.EVALUATING


@dataclass(frozen=True, slots=True)
class UnreachableObjective:
    """Each shape that the model fits misses an objective, even when idle."""

    nearest: Rejection  # by the objective that `constraint` names
    reachable_ms: float  # on the nearest shape
    reason: ClassVar[Reason] = Reason.SLO_UNREACHABLE


@dataclass(frozen=True, slots=True)
class TooLittleMemory:
    """No shape has enough memory for the model and one request."""

    nearest: Rejection
    missing_bytes: float  # 0: only requests do not fit
    reason: ClassVar[Reason] = Reason.INFEASIBLE


@dataclass(frozen=True, slots=True)
class AllRuledOut:
    """Each shape has a reason of its own."""

    rejections: tuple[Rejection, ...]  # not empty
    reason: ClassVar[Reason] = Reason.INFEASIBLE


NoServingShape = UnevaluatedFormats | UnreachableObjective | TooLittleMemory | AllRuledOut


def no_serving_shape(assessed: AssessedShapes) -> NoServingShape | None:
    """Return why no shape serves; None: no shape was assessed."""
    rejected = assessed.rejected
    if not rejected:
        return None
    formats = {r.shape.precision for r in rejected if r.constraint is Constraint.EVALUATION}
    if formats:
        return UnevaluatedFormats(tuple(sorted(formats)))
    unreachable = _unreachable_objective(assessed)
    if unreachable is not None:
        return unreachable
    small = [(missing_bytes(assessed, r), r.shape, r) for r in rejected if r.constraint is Constraint.MEMORY]
    if small:
        missing, _, nearest = min(small, key=lambda each: each[:2])
        return TooLittleMemory(nearest, missing)
    return AllRuledOut(rejected)


def nearest_rejection(assessed: AssessedShapes) -> Rejection | None:
    """Return the rejected shape that lacks least, in relation to what it has; None: none was assessed."""
    return min(assessed.rejected, key=lambda r: (r.excess, str(r.shape)), default=None)


def missing_bytes(assessed: AssessedShapes, rejection: Rejection) -> float:
    """Return the memory that a shape lacks for the model; 0 where only requests do not fit."""
    fits = assessed.idle_ms(rejection.shape) is not None
    return 0.0 if fits else assessed.assessments.budget(rejection.shape).missing


def _unreachable_objective(assessed: AssessedShapes) -> UnreachableObjective | None:
    """Return the objective that no shape reaches that the model fits; None: none is out of reach."""
    for constraint, number in ((Constraint.TPOT, 1), (Constraint.TTFT, 0)):
        reached = [
            (idle[number], rejection.shape, rejection)
            for rejection in assessed.rejected
            if rejection.constraint is constraint and (idle := assessed.idle_ms(rejection.shape))
        ]
        if reached:
            milliseconds, _, nearest = min(reached, key=lambda each: each[:2])
            return UnreachableObjective(nearest, milliseconds)
    return None
