"""Every shape assessed, the serving ones from the cheapest, the others with what would revive them."""

from collections.abc import Iterable
from dataclasses import replace

from tangram.capacity.sizing.assess import Assessor
from tangram.capacity.sizing.candidate_shapes import shapes
from tangram.capacity.sizing.relax import relax
from tangram.capacity.sizing.results import Rejection, SizedShape, Sizing, SizingRequest
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
    assessor = Assessor(architecture, prices or Prices())
    longest = request.model_length(architecture)
    found = [
        assessor.assess(shape, request) for shape in (among if among is not None else shapes(architecture))
    ]
    rows = sorted(
        (each for each in found if isinstance(each, SizedShape)),
        key=lambda row: _order(row, architecture.served_precision),
    )
    rejected = [
        replace(each, relaxation=relax(assessor, each, request))
        for each in found
        if isinstance(each, Rejection)
    ]
    return Sizing(request, longest, tuple(rows), tuple(rejected))


def _order(row: SizedShape, own: str) -> tuple[float, float, str, bool, int, str]:
    """Cheapest first, then the fewest GPUs, then by name; of one name what needs least conversion."""
    form = row.shape.precision
    name = str(row.shape)
    return round(row.usd_per_hour, 9), round(row.gpus, 9), name, form != own, -precision(form).bits, form
