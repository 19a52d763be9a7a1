"""Assessments of one model under one kind of traffic, kept from round to round of a process.

What one replica carries depends neither on the amount of traffic nor on prices. So what varies from minute
to minute is in no key, and the cache grows with models and shapes, never with time: measured lengths come in
steps of a tenth.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from tangram.capacity.load.latency import Latency
from tangram.capacity.memory.budget import MemoryBudget
from tangram.capacity.sizing.assess import Assessor, FittingShape, Footprints, IdleLatencies, unpriced
from tangram.capacity.sizing.relax import relax
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.sizing.results import Rejection, ServingShape, ShapeChange, SizedShape
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.prices import Prices
from tangram.fleet import Shape

# Several times those of a large fleet. Twenty shapes of one kind of traffic take about 10 KB.
MODELS, KINDS = 512, 2048


def _no_objection(_shape: Shape) -> Rejection | None:
    return None


class AssessmentCache:
    """A model under one kind of traffic. Each shape is assessed once, when it is first needed.

    `idle`: where its assessors keep idle latencies, for a cache that does not outlive a command.
    """

    def __init__(
        self, architecture: Architecture, request: SizingRequest, idle: IdleLatencies | None = None
    ) -> None:
        self.architecture = architecture
        self.request = request
        self._footprints = _footprints(architecture)
        self._idle_latencies = idle
        self._assessments: dict[Shape, ServingShape | Rejection] = {}
        self._idle: dict[Shape, Latency | None] = {}
        self._budgets: dict[Shape, MemoryBudget] = {}
        self._relaxed: dict[tuple[Shape, bool], ShapeChange | None] = {}

    def assessed(
        self,
        shape: Shape,
        price_of: Callable[[Shape], float | None],
        objection: Callable[[Shape], Rejection | None] = _no_objection,
    ) -> ServingShape | Rejection:
        """Return a shape that serves, with its price, or its rejection: by the sizing model, else for want
        of a price, else by the `objection` of the caller. `price_of`: USD per hour of one replica.
        """
        assessment = self.assessment(shape)
        if isinstance(assessment, Rejection):
            return assessment
        price = price_of(shape)
        if price is None:
            return unpriced(shape)
        return objection(shape) or replace(assessment, price_per_hour=price)

    def assessment(self, shape: Shape) -> ServingShape | Rejection:
        """Return what a replica carries on a shape, unpriced, or the constraint that rules it out."""
        if shape not in self._assessments:
            fitted = _fitted(self, shape)
            self._assessments[shape] = (
                fitted if isinstance(fitted, Rejection) else self.assessor().serving(fitted)
            )
        return self._assessments[shape]

    def idle(self, shape: Shape) -> Latency | None:
        """Return the latency of a nearly idle replica, None where the model does not fit."""
        if shape not in self._idle:
            fitted = _fitted(self, shape)
            self._idle[shape] = None if isinstance(fitted, Rejection) else fitted.idle
        return self._idle[shape]

    def budget(self, shape: Shape) -> MemoryBudget:
        """Return the memory account of a rank, whether or not it fits. Raises `InputError` as `footprint`."""
        if shape not in self._budgets:
            self._budgets[shape] = self.assessor().budget(shape, self.request)
        return self._budgets[shape]

    def relaxation(self, rejection: Rejection, prices: Prices) -> ShapeChange | None:
        """Return what would make a rejected shape serve, a price among it where it has none."""
        key = (rejection.shape, prices.gpu_hour(rejection.shape.sku) is None)
        if key not in self._relaxed:
            self._relaxed[key] = relax(self.assessor(prices), rejection, self.request)
        return self._relaxed[key]

    def sized(self, serving: ServingShape, prices: Prices) -> SizedShape:
        """Return the replicas of a serving shape that carry the load of the request."""
        fitted = _fitted(self, serving.shape)
        assert not isinstance(fitted, Rejection)  # noqa: S101 - what serves fits
        return self.assessor(prices).sized(fitted, serving)

    def fit(self, shape: Shape) -> FittingShape | Rejection:
        """Return a shape ready for the search of its rate, or why the model does not fit."""
        return self.assessor().fit(shape, self.request)

    def assessor(self, prices: Prices = Prices()) -> Assessor:  # noqa: B008 - it is a value
        """Return an assessor with the footprints of the model; what else it keeps goes with it."""
        idle = {} if self._idle_latencies is None else self._idle_latencies
        return Assessor(self.architecture, prices, self._footprints, idle)


@lru_cache(maxsize=KINDS)
def assessment_cache(architecture: Architecture, request: SizingRequest) -> AssessmentCache:
    """Return the cache of one model and one kind of traffic. Callers must give one `request.rps` for all."""
    return AssessmentCache(architecture, request)


@lru_cache(maxsize=MODELS)
def _footprints(architecture: Architecture) -> Footprints:
    """Return the footprints of a model's ranks, filled by the assessors of all kinds of traffic."""
    return {}


@lru_cache(maxsize=4)
def _fitted(assessments: AssessmentCache, shape: Shape) -> FittingShape | Rejection:
    """Keep the last few: the rate and the idle latency of one shape are often needed one after the other."""
    return assessments.fit(shape)
