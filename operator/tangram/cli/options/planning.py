"""What `tangram plan` and `tangram explain` share: options, and asking a plan about one LLMDeployment."""

import time
from collections.abc import Callable
from typing import Any

import click

from tangram.catalog import Architecture, InputError
from tangram.recommendation.explanation.alternative_costs import with_alternative_costs
from tangram.recommendation.explanation.unmet_demand import unmet_explanation
from tangram.recommendation.problem.pack import PlanTimeLimit, pack
from tangram.recommendation.recommend import PlannedFleet

LONGEST_S = 86_400


def explained(plan: PlannedFleet, who: str, limits: PlanTimeLimit) -> dict[str, Any]:
    """Return the document of LLMDeployment `who`, with every alternative tried on the whole fleet and, where
    it goes short, what rules it out and what would help.
    """
    number = [each.id for each in plan.asked.given.deployments].index(who)
    mine = plan.document["deployments"][number]
    if "because" not in mine:  # a plan explains only the most important of many
        mine = mine | unmet_explanation(plan.asked, plan.packing, who)
    return with_alternative_costs(plan.asked, plan.document, mine, lambda other: pack(other, limits), who)


def time_limit_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--time-limit`; the value arrives as `limits: Limits`."""
    return click.option(
        "--time-limit",
        "limits",
        type=float,
        metavar="SECONDS",
        callback=lambda _context, _option, seconds: _limits(seconds),
        help="Think no longer; the best plan until then is shown, with its gap.",
    )(command)


def _limits(time_limit: float | None) -> PlanTimeLimit:
    if time_limit is not None and not 0 < time_limit <= LONGEST_S:
        raise InputError(
            "--time-limit", f"must be above 0 and at most {LONGEST_S} seconds, not {time_limit:g}"
        )
    return PlanTimeLimit(wall_s=time_limit, clock=time.monotonic)


def facts_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--model-facts`; the value arrives as `facts`, models by the name of their LLMDeployment."""
    return click.option(
        "--model-facts",
        "facts",
        multiple=True,
        metavar="NAME=MODEL",
        callback=lambda _context, _option, said: _models(said),
        help="What an LLMDeployment serves: a directory with config.json, or a well-known model; repeatable.",
    )(command)


def _models(facts: tuple[str, ...]) -> dict[str, Architecture]:
    found = {}
    for each in facts:
        from tangram.cli.options.model import named_model  # noqa: PLC0415 - only for whoever says so

        name, equals, source = each.partition("=")
        if not (name and equals and source):
            raise InputError("--model-facts", f"{each!r} is not NAME=MODEL")
        found[name] = named_model(source, "--model-facts")
    return found
