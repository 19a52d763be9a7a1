"""What else an LLMDeployment could have run on, and for each the one reason why it does not."""

import math
from typing import Any

from tangram.capacity.sizing import Rejection
from tangram.eligibility.shapes.rejection_reasons import REASONS
from tangram.eligibility.shapes.serving_shapes import AssessedShapes, ServingShape, replicas
from tangram.fleet import Shape
from tangram.packing import Choice, Demand
from tangram.packing.problem.mix import UNMET, on_any_fleet
from tangram.recommendation.explanation.no_serving_shape import REQUEST_SETTINGS
from tangram.recommendation.problem.replica_bounds import ReplicaBounds

MOST = 5
_FLEET = {
    True: "costs no more by its share of GPUs, but the whole fleet would neither cost less nor serve more",
    False: "costs no more by its share of GPUs, but no better plan of the whole fleet was found with it",
}
_SERVING = 3  # of them at least, shapes that would serve, where there are so many


def alternatives(
    each: AssessedShapes, choice: Choice, rooms: ReplicaBounds, *, proved: bool
) -> list[dict[str, Any]]:
    """Return up to five: the cheapest other shapes that serve, then those that are nearest to serving.

    `proved`: no plan of the fleet serves more, or as much for less.
    """
    taken = {part.shape for part in choice.parts}
    serving = [offer for offer in each.offers if offer.key not in taken or len(taken) > 1]
    nearest = sorted(each.rejected, key=lambda r: (r.excess, str(r.shape), r.shape.precision))
    rest = _one_per_shape(nearest, {offer.key for offer in each.offers})
    most_serving = max(_SERVING, MOST - len(rest))
    found = [_loser(each, offer, choice, rooms, proved) for offer in serving[:most_serving]]
    return found + [_rejected(each, r) for r in rest[: MOST - len(found)]]


def _one_per_shape(rejected: list[Rejection], serving: set[Any]) -> list[Rejection]:
    keys = {(key.sku, key.profile, key.tensor_parallel) for key in serving}
    found: dict[tuple[str, str, int], Rejection] = {}
    for each in rejected:
        key = (each.shape.sku, each.shape.profile, each.shape.tensor_parallel)
        if key not in keys:
            found.setdefault(key, each)
    return list(found.values())


def shape_document(shape: Shape, count: int) -> dict[str, Any]:
    """Return a shape as plans show it."""
    return {
        "sku": shape.sku,
        "profile": shape.profile,
        "tensorParallel": shape.tensor_parallel,
        "precision": shape.precision,
        "replicas": count,
    }


def _loser(
    each: AssessedShapes, offer: ServingShape, choice: Choice, rooms: ReplicaBounds, proved: bool
) -> dict[str, Any]:
    wanted, count = each.requirements, replicas(each.requirements, offer)
    cost = count * offer.price_per_hour
    alone = Demand(wanted.id, offers=(offer.offer,), rate=wanted.rps or 0.0, min_replicas=wanted.least)
    unmet = on_any_fleet(alone).unmet({offer.key: count}) / UNMET
    reason, message = _why(each, offer, count, choice, rooms) or (
        "Fleet",
        _FLEET[proved] + (" with one shape per LLMDeployment" if wanted.uniform else ""),
    )
    return {
        "chosen": [shape_document(offer.shape, count)],
        "costPerHour": round(cost, 6),
        "unmet": round(unmet, 6),
        "rejectedBecause": reason,
        "message": message,
    }


def _why(
    each: AssessedShapes, offer: ServingShape, count: int, choice: Choice, rooms: ReplicaBounds
) -> tuple[str, str] | None:
    """Return what speaks against a shape by itself; None: nothing."""
    wanted, cost = each.requirements, count * offer.price_per_hour
    if wanted.most is not None and count > wanted.most:
        return "MaxReplicas", f"needs {count} replicas, scaling.maxReplicas allows {wanted.most}"
    if wanted.budget_per_hour is not None and cost > wanted.budget_per_hour:
        return "Budget", f"costs {cost:.2f} $/h, placement.budgetPerHour is {wanted.budget_per_hour:.2f}"
    room = rooms.inside(wanted.pools).of(offer.key)
    if count > room:
        return "NotEnoughGPUs", f"needs {count} replicas, the fleet has room for {room} if it were empty"
    if choice.unmet == 0 and cost > choice.price_per_hour + 1e-9:
        return "Dearer", f"costs {cost - choice.price_per_hour:.2f} $/h more by its share of GPUs"
    return None


def _rejected(each: AssessedShapes, rejection: Rejection) -> dict[str, Any]:
    relaxation = each.assessed.relaxation(rejection)
    found = {
        "chosen": [shape_document(rejection.shape, max(1, each.requirements.least))],
        "costPerHour": 0.0,
        "rejectedBecause": REASONS[rejection.constraint],
        "message": rejection.message,
    }
    shape = rejection.shape
    price = each.assessed.prices.replica_hour(shape.sku, shape.profile, shape.tensor_parallel)
    if price is not None:
        found["costPerHour"] = round(max(1, each.requirements.least) * price, 6)
    if math.isfinite(rejection.excess):
        found["excess"] = round(rejection.excess, 4)
    # In the cluster the engine serves what is stored, on one GPU: what only another could do is no way out.
    any_engine = not each.requirements.uniform
    if relaxation is not None and (
        any_engine or {name for name, _ in relaxation.changes} <= set(REQUEST_SETTINGS)
    ):
        found["servesWith"] = relaxation.text
    return found
