"""Why an LLMDeployment runs on its shape: each other shape that serves it, tried on the whole fleet."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tangram.catalog import InputError
from tangram.fleet import ShapeKey
from tangram.packing import Offer, Packing
from tangram.recommendation.problem.problem import FleetProblem

Solve = Callable[[FleetProblem], Packing]


def deployment_id(asked: FleetProblem, name: str) -> str:
    """Return the id of an LLMDeployment by its name; `llmdep/NAME` is understood."""
    wanted = name.removeprefix("llmdep/").removeprefix("llmdeployment/")
    ids = [d.id for d in asked.given.deployments if wanted in {d.id, d.name, f"{d.namespace}/{d.name}"}]
    if len(ids) == 1:
        return ids[0]
    known = ", ".join(d.id for d in asked.given.deployments) or "there is none"
    raise InputError("--explain", f"{name!r} is {'more than one' if ids else 'no'} LLMDeployment: {known}")


def with_alternative_costs(
    asked: FleetProblem, plan: dict[str, Any], found: dict[str, Any], solve: Solve, deployment: str
) -> dict[str, Any]:
    """Return the deployment's document with, at every alternative that serves, what the fleet would cost."""
    each = asked.sized.get(deployment)
    if each is None:
        return found
    done = []
    for other in found["alternatives"]:
        (chosen,) = other["chosen"]
        shape = each.offer(ShapeKey(chosen["sku"], chosen["profile"], chosen["tensorParallel"]))
        done.append(other | (_forced(asked, plan, deployment, shape.offer, solve) if shape else {}))
    return found | {"alternatives": done}


def _forced(
    asked: FleetProblem, plan: dict[str, Any], deployment: str, offer: Offer, solve: Solve
) -> dict[str, Any]:
    """Return the fleet with a deployment on one shape alone, whatever its budget and maxReplicas."""
    demands = tuple(
        replace(d, offers=(offer,), max_replicas=None, budget_per_hour=None) if d.id == deployment else d
        for d in asked.problem.demands
    )
    forced = solve(replace(asked, problem=replace(asked.problem, demands=demands)))
    lost = sum(u.share for u in forced.unmet) - sum(u["share"] for u in plan["unmet"])
    return {
        "fleetCostPerHour": round(forced.cost_per_hour, 6),
        "fleetObjectiveChange": round(forced.objective - plan["objective"], 6),
        "unmetChange": round(lost, 6),
    }
