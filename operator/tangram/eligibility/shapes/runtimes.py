"""Which runtime serves an LLMDeployment: the bundled engine where it serves on a GPU or slice of the fleet,
else the cheapest that may and can.

A runtime that has replicas stays as long as it may and serves on a shape: predictions of two runtimes lie
close together.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tangram.capacity.sizing import Constraint
from tangram.capacity.sizing.candidate_shapes import TENSOR_PARALLEL, Split
from tangram.capacity.steps.calibration import coefficients_for
from tangram.catalog import Architecture
from tangram.eligibility.shapes.bundled_engine import lacks, on_bundled_engine
from tangram.eligibility.shapes.evaluation_reports import CheckpointReports
from tangram.eligibility.shapes.serving_requirements import (
    ANY,
    AS_STORED,
    ServingRequirements,
    requirements_of,
)
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import (
    BUNDLED,
    CheckpointFacts,
    EngineKind,
    EngineRuntime,
    HostResources,
    Intent,
    Launch,
    PodNeeds,
    Shape,
)

_IN_ENGINE_IMAGE = "image://"
_KV = "bf16"
_ENGINE_SERVES = "it serves the checkpoint"
_OF_LATENCY = (Constraint.TTFT, Constraint.TPOT)
_MOST_REASONS = 4


@dataclass(frozen=True, slots=True)
class RuntimeOffer:
    """A runtime that an LLMDeployment might use."""

    name: str
    requirements: ServingRequirements | None  # None: it cannot serve it
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointContext:
    """What is known of an LLMDeployment's checkpoint and of the runtimes, when one is chosen."""

    architecture: Architecture
    refused_by_engine: str  # why the bundled engine does not read the checkpoint; empty: it does
    runtimes: tuple[EngineRuntime, ...]
    reports: CheckpointReports
    digest: str
    pod_needs: PodNeeds | None = None


def checkpoint_context(
    architecture: Architecture,
    facts: CheckpointFacts | None,
    runtimes: tuple[EngineRuntime, ...],
    reports: CheckpointReports,
    pod_needs: PodNeeds | None = None,
) -> CheckpointContext:
    """Return the context of a checkpoint. Without facts, the architecture alone says what serves it."""
    refused = facts.refused_by_engine if facts else ""
    return CheckpointContext(
        architecture, refused, runtimes, reports, facts.digest if facts else "", pod_needs
    )


def runtime_offers(intent: Intent, context: CheckpointContext) -> tuple[RuntimeOffer, ...]:
    """Return the runtimes that the namespace may use, or the named one, the bundled engine first.

    Raises `InputError` for requests that the model cannot take.
    """
    requirements = requirements_of(intent, context.architecture)
    named = intent.runtime.name
    runtimes = [
        runtime
        for runtime in context.runtimes
        if runtime.kind is not EngineKind.TANGRAM
        and runtime.is_on
        and runtime.admits(intent.namespace)
        and named in ("", runtime.name)
    ]
    bundled = (
        (_bundled_offer(requirements, context),)
        if named in ("", BUNDLED) and _admits(intent, context)
        else ()
    )
    return (*bundled, *(_offer(requirements, runtime, context.pod_needs) for runtime in runtimes))


def best_runtime(
    offers: Iterable[RuntimeOffer],
    present: Iterable[Shape],
    assess: Callable[[ServingRequirements], AssessedShapes],
) -> AssessedShapes | str:
    """Return the assessed shapes of the runtime that serves, with the reason among their notes; or why none
    can. `present`: shapes that run.
    """
    offers, shapes = tuple(offers), frozenset(present)
    able = [offer for offer in offers if offer.requirements is not None]
    if not able:
        return _none_can(offers)
    running = [(offer, _assessed(offer, assess)) for offer in _running(able, shapes)]
    staying = next((pair for pair in running if _may_serve(pair[1], shapes)), None)
    if staying is None:
        chosen = _for_new_replicas(able, offers, assess)
        if chosen.serving or not running:
            return chosen
    offer, assessed = staying or running[0]
    return _noted(assessed, offer, "its replicas run", offers)


def _running(able: Iterable[RuntimeOffer], present: Collection[Shape]) -> list[RuntimeOffer]:
    names = {shape.runtime for shape in present}
    return [offer for offer in able if offer.name in names]


def _for_new_replicas(
    able: Sequence[RuntimeOffer],
    offers: tuple[RuntimeOffer, ...],
    assess: Callable[[ServingRequirements], AssessedShapes],
) -> AssessedShapes:
    """Return the assessed shapes of the runtime that is best where none runs."""
    first = able[0]
    if len(able) == 1:
        why = _ENGINE_SERVES if first.name == BUNDLED else "no other can"
        return _noted(_assessed(first, assess), first, why, offers)
    if first.name != BUNDLED:
        return _cheapest(able, offers, assess)
    on_engine = _assessed(first, assess)
    if not _may_serve(on_engine):
        on_another = _cheapest(able[1:], offers, assess, f"{BUNDLED} serves on no shape; ")
        if on_another.serving:
            return on_another
    return _noted(on_engine, first, _ENGINE_SERVES, offers)


