"""`tangram plan`: the cheapest layout of a whole fleet that serves what is asked, without a cluster."""

from functools import reduce
from pathlib import Path

import click

from tangram.catalog import Architecture
from tangram.catalog.prices import Prices
from tangram.cli.options.planning import explained, facts_option, time_limit_option
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option
from tangram.cli.plan.input_files import read_fleet
from tangram.cli.plan.table import show
from tangram.recommendation.documents.command_line_terms import with_command_line_terms
from tangram.recommendation.documents.fleet_input import PlanTerms
from tangram.recommendation.documents.what_if import with_change
from tangram.recommendation.explanation.alternative_costs import deployment_id
from tangram.recommendation.problem.pack import PlanTimeLimit
from tangram.recommendation.recommend import inputs_hash, plan_fleet

_COMPARED = ("objective", "costPerHour", "gpusInUse", "status", "moves", "unmet")


@click.command(name="plan")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Snapshot, Inventory, SliceRequest, GPUPool, LLMDeployment, PriorityClass, Node, Pod; YAML or JSON;"
    " repeatable; - is stdin.",
)
@facts_option
@click.option("--move-cost", type=float, help="USD of moving an instance that no LLMDeployment owns.")
@click.option("--move-budget", type=int, help="Most replicas that may move.")
@click.option("--horizon", type=float, help="Hours over which a saving pays for moves.  [default: 1]")
@time_limit_option
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help="Plan again with add-gpu=SKU:N,node=NAME, remove-gpu=ID, remove-node=NAME, price=SKU:USD,"
    " objective=NAME:ttft=MS (or tpot) or traffic=NAME:rps=N; repeatable.",
)
@click.option(
    "--explain", metavar="NAME", help="Try every alternative of this LLMDeployment on the whole fleet."
)
@click.option("--picture", metavar="FILE", help="Draw every GPU's slices into a file: .svg or .png.")
@prices_option
@output_option
def plan(
    files: tuple[str, ...],
    facts: dict[str, Architecture],
    move_cost: float | None,
    move_budget: int | None,
    horizon: float | None,
    limits: PlanTimeLimit,
    changes: tuple[str, ...],
    explain: str | None,
    picture: str | None,
    prices: Prices,
    fmt: str,
) -> None:
    """Plan a whole fleet: which slice of which GPU serves what, at the least cost.

    \b
    tangram plan -f inventory.yaml -f deployments.yaml
    tangram snapshot -o fleet.yaml && tangram plan -f fleet.yaml -f what-if-i-apply-this-too.yaml
    kubectl get nodes,pods -A -o yaml | tangram plan -f - -f deployments.yaml -o json
    """
    if picture is not None:
        from tangram.cli.plan.picture import check  # noqa: PLC0415 - only for whoever asks

        check(Path(picture))
    read = read_fleet(files, facts)
    given = with_command_line_terms(
        read.given, PlanTerms(tuple(prices.overrides.items()), move_cost, move_budget, horizon)
    )
    if changes:
        before, given = plan_fleet(given, limits).document, reduce(with_change, changes, given)
    made = plan_fleet(given, limits)
    found = {"inputsHash": inputs_hash(given)} | made.document
    if changes:
        found["whatIf"] = {"changes": list(changes), "before": {key: before[key] for key in _COMPARED}}
    if explain is not None:
        found["explained"] = explained(made, deployment_id(made.asked, explain), limits)
    if picture is not None:
        from tangram.cli.plan.picture import draw  # noqa: PLC0415 - only for whoever asks

        draw(Path(picture), found)
    if fmt == "table":
        show(found, observed=read.observed is not None)
    else:
        document(found, fmt)
