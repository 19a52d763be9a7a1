"""One shape and one request: what a replica carries, or the first constraint that rules the shape out."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from tangram.capacity.hardware import Hardware, hardware
from tangram.capacity.load.engine_limits import EngineLimits
from tangram.capacity.load.latency import Latency, ReplicaUnderLoad
from tangram.capacity.memory.budget import GIB, MemoryBudget, memory_budget
from tangram.capacity.memory.engine_buffers import EngineSettings
from tangram.capacity.memory.footprint import Footprint, footprint
from tangram.capacity.sizing.request import SizingRequest
from tangram.capacity.sizing.results import Constraint, Rejection, ServingShape, SizedShape
from tangram.capacity.steps.calibration import Calibrated, coefficients_for
from tangram.capacity.steps.step_model import StepModel
from tangram.catalog import InputError
from tangram.catalog.models.architecture import Architecture
from tangram.catalog.prices import Prices
from tangram.fleet import Shape, replicas_for

MEMORY_CAPACITY = "memory capacity"
# Requests present on average. A replica that misses its objectives at this load already is of no use.
IDLE = 0.1
# Of what the catalog marks as doubtful; where a slice lies and its media engines change nothing here.
USED_FACTS = ("data sheet", "memory", "sm")
# Deviations from the mean load up to which memory must hold: beyond them requests seldom wait for it.
CROWD = 3.0
# With this much more load and no end of memory the objectives must hold for memory to be what is missing.
WORTHWHILE = 1.1


# By format of weights and cache, ranks, and what the GPU computes: no more than the catalog has.
Footprints = dict[tuple[str, str, int, int, tuple[str, ...]], Footprint]
IdleLatencies = dict[tuple[Shape, SizingRequest], Latency]


@dataclass(frozen=True)
class Assessor:
    """Assesses shapes of one model; keeps what many shapes have in common."""

    architecture: Architecture
    prices: Prices
    footprints: Footprints = field(default_factory=dict, repr=False)
    idle: IdleLatencies = field(default_factory=dict, repr=False)

    def serving(self, fitted: "FittingShape") -> ServingShape | Rejection:
        """Return what one replica carries, unpriced, or why none does, whatever the load of the request."""
        request = fitted.request
        rate = fitted.replica.max_rate(request.ttft, request.tpot)
        if rate < fitted.idle_rate:
            missed = _missed(self._idle_latency(fitted), request)
            if missed is not None:
                return Rejection(fitted.shape, *missed)
        return ServingShape(fitted.shape, max(rate, fitted.idle_rate), 0.0, _unverified(fitted))

    def rejection(self, shape: Shape, request: SizingRequest) -> Rejection | None:
        """Return why a shape does not serve, None if it does, without the search for its rate."""
        fitted = self.fit(shape, request)
        if isinstance(fitted, Rejection):
            return fitted
        missed = _missed(self._idle_latency(fitted), request)
        if missed is not None:
            return Rejection(shape, *missed)
        return unpriced(shape) if self.prices.gpu_hour(shape.sku) is None else None

    def fits(self, shape: Shape, request: SizingRequest) -> bool:
        """Whether the memory holds the model and one request."""
        return not isinstance(self.fit(shape, request), Rejection)

    def idle_latency(self, shape: Shape, request: SizingRequest) -> Latency | None:
        """Return the latency of a nearly idle replica, None where the model does not fit."""
        fitted = self.fit(shape, request)
        return None if isinstance(fitted, Rejection) else self._idle_latency(fitted)

    def budget(self, shape: Shape, request: SizingRequest) -> MemoryBudget:
        """Return the memory account of a rank, whether or not it fits. Raises `InputError` as `footprint`."""
        where = hardware(shape.sku, shape.profile, shape.gpus)
        limits = EngineSettings(request.model_length(self.architecture), request.max_running)
        return memory_budget(self._footprint(shape, request, where), where, limits)

    def fit(self, shape: Shape, request: SizingRequest) -> "FittingShape | Rejection":
        """Return a shape ready for the search of its rate, or why the model does not fit."""
        where = hardware(shape.sku, shape.profile, shape.gpus)
        if not where.memory_mib:
            return Rejection(shape, Constraint.MEMORY_UNKNOWN, "size not published")
        try:
            budget = self.budget(shape, request)
        except InputError as error:
            of_split = error.field in {"tensor parallel", "pipeline parallel"}
            constraint = Constraint.TENSOR_PARALLEL if of_split else Constraint.PRECISION
            return Rejection(shape, constraint, error.problem)
        context = mean_context(request)
        held = budget.footprint.kv_bytes(context)
        if budget.missing or budget.kv < held:
            return _too_large(shape, budget)
        limits = EngineLimits(
            max_running=request.max_running,
            max_batched_tokens=budget.limits.step_tokens,
            kv_tokens=int(budget.kv / held * context),
            block_tokens=budget.limits.block_size,
        )
        calibrated = coefficients_for(
            request.engine, request.engine_version, shape.precision, shape.sku, self.architecture.name
        )
        model = StepModel(budget.footprint, where, calibrated.coefficients)
        return FittingShape(shape, where, budget, model, limits, calibrated, held, request)

    def sized(self, fitted: "FittingShape", serving: ServingShape) -> SizedShape:
        """Return the replicas that carry the load of the request, their latency and their cost."""
        request, shape, rate = fitted.request, serving.shape, serving.rate
        replicas = max(1, replicas_for(request.rps, rate))
        latency = fitted.replica.under(request.rps / replicas)
        cost = replicas * serving.price_per_hour
        longest = min(math.ceil(request.prompts.p90 + request.answers.p90), fitted.longest)
        return SizedShape(
            shape=shape,
            hardware=fitted.hardware,
            budget=fitted.budget,
            model=fitted.model,
            limits=fitted.limits,
            calibrated=fitted.calibrated,
            concurrent=fitted.budget.concurrent(longest),
            max_rate=rate,
            replicas=replicas,
            latency=latency,
            ttft_s=latency.ttft_s.at(request.percentile),
            tpot_s=latency.tpot_s.at(request.percentile),
            wall=_wall(fitted, request, rate),
            usd_per_hour=cost,
            usd_per_million_tokens=cost / (request.rps * request.answers.mean * 3600) * 1e6,
            default_price=self.prices.is_default(shape.sku),
            kv_per_request=fitted.kv_per_request,
            unverified=_unverified(fitted),
        )

    def _idle_latency(self, fitted: "FittingShape") -> Latency:
        """It depends on no objective, so relaxations ask for the same one again."""
        key = (fitted.shape, replace(fitted.request, ttft_ms=None, tpot_ms=None))
        if key not in self.idle:
            self.idle[key] = fitted.idle
        return self.idle[key]

    def _footprint(self, shape: Shape, request: SizingRequest, where: Hardware) -> Footprint:
        types = tuple(name for name, _ in where.flops)
        key = (shape.precision, request.kv_precision, shape.tensor_parallel, shape.pipeline_parallel, types)
        if key not in self.footprints:
            self.footprints[key] = footprint(self.architecture, *key[:3], where, shape.pipeline_parallel)
        return self.footprints[key]


@dataclass(frozen=True)
class FittingShape:
    """A shape whose memory holds the model, with the step model that gives its speed."""

    shape: Shape
    hardware: Hardware
    budget: MemoryBudget
    model: StepModel
    limits: EngineLimits
    calibrated: Calibrated
    kv_per_request: float
    request: SizingRequest

    @cached_property
    def replica(self) -> ReplicaUnderLoad:
        """One replica under this traffic."""
        request = self.request
        return ReplicaUnderLoad(self.model, self.limits, request.prompts, request.answers, request.cv)

    @property
    def idle_rate(self) -> float:
        """Requests per second at which a replica is nearly idle (Little's law)."""
        return IDLE / self.replica.alone_s

    @cached_property
    def idle(self) -> Latency:
        """What users of a nearly idle replica see."""
        return self.replica.under(self.idle_rate)

    @property
    def longest(self) -> int:
        """Tokens of the longest request that is accepted."""
        return self.budget.limits.max_model_len


def unpriced(shape: Shape) -> Rejection:
    """Return the rejection of a shape without a price."""
    return Rejection(shape, Constraint.PRICE, "no default price")


def _wall(fitted: FittingShape, request: SizingRequest, rate: float) -> str:
    """What keeps a replica from carrying more: memory, if without its bound the objectives would hold."""
    context = mean_context(request)
    latency = fitted.replica.under(rate)
    running = max(1.0, latency.concurrency)
    slots = fitted.limits.slots(context)
    crowded = running + CROWD * math.sqrt(running) * max(1.0, request.cv) > slots
    if slots < request.max_running and crowded:
        boundless = replace(fitted, limits=replace(fitted.limits, kv_tokens=None))
        if _missed(boundless.replica.under(rate * WORTHWHILE), request) is None:
            return MEMORY_CAPACITY
    prompts = running / request.answers.mean * request.prompts.mean  # prompt tokens between two tokens
    if _ttft_binds(latency, request):  # what first tokens wait for are steps with prompts
        prompts = max(prompts, min(request.prompts.mean, fitted.limits.max_batched_tokens))
    step = fitted.model.step_s(running, context, prompts, request.prompts.mean / 2)
    return str(step.wall)


def mean_context(request: SizingRequest) -> float:
    """Tokens that a running request holds on average; long answers stay longer, so they count more."""
    return request.prompts.mean + request.answers.mean * (1 + request.answers.cv2) / 2


def _ttft_binds(latency: Latency, request: SizingRequest) -> bool:
    """Whether the first token, and not those that follow, is nearer to its limit."""
    if request.ttft_ms is None:
        return False
    tpot = latency.tpot_s.at(request.percentile) / request.tpot_ms if request.tpot_ms else 0.0
    return latency.ttft_s.at(request.percentile) / request.ttft_ms > tpot


def _missed(latency: Latency, request: SizingRequest) -> tuple[Constraint, str, float] | None:
    """Return the objective that is missed, the one missed by more where both are; None: both are met."""
    over = [
        (predicted_s * 1e3 / limit, constraint, f"{_ms(predicted_s)} when idle")
        for constraint, limit, predicted_s in (
            (Constraint.TPOT, request.tpot_ms, latency.tpot_s.at(request.percentile)),
            (Constraint.TTFT, request.ttft_ms, latency.ttft_s.at(request.percentile)),
        )
        if limit is not None and predicted_s * 1e3 > limit
    ]
    if over:
        excess, constraint, problem = max(over)
        return constraint, problem, excess
    if math.isinf(latency.utilisation):
        return Constraint.MEMORY, "no room for the load", math.inf
    return None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def _too_large(shape: Shape, budget: MemoryBudget) -> Rejection:
    needed = budget.weights + budget.overhead + budget.kv_needed
    problem = f"needs {needed / GIB:.1f} GiB, has {budget.total / GIB:.1f}"
    return Rejection(shape, Constraint.MEMORY, problem, needed / budget.total)


def _unverified(fitted: FittingShape) -> tuple[str, ...]:
    speed = []
    if fitted.hardware.is_slice:
        speed.append("speed of slices")
    if fitted.calibrated.unverified:
        speed.append("speed")
    facts = (fact for fact in fitted.hardware.unverified if fact in USED_FACTS)
    return tuple(dict.fromkeys((*speed, *facts)))
