"""The explanation of one LLMDeployment as JSON and YAML show it: requirements, devices, decision and plan."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tangram.cli.options.planning import explained_deployment
from tangram.cli.plan.applied_documents import AppliedSnapshot
from tangram.cli.plan.headline import distance, one_shape, proof
from tangram.cli.plan.input_files import PlanSource
from tangram.eligibility.shapes.serving_requirements import ServingRequirements, identity
from tangram.fleet import WHOLE_GPU, Alternative, Intent, ParsedIntent, ProvisionedLoad, Shape, ShapeKey
from tangram.plan import plan as operator_plan
from tangram.plan.explanation.alternatives import hardware_document
from tangram.plan.inputs_hash import inputs_hash
from tangram.plan.place.best.pack import PlanTimeLimit
from tangram.plan.recommend import PlannedFleet, plan_fleet

_FLEET_KEYS = ("status", "gap", "gpusInUse", "costPerHour")


def explanation_document(
    source: PlanSource, namespace: str, name: str, limits: PlanTimeLimit
) -> dict[str, Any]:
    """Return the explanation of one LLMDeployment of `source`."""
    fleet_input, demand_id = source.fleet_input, identity(namespace, name)
    explanation: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "inputsHash": inputs_hash(fleet_input),
    }
    requirements = next(
        (deployment for deployment in fleet_input.deployments if deployment.id == demand_id), None
    )
    if requirements is not None:
        explanation |= {"model": requirements.architecture.name, "asks": _requirements(requirements)}
    if source.cluster is not None:
        intents = {(intent.namespace, intent.name): intent for intent in source.cluster.intents}
        intent = intents[namespace, name]
        explanation |= {"modelURI": intent.model_uri} if isinstance(intent, Intent) else {}
        explanation["operator"] = _decision(source.cluster, intent, time.time())
        if intent.uid in source.cluster.scaling_active:
            explanation["scalingActive"] = source.cluster.scaling_active[intent.uid]
        load = dict(source.cluster.snapshot.provisioned).get(intent.uid)
        if load is not None:
            explanation["load"] = _load(load)
        decisions = source.cluster.decisions.get(intent.uid, ())
        if decisions:
            explanation["scaling"] = [
                decision.model_dump(by_alias=True, mode="json", exclude_none=True) for decision in decisions
            ]
    plan = plan_fleet(fleet_input, limits)
    explanation["runsOn"] = _runs_on(plan, demand_id)
    if requirements is not None:
        explained = explained_deployment(plan, demand_id, limits)
        explanation["plan"] = _plan(plan, explained, demand_id)
        explanation["alternatives"] = explained["alternatives"]
        explanation["because"] = explained.get("because", [])
        explanation["relaxations"] = explained.get("relaxations", [])
    explanation["notes"] = [
        text
        for deployment in plan.document["deployments"]
        if (deployment["namespace"], deployment["name"]) == (namespace, name)
        for text in deployment["notes"]
    ]
    explanation["notes"] += [text for text in fleet_input.notes if text.startswith(f"{demand_id} ")]
    return explanation


def _load(load: ProvisionedLoad) -> dict[str, Any]:
    return {
        "requestsPerSecond": float(f"{load.requests_per_second:.3g}"),
        "inputTokens": round(load.prompt_tokens),
        "outputTokens": round(load.answer_tokens),
    }


def _requirements(requirements: ServingRequirements) -> dict[str, Any]:
    """Return traffic, objectives and limits with their defaults, without what is not set."""
    request = requirements.request
    spread = {"node": requirements.intent.spread.node, "zone": requirements.intent.spread.zone}
    settings: dict[str, Any] = {
        "requestsPerSecond": requirements.rps,
        "inputTokens": round(request.prompts.mean),
        "inputTokensP90": round(request.prompts.p90),
        "outputTokens": round(request.answers.mean),
        "outputTokensP90": round(request.answers.p90),
        "percentile": request.percentile,
        "ttftMilliseconds": request.ttft_ms,
        "tpotMilliseconds": request.tpot_ms,
        "replicas": {"min": requirements.least, "max": requirements.most},
        "priority": requirements.intent.priority,
        "precision": requirements.intent.precision,
        "mig": str(requirements.intent.mig),
        "allowedSKUs": list(requirements.intent.allowed_skus),
        "deniedSKUs": list(requirements.intent.denied_skus),
        "pools": list(requirements.pools),
        "budgetPerHour": requirements.intent.budget_per_hour,
        "spread": {place: share for place, share in spread.items() if share < 1},
        "paused": requirements.intent.paused,
    }
    return {key: value for key, value in settings.items() if value is not None and value not in ([], {})}


def _runs_on(plan: PlannedFleet, demand_id: str) -> list[dict[str, Any]]:
    """Return the replicas that run now, by device and node."""
    replicas: Counter[tuple[str, str, int, str]] = Counter()
    gangs: Counter[tuple[str, str, str]] = Counter()
    for gpu in plan.fleet.problem.gpus:
        for instance in gpu.instances:
            if instance.owner != demand_id:
                continue
            if instance.gang is None:
                replicas[gpu.sku, instance.profile, 1, gpu.node] += 1
            else:
                gangs[gpu.sku, instance.gang, gpu.node] += 1
    for (sku, _, node), size in gangs.items():
        replicas[sku, WHOLE_GPU, size, node] += 1
    assessed = plan.fleet.assessed.get(demand_id)

    def hardware(sku: str, profile: str, size: int) -> dict[str, Any]:
        offer = assessed.offer(ShapeKey(sku, profile, size)) if assessed is not None else None
        return hardware_document(Shape(sku, profile, size) if offer is None else offer.shape)

    return [
        {**hardware(sku, profile, size), "node": node, "replicas": count}
        for (sku, profile, size, node), count in sorted(replicas.items())
    ]


def _plan(plan: PlannedFleet, explained: Mapping[str, Any], demand_id: str) -> dict[str, Any]:
    """Return the devices, cost and moves of one LLMDeployment in the plan of the whole fleet."""
    document = plan.document
    nodes = sorted({g["node"] for g in document["gpus"] for i in g["instances"] if i["owner"] == demand_id})
    return {
        "fleet": {key: document[key] for key in _FLEET_KEYS} | _claims(document),
        "chosen": explained["chosen"],
        "nodes": nodes,
        "costPerHour": explained["costPerHour"],
        "unmet": explained["unmet"],
        "moves": [move for move in document["moves"] if move["owner"] == demand_id],
        "unmetReason": next((u["reason"] for u in document["unmet"] if u["name"] == demand_id), ""),
    }


def _claims(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what is proved of the fleet's plan, and the cost of one shape per LLMDeployment."""
    mixes = one_shape(document)
    claims = {"proof": proof(document), "distance": distance(document)}
    return claims if mixes is None else claims | {"oneShapePerDeployment": mixes}


