"""Why one LLMDeployment got what it got: each other way to serve it, tried on the whole fleet."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tangram.catalog import InputError
from tangram.packing import Bundle, Packing, Part
from tangram.planner.joint.problem import Joint

Solve = Callable[[Joint], Packing]


def find(asked: Joint, name: str) -> str:
    """Return the id of the LLMDeployment that is meant; `llmdep/NAME` is understood."""
    wanted = name.removeprefix("llmdep/").removeprefix("llmdeployment/")
    ids = [d.id for d in asked.given.deployments if wanted in {d.id, d.name, f"{d.namespace}/{d.name}"}]
    if len(ids) == 1:
        return ids[0]
    known = ", ".join(d.id for d in asked.given.deployments) or "there is none"
    raise InputError("--explain", f"{name!r} is {'more than one' if ids else 'no'} LLMDeployment: {known}")


def tried(
    asked: Joint, plan: dict[str, Any], found: dict[str, Any], solve: Solve, who: str
) -> dict[str, Any]:
    """Return the deployment's document with, at every alternative that serves, what the fleet would cost."""
    each = asked.sized.get(who)
    if each is None:
        return found
    done = []
    for other in found["alternatives"]:
        parts = tuple(
            Part(s["sku"], s["profile"], s["tensorParallel"], s["replicas"]) for s in other["chosen"]
        )
        serves = all(each.offer(part.shape) is not None for part in parts)
        done.append(other | _forced(asked, plan, parts, solve, who, other) if serves else other)
    return found | {"alternatives": done}


def _forced(
    asked: Joint, plan: dict[str, Any], parts: tuple[Part, ...], solve: Solve, who: str, other: dict[str, Any]
) -> dict[str, Any]:
    only = Bundle(parts, other["costPerHour"], other.get("unmet", 0.0))
    demands = tuple(
        replace(d, bundles=(only,), offers=(), budget_per_hour=None) if d.id == who else d
        for d in asked.problem.demands
    )
    forced = solve(replace(asked, problem=replace(asked.problem, demands=demands)))
    lost = sum(u.share for u in forced.unmet) - sum(u["share"] for u in plan["unmet"])
    return {
        "fleetCostPerHour": round(forced.cost_per_hour, 6),
        "fleetObjectiveChange": round(forced.objective - plan["objective"], 6),
        "unmetChange": round(lost, 6),
    }
