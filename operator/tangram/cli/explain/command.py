"""`tangram explain`: why one LLMDeployment runs where it runs, what else there is, and what would help."""

import time
from typing import Any

import click

from tangram.catalog import Architecture
from tangram.catalog.prices import Prices
from tangram.cli.cluster.access import Access, access_options
from tangram.cli.explain.document import asks, decided, planned_for, runs_on
from tangram.cli.explain.requested_name import asked
from tangram.cli.explain.table import show
from tangram.cli.options.planning import explained, facts_option, time_limit_option
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option
from tangram.cli.plan.applied_documents import Observed, told_of
from tangram.cli.plan.input_files import Read, read_fleet
from tangram.eligibility.shapes.serving_requirements import identity
from tangram.fleet import Intent
from tangram.recommendation.documents.command_line_terms import with_command_line_terms
from tangram.recommendation.documents.fleet_input import PlanTerms
from tangram.recommendation.observed.snapshot_input import snapshot_input
from tangram.recommendation.problem.pack import PlanTimeLimit
from tangram.recommendation.recommend import inputs_hash, plan_fleet


@click.command(name="explain")
@click.argument("what", nargs=-1, required=True, metavar="llmdep/NAME")
@click.option("-n", "--namespace", metavar="NAME", help="Needed only where more namespaces have that name.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="Explain what files hold, as `tangram plan` reads them, and not a cluster; repeatable.",
)
@facts_option
@time_limit_option
@prices_option
@output_option
@access_options
def explain(
    what: tuple[str, ...],
    namespace: str | None,
    files: tuple[str, ...],
    facts: dict[str, Architecture],
    limits: PlanTimeLimit,
    prices: Prices,
    fmt: str,
    **access: str | None,
) -> None:
    """Explain one LLMDeployment: what it runs on and why, what it costs, what else there is, what would help.

    Reads the cluster with your own rights, or files.

    \b
    tangram explain llmdep/chat
    tangram explain llmdep/chat -f fleet.yaml -f models.yaml
    """
    wanted = asked(what, namespace)  # before a cluster is read for nothing
    read = read_fleet(files, facts) if files else _cluster(Access(**access), facts)
    given = with_command_line_terms(read.given, PlanTerms(prices=tuple(prices.overrides.items())))
    known = [(each.namespace, each.name) for each in given.deployments]
    if read.observed is not None:
        known = [(each.namespace, each.name) for each in read.observed.intents]
    found = _explained(Read(given, read.observed), wanted.among(known), limits)
    if fmt == "table":
        show(found)
    else:
        document(found, fmt)


def _cluster(access: Access, facts: dict[str, Architecture]) -> Read:
    from tangram.cli.cluster.reading import read_cluster  # noqa: PLC0415 - loads the cluster's client

    seen = read_cluster(access)
    for each in seen.notes:
        click.echo(f"tangram: {each}", err=True)
    told = told_of(seen.intents, facts)
    return Read(snapshot_input(seen.fleet, seen.intents, told), Observed(seen.fleet, seen.intents, told))


def _explained(read: Read, who: tuple[str, str], limits: PlanTimeLimit) -> dict[str, Any]:
    name = identity(*who)
    found: dict[str, Any] = {"name": who[1], "namespace": who[0], "inputsHash": inputs_hash(read.given)}
    wanted = next((each for each in read.given.deployments if each.id == name), None)
    if wanted is not None:
        found |= {"model": wanted.architecture.name, "asks": asks(wanted)}
    if read.observed is not None:
        intents = {(each.namespace, each.name): each for each in read.observed.intents}
        mine = intents[who]
        found |= {"modelURI": mine.model_uri} if isinstance(mine, Intent) else {}
        found["operator"] = decided(read.observed, mine, time.time())
    plan = plan_fleet(read.given, limits)
    found["runsOn"] = runs_on(plan, name)
    if wanted is not None:
        told = explained(plan, name, limits)
        found["plan"] = planned_for(plan, told, name)
        found["alternatives"] = told["alternatives"]
        found["because"], found["relaxations"] = told.get("because", []), told.get("relaxations", [])
    found["notes"] = [
        text for each in plan.document["deployments"] if _is(each, who) for text in each["notes"]
    ]
    found["notes"] += [note for note in read.given.notes if note.startswith(f"{name} ")]
    return found


def _is(deployment: dict[str, Any], who: tuple[str, str]) -> bool:
    return (deployment["namespace"], deployment["name"]) == who
