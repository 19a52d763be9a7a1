"""What each LLMDeployment could run on in this fleet: rate and price of every shape, or what kills it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tangram.capacity.sizing import Carried, Constraint, Rejection, ShapeChange
from tangram.capacity.sizing.assess import unpriced
from tangram.capacity.sizing.assessment_cache import AssessmentCache, assessment_cache
from tangram.capacity.sizing.candidate_shapes import shapes
from tangram.catalog import share
from tangram.catalog.prices import Prices
from tangram.eligibility.shapes.evaluation_reports import NOT_EVALUATED, refused
from tangram.eligibility.shapes.serving_requirements import ANY, AS_STORED, UNLOADED_RPS, ServingRequirements
from tangram.fleet import MIGPolicy, Shape, ShapeKey
from tangram.packing import Offer
from tangram.packing.problem.mix import replicas_needed

Slices = frozenset[tuple[str, str]]  # (SKU, profile)


@dataclass(frozen=True, slots=True)
class ServingShape:
    """One shape that serves: what one replica carries within the objectives, and costs."""

    shape: Shape
    rate: float  # requests per second
    price_per_hour: float  # USD, by dominant share
    unverified: tuple[str, ...] = ()

    @property
    def key(self) -> ShapeKey:
        """What the packing knows it by."""
        return self.shape.key

    @property
    def offer(self) -> Offer:
        """What the packing may choose."""
        return Offer(*self.key, self.rate, self.price_per_hour, self.shape.precision)


@dataclass(frozen=True, slots=True)
class Assessed:
    """All shapes of one model in one fleet for one kind of traffic, whatever its amount."""

    rejected: tuple[Rejection, ...]
    assessment_cache: AssessmentCache
    prices: Prices

    def relaxation(self, rejection: Rejection) -> ShapeChange | None:
        """Return what would make a rejected shape serve; found when somebody asks."""
        return self.assessment_cache.relaxation(rejection, self.prices)


@dataclass(frozen=True, slots=True)
class AssessedShapes:
    """All shapes of one LLMDeployment."""

    requirements: ServingRequirements
    offers: tuple[ServingShape, ...]  # cheapest for its traffic first, one format per piece of hardware
    assessed: Assessed

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """Shapes that do not serve it."""
        return self.assessed.rejected

    def offer(self, key: ShapeKey) -> ServingShape | None:
        """Return the offer that stands on `key`."""
        return next((offer for offer in self.offers if offer.key == key), None)


def assessed_shapes(
    wanted: ServingRequirements, skus: Iterable[str], prices: Mapping[str, float], there: Slices = frozenset()
) -> AssessedShapes:
    """Assess every shape that the fleet's GPUs allow and the LLMDeployment does not forbid.

    `there`: slices that the fleet has, looked at even where nobody would cut a GPU so for inference.
    """
    known = assessment_cache(wanted.architecture, replace(wanted.request, rps=UNLOADED_RPS))
    per_gpu, offers, rejected = Prices(dict(prices)), [], []
    for shape in _candidates(wanted, skus, there):
        found = known.assessment(shape)
        per_hour = per_gpu.replica_hour(shape.sku, shape.profile, shape.tensor_parallel)
        found = _refused(wanted, shape) or found if isinstance(found, Carried) else found
        if isinstance(found, Rejection):
            rejected.append(found)
        elif per_hour is None:
            rejected.append(unpriced(shape))
        else:
            offers.append(ServingShape(shape, found.rate, per_hour, found.unverified))
    return AssessedShapes(wanted, _fastest_formats(wanted, offers), Assessed(tuple(rejected), known, per_gpu))


def _candidates(wanted: ServingRequirements, skus: Iterable[str], there: Slices) -> tuple[Shape, ...]:
    among = tuple(
        sku
        for sku in sorted(skus)
        if sku not in wanted.denied_skus and (not wanted.allowed_skus or sku in wanted.allowed_skus)
    )
    if not among:
        return ()
    formats = wanted.formats if wanted.precision == ANY else (_format(wanted),)
    slices = wanted.mig is not MIGPolicy.FORBIDDEN
    found = list(
        shapes(
            wanted.architecture,
            among,
            formats,
            wanted.tensor_parallel,
            whole=wanted.mig is not MIGPolicy.REQUIRED,
            slices=slices,
        )
    )
    known = {(shape.sku, shape.profile) for shape in found}
    for sku, profile in sorted(there) if slices else ():
        if sku in among and (sku, profile) not in known:
            tp = wanted.tensor_parallel
            found += shapes(wanted.architecture, (sku,), formats, tp, whole=False, profile=profile)
    return tuple(
        shape
        for shape in found
        if share(shape.sku, shape.profile, shape.tensor_parallel) > wanted.minimum_share
    )


def _refused(wanted: ServingRequirements, shape: Shape) -> Rejection | None:
    """Return why a quantised format that serves may not be used, None where it may."""
    if wanted.verdicts is None or shape.precision == wanted.architecture.precision:
        return None
    known = {(sku, form): missed for sku, form, missed in wanted.verdicts}
    reason, message = refused(shape.sku, shape.precision, known.get((shape.sku, shape.precision)))
    constraint = Constraint.EVALUATION if reason == NOT_EVALUATED else Constraint.TOLERANCE
    return Rejection(shape, constraint, message, excess=1.0) if reason else None


def _format(wanted: ServingRequirements) -> str:
    return wanted.architecture.precision if wanted.precision == AS_STORED else wanted.precision


def _fastest_formats(wanted: ServingRequirements, offers: list[ServingShape]) -> tuple[ServingShape, ...]:
    """Of the formats on one shape, which cost the same, keep the fastest; the checkpoint's own on ties.

    Where replicas run on that shape, keep theirs: a replica that stays serves no more than it does now.
    """
    best: dict[ShapeKey, ServingShape] = {}
    own, running = wanted.architecture.precision, dict(wanted.formats_running)

    def rank(offer: ServingShape) -> tuple[bool, float, bool, str]:
        form = offer.shape.precision
        return running.get(offer.key, form) != form, -offer.rate, form != own, form

    for offer in sorted(offers, key=rank):
        best.setdefault(offer.key, offer)
    return tuple(sorted(best.values(), key=lambda o: (replicas(wanted, o) * o.price_per_hour, o.key)))


def replicas(wanted: ServingRequirements, offer: ServingShape) -> int:
    """Return how many replicas of one shape serve all of the demand."""
    return replicas_needed(wanted.rps or 0.0, offer.rate, wanted.least)
