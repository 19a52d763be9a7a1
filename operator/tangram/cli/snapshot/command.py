"""`tangram snapshot`: what the operator sees of a cluster, as a file that `tangram plan -f` reads."""

import json
from pathlib import Path
from typing import Any

import click
import yaml

from tangram.catalog import InputError
from tangram.cli.cluster.access import Access, access_options
from tangram.cli.output import counted


@click.command(name="snapshot")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write there instead of printing; a name in .json gives JSON, else YAML.",
)
@access_options
def snapshot(output: str | None, **access: str | None) -> None:
    """Save what the operator sees: nodes, pods that hold GPUs, LLMDeployments, GPUPools, its settings.

    Reads with your own rights and changes nothing; the operator need not run. `tangram plan -f FILE` makes of
    it the very same plan as the operator's FleetPlan, anywhere.

    \b
    tangram snapshot -o fleet.yaml
    tangram plan -f fleet.yaml
    tangram plan -f fleet.yaml -f new-model.yaml     # what if I apply this, too?
    """
    from tangram.cli.cluster.reading import read_cluster  # noqa: PLC0415 - loads the cluster's client
    from tangram.recommendation.documents.snapshot_file import snapshot_document  # noqa: PLC0415

    seen = read_cluster(Access(**access))
    document = snapshot_document(seen.fleet, seen.intents)
    for each in seen.notes:
        click.echo(f"tangram: {each}", err=True)
    if output is None:
        click.echo(_text(document, as_json=False), nl=False)
        return
    _write(Path(output), _text(document, as_json=output.endswith(".json")))
    pools = len(seen.fleet.pools) + len(seen.fleet.invalid_pools)
    held = ((len(seen.fleet.nodes), "GPU node"), (pools, "GPUPool"), (len(seen.intents), "LLMDeployment"))
    click.echo(f"{output}: {', '.join(counted(*each) for each in held)}", err=True)


def _text(document: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(document, indent=1, allow_nan=False) + "\n"
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise InputError("--output", f"cannot write {str(path)!r}: {error}") from error
