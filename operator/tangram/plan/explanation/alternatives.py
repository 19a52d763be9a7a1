"""Why a plan does not use the other shapes of an LLMDeployment, on the fleet as it could be cut."""

import math
from collections.abc import Collection
from typing import Any

from tangram.capacity.sizing import Rejection, ServingShape
from tangram.eligibility.explanation import shape_reasons as reasons
from tangram.eligibility.explanation.alternatives import UnusedShape, unused_shapes
from tangram.eligibility.explanation.words import gang_sentence, reason_sentence
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import Shape
from tangram.packing import Choice, Demand
from tangram.packing.problem.mix import UNMET, on_any_fleet
from tangram.plan.explanation.sufficient_settings import changes_settings_only
from tangram.plan.offers.fleet_shapes import replicas
from tangram.plan.place.best.demands import packing_offer
from tangram.plan.place.best.replica_bounds import ReplicaBounds

_ROUNDING = 1e-9  # tolerance for sums of prices


def alternatives(
    assessed: AssessedShapes, choice: Choice, bounds: ReplicaBounds, *, proved: bool
) -> list[dict[str, Any]]:
    """Return up to five other shapes, each with the one reason why the plan does not use it.

    `proved`: it is proved that no plan of the fleet serves more, or as much for less.
    """
    chosen_shapes, requirements = {part.shape for part in choice.parts}, assessed.requirements

    def is_used(offer: ServingShape) -> bool:
        return {offer.key} == chosen_shapes

    def against(offer: ServingShape) -> tuple[int, reasons.ShapeReason]:
        count = replicas(requirements, offer)
        reason = _own_limit(assessed, offer, count, choice, bounds)
        return count, reason or reasons.WorseFleet(proved=proved, one_shape=requirements.uniform)

    chosen_gpus = {shape.gpus for shape in chosen_shapes}
    return [_document(assessed, other, chosen_gpus) for other in unused_shapes(assessed, is_used, against)]


def shape_document(shape: Shape, count: int) -> dict[str, Any]:
    """Return a shape with a number of replicas as the plan document shows it."""
    return hardware_document(shape) | {"precision": shape.precision, "replicas": count}


def hardware_document(shape: Shape) -> dict[str, Any]:
    """Return the GPUs of a replica as documents show them, and how a model is split over several."""
    document: dict[str, Any] = {
        "sku": shape.sku,
        "profile": shape.profile,
        "tensorParallel": shape.tensor_parallel,
    }
    return document | ({"pipelineParallel": shape.pipeline_parallel} if shape.pipeline_parallel > 1 else {})


def _document(assessed: AssessedShapes, other: UnusedShape, chosen_gpus: Collection[int]) -> dict[str, Any]:
    document = {
        "chosen": [shape_document(other.shape, other.replicas)],
        "costPerHour": round(other.cost_per_hour, 6),
    }
    if isinstance(other.reason, Rejection):
        return document | _rejection_document(assessed, other.reason)
    return document | {
        "unmet": round(_unmet_share(assessed, other), 6),
        "rejectedBecause": other.reason.word,
        "message": reason_sentence(other.reason) + gang_sentence(assessed, other.shape, chosen_gpus),
    }


def _unmet_share(assessed: AssessedShapes, other: UnusedShape) -> float:
    """Return the share of the demand that the replicas of one shape leave unmet."""
    requirements, key = assessed.requirements, other.shape.key
    offers = tuple(packing_offer(offer) for offer in assessed.serving if offer.key == key)
    rate, least = requirements.rps or 0.0, requirements.least
    alone = Demand(requirements.id, offers=offers, rate=rate, min_replicas=least)
    return on_any_fleet(alone).unmet({key: other.replicas}) / UNMET


def _own_limit(
    assessed: AssessedShapes, offer: ServingShape, count: int, choice: Choice, bounds: ReplicaBounds
) -> reasons.ShapeReason | None:
    """Return the reason against a shape whatever the rest of the fleet does; None: there is none."""
    requirements, cost = assessed.requirements, count * offer.price_per_hour
    budget = requirements.intent.budget_per_hour
    if requirements.most is not None and count > requirements.most:
        return reasons.TooManyReplicas(count, requirements.most)
    if budget is not None and cost > budget:
        return reasons.OverBudget(cost, budget)
    most = bounds.inside(requirements.pools).of(offer.key)
    if count > most:
        return reasons.NotEnoughGPUs(count, most, if_empty=True)
    if choice.unmet == 0 and cost > choice.price_per_hour + _ROUNDING:
        return reasons.Dearer(cost - choice.price_per_hour)
    return None


def _rejection_document(assessed: AssessedShapes, rejection: Rejection) -> dict[str, Any]:
    document: dict[str, Any] = {"rejectedBecause": rejection.constraint.reason, "message": rejection.message}
    if math.isfinite(rejection.excess):
        document["excess"] = round(rejection.excess, 4)
    relaxation = assessed.relaxation(rejection)
    # The engine of the cluster serves the stored format on one GPU: another format or more GPUs do not help.
    any_engine = not assessed.requirements.uniform
    if relaxation is not None and (any_engine or changes_settings_only(relaxation)):
        document["servesWith"] = relaxation.text
    return document