def _cheapest(
    able: Iterable[RuntimeOffer],
    offers: tuple[RuntimeOffer, ...],
    assess: Callable[[ServingRequirements], AssessedShapes],
    why: str = "",
) -> AssessedShapes:
    """Return the assessed shapes of the cheapest runtime, with its reason."""
    assessed = {offer.name: (offer, _assessed(offer, assess)) for offer in able}
    best, shapes = min(assessed.values(), key=lambda each: (_price(each[1]), each[0].name))
    prices = {name: _price(shapes) for name, (_, shapes) in sorted(assessed.items())}
    return _noted(shapes, best, why + _comparison(best.name, prices), offers)


def _may_serve(assessed: AssessedShapes, present: Collection[Shape] = ()) -> bool:
    """Whether a runtime serves on a shape, or may once a quantised format is evaluated. A prediction of
    latencies moves no replicas from the shapes that are `present`.
    """
    return bool(assessed.serving) or any(
        rejected.constraint is Constraint.EVALUATION
        or (rejected.constraint in _OF_LATENCY and rejected.shape in present)
        for rejected in assessed.rejected
    )


def usual_runtime(
    intent: Intent,
    context: CheckpointContext,
    present: Iterable[Shape],
    assess: Callable[[ServingRequirements], AssessedShapes],
) -> ServingRequirements:
    """Return the requirements on the runtime that runs, if it serves on a shape, else on the first that can
    and does, else on the first. Where none can, they are impossible. Raises `InputError` for requests that
    the model cannot take.
    """
    offers, shapes = runtime_offers(intent, context), frozenset(present)
    able = [offer for offer in offers if offer.requirements is not None]
    running = _running(able, shapes)
    in_order = [*running, *(offer for offer in able if offer not in running)]
    chosen = next(iter(in_order), None)
    if len(able) > 1:
        serving = (offer for offer in in_order if _may_serve(_assessed(offer, assess), shapes))
        chosen = next(serving, chosen)
    if chosen is not None and chosen.requirements is not None:
        return chosen.requirements
    why = _none_can(offers)
    requirements = on_bundled_engine(requirements_of(intent, context.architecture))
    return replace(
        requirements,
        splits=(),
        formats=(context.architecture.precision,),
        impossible=why,
        notes=(why,),
    )


def _admits(intent: Intent, context: CheckpointContext) -> bool:
    own = (runtime for runtime in context.runtimes if runtime.kind is EngineKind.TANGRAM)
    return all(runtime.admits(intent.namespace) for runtime in own)


def _bundled_offer(requirements: ServingRequirements, context: CheckpointContext) -> RuntimeOffer:
    intent = requirements.intent
    missing = context.refused_by_engine or lacks(intent, context.architecture)
    if missing:
        return RuntimeOffer(BUNDLED, None, missing)
    reports = context.reports.get((intent.namespace, intent.model_uri, context.digest), ())
    return RuntimeOffer(BUNDLED, on_bundled_engine(requirements, reports, context.pod_needs))


def _offer(
    requirements: ServingRequirements, runtime: EngineRuntime, pod_needs: PodNeeds | None
) -> RuntimeOffer:
    missing = cannot_serve(requirements.intent, requirements.architecture, runtime)
    if missing:
        return RuntimeOffer(runtime.name, None, missing)
    return RuntimeOffer(runtime.name, on_runtime(requirements, runtime, pod_needs))


def cannot_serve(intent: Intent, architecture: Architecture, runtime: EngineRuntime) -> str:
    """Return what a runtime cannot do of what is asked, the empty string where it can do all of it."""
    return next(_missing(intent, architecture, runtime), "")


def _missing(intent: Intent, architecture: Architecture, runtime: EngineRuntime) -> Iterator[str]:
    serves, own = runtime.serves, architecture.served_precision
    if intent.model_uri.startswith(_IN_ENGINE_IMAGE):
        yield "model.uri names a directory of the bundled engine's image, which another image does not have"
    if serves.architectures and architecture.name not in serves.architectures:
        yield f"spec.serves.architectures does not name {architecture.name}"
    if serves.precisions and own not in serves.precisions:
        yield f"spec.serves.precisions does not name {own}, in which the weights are served"
    if intent.precision not in (ANY, AS_STORED, own):
        yield f"engine.precision asks for {intent.precision}, and it serves weights as stored, in {own}"
    if intent.kv_precision != _KV:
        yield f"engine.kvCachePrecision asks for {intent.kv_precision}, and plans of runtimes have {_KV}"
    if intent.api_keys is not None:
        yield "engine.apiKeySecretRef names a file of API keys, and it reads none"
    if not splits_of(intent, runtime):
        degrees, most = " or ".join(map(str, intent.tensor_parallel)), runtime.serves.max_tensor_parallel
        wish = f"placement.tensorParallel asks for {degrees} GPUs per replica"
        yield f"{wish}, and a replica gets {most} at most"


