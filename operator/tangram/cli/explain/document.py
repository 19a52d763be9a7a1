"""One LLMDeployment explained, as a document: what it asks, where it runs, what becomes of it and why."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tangram.cli.plan.applied_documents import Observed
from tangram.cli.plan.headline import distance, one_shape, proof
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.fleet import WHOLE_GPU, Alternative, ParsedIntent, Shape
from tangram.planner import plan as decide
from tangram.recommendation.recommend import PlannedFleet

_PLAN = ("status", "gap", "gpusInUse", "costPerHour")


def asks(wanted: ServingRequirements) -> dict[str, Any]:
    """Return what is asked, defaults filled in; what nobody limits is left out."""
    request = wanted.request
    found: dict[str, Any] = {
        "requestsPerSecond": wanted.rps,
        "inputTokens": round(request.prompts.mean),
        "inputTokensP90": round(request.prompts.p90),
        "outputTokens": round(request.answers.mean),
        "outputTokensP90": round(request.answers.p90),
        "percentile": request.percentile,
        "ttftMilliseconds": request.ttft_ms,
        "tpotMilliseconds": request.tpot_ms,
        "replicas": {"min": wanted.least, "max": wanted.most},
        "priority": wanted.priority,
        "precision": wanted.precision,
        "mig": str(wanted.mig),
        "allowedSKUs": list(wanted.allowed_skus),
        "deniedSKUs": list(wanted.denied_skus),
        "pools": list(wanted.pools),
        "budgetPerHour": wanted.budget_per_hour,
        "spread": {key: share for key, share in _spread(wanted).items() if share < 1},
        "paused": wanted.paused,
    }
    return {key: value for key, value in found.items() if value is not None and value not in ([], {})}


def _spread(wanted: ServingRequirements) -> dict[str, float]:
    return {"node": wanted.spread.node, "zone": wanted.spread.zone}


def runs_on(plan: PlannedFleet, who: str) -> list[dict[str, Any]]:
    """Return what it holds now, by kind of slice and node; the GPUs of one replica count once."""
    found: Counter[tuple[str, str, int, str]] = Counter()
    gangs: Counter[tuple[str, str, str]] = Counter()
    for gpu in plan.asked.problem.gpus:
        for instance in gpu.instances:
            if instance.owner != who:
                continue
            if instance.gang is None:
                found[gpu.sku, instance.profile, 1, gpu.node] += 1
            else:
                gangs[gpu.sku, instance.gang, gpu.node] += 1
    for (sku, _, node), size in gangs.items():
        found[sku, WHOLE_GPU, size, node] += 1
    return [
        {"sku": sku, "profile": profile, "tensorParallel": size, "node": node, "replicas": count}
        for (sku, profile, size, node), count in sorted(found.items())
    ]


def planned_for(plan: PlannedFleet, told: Mapping[str, Any], who: str) -> dict[str, Any]:
    """Return what the plan of the whole fleet makes of it. `told`: its document, alternatives tried."""
    document = plan.document
    nodes = sorted({g["node"] for g in document["gpus"] for i in g["instances"] if i["owner"] == who})
    return {
        "fleet": {key: document[key] for key in _PLAN} | _claims(document),
        "chosen": told["chosen"],
        "nodes": nodes,
        "costPerHour": told["costPerHour"],
        "unmet": told["unmet"],
        "moves": [move for move in document["moves"] if move["owner"] == who],
        "unmetReason": next((u["reason"] for u in document["unmet"] if u["name"] == who), ""),
    }


def _claims(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what is proved of the plan of the whole fleet, and what one shape per LLMDeployment costs."""
    mixes = one_shape(document)
    claims = {"proof": proof(document), "distance": distance(document)}
    return claims if mixes is None else claims | {"oneShapePerDeployment": mixes}


def decided(seen: Observed, intent: ParsedIntent, now: float) -> dict[str, Any]:
    """Return what the operator does with it at `now`: on what there is, cutting and moving nothing."""
    made = decide(seen.snapshot, seen.intents, now)
    found = next(each for each in made.decisions if each.owner_uid == intent.uid)
    return {
        "accepted": {"reason": found.accepted_reason, "message": found.accepted_message},
        "modelReady": {"reason": found.model_reason, "message": found.model_message},
        "placed": {"reason": found.placed_reason, "message": found.placed_message},
        "desired": found.desired,
        "replicas": found.placed,
        "costPerHour": round(found.price_per_hour, 6),
        "alternatives": [_alternative(each) for each in found.alternatives],
    } | ({} if found.shape is None else {"shape": _shape(found.shape)})


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "sku": shape.sku,
        "profile": shape.profile,
        "tensorParallel": shape.tensor_parallel,
        "precision": shape.precision,
    }


def _alternative(other: Alternative) -> dict[str, Any]:
    return _shape(other.shape) | {
        "replicas": other.replicas,
        "costPerHour": round(other.cost_per_hour, 6),
        "rejectedBecause": other.rejected_because,
        "message": other.message,
    }
