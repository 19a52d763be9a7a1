"""`tangram explain`: the devices of one LLMDeployment, the reasons, and its alternatives."""

from dataclasses import replace

import click

from tangram.catalog import Architecture
from tangram.catalog.prices import Prices
from tangram.cli.cluster.access import ClusterAccess, access_options
from tangram.cli.explain.document import explanation_document
from tangram.cli.explain.requested_name import requested_name
from tangram.cli.explain.table import show
from tangram.cli.options.planning import facts_option, time_limit_option
from tangram.cli.options.prices import prices_option
from tangram.cli.output import document, output_option
from tangram.cli.plan.applied_documents import AppliedSnapshot, models_by_uid
from tangram.cli.plan.input_files import PlanSource, read_fleet
from tangram.plan.fleet_input.documents.fleet_input import PlanTerms
from tangram.plan.fleet_input.documents.merge_documents import with_command_line_terms
from tangram.plan.fleet_input.observed.snapshot_input import snapshot_input
from tangram.plan.place.best.pack import PlanTimeLimit
from tangram.plan.recommend import without_faulty


@click.command(name="explain")
@click.argument("name", nargs=-1, required=True, metavar="llmdep/NAME")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Needed only if several namespaces have an LLMDeployment of this name.",
)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="Explain files, as `tangram plan` reads them, instead of a cluster; repeatable.",
)
@facts_option
@time_limit_option
@prices_option
@output_option
@access_options
def explain(
    name: tuple[str, ...],
    namespace: str | None,
    files: tuple[str, ...],
    facts: dict[str, Architecture],
    limits: PlanTimeLimit,
    prices: Prices,
    fmt: str,
    **access: str | None,
) -> None:
    """Explain one LLMDeployment: what it runs on and why, cost, alternatives, and what would serve it.

    Reads the cluster with the rights of your kubeconfig, or files.

    \b
    tangram explain llmdep/chat
    tangram explain llmdep/chat -f fleet.yaml -f models.yaml
    """
    requested = requested_name(name, namespace)  # an error here needs no cluster
    source = read_fleet(files, facts) if files else _cluster(ClusterAccess(**access), facts)
    terms = PlanTerms(prices=tuple(prices.overrides.items()))
    source = replace(source, fleet_input=with_command_line_terms(source.fleet_input, terms))
    planned = (requirements.intent for requirements in source.fleet_input.deployments)
    names = [(i.namespace, i.name) for i in (planned if source.cluster is None else source.cluster.intents)]
    explanation = explanation_document(source, *requested.among(names), limits)
    if fmt == "table":
        show(explanation)
    else:
        document(explanation, fmt)


def _cluster(access: ClusterAccess, facts: dict[str, Architecture]) -> PlanSource:
    from tangram.cli.cluster.observed_cluster import read_cluster  # noqa: PLC0415

    cluster = read_cluster(access)
    for text in cluster.notes:
        click.echo(f"tangram: {text}", err=True)
    models = models_by_uid(cluster.intents, facts)
    return PlanSource(
        without_faulty(snapshot_input(cluster.fleet, cluster.intents, models)),
        AppliedSnapshot(
            cluster.fleet,
            cluster.intents,
            models,
            decisions=cluster.decisions,
            scaling_active=cluster.scaling_active,
        ),
    )
