"""The first lines of a plan: what it costs, and how far from the best it may be, no more than is proved."""

from collections.abc import Mapping, Sequence
from typing import Any

from tangram.cli.output import counted
from tangram.recommendation.explanation.one_shape_cost import points

_CENT = 0.005
_EQUAL = 1e-6  # USD, or LLMDeployments


def money(usd: float) -> str:
    """Return USD with as many digits as people pay."""
    return f"{usd:.2f}" if usd >= 0.005 or usd == 0 else f"{usd:.4f}"


def headline(plan: Mapping[str, Any]) -> str:
    """Return the plan in one sentence, and its distance from the best in another."""
    idle = f", {money(plan['idlePerHour'])} of it for idle parts" if plan["idlePerHour"] >= _CENT else ""
    moves = (
        f", {counted(len(plan['moves']), 'move')} for {money(plan['moveCost'])} $"
        if plan["moves"]
        else ", no moves"
    )
    new = "".join(f", {counted(each['count'], 'new node')} in {each['pool']}" for each in plan["newNodes"])
    return (
        f"{proof(plan)}: {plan['gpusInUse']} of {len(plan['gpus'])} GPUs in use,"
        f" {money(plan['costPerHour'])} $/h{idle}{new}{moves}. Objective {money(plan['objective'])} $"
        f" over {plan['horizonHours']:g} h, {distance(plan)}."
    )


def proof(plan: Mapping[str, Any]) -> str:
    """Return what is proved of the plan, and among which plans."""
    space = " with one shape per LLMDeployment" if "oneShapePerDeployment" in plan else ""
    if plan["status"] == "FALLBACK":
        return f"Nothing better{space} was found in time: what runs stays"
    proved = all(stage["proved"] for stage in _stages(plan))
    text = ("Proved best" if proved else "The best found within the limits") + space
    return f"{text}, but not all steps to it are known" if "stepsMissing" in plan else text


def _stages(plan: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the stages up to the dollars; of what follows no claim is made."""
    stages: Sequence[Mapping[str, Any]] = plan["stages"]
    names = [stage["name"] for stage in stages]
    return stages[: names.index("dollars") + 1] if "dollars" in names else stages


def distance(plan: Mapping[str, Any]) -> str:
    """Return the gaps: of demand in points, by priority, and of the dollars for what is served."""
    if plan["bound"] <= 0 < plan["objective"]:
        dollars = "no bound was found in time"
    else:
        dollars = f"bound {money(plan['bound'])} $, gap {plan['gap']:.2%}"
    return "; ".join([dollars, *_unserved(plan)])


def _unserved(plan: Mapping[str, Any]) -> list[str]:
    found = []
    for stage in _stages(plan):
        missing = stage["value"] - stage["bound"]
        if stage["name"].startswith("unmet[") and missing > _EQUAL:
            priority = stage["name"].removeprefix("unmet[").removesuffix("]")
            more = points(missing, stage["demands"])
            found.append(f"up to {more} more of the demand of priority {priority} could be served")
    return found


def one_shape(plan: Mapping[str, Any]) -> str | None:
    """Return what one shape per LLMDeployment costs, the optimum of free mixes beside it; None: no matter."""
    found = plan.get("oneShapePerDeployment")
    return None if found is None else f"One shape per LLMDeployment {found['text']}."
