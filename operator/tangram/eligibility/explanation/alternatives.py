"""Other shapes that an LLMDeployment could run on, each with the one reason against it."""

from collections.abc import Callable
from dataclasses import dataclass

from tangram.capacity.sizing import Constraint, Rejection, ServingShape
from tangram.eligibility.explanation.shape_reasons import ShapeReason
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import Shape, ShapeKey

_MOST = 5
_LEAST_SERVING = 3  # of these at least, shapes that serve, where there are so many
_UNPROVEN = (Constraint.EVALUATION, Constraint.TOLERANCE)  # of a format, beside another one that serves

# The number of replicas that a shape would need, and what is against it.
Against = Callable[[ServingShape], tuple[int, ShapeReason]]


@dataclass(frozen=True, slots=True)
class UnusedShape:
    """Another shape that an LLMDeployment could run on, and the one reason against it."""

    shape: Shape
    replicas: int  # that would be needed, or the minimum where the shape cannot serve
    cost_per_hour: float  # USD of all of them; 0 where no price is known
    reason: ShapeReason | Rejection


def unused_shapes(
    assessed: AssessedShapes, is_used: Callable[[ServingShape], bool], against: Against
) -> tuple[UnusedShape, ...]:
    """Return up to five: the cheapest shapes that serve, then those nearest to serving."""
    serving = []
    for offer in assessed.serving:
        if not is_used(offer):
            count, reason = against(offer)
            serving.append(UnusedShape(offer.shape, count, count * offer.price_per_hour, reason))
    serving.sort(key=lambda other: (other.cost_per_hour, other.shape))
    nearest = _nearest_rejections(assessed)
    most_serving = max(_LEAST_SERVING, _MOST - len(nearest))
    count = max(1, assessed.requirements.least)
    rejected = [UnusedShape(r.shape, count, count * assessed.price(r.shape), r) for r in nearest]
    return tuple((serving[:most_serving] + rejected)[:_MOST])


def _nearest_rejections(assessed: AssessedShapes) -> list[Rejection]:
    """Return the rejected shapes, one of each hardware that does not serve, the nearest to serving first."""
    serving, by_shape = {offer.key for offer in assessed.serving}, dict[ShapeKey, Rejection]()
    for rejection in sorted(assessed.rejected, key=lambda r: (r.excess, str(r.shape), r.shape.precision)):
        if rejection.shape.key not in serving or rejection.constraint in _UNPROVEN:
            by_shape.setdefault(rejection.shape.key, rejection)
    return list(by_shape.values())
