"""`tangram plan`: the layout of a fleet that serves its LLMDeployments at the least cost, from files."""

from pathlib import Path

import click

from tangram.catalog import Architecture
from tangram.catalog.prices import Prices
from tangram.cli.options.planning import facts_option, time_limit_option
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option
from tangram.cli.plan.document import cli_document
from tangram.cli.plan.input_files import read_fleet
from tangram.cli.plan.table import show
from tangram.plan.fleet_input.documents.fleet_input import PlanTerms
from tangram.plan.fleet_input.documents.merge_documents import with_command_line_terms
from tangram.plan.place.best.pack import PlanTimeLimit


@click.command(name="plan")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Input file (YAML or JSON), repeatable; - is standard input. Kinds: Snapshot, Inventory,"
    " SliceRequest, GPUPool, LLMDeployment, PriorityClass, Node, Pod.",
)
@facts_option
@click.option("--move-cost", type=float, help="USD for a move of an instance that no LLMDeployment owns.")
@click.option("--move-budget", type=int, help="Largest number of replicas that may move.")
@click.option(
    "--horizon", type=float, help="A move must pay for itself within this many hours.  [default: 1]"
)
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
    "--explain", metavar="NAME", help="Plan the fleet again for every alternative of this LLMDeployment."
)
@click.option("--picture", metavar="FILE", help="Draw the slices of every GPU into a file: .svg or .png.")
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
    """Plan a whole fleet: the GPUs and slices on which each LLMDeployment runs, at the least cost.

    \b
    tangram plan -f inventory.yaml -f deployments.yaml
    tangram snapshot -o fleet.yaml && tangram plan -f fleet.yaml -f new-model.yaml
    kubectl get nodes,pods -A -o yaml | tangram plan -f - -f deployments.yaml -o json
    """
    if picture is not None:
        from tangram.cli.plan.picture import check_picture  # noqa: PLC0415 - only for --picture

        check_picture(Path(picture))
    source = read_fleet(files, facts)
    terms = PlanTerms(tuple(prices.overrides.items()), move_cost, move_budget, horizon)
    plan_of_fleet = cli_document(with_command_line_terms(source.fleet_input, terms), limits, changes, explain)
    if picture is not None:
        from tangram.cli.plan.picture import draw  # noqa: PLC0415 - only for --picture

        draw(Path(picture), plan_of_fleet)
    if fmt == "table":
        show(plan_of_fleet, observed=source.cluster is not None)
    else:
        document(plan_of_fleet, fmt)
