"""The plan as JSON and YAML show it: the recommendation's document and what options add to it."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tangram.cli.options.planning import explained_deployment
from tangram.plan.explanation.alternative_costs import deployment_id
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.what_if import with_change
from tangram.plan.inputs_hash import inputs_hash
from tangram.plan.place.best.pack import PlanTimeLimit
from tangram.plan.recommend import plan_fleet

_COMPARED = ("objective", "costPerHour", "gpusInUse", "status", "moves", "unmet")


def cli_document(
    fleet_input: FleetInput, limits: PlanTimeLimit, changes: Sequence[str], explain: str | None
) -> dict[str, Any]:
    """Return the plan of a fleet after the `changes` of --what-if; `explain`: a deployment, or None."""
    changed_input = reduce(with_change, changes, fleet_input)
    before = plan_fleet(fleet_input, limits).document if changes else {}
    plan = plan_fleet(changed_input, limits)
    document = {"inputsHash": inputs_hash(changed_input)} | plan.document
    if changes:
        document["whatIf"] = {"changes": list(changes), "before": {key: before[key] for key in _COMPARED}}
    if explain is not None:
        document["explained"] = explained_deployment(plan, deployment_id(plan.fleet, explain), limits)
    return document
