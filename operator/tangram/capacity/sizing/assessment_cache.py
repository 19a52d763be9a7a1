"""What is known about a model under one kind of traffic, kept from round to round of a process.

What one replica carries depends neither on how much traffic there is nor on prices. So what varies from
minute to minute is in no key, and what is kept grows with models and shapes, never with time.
"""

from functools import lru_cache

from tangram.capacity.load.latency import Latency
from tangram.capacity.memory.budget import MemoryBudget
from tangram.capacity.sizing.assess import Assessor, Fitted, Footprints
from tangram.capacity.sizing.relax import relax
from tangram.capacity.sizing.results import Carried, Rejection, ShapeChange, SizingRequest
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.prices import Prices
from tangram.fleet import Shape

# Several times those of a large fleet. Twenty shapes of one kind of traffic take about 10 KB.
MODELS, KINDS = 512, 2048


class AssessmentCache:
    """A model under one kind of traffic: each shape is looked at when somebody asks, once."""

    def __init__(self, architecture: Architecture, request: SizingRequest) -> None:
        self.architecture = architecture
        self.request = request
        self._footprints = _footprints(architecture)
        self._verdicts: dict[Shape, Carried | Rejection] = {}
        self._idle: dict[Shape, Latency | None] = {}
        self._relaxed: dict[tuple[Shape, bool], ShapeChange | None] = {}

    def assessment(self, shape: Shape) -> Carried | Rejection:
        """Return what a replica carries on a shape, or what kills it; prices are not looked at."""
        if shape not in self._verdicts:
            fitted = _fitted(self, shape)
            self._verdicts[shape] = (
                fitted if isinstance(fitted, Rejection) else self._assessor().carried(fitted)
            )
        return self._verdicts[shape]

    def idle(self, shape: Shape) -> Latency | None:
        """Return the latency of a nearly idle replica, None where the model does not fit."""
        if shape not in self._idle:
            fitted = _fitted(self, shape)
            self._idle[shape] = None if isinstance(fitted, Rejection) else fitted.idle
        return self._idle[shape]

    def budget(self, shape: Shape) -> MemoryBudget:
        """Return the memory account of a rank, whether or not it fits. Raises `InputError` as `footprint`."""
        return self._assessor().budget(shape, self.request)

    def relaxation(self, rejection: Rejection, prices: Prices) -> ShapeChange | None:
        """Return what would make a rejected shape serve, a price among it where it has none."""
        key = (rejection.shape, prices.gpu_hour(rejection.shape.sku) is None)
        if key not in self._relaxed:
            self._relaxed[key] = relax(self._assessor(prices), rejection, self.request)
        return self._relaxed[key]

    def fit(self, shape: Shape) -> Fitted | Rejection:
        """Return a shape ready to be asked how fast it is, or why the model does not fit."""
        return self._assessor().fit(shape, self.request)

    def _assessor(self, prices: Prices = Prices()) -> Assessor:  # noqa: B008 - it is a value
        """What it keeps beside footprints is gone with it."""
        return Assessor(self.architecture, prices, self._footprints)


@lru_cache(maxsize=KINDS)
def assessment_cache(architecture: Architecture, request: SizingRequest) -> AssessmentCache:
    """Return what is known so far. `request.rps` has to be one number for all who ask."""
    return AssessmentCache(architecture, request)


@lru_cache(maxsize=MODELS)
def _footprints(architecture: Architecture) -> Footprints:
    """All kinds of traffic share what a rank of a model holds; filled by those who ask."""
    return {}


@lru_cache(maxsize=4)
def _fitted(known: AssessmentCache, shape: Shape) -> Fitted | Rejection:
    """Who has asked what a shape carries often asks next how fast it is; nobody does so a day later."""
    return known.fit(shape)
