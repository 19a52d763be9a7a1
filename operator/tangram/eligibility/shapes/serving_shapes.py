"""Which shapes serve an LLMDeployment, at what rate and price, and which constraint rules out each other one.

Operator, recommendation and `tangram plan` assess shapes here; each brings the devices that it looks at, and
their prices. `tangram size`, without an LLMDeployment, starts one floor below, at `AssessmentCache.assessed`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tangram.capacity.sizing import Constraint, Rejection, ServingShape, ShapeChange, SizingRequest
from tangram.capacity.sizing.assessment_cache import AssessmentCache, assessment_cache
from tangram.catalog import InputError, gpu, profile, share
from tangram.catalog.prices import Prices
from tangram.eligibility.host_resources import over_limit
from tangram.eligibility.shapes.bundled_engine import served_formats
from tangram.eligibility.shapes.evaluation_reports import report_rejection
from tangram.eligibility.shapes.serving_requirements import UNLOADED_RPS, ServingRequirements
from tangram.fleet import WHOLE_GPU, Intent, MIGPolicy, ProvisionedLoad, Shape, ShapeKey
from tangram.fleet.lengths import with_mean

_NONE: Mapping[Shape, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AssessedShapes:
    """All shapes that were looked at for one LLMDeployment, in the order in which they were given."""

    requirements: ServingRequirements
    serving: tuple[ServingShape, ...]
    rejected: tuple[Rejection, ...]
    assessments: AssessmentCache
    prices: Prices
    price_of: Callable[[Shape], float | None] = field(compare=False, repr=False)  # of one replica per hour

    def offer(self, key: ShapeKey) -> ServingShape | None:
        """Return the first shape that serves on the hardware `key`."""
        return next((serving for serving in self.serving if serving.key == key), None)

    def price(self, shape: Shape) -> float:
        """Return USD per hour of one replica on any shape, 0 without a price."""
        return self.price_of(shape) or 0.0

    def relaxation(self, rejection: Rejection) -> ShapeChange | None:
        """Return what would make a rejected shape serve; computed at the first call."""
        return self.assessments.relaxation(rejection, self.prices)

    def rate(self, shape: Shape) -> float | None:
        """Return the requests per second of one replica on any shape, whatever placement and reports allow.

        None: it does not serve, or the catalog has no such shape any more.
        """
        needs = self.requirements
        if gpu(shape.sku) is None or (shape.profile != WHOLE_GPU and not profile(shape.sku, shape.profile)):
            return None
        formats = served_formats(needs.architecture) if needs.runtime is None else needs.formats
        if shape.precision not in formats or shape.split not in needs.splits:
            return None
        assessment = self.assessments.assessment(shape)
        return None if isinstance(assessment, Rejection) or assessment.rate <= 0 else assessment.rate

    def provisioned_rate(self, shape: Shape, load: ProvisionedLoad) -> float | None:
        """Return the requests per second of one replica on any shape, of the lengths of `load` and as far as
        its correction trusts the prediction. None: no such requests are served within the objectives there.

        Where the TTFT of these lengths is out of reach, it is the rate for TPOT alone, as in the forecast.
        """
        request = _of_mean_lengths(self.requirements.request, load)
        rate = None if request is None else self._rate(shape, request)
        if rate is None and request is not None and request.ttft is not None and request.tpot is not None:
            rate = self._rate(shape, replace(request, ttft_ms=None))
        return None if rate is None else load.trusted_share * rate

    def _rate(self, shape: Shape, request: SizingRequest) -> float | None:
        needs = self.requirements
        lengths = replace(request, rps=UNLOADED_RPS)
        return replace(self, assessments=assessment_cache(needs.architecture, lengths)).rate(shape)

    def idle_ms(self, shape: Shape) -> tuple[float, float] | None:
        """Return (TTFT, TPOT) in milliseconds of a nearly idle replica, at the request's percentile."""
        latency, percentile = self.assessments.idle(shape), self.requirements.request.percentile
        if latency is None:
            return None
        return latency.ttft_s.at(percentile) * 1e3, latency.tpot_s.at(percentile) * 1e3


def assessed_shapes(
    requirements: ServingRequirements,
    shapes: Iterable[Shape],
    prices: Prices,
    price_of: Callable[[Shape], float | None] | None = None,
    excluded: Mapping[Shape, str] = _NONE,
) -> AssessedShapes:
    """Assess `shapes`: rules of placement first, then the sizing model, the price and evaluation reports.

    `price_of`: USD per hour of one replica, where that is not the price of the SKU in `prices`.
    `excluded`: shapes that no node has room for beside its GPUs, with the reason.
    """
    assessments = assessment_cache(requirements.architecture, replace(requirements.request, rps=UNLOADED_RPS))
    priced = price_of or (lambda shape: prices.replica_hour(*shape.key))
    serving: list[ServingShape] = []
    rejected: list[Rejection] = []
    for shape in shapes:
        assessed: ServingShape | Rejection
        if rule := _broken_rule(requirements, shape) or excluded.get(shape):
            assessed = Rejection(shape, Constraint.PLACEMENT, rule)
        else:
            assessed = assessments.assessed(shape, priced, lambda shape: _unproven(requirements, shape))
        if isinstance(assessed, Rejection):
            rejected.append(assessed)
        else:
            serving.append(assessed)
    return AssessedShapes(requirements, tuple(serving), tuple(rejected), assessments, prices, priced)


def _of_mean_lengths(request: SizingRequest, load: ProvisionedLoad) -> SizingRequest | None:
    """Return the request with the mean lengths of a load; None: the model takes no such requests."""
    try:
        return replace(
            request,
            input_tokens=with_mean(request.prompts, load.prompt_tokens),
            output_tokens=with_mean(request.answers, load.answer_tokens),
        )
    except InputError:
        return None


def _broken_rule(requirements: ServingRequirements, shape: Shape) -> str:
    """Return the rule of `spec.placement`, or of the operator's limits, that forbids a shape, or nothing."""
    broken = placement_rule(requirements.intent, shape)
    if broken or requirements.pod_needs is None:
        return broken
    share_of_gpu = share(*shape.key)
    return over_limit(requirements.intent.resources, requirements.pod_needs, share_of_gpu, str(shape))


def placement_rule(intent: Intent, shape: Shape) -> str:
    """Return the rule of `spec.placement` that forbids a shape, or nothing."""
    is_slice = shape.profile != WHOLE_GPU
    if shape.sku in intent.denied_skus:
        return f"placement.deniedSKUs names {shape.sku}"
    if intent.allowed_skus and shape.sku not in intent.allowed_skus:
        return f"placement.allowedSKUs does not name {shape.sku}"
    if intent.mig is MIGPolicy.FORBIDDEN and is_slice:
        return "placement.mig is Forbidden"
    if intent.mig is MIGPolicy.REQUIRED and not is_slice:
        return "placement.mig is Required"
    return ""


def _unproven(requirements: ServingRequirements, shape: Shape) -> Rejection | None:
    """Return the rejection of a quantised format that no report allows."""
    if requirements.verdicts is None or shape.precision == requirements.architecture.precision:
        return None
    return report_rejection(shape, requirements.verdicts)
