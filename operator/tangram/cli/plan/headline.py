"""The first lines of a plan: its cost, and the proved distance from the optimum."""

from collections.abc import Mapping, Sequence
from typing import Any

from tangram.cli.output import counted
from tangram.plan.explanation.one_shape_cost import points

_CENT = 0.005
_EQUAL = 1e-6  # USD, or LLMDeployments


def money(usd: float) -> str:
    """Return USD with two decimals, four below one cent."""
    return f"{usd:.2f}" if usd >= _CENT or usd == 0 else f"{usd:.4f}"


def headline(plan: Mapping[str, Any]) -> str:
    """Return the cost of the plan and its distance from the optimum."""
    idle = f", {money(plan['idlePerHour'])} of it for idle parts" if plan["idlePerHour"] >= _CENT else ""
    moves = "no moves"
    if plan["moves"]:
        moves = f"{counted(len(plan['moves']), 'move')} for {money(plan['moveCost'])} $"
    new = "".join(f", {counted(group['count'], 'new node')} in {group['pool']}" for group in plan["newNodes"])
    return (
        f"{proof(plan)}: {plan['gpusInUse']} of {len(plan['gpus'])} GPUs in use,"
        f" {money(plan['costPerHour'])} $/h{idle}{new}, {moves}. Objective {money(plan['objective'])} $"
        f" over {plan['horizonHours']:g} h, {distance(plan)}."
    )


def proof(plan: Mapping[str, Any]) -> str:
    """Return what is proved of the plan, and over which set of plans."""
    space = " with one shape per LLMDeployment" if "oneShapePerDeployment" in plan else ""
    if plan["status"] == "FALLBACK":
        return f"No better plan{space} was found in time: replicas stay where they are"
    proved = all(stage["proved"] for stage in _stages(plan))
    text = ("Proved best" if proved else "The best found within the limits") + space
    return f"{text}, but some steps to it are blocked" if "stepsMissing" in plan else text


def _stages(plan: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the stages up to the cost; the headline makes no claim about later ones."""
    stages: Sequence[Mapping[str, Any]] = plan["stages"]
    names = [stage["name"] for stage in stages]
    return stages[: names.index("dollars") + 1] if "dollars" in names else stages


def distance(plan: Mapping[str, Any]) -> str:
    """Return the gap of the cost, and of unmet demand in percentage points by priority."""
    if plan["bound"] <= 0 < plan["objective"]:
        dollars = "no bound was found in time"
    else:
        dollars = f"bound {money(plan['bound'])} $, gap {plan['gap']:.2%}"
    return "; ".join([dollars, *_unserved(plan)])


def _unserved(plan: Mapping[str, Any]) -> list[str]:
    texts = []
    for stage in _stages(plan):
        missing = stage["value"] - stage["bound"]
        if stage["name"].startswith("unmet[") and missing > _EQUAL:
            priority = stage["name"].removeprefix("unmet[").removesuffix("]")
            more = points(missing, stage["demands"])
            texts.append(f"up to {more} more of the demand of priority {priority} could be served")
    return texts


def one_shape(plan: Mapping[str, Any]) -> str | None:
    """Return the cost of one shape per LLMDeployment beside that of free mixes; None: not in the plan."""
    comparison = plan.get("oneShapePerDeployment")
    return None if comparison is None else f"One shape per LLMDeployment {comparison['text']}."
