"""The shapes that carry a load within its objectives, the cheapest first, and the others with what helps."""

from collections.abc import Iterable
from dataclasses import replace

from tangram.capacity.sizing.assessment_cache import AssessmentCache
from tangram.capacity.sizing.candidate_shapes import candidate_shapes, catalog_devices
from tangram.capacity.sizing.relax import relax
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.sizing.results import Rejection, SizedShape, Sizing
from tangram.catalog import skus
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.models.precision import precision
from tangram.catalog.prices import Prices
from tangram.fleet import Shape


def size(
    architecture: Architecture,
    request: SizingRequest,
    prices: Prices | None = None,
    among: Iterable[Shape] | None = None,
) -> Sizing:
    """Assess `among` (default: the whole catalog). Raises `InputError` for what no shape could serve."""
    prices = prices or Prices()
    longest = request.model_length(architecture)
    assessments = AssessmentCache(architecture, request, idle={})
    assessor = assessments.assessor(prices)
    shapes = candidate_shapes(architecture, catalog_devices(skus())) if among is None else among
    rows, rejected = [], []
    for shape in shapes:
        assessed = assessments.assessed(shape, lambda shape: prices.replica_hour(*shape.key))
        if isinstance(assessed, Rejection):
            rejected.append(replace(assessed, relaxation=relax(assessor, assessed, request)))
        else:
            rows.append(assessments.sized(assessed, prices))
    rows.sort(key=lambda row: _order(row, architecture.served_precision))
    return Sizing(request, longest, tuple(rows), tuple(rejected))


def _order(row: SizedShape, own: str) -> tuple[float, float, str, bool, int, str]:
    """Cheapest first, then the fewest GPUs, then by name; of one name what needs least conversion."""
    form = row.shape.precision
    name = str(row.shape)
    return round(row.usd_per_hour, 9), round(row.gpus, 9), name, form != own, -precision(form).bits, form
