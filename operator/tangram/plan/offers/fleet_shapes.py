"""The shapes of a fleet that serve one LLMDeployment, as the packing uses them: one format per hardware."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tangram.capacity.sizing import Constraint, ServingShape
from tangram.capacity.sizing.candidate_shapes import Device, candidate_shapes, catalog_devices
from tangram.catalog import profile
from tangram.catalog.prices import Prices
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.eligibility.shapes.serving_shapes import AssessedShapes, assessed_shapes
from tangram.fleet import ShapeKey
from tangram.packing.problem.mix import replicas_needed


def fleet_shapes(
    requirements: ServingRequirements,
    skus: Iterable[str],
    prices: Mapping[str, float],
    existing: frozenset[Device] = frozenset(),
) -> AssessedShapes:
    """Assess every shape of the SKUs; what `spec.placement` forbids is left out.

    `existing`: slices that the fleet has, assessed even where no GPU would be cut so for inference. Serving
    shapes are sorted by the cost of all the demand, the cheapest first.
    """
    among = sorted(skus)
    own = (device for device in sorted(existing) if device[0] in among and profile(*device))
    devices = dict.fromkeys((*catalog_devices(among), *own))
    shapes = candidate_shapes(
        requirements.architecture,
        devices,
        requirements.formats,
        requirements.splits,
        requirements.runtime_name,
    )
    assessed = assessed_shapes(requirements, shapes, Prices(dict(prices)))
    rejected = tuple(r for r in assessed.rejected if r.constraint is not Constraint.PLACEMENT)
    return replace(assessed, serving=_fastest_formats(requirements, assessed.serving), rejected=rejected)


def replicas(requirements: ServingRequirements, serving: ServingShape) -> int:
    """Return how many replicas of one shape serve all of the demand."""
    return replicas_needed(requirements.rps or 0.0, serving.rate, requirements.least)


def _fastest_formats(
    requirements: ServingRequirements, serving: tuple[ServingShape, ...]
) -> tuple[ServingShape, ...]:
    """Of the formats on one hardware, which cost the same, keep the fastest; the checkpoint's own on ties.

    Where replicas run on that hardware, keep theirs: a replica that stays serves no more than it does now.
    """
    best: dict[ShapeKey, ServingShape] = {}
    own, running = requirements.architecture.precision, dict(requirements.formats_running)

    def rank(candidate: ServingShape) -> tuple[bool, float, bool, str]:
        form = candidate.shape.precision
        return running.get(candidate.key, form) != form, -candidate.rate, form != own, form

    for candidate in sorted(serving, key=rank):
        best.setdefault(candidate.key, candidate)
    return tuple(sorted(best.values(), key=lambda s: (replicas(requirements, s) * s.price_per_hour, s.key)))
