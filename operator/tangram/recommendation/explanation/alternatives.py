"""Other shapes that an LLMDeployment could run on, each with the one reason why the plan does not use it."""

import math
from typing import Any

from tangram.capacity.sizing import Rejection, ServingShape
from tangram.eligibility.shapes.serving_shapes import AssessedShapes
from tangram.fleet import Shape, ShapeKey
from tangram.packing import Choice, Demand
from tangram.packing.problem.mix import UNMET, on_any_fleet
from tangram.recommendation.explanation.no_serving_shape import changes_settings_only
from tangram.recommendation.problem.demands import packing_offer
from tangram.recommendation.problem.fleet_shapes import replicas
from tangram.recommendation.problem.replica_bounds import ReplicaBounds

_MOST = 5
_LEAST_SERVING = 3  # of these at least, shapes that serve, where there are so many
_FLEET = {
    True: "costs no more by its share of GPUs, but the whole fleet would neither cost less nor serve more",
    False: "costs no more by its share of GPUs, but no better plan of the whole fleet was found with it",
}


def alternatives(
    assessed: AssessedShapes, choice: Choice, bounds: ReplicaBounds, *, proved: bool
) -> list[dict[str, Any]]:
    """Return up to five: the cheapest other shapes that serve, then those nearest to serving.

    `proved`: it is proved that no plan of the fleet serves more, or as much for less.
    """
    chosen_shapes = {part.shape for part in choice.parts}
    serving = [
        offer for offer in assessed.serving if offer.key not in chosen_shapes or len(chosen_shapes) > 1
    ]
    nearest = sorted(assessed.rejected, key=lambda r: (r.excess, str(r.shape), r.shape.precision))
    nearest_rejections = _one_per_shape(nearest, {offer.key for offer in assessed.serving})
    most_serving = max(_LEAST_SERVING, _MOST - len(nearest_rejections))
    documents = [_serving(assessed, offer, choice, bounds, proved) for offer in serving[:most_serving]]
    return documents + [_rejected(assessed, r) for r in nearest_rejections[: _MOST - len(documents)]]


def _one_per_shape(rejected: list[Rejection], serving: set[ShapeKey]) -> list[Rejection]:
    by_shape: dict[ShapeKey, Rejection] = {}
    for rejection in rejected:
        if rejection.shape.key not in serving:
            by_shape.setdefault(rejection.shape.key, rejection)
    return list(by_shape.values())


def shape_document(shape: Shape, count: int) -> dict[str, Any]:
    """Return a shape with a number of replicas as the plan document shows it."""
    return {
        "sku": shape.sku,
        "profile": shape.profile,
        "tensorParallel": shape.tensor_parallel,
        "precision": shape.precision,
        "replicas": count,
    }


def _serving(
    assessed: AssessedShapes, offer: ServingShape, choice: Choice, bounds: ReplicaBounds, proved: bool
) -> dict[str, Any]:
    requirements, count = assessed.requirements, replicas(assessed.requirements, offer)
    cost = count * offer.price_per_hour
    rate, least = requirements.rps or 0.0, requirements.least
    alone = Demand(requirements.id, offers=(packing_offer(offer),), rate=rate, min_replicas=least)
    unmet = on_any_fleet(alone).unmet({offer.key: count}) / UNMET
    one_shape = " with one shape per LLMDeployment" if requirements.uniform else ""
    own_limit = _own_limit(assessed, offer, count, choice, bounds)
    reason, message = own_limit or ("Fleet", _FLEET[proved] + one_shape)
    return {
        "chosen": [shape_document(offer.shape, count)],
        "costPerHour": round(cost, 6),
        "unmet": round(unmet, 6),
        "rejectedBecause": reason,
        "message": message,
    }


def _own_limit(
    assessed: AssessedShapes, offer: ServingShape, count: int, choice: Choice, bounds: ReplicaBounds
) -> tuple[str, str] | None:
    """Return the reason against a shape whatever the rest of the fleet does; None: there is none."""
    requirements, cost = assessed.requirements, count * offer.price_per_hour
    needs = f"needs {count} {'replica' if count == 1 else 'replicas'}"
    budget = requirements.intent.budget_per_hour
    if requirements.most is not None and count > requirements.most:
        return "MaxReplicas", f"{needs}, scaling.maxReplicas allows {requirements.most}"
    if budget is not None and cost > budget:
        return "Budget", f"costs {cost:.2f} $/h, placement.budgetPerHour is {budget:.2f}"
    most = bounds.inside(requirements.pools).of(offer.key)
    if count > most:
        return "NotEnoughGPUs", f"{needs}, the fleet has room for {most} if it were empty"
    if choice.unmet == 0 and cost > choice.price_per_hour + 1e-9:
        return "Dearer", f"costs {cost - choice.price_per_hour:.2f} $/h more by its share of GPUs"
    return None


def _rejected(assessed: AssessedShapes, rejection: Rejection) -> dict[str, Any]:
    relaxation, count = assessed.relaxation(rejection), max(1, assessed.requirements.least)
    document = {
        "chosen": [shape_document(rejection.shape, count)],
        "costPerHour": round(count * assessed.price(rejection.shape), 6),
        "rejectedBecause": rejection.constraint.reason,
        "message": rejection.message,
    }
    if math.isfinite(rejection.excess):
        document["excess"] = round(rejection.excess, 4)
    # The engine of the cluster serves the stored format on one GPU: another format or more GPUs do not help.
    any_engine = not assessed.requirements.uniform
    if relaxation is not None and (any_engine or changes_settings_only(relaxation)):
        document["servesWith"] = relaxation.text
    return document