def _decision(cluster: AppliedSnapshot, intent: ParsedIntent, now: float) -> dict[str, Any]:
    """Return the operator's decision at `now`, on the devices that exist and without moves."""
    decisions = operator_plan(cluster.snapshot, cluster.intents, now).decisions
    decision = next(decision for decision in decisions if decision.owner_uid == intent.uid)
    document: dict[str, Any] = {
        "accepted": {"reason": decision.accepted_reason, "message": decision.accepted_message},
        "modelReady": {"reason": decision.model_reason, "message": decision.model_message},
        "placed": {"reason": decision.placed_reason, "message": decision.placed_message},
        "desired": decision.desired,
        "replicas": decision.placed_of_all_shapes,
        "alternatives": [_alternative(other) for other in decision.alternatives],
    }
    if decision.cost_per_hour is not None:
        document["costPerHour"] = round(decision.cost_per_hour, 6)
    if decision.runtime_reason:
        document["runtimeReason"] = decision.runtime_reason
    return document if decision.shape is None else document | {"shape": _shape(decision.shape)}


def _shape(shape: Shape) -> dict[str, Any]:
    return hardware_document(shape) | {"precision": shape.precision}


def _alternative(other: Alternative) -> dict[str, Any]:
    return _shape(other.shape) | {
        "replicas": other.replicas,
        "costPerHour": round(other.cost_per_hour, 6),
        "rejectedBecause": other.rejected_because,
        "message": other.message,
    }