def splits_of(intent: Intent, runtime: EngineRuntime) -> tuple[Split, ...]:
    """Return the ways to split a model that a runtime serves and the spec allows, within a node."""
    allowed, most = intent.tensor_parallel or TENSOR_PARALLEL, runtime.serves.max_tensor_parallel
    return tuple(
        (degree, stages)
        for stages in (TENSOR_PARALLEL if runtime.has_stages else (1,))
        for degree in TENSOR_PARALLEL
        if degree <= most and degree * stages in allowed
    )


def on_runtime(
    requirements: ServingRequirements, runtime: EngineRuntime, pod_needs: PodNeeds | None = None
) -> ServingRequirements:
    """Return the requirements in the cluster, kept to what a runtime and the planner can do."""
    intent, coefficients = requirements.intent, runtime.coefficients
    request = replace(
        requirements.request,
        kv_precision=_KV,
        engine=coefficients.engine,
        engine_version=coefficients.version,
    )
    return replace(
        requirements,
        splits=splits_of(intent, runtime),
        formats=(requirements.architecture.served_precision,),
        request=request,
        uniform=True,
        runtime=runtime,
        pod_needs=None if intent.resources == HostResources() else pod_needs,
    )


def _assessed(offer: RuntimeOffer, assess: Callable[[ServingRequirements], AssessedShapes]) -> AssessedShapes:
    assert offer.requirements is not None  # noqa: S101 - the caller has looked
    return assess(offer.requirements)


def _price(assessed: AssessedShapes) -> float:
    """Return USD per hour and request per second of the cheapest shape; infinite where none serves."""
    return min((shape.price_per_hour / shape.rate for shape in assessed.serving), default=float("inf"))


def _comparison(best: str, prices: Mapping[str, float]) -> str:
    texts = [
        f"{name} {'serves on no shape' if price == float('inf') else f'{price:.2f} $/h for one request/s'}"
        for name, price in prices.items()
    ]
    return f"{best} is the cheapest: {', '.join(texts)}"


def _noted(
    assessed: AssessedShapes, chosen: RuntimeOffer, why: str, offers: tuple[RuntimeOffer, ...]
) -> AssessedShapes:
    """Return the shapes with the reason of the choice; nothing is said where there was none to make."""
    if chosen.name == BUNDLED and len(offers) == 1:
        return assessed
    others = [f"{offer.name}: {offer.why_not}" for offer in offers if offer.why_not][:_MOST_REASONS]
    runtime = assessed.requirements.runtime
    founded = () if runtime is None else (_foundation(runtime),)
    text = "; ".join((f"runtime {chosen.name}: {why}", *founded, *others))
    return replace(assessed, requirements=replace(assessed.requirements, runtime_reason=text))


def _foundation(runtime: EngineRuntime) -> str:
    """Return what the predictions of a runtime rest on, with their error where it is known."""
    coefficients = runtime.coefficients
    calibrated = coefficients_for(coefficients.engine, coefficients.version)
    error = "" if calibrated.error_p50 is None else f", median error of TPOT {calibrated.error_p50:.0%}"
    return f"predicted by coefficients of {calibrated.key} ({coefficients.source}{error})"


def _none_can(offers: tuple[RuntimeOffer, ...]) -> str:
    if not offers:
        return "no runtime may be used in its namespace: an administrator has to add it to an EngineRuntime"
    if len(offers) == 1 and offers[0].name == BUNDLED:
        return offers[0].why_not
    reasons = "; ".join(f"{offer.name}: {offer.why_not}" for offer in offers[:_MOST_REASONS])
    return f"no runtime serves it: {reasons}"


def is_renderable(assessed: AssessedShapes, shape: Shape) -> bool:
    """Whether the runtime of a shape is the one that is chosen: words of another may not fit the model."""
    return shape.runtime == assessed.requirements.runtime_name


def launch(assessed: AssessedShapes, shape: Shape, weight_bytes: int) -> Launch | None:
    """Return how replicas of a shape are started; None: the bundled engine, which sizes itself."""
    runtime = assessed.requirements.runtime
    if runtime is None:
        return None
    budget = assessed.assessments.budget(shape)
    limits, static = budget.limits, (budget.weights + max(0, budget.kv)) / budget.total
    return Launch(runtime, weight_bytes, limits.step_tokens, limits.utilisation, static)
