"""Options and the explanation of one LLMDeployment that `tangram plan` and `tangram explain` share."""

import time
from typing import Any

import click

from tangram.catalog import Architecture, InputError
from tangram.plan.explanation.alternative_costs import with_alternative_costs
from tangram.plan.explanation.unmet_explanation import unmet_explanation
from tangram.plan.place.best.pack import PlanTimeLimit, pack
from tangram.plan.recommend import PlannedFleet

LONGEST_S = 86_400


def explained_deployment(plan: PlannedFleet, demand_id: str, limits: PlanTimeLimit) -> dict[str, Any]:
    """Return the plan's document of one LLMDeployment with the fleet cost of every alternative and, where
    part of it is not served, the reasons and the changes with which it is.
    """
    index = [deployment.id for deployment in plan.fleet.inputs.deployments].index(demand_id)
    deployment_document = plan.document["deployments"][index]
    if "because" not in deployment_document:  # a plan explains only the most important ones
        deployment_document = deployment_document | unmet_explanation(plan.fleet, plan.packing, demand_id)
    return with_alternative_costs(
        plan.fleet, plan.document, deployment_document, lambda problem: pack(problem, limits), demand_id
    )


def _limits(_context: click.Context, _option: click.Parameter, time_limit: float | None) -> PlanTimeLimit:
    if time_limit is not None and not 0 < time_limit <= LONGEST_S:
        raise InputError(
            "--time-limit", f"must be above 0 and at most {LONGEST_S} seconds, not {time_limit:g}"
        )
    return PlanTimeLimit(wall_s=time_limit, clock=time.monotonic)


time_limit_option = click.option(
    "--time-limit",
    "limits",
    type=float,
    metavar="SECONDS",
    callback=_limits,
    help="Stop planning after this time and show the best plan so far, with its gap.",
)


def _models(
    _context: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, Architecture]:
    """Return models by the name of their LLMDeployment."""
    models = {}
    for value in values:
        from tangram.cli.options.model import named_model  # noqa: PLC0415 - only for --model-facts

        name, equals, source = value.partition("=")
        if not (name and equals and source):
            raise InputError("--model-facts", f"{value!r} is not NAME=MODEL")
        models[name] = named_model(source, "--model-facts")
    return models


facts_option = click.option(
    "--model-facts",
    "facts",
    multiple=True,
    metavar="NAME=MODEL",
    callback=_models,
    help="Model of an LLMDeployment: a directory with config.json, or a well-known model; repeatable.",
)
