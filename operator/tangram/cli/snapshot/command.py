"""`tangram snapshot`: save the operator's view of a cluster as a file that `tangram plan -f` reads."""

import json
from pathlib import Path

import click

from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess, access_options
from tangram.cli.output import counted, yaml_text


@click.command(name="snapshot")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write to this file instead of printing: JSON if the name ends in .json, else YAML.",
)
@access_options
def snapshot(output: str | None, **access: str | None) -> None:
    """Save the operator's view: nodes, pods that hold GPUs, LLMDeployments, GPUPools and its settings.

    Reads with the rights of your kubeconfig and changes nothing; the operator need not run. From the file,
    `tangram plan -f FILE` makes the same plan as the operator's FleetPlan, without the cluster.

    \b
    tangram snapshot -o fleet.yaml
    tangram plan -f fleet.yaml
    tangram plan -f fleet.yaml -f new-model.yaml     # what if I apply this?
    """
    from tangram.cli.cluster.observed_cluster import read_cluster  # noqa: PLC0415
    from tangram.plan.fleet_input.documents.snapshot_file import snapshot_document  # noqa: PLC0415

    cluster = read_cluster(ClusterAccess(**access))
    document = snapshot_document(cluster.fleet, cluster.intents)
    for text in cluster.notes:
        click.echo(f"tangram: {text}", err=True)
    if output is None:
        click.echo(yaml_text(document), nl=False)
        return
    as_json = output.endswith(".json")
    text = json.dumps(document, indent=1, allow_nan=False) + "\n" if as_json else yaml_text(document)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise InputError("--output", f"cannot write {output!r}: {error}") from error
    pools = len(cluster.fleet.pools) + len(cluster.fleet.invalid_pools)
    counts = (
        (len(cluster.fleet.nodes), "GPU node"),
        (pools, "GPUPool"),
        (len(cluster.intents), "LLMDeployment"),
    )
    click.echo(f"{output}: {', '.join(counted(*count) for count in counts)}", err=True)
