"""The sentences that users read about shapes that an LLMDeployment does not run on.

Conditions, statuses, FleetPlans and `tangram plan` take them from here, so that one reason reads the same.
"""

from collections.abc import Collection

from tangram.capacity.memory.budget import GIB
from tangram.capacity.sizing import Constraint, Rejection, SizingRequest
from tangram.eligibility.explanation import no_serving_shape as none
from tangram.eligibility.explanation import shape_reasons as reasons
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import Shape

_CENT = 0.01  # USD: sentences show no less
_MOST_RULED_OUT = 3  # shapes that one sentence names
_NO_GAIN = {
    True: "costs no more by its share of GPUs, but the whole fleet would neither cost less nor serve more",
    False: "costs no more by its share of GPUs, but no better plan of the whole fleet was found with it",
}


def reason_sentence(reason: reasons.ShapeReason) -> str:
    """Return what is against a shape that serves."""
    match reason:
        case reasons.NotEnoughGPUs(needed, fitting, if_empty):
            free = f"the fleet has room for {fitting} if it were empty"
            text = f"{_needs(needed)}, {free if if_empty else f'free and own devices suffice for {fitting}'}"
        case reasons.TooManyReplicas(needed, allowed):
            text = f"{_needs(needed)}, scaling.maxReplicas allows {allowed}"
        case reasons.OverBudget(cost, budget):
            text = f"costs {cost:.2f} $/h, placement.budgetPerHour is {budget:.2f}"
        case reasons.HeldBack(_, message):
            text = message
        case reasons.Dearer(more) if more < 0:
            text = f"costs {-more:.2f} $/h less, but running replicas are not moved only to save money"
        case reasons.Dearer(more):
            text = f"costs {f'{more:.2f} $/h more' if more >= _CENT / 2 else 'no less'} by its share of GPUs"
        case reasons.TooFewPlaces():
            text = "costs no more, but is free on too few nodes or zones for placement.spread"
        case reasons.WorseFleet(proved, one_shape):
            text = _NO_GAIN[proved] + (" with one shape per LLMDeployment" if one_shape else "")
    return text


def gang_sentence(assessed: AssessedShapes, shape: Shape, chosen_gpus: Collection[int]) -> str:
    """Return the prediction for a shape of another number of GPUs than the chosen ones have; else nothing."""
    idle = assessed.idle_ms(shape) if chosen_gpus and shape.gpus not in chosen_gpus else None
    return "" if idle is None else f"; predicted {idle[1]:.2f} ms per token when idle"


def _needs(replicas: int) -> str:
    return f"needs {replicas} {'replica' if replicas == 1 else 'replicas'}"


def no_shape_sentence(assessed: AssessedShapes, why: none.NoServingShape) -> str:
    """Return why no shape serves, with the nearest one and what to change."""
    match why:
        case none.UnevaluatedFormats(formats):
            pronoun = "it" if len(formats) == 1 else "them"
            fitting = f"only {' and '.join(formats)} would fit and meet the objectives"
            return f"{fitting}, but engine.precision Any allows {pronoun} only after an evaluation"
        case none.UnreachableObjective(nearest, reachable_ms):
            objective = nearest.constraint
            return (
                f"the smallest {objective} that can be reached is {reachable_ms:.2f} ms, on"
                f" {nearest.shape.described}: {rejection_sentence(assessed, nearest)}; raise"
                f" objectives.{objective.lower()}.milliseconds, or add GPUs with more bandwidth"
            )
        case none.TooLittleMemory(nearest, missing):
            short, gpus = f", {missing / GIB:.1f} GiB short" if missing else "", nearest.shape.gpus
            have = f", no slice and no {gpus} GPUs of a node have" if gpus > 1 else " or slice has"
            return (
                f"no GPU{have} enough memory; the closest is {nearest.shape.described}{short}:"
                f" {rejection_sentence(assessed, nearest)}; "
                f"lower engine.maxModelLen or engine.maxRunningRequests, or add larger GPUs"
            )
        case none.AllRuledOut(rejections):
            named = rejections[:_MOST_RULED_OUT]
            texts = "; ".join(f"{r.shape.described}: {rejection_sentence(assessed, r)}" for r in named)
            return f"no shape in the fleet serves ({texts})"


def rejection_sentence(assessed: AssessedShapes, rejection: Rejection) -> str:
    """Return why a shape is rejected, with the numbers of the prediction."""
    shape, idle = rejection.shape, assessed.idle_ms(rejection.shape)
    if rejection.constraint is Constraint.MEMORY_UNKNOWN:
        return f"the memory of {shape} is not published"
    if rejection.constraint is Constraint.PRICE:
        return f"no price is known for {shape.sku}; set one in the chart's value prices"
    if idle is not None:
        return _prediction(rejection, *idle, assessed.requirements.request)
    if rejection.constraint is not Constraint.MEMORY:
        return rejection.message
    if none.missing_bytes(assessed, rejection):
        return str(assessed.assessments.budget(shape))
    return f"{rejection.message}: no room for a request of the mean length"


def _prediction(rejection: Rejection, ttft_ms: float, tpot_ms: float, request: SizingRequest) -> str:
    if rejection.constraint is Constraint.TPOT:
        return f"predicted {tpot_ms:.2f} ms per token when idle, objective {request.tpot_ms:g} ms"
    if rejection.constraint is Constraint.TTFT:
        prompt = f"the first token of a prompt of {request.prompts.mean:g}"
        return f"predicted {ttft_ms:.2f} ms to {prompt} when idle, objective {request.ttft_ms:g} ms"
    return rejection.message
