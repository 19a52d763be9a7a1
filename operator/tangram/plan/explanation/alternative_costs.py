"""Cost of the whole fleet with one LLMDeployment on another shape, for each shape that serves it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tangram.catalog import InputError
from tangram.fleet import ShapeKey
from tangram.packing import Offer, Packing
from tangram.plan.place.best.demands import packing_offer
from tangram.plan.place.best.packing_problem import FleetProblem

Solve = Callable[[FleetProblem], Packing]


def deployment_id(fleet: FleetProblem, name: str) -> str:
    """Return the id of an LLMDeployment by its name, with or without `llmdep/`. Raises `InputError`."""
    short_name = name.removeprefix("llmdep/").removeprefix("llmdeployment/")
    ids = [
        d.id
        for d in fleet.inputs.deployments
        if short_name in {d.id, d.intent.name, f"{d.intent.namespace}/{d.intent.name}"}
    ]
    if len(ids) == 1:
        return ids[0]
    existing = ", ".join(d.id for d in fleet.inputs.deployments) or "there is none"
    raise InputError("--explain", f"{name!r} is {'more than one' if ids else 'no'} LLMDeployment: {existing}")


def with_alternative_costs(
    fleet: FleetProblem, plan: dict[str, Any], document: dict[str, Any], solve: Solve, deployment: str
) -> dict[str, Any]:
    """Return the deployment's document with the fleet's cost at every alternative that serves."""
    assessed = fleet.assessed.get(deployment)
    if assessed is None:
        return document
    alternatives = []
    for alternative in document["alternatives"]:
        (chosen,) = alternative["chosen"]
        gpus = chosen["tensorParallel"] * chosen.get("pipelineParallel", 1)
        serving_shape = assessed.offer(ShapeKey(chosen["sku"], chosen["profile"], gpus))
        costs = _forced(fleet, plan, deployment, packing_offer(serving_shape), solve) if serving_shape else {}
        alternatives.append(alternative | costs)
    return document | {"alternatives": alternatives}


def _forced(
    fleet: FleetProblem, plan: dict[str, Any], deployment: str, offer: Offer, solve: Solve
) -> dict[str, Any]:
    """Return the costs of the fleet with a deployment on one shape, without its budget and maxReplicas."""
    demands = tuple(
        replace(d, offers=(offer,), max_replicas=None, budget_per_hour=None) if d.id == deployment else d
        for d in fleet.problem.demands
    )
    forced = solve(replace(fleet, problem=replace(fleet.problem, demands=demands)))
    unmet_change = sum(u.share for u in forced.unmet) - sum(u["share"] for u in plan["unmet"])
    return {
        "fleetCostPerHour": round(forced.cost_per_hour, 6),
        "fleetObjectiveChange": round(forced.objective - plan["objective"], 6),
        "unmetChange": round(unmet_change, 6),
    }
