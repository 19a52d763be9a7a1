"""What one shape does for a checkpoint, by the sizing model: the judge that `tangram size` and plans have."""

from dataclasses import dataclass, replace
from functools import lru_cache

from tangram import catalog
from tangram.capacity.memory.from_facts import architecture_from_facts
from tangram.capacity.sizing import Constraint, Rejection, SizingRequest
from tangram.capacity.sizing.assessment_cache import KINDS, MODELS, AssessmentCache, assessment_cache
from tangram.catalog import Architecture
from tangram.eligibility.shapes.bundled_engine import kv_precision, served_formats
from tangram.eligibility.shapes.rejection_reasons import REASONS
from tangram.eligibility.shapes.serving_requirements import UNLOADED_RPS, from_intent
from tangram.fleet import WHOLE_GPU, CheckpointFacts, Intent, Shape

DOES_NOT_FIT, TTFT, TPOT = (REASONS[c] for c in (Constraint.MEMORY, Constraint.TTFT, Constraint.TPOT))
_LOOKS = 8192


@dataclass(frozen=True, slots=True)
class Look:
    """One shape: how fast a nearly idle replica is there, or why there can be none."""

    tpot_ms: float | None = None  # at the percentile of the objectives
    ttft_ms: float | None = None
    missing: float = 0.0  # bytes of memory
    rejection: str | None = None  # as in plans of a whole fleet
    message: str = ""


@lru_cache(maxsize=MODELS)
def architecture(facts: CheckpointFacts) -> Architecture:
    """Return the decoder that was inspected."""
    return architecture_from_facts(facts)


def request_of(intent: Intent, facts: CheckpointFacts) -> SizingRequest:
    """Return what one replica is sized for. Raises `InputError` for requests that the model cannot take.

    Whether and how much a shape serves does not depend on how much is asked for.
    """
    return replace(
        from_intent(intent, architecture(facts)).request,
        rps=UNLOADED_RPS,
        kv_precision=kv_precision(facts.dtype),
    )


@lru_cache(maxsize=_LOOKS)
def look(facts: CheckpointFacts, shape: Shape, request: SizingRequest) -> Look:
    """Return what `shape` does for the checkpoint, in whatever format the engine serves it."""
    known = _known(facts, request)
    assessment, idle = known.assessment(shape), known.idle(shape)
    if isinstance(assessment, Rejection) and idle is None:
        return _misfit(known, assessment)
    assert idle is not None  # noqa: S101 - what serves fits
    tpot_ms = idle.tpot_s.at(request.percentile) * 1e3
    ttft_ms = idle.ttft_s.at(request.percentile) * 1e3
    if isinstance(assessment, Rejection):
        return Look(tpot_ms, ttft_ms, 0.0, *_too_slow(tpot_ms, ttft_ms, request, assessment))
    return Look(tpot_ms, ttft_ms)


def rate(facts: CheckpointFacts, shape: Shape, request: SizingRequest) -> float | None:
    """Return the requests per second that one replica carries within the objectives, None: nobody knows."""
    is_slice = shape.profile != WHOLE_GPU
    if catalog.gpu(shape.sku) is None or (is_slice and catalog.profile(shape.sku, shape.profile) is None):
        return None  # it left the catalog
    if shape.tensor_parallel != 1 or shape.precision not in served_formats(facts):
        return None
    assessment = _known(facts, request).assessment(shape)
    return None if isinstance(assessment, Rejection) or assessment.rate <= 0 else assessment.rate


@lru_cache(maxsize=KINDS)
def _known(facts: CheckpointFacts, request: SizingRequest) -> AssessmentCache:
    """Facts are looked up faster than the architecture that follows from them."""
    return assessment_cache(architecture(facts), request)


def _misfit(known: AssessmentCache, assessment: Rejection) -> Look:
    reason = REASONS[assessment.constraint]
    if reason != DOES_NOT_FIT:
        return Look(rejection=reason, message=assessment.message)
    budget = known.budget(assessment.shape)
    told = (
        str(budget) if budget.missing else f"{assessment.message}: no room for a request of the mean length"
    )
    return Look(missing=budget.missing, rejection=reason, message=told)


def _too_slow(
    tpot_ms: float, ttft_ms: float, request: SizingRequest, assessment: Rejection
) -> tuple[str, str]:
    reason = REASONS[assessment.constraint]
    if reason == TPOT:
        return reason, f"predicted {tpot_ms:.2f} ms per token when idle, objective {request.tpot_ms:g} ms"
    if reason == TTFT:
        prompt = f"the first token of a prompt of {request.prompts.mean:g}"
        return reason, f"predicted {ttft_ms:.2f} ms to {prompt} when idle, objective {request.ttft_ms:g} ms"
    return reason, assessment.message
